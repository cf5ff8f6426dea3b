// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Sizes of an endpoint.
const (
	mostConnections = 16
	messagesPerSend = 8
	receiveSize     = messagesPerSend * iomsg.Size
	receives        = 96 // of a connection
	sends           = 64 // of a connection
	connectionSize  = receives*receiveSize + sends*iomsg.Size
	dataSize        = 1 << 20
)

// endpoint is a peer's side of RDMA connections, with memory for data and messages. One goroutine
// at a time uses it.
type endpoint struct {
	domain      rdma.ProtectionDomain
	queue       rdma.CompletionQueue
	region      *memory.Region
	registered  rdma.MemoryRegion
	connections [mostConnections]endpointConnection
	used        int // connections so far, including those that failed
}

type endpointConnection struct {
	rdma   rdma.Connection
	sent   int
	ended  bool
	silent bool // posts no receive again
}

func newEndpoint(device rdma.Device) (*endpoint, error) {
	e := &endpoint{}
	var err error
	if e.domain, err = device.NewProtectionDomain(); err != nil {
		return nil, err
	}
	if e.queue, err = device.NewCompletionQueue(mostConnections * (receives + sends)); err != nil {
		return nil, err
	}
	e.region, err = memory.Alloc("random-endpoint", dataSize+mostConnections*connectionSize)
	if err != nil {
		return nil, err
	}
	e.registered, err = e.domain.Register(e.region,
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	return e, err
}

// config returns the configuration of connection i.
func (e *endpoint) config(i int, privateData []byte) rdma.ConnectionConfig {
	config := rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, Context: uint64(i),
		SendRequests: sends, ReceiveRequests: receives, InboundReads: 8, OutboundReads: 8,
		PrivateData: privateData}
	for r := range receives {
		config.Receives = append(config.Receives, e.receive(i, r))
	}
	return config
}

func (e *endpoint) receive(connection, i int) rdma.ReceiveRequest {
	offset := dataSize + connection*connectionSize + i*receiveSize
	return rdma.ReceiveRequest{ID: uint64(i), Local: e.segment(offset, receiveSize)}
}

func (e *endpoint) segment(offset, length int) rdma.Segment {
	return rdma.Segment{Key: e.registered.LocalKey(), Length: uint32(length),
		Address: e.registered.Base() + uint64(offset)}
}

// connect establishes a connection and returns its index.
func (e *endpoint) connect(establish func(rdma.ConnectionConfig) (rdma.Connection, error),
	privateData []byte) (int, error) {
	if e.used == mostConnections {
		return 0, errors.New("no more connections")
	}
	i := e.used
	e.used++
	c, err := establish(e.config(i, privateData))
	if err != nil {
		return 0, err
	}
	e.connections[i].rdma = c
	return i, nil
}

// isOpen reports whether connection i can still send.
func (e *endpoint) isOpen(i int) bool {
	return i < e.used && e.connections[i].rdma != nil && !e.connections[i].ended
}

// send sends one message.
func (e *endpoint) send(i int, m *iomsg.Message) {
	e.post(i, m, nil)
}

// write writes length bytes of data to the peer's memory, and sends a message behind it.
func (e *endpoint) write(i int, m *iomsg.Message, key uint32, address uint64, length uint32) {
	e.post(i, m, &rdma.SendRequest{Opcode: rdma.OpWrite, Silent: true,
		Local: e.segment(0, int(min(length, dataSize))), RemoteKey: key, RemoteAddress: address})
}

func (e *endpoint) post(i int, m *iomsg.Message, before *rdma.SendRequest) {
	if !e.isOpen(i) {
		return
	}
	c := &e.connections[i]
	offset := dataSize + i*connectionSize + receives*receiveSize + c.sent%sends*iomsg.Size
	c.sent++
	iomsg.Encode(e.region.Bytes()[offset:], m)
	requests := []rdma.SendRequest{{Opcode: rdma.OpSend, Local: e.segment(offset, iomsg.Size)}}
	if before != nil {
		requests = []rdma.SendRequest{*before, requests[0]}
	}
	if c.rdma.PostSend(requests) == nil {
		c.rdma.Flush()
	}
}

// poll passes each message that has arrived to handle, and returns how many completions there were.
func (e *endpoint) poll(handle func(connection int, m *iomsg.Message)) int {
	var completions [32]rdma.Completion
	n := e.queue.Poll(completions[:])
	for _, completion := range completions[:n] {
		i := int(completion.Context)
		c := &e.connections[i]
		if completion.Opcode == rdma.OpDisconnected {
			c.ended = true
		}
		if completion.Opcode != rdma.OpReceive || completion.Status != rdma.StatusSuccess {
			continue
		}
		at := dataSize + i*connectionSize + int(completion.ID)*receiveSize
		for bytes := e.region.Bytes()[at:][:completion.Length]; len(bytes) >= iomsg.Size; {
			var m iomsg.Message
			iomsg.Decode(bytes, &m)
			handle(i, &m)
			bytes = bytes[iomsg.Size:]
		}
		if c.rdma != nil && !c.silent {
			_ = c.rdma.PostReceive([]rdma.ReceiveRequest{e.receive(i, int(completion.ID))})
		}
	}
	return n
}

// close ends all connections, and releases everything.
func (e *endpoint) close(ctx context.Context) error {
	for i := range e.connections {
		if e.isOpen(i) {
			e.connections[i].rdma.Close()
		}
	}
	for i := range e.connections {
		for e.isOpen(i) && ctx.Err() == nil {
			if e.poll(func(int, *iomsg.Message) {}) == 0 {
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	return errors.Join(e.registered.Deregister(), e.queue.Close(), e.domain.Close(),
		e.region.Close())
}
