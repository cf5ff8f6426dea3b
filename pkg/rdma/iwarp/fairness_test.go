// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"io"
	"net"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// accept establishes a connection to a client that the test plays.
func (e *endpoint) accept(config rdma.ConnectionConfig) (*connection, *net.TCPConn) {
	e.Helper()
	client := e.dial()
	request := mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 2}
	if _, err := client.Write(request.append(nil, mpaRequestKey)); err != nil {
		e.Fatal(err)
	}
	accepted, err := e.listener.Accept(contextFor(e.T))
	if err != nil {
		e.Fatal(err)
	}
	handle, err := accepted.Accept(contextFor(e.T), config)
	if err != nil {
		e.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, mpaHeaderBytes+enhancedBytes)); err != nil {
		e.Fatal(err)
	}
	return handle.(*connection), client
}

// receiveFrame makes the client send a frame and the connection receive it.
func (e *endpoint) receiveFrame(c *connection, client io.Writer) {
	e.Helper()
	if _, err := client.Write(appendZeroWrite(nil, false)); err != nil {
		e.Fatal(err)
	}
	for c.Domain.Activate() {
		c.queue.Poll(nil)
	}
}

func TestTurnIsShorterUnderContention(t *testing.T) {
	const size = 1 << 20
	e := newEndpoint(t, Options{SendBufferBytes: 2 * size, ReceiveBufferBytes: 2 * size})
	c, client := e.accept(e.config)
	domain := e.config.Domain.(*registration.Domain)
	region, err := domain.Register(memory.Wrap(make([]byte, size)), 0)
	if err != nil {
		t.Fatal(err)
	}
	otherDomain, err := e.device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	config := e.config
	config.Domain = otherDomain
	other, otherClient := e.accept(config)
	e.receiveFrame(c, client)
	go func() { _, _ = io.Copy(io.Discard, client) }()

	turn := func() uint32 {
		write := rdma.SendRequest{
			Opcode: rdma.OpWrite,
			Local:  rdma.Segment{Key: region.LocalKey(), Address: region.Base(), Length: size},
		}
		if err := c.PostSend([]rdma.SendRequest{write}); err != nil {
			t.Fatal(err)
		}
		c.Flush()
		moved := size - c.transmitter.message.left
		for c.transmitter.accepted != c.Sends.Tail {
			c.queue.Poll(nil)
		}
		c.queue.Poll(make([]rdma.Completion, 1))
		return moved
	}
	if n := turn(); n <= softrdma.LongTurnBytes+batchBytes {
		t.Errorf("a turn of the only session sends %d bytes", n)
	}
	e.receiveFrame(other, otherClient)
	if n := turn(); n == 0 || n > softrdma.LongTurnBytes+batchBytes {
		t.Errorf("a turn next to another session sends %d bytes", n)
	}
	e.closeAll([]*connection{c, other})
}
