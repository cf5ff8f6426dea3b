// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"context"
	"sync"
	"time"
	"unsafe"

	"github.com/zc-relay/zc-relay/internal/inorder"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// startTimeout bounds how long a client or consumer is starting. DOCA knows no bound.
const startTimeout = 30 * time.Second

// controlCore is a server or a client: it has connections.
type controlCore struct {
	engine  *engine
	ctx     *C.struct_doca_ctx
	control *C.struct_emu_control
	cancel  context.CancelFunc // of what is waiting: connecting, or accepting

	// The rest belongs to the engine's thread.
	stopping    bool
	connections map[*connection]struct{}
	pending     int // goroutines, except those of connections, that will post something
}

func newControl(e *engine, ctx *C.struct_doca_ctx) *controlCore {
	return &controlCore{engine: e, ctx: ctx,
		control:     (*C.struct_emu_control)(unsafe.Pointer(ctx)),
		connections: make(map[*connection]struct{})}
}

func (c *controlCore) name() string { return C.GoString(&c.control.name[0]) }

func (c *controlCore) device() string {
	return shortPCI(C.GoString(&c.ctx.dev.device.pci[0]))
}

// receiveQueue returns how many received messages may wait for the application.
func (c *controlCore) receiveQueue() int {
	if c.control.recv_queue_size != 0 {
		return int(c.control.recv_queue_size)
	}
	return C.EMU_DEFAULT_RECV_QUEUE
}

// flush sends the messages that have been submitted. They are copied here.
func (c *controlCore) flush() status.Code {
	for task := takeSubmitted(c.ctx); task != nil; task = takeSubmitted(c.ctx) {
		send := (*C.struct_doca_comch_task_send)(unsafe.Pointer(task))
		if send.connection.magic != C.EMU_CONNECTION { // it has ended since
			c.engine.complete(task, status.NotConnected)
			continue
		}
		connections.get(send.connection.core).send(send)
	}
	return status.Success
}

func (c *controlCore) end() {}

// settle finishes a stopping context that has nothing left.
func (c *controlCore) settle() {
	if c.stopping && c.pending == 0 && len(c.connections) == 0 {
		c.engine.finish(c.ctx)
	}
}

// stopConnections starts to close all connections.
func (c *controlCore) stopConnections() status.Code {
	for connection := range c.connections {
		if connection.c.children > 0 {
			return status.InUse
		}
	}
	c.stopping = true
	for connection := range c.connections {
		connection.c.closing = true
		connection.close()
	}
	c.cancel()
	return status.InProgress
}

// serverCore is a server.
type serverCore struct {
	*controlCore
	server comch.Server
}

func (s *serverCore) start() (status.Code, error) {
	ctx, cancel := context.WithCancel(context.Background())
	server, err := active.Load().Comch.Listen(ctx, comch.ServerConfig{
		Device:         s.device(),
		Representor:    shortPCI(C.GoString(&s.control.rep.rep.pci[0])),
		Name:           s.name(),
		MaxMessageSize: int(s.control.max_msg_size),
		ReceiveQueue:   s.receiveQueue(),
		Admission:      comch.Admission{MaxClients: active.Load().Limits.MaxClients},
	})
	if err != nil {
		cancel()
		return 0, err
	}
	s.server, s.cancel = server, cancel
	s.pending++
	go s.accept(ctx)
	return status.Success, nil
}

// accept passes new connections to the engine until the server stops.
func (s *serverCore) accept(ctx context.Context) {
	for {
		established, err := s.server.Accept(ctx)
		if err != nil {
			break
		}
		s.engine.do(func() { s.accepted(established) })
	}
	if err := s.server.Close(); err != nil {
		failed("stop server", err)
	}
	s.engine.do(func() {
		s.pending--
		s.settle()
	})
}

func (s *serverCore) accepted(established comch.Connection) {
	if s.stopping {
		s.pending++
		go func() {
			_ = established.Close() // the peer sees a connection that ended at once
			s.engine.do(func() {
				s.pending--
				s.settle()
			})
		}()
		return
	}
	c := newConnection(s.controlCore)
	c.ended = func() {
		s.engine.push(C.struct_emu_entry{kind: C.EMU_ENTRY_DISCONNECTED, ctx: s.ctx,
			object: unsafe.Pointer(c.c), value: 1})
		s.settle()
	}
	s.engine.push(C.struct_emu_entry{kind: C.EMU_ENTRY_CONNECTED, ctx: s.ctx,
		object: unsafe.Pointer(c.c), value: 1})
	c.start(established, s.receiveQueue())
}

func (s *serverCore) stop() status.Code { return s.stopConnections() }

// clientCore is a client. It has one connection.
type clientCore struct {
	*controlCore
	connection *connection
}

func (c *clientCore) start() (status.Code, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	c.cancel = cancel
	c.connection = newConnection(c.controlCore)
	c.connection.ended = c.ended
	c.control.connection = c.connection.c
	delete(c.connections, c.connection) // until it is established
	config := comch.ClientConfig{Device: c.device(), Name: c.name(),
		MaxMessageSize: int(c.control.max_msg_size), ReceiveQueue: c.receiveQueue()}
	c.pending++
	go func() {
		established, err := active.Load().Comch.Connect(ctx, config)
		c.engine.do(func() { c.connected(established, err) })
	}()
	return status.InProgress, nil
}

func (c *clientCore) connected(established comch.Connection, err error) {
	c.pending--
	switch {
	case err != nil && c.stopping:
		c.settle()
	case err != nil:
		failed("connect client", err)
		c.engine.enter(c.ctx, C.DOCA_CTX_STATE_IDLE)
	default:
		c.connections[c.connection] = struct{}{}
		c.connection.start(established, c.receiveQueue())
		if c.stopping {
			c.connection.close()
			return
		}
		C.emu_connection_establish(c.connection.c)
		c.engine.enter(c.ctx, C.DOCA_CTX_STATE_RUNNING)
	}
}

// ended makes a client that has lost its connection stop by itself.
func (c *clientCore) ended() {
	C.emu_connection_end(c.connection.c)
	if !c.stopping {
		c.stopping = true
		c.engine.enter(c.ctx, C.DOCA_CTX_STATE_STOPPING)
	}
	c.settle()
}

func (c *clientCore) stop() status.Code { return c.stopConnections() }

func (c *clientCore) end() { c.cancel() }

// connection is the core of a connection.
type connection struct {
	c     *C.struct_doca_comch_connection
	owner *controlCore
	comch comch.Connection
	ended func() // on the engine's thread, after everything else
	// credits holds a token for each message or event that the application may have waiting.
	credits chan struct{}
	// sending ends when this side disconnects: messages that are still queued fail.
	sending     context.Context
	stopSending context.CancelFunc

	// actions are what the peer sees in the order in which the application has caused it: messages,
	// the beginnings and ends of consumers, and the end of the connection. What concerns consumers
	// does not wait for a peer that has no room for messages.
	actions inorder.Queue

	mu       sync.Mutex
	lost     bool
	children map[child]struct{} // consumers and producers that have started
}

// child is a consumer or producer.
type child interface {
	// connectionLost is called by any goroutine, once.
	connectionLost()
}

var connections table[connection]

// newConnection makes a connection that is not established yet.
func newConnection(owner *controlCore) *connection {
	c := &connection{owner: owner, children: make(map[child]struct{})}
	c.sending, c.stopSending = context.WithCancel(context.Background())
	c.c = C.emu_connection_new(owner.control, connections.add(c))
	if c.c == nil {
		panic("libdoca emulated: out of memory")
	}
	owner.connections[c] = struct{}{}
	return c
}

//export emuEndConnection
func emuEndConnection(number C.uint32_t) { connections.remove(number) }

//export emuMessageTaken
func emuMessageTaken(number C.uint32_t) { connections.get(number).returnCredit() }

//export emuDisconnect
func emuDisconnect(number C.uint32_t) { connections.get(number).close() }

// close starts to disconnect; ended follows.
func (c *connection) close() {
	c.stopSending()
	c.actions.Do(func() {
		if err := c.comch.Close(); err != nil {
			c.comch.Abort()
		}
	})
}

// start starts the goroutines of an established connection.
func (c *connection) start(established comch.Connection, receiveQueue int) {
	c.comch = established
	c.credits = make(chan struct{}, receiveQueue)
	for range receiveQueue {
		c.credits <- struct{}{}
	}
	var receiving sync.WaitGroup
	receiving.Go(c.receive)
	go func() {
		<-established.Done()
		c.lose()
		receiving.Wait()
		c.actions.Wait()
		c.owner.engine.do(func() {
			delete(c.owner.connections, c)
			c.ended()
		})
	}()
}

// post puts an event of the connection into the ring.
func (c *connection) post(kind C.uint32_t, value uint64, payload unsafe.Pointer) {
	e := c.owner.engine
	posted := e.do(func() {
		e.push(C.struct_emu_entry{kind: kind, ctx: c.owner.ctx, object: unsafe.Pointer(c.c),
			value: C.uint64_t(value), payload: payload})
	})
	if !posted {
		C.free(payload)
	}
}

// receive passes on what the peer does, in the order in which the peer does it: as many messages
// and events at a time as the application's queue holds messages.
func (c *connection) receive() {
	for {
		select {
		case <-c.credits:
		case <-c.comch.Done():
			// What has arrived is delivered nevertheless; it is no more than the peer's credits.
		}
		next, err := c.comch.Next(context.Background())
		if err != nil {
			return
		}
		if next.IsMessage() {
			c.post(C.EMU_ENTRY_MESSAGE, uint64(len(next.Message)), C.CBytes(next.Message))
			continue
		}
		kind := C.uint32_t(C.EMU_ENTRY_CONSUMER_EXPIRED)
		if next.Event.Created {
			kind = C.EMU_ENTRY_CONSUMER_NEW
		}
		c.post(kind, uint64(next.Event.ID), nil)
	}
}

// returnCredit lets receive take one more message or event. What has arrived at the end of the
// connection had no credit.
func (c *connection) returnCredit() {
	select {
	case c.credits <- struct{}{}:
	default:
	}
}

// send queues a message, and copies it.
func (c *connection) send(task *C.struct_doca_comch_task_send) {
	message := C.GoBytes(task.msg, C.int(task.len))
	c.actions.Do(func() {
		err := c.comch.Send(c.sending, message)
		if c.sending.Err() != nil && err != nil {
			err = status.NotConnected
		}
		c.sent(task, uint64(len(message)), err)
	})
}

// sent completes a task.
func (c *connection) sent(task *C.struct_doca_comch_task_send, length uint64, err error) {
	e := c.owner.engine
	e.do(func() {
		if err == nil {
			c.c.counters[C.DOCA_COMCH_COUNTER_SENT_MESSAGES]++
			c.c.counters[C.DOCA_COMCH_COUNTER_SENT_BYTES] += C.uint64_t(length)
		}
		e.complete(&task.task, status.CodeOf(err))
	})
}

// lose lets what is queued fail, and tells the consumers and producers.
func (c *connection) lose() {
	c.stopSending()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	for child := range c.children {
		child.connectionLost()
	}
	clear(c.children)
}

// addChild makes sure that child hears of the end of the connection.
func (c *connection) addChild(child child) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return status.Errorf(status.NotConnected, "the connection has ended")
	}
	c.children[child] = struct{}{}
	return nil
}

func (c *connection) removeChild(child child) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.children, child)
}
