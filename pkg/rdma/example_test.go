// SPDX-License-Identifier: Apache-2.0

package rdma_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
)

// endpoint is one side of a connection.
type endpoint struct {
	device rdma.Device
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	memory rdma.MemoryRegion
	bytes  []byte // of memory
}

// One side writes into the memory of the other, and then sends a message that says so. The provider
// iwarp needs nothing but TCP.
func Example() {
	writeAndSend(iwarp.New(iwarp.Options{}), netip.MustParseAddr("127.0.0.1"))
	// Output:
	// responder: receive SUCCESS: "written"
	// its memory holds "a block of data"
	// initiator: send SUCCESS
	// disconnected
	// disconnected
}

// writeAndSend takes the steps of both sides on any provider, on the device with a local address.
func writeAndSend(provider rdma.Provider, address netip.Addr) {
	ctx := context.Background()
	initiator, responder := open(provider, address), open(provider, address)

	// The responder accepts the connection. Receives in the configuration are posted before the
	// connection is established, so the first message finds one.
	listener, err := responder.device.Listen(ctx, netip.AddrPortFrom(address, 0))
	must(err)
	accepted := make(chan rdma.Connection, 1)
	go func() {
		request, err := listener.Accept(ctx)
		must(err)
		config := responder.config()
		config.Receives = []rdma.ReceiveRequest{{ID: 1, Local: responder.segment(0, 16)}}
		connection, err := request.Accept(ctx, config)
		must(err)
		accepted <- connection
	}()
	connection, err := initiator.device.Connect(ctx, listener.Address(), initiator.config())
	must(err)
	peer := <-accepted

	// The Write needs the key and the address of the peer's memory. Programs exchange them in
	// messages; here both sides are in one process. The Send behind the Write arrives after its
	// data.
	copy(initiator.bytes, "a block of data")
	copy(initiator.bytes[16:], "written")
	must(connection.PostSend([]rdma.SendRequest{
		{
			ID: 2, Opcode: rdma.OpWrite, Local: initiator.segment(0, 15), Silent: true,
			RemoteKey: responder.memory.RemoteKey(), RemoteAddress: responder.memory.Base() + 100,
		},
		{ID: 3, Opcode: rdma.OpSend, Local: initiator.segment(16, 7)},
	}))
	connection.Flush()

	// Polling a completion queue also drives its connections.
	received := responder.await(initiator)
	fmt.Printf("responder: %v %v: %q\n", received.Opcode, received.Status,
		responder.bytes[:received.Length])
	fmt.Printf("its memory holds %q\n", responder.bytes[100:115])
	sent := initiator.await(responder)
	fmt.Printf("initiator: %v %v\n", sent.Opcode, sent.Status)

	// The last completion of a connection says that it has ended.
	connection.Close()
	for _, e := range []*endpoint{initiator, responder} {
		fmt.Println(e.await(initiator, responder).Opcode)
	}
	must(peer.Err())
	must(listener.Close())
	initiator.close()
	responder.close()
}

// open opens a device and registers 4096 bytes of memory that the peer may write.
func open(provider rdma.Provider, address netip.Addr) *endpoint {
	e := &endpoint{bytes: make([]byte, 4096)}
	var err error
	e.device, err = provider.Open(address)
	must(err)
	e.domain, err = e.device.NewProtectionDomain()
	must(err)
	e.queue, err = e.device.NewCompletionQueue(16)
	must(err)
	e.memory, err = e.domain.Register(memory.Wrap(e.bytes), memory.LocalWrite|memory.RemoteWrite)
	must(err)
	return e
}

func (e *endpoint) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, SendRequests: 4,
		ReceiveRequests: 4}
}

// segment returns a range of the registered memory.
func (e *endpoint) segment(offset uint64, length uint32) rdma.Segment {
	return rdma.Segment{Key: e.memory.LocalKey(), Address: e.memory.Base() + offset, Length: length}
}

// await polls until there is a completion, and drives other endpoints meanwhile. The queues of two
// real peers are polled by two threads.
func (e *endpoint) await(others ...*endpoint) rdma.Completion {
	var completions [1]rdma.Completion
	for e.queue.Poll(completions[:]) == 0 {
		for _, other := range others {
			if other != e {
				other.queue.Poll(nil)
			}
		}
		progress.Yield()
	}
	return completions[0]
}

func (e *endpoint) close() {
	must(e.memory.Deregister())
	must(e.queue.Close())
	must(e.domain.Close())
	must(e.device.Close())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
