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
	return defaultReceiveQueue
}

// defaultReceiveQueue is the size of the queue of received messages unless the application sets it.
const defaultReceiveQueue = 64

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
	// credits holds a token for each message that the application may have waiting.
	credits chan struct{}

	mu       sync.Mutex
	queue    []*C.struct_doca_comch_task_send // to be sent
	messages [][]byte                         // their contents
	wake     chan struct{}
	lost     bool
	children map[child]struct{} // consumers and producers that have started
	// announced is closed when the consumer that was started last has been announced or has failed.
	announced chan struct{}
}

// child is a consumer or producer.
type child interface {
	// connectionLost is called by any goroutine, once.
	connectionLost()
}

var connections table[connection]

// newConnection makes a connection that is not established yet.
func newConnection(owner *controlCore) *connection {
	c := &connection{owner: owner, wake: make(chan struct{}, 1), children: make(map[child]struct{}),
		announced: make(chan struct{})}
	close(c.announced)
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
func emuMessageTaken(number C.uint32_t) {
	select {
	case connections.get(number).credits <- struct{}{}:
	default: // the message arrived at the end of the connection, without a credit
	}
}

//export emuDisconnect
func emuDisconnect(number C.uint32_t) { connections.get(number).close() }

// close starts to disconnect; ended follows.
func (c *connection) close() {
	go func() {
		if err := c.comch.Close(); err != nil {
			c.comch.Abort()
		}
	}()
}

// start starts the goroutines of an established connection.
func (c *connection) start(established comch.Connection, receiveQueue int) {
	c.comch = established
	c.credits = make(chan struct{}, receiveQueue)
	for range receiveQueue {
		c.credits <- struct{}{}
	}
	var running sync.WaitGroup
	running.Go(c.receive)
	running.Go(c.watchConsumers)
	running.Go(c.sendQueued)
	go func() {
		<-established.Done()
		c.lose()
		running.Wait()
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

// receive passes messages on, as many at a time as the application's queue holds.
func (c *connection) receive() {
	for {
		select {
		case <-c.credits:
		case <-c.comch.Done():
			// What has arrived is delivered nevertheless; it is no more than the peer's credits.
		}
		message, err := c.comch.Receive(context.Background())
		if err != nil {
			return
		}
		c.post(C.EMU_ENTRY_MESSAGE, uint64(len(message)), C.CBytes(message))
	}
}

func (c *connection) watchConsumers() {
	for {
		event, err := c.comch.NextConsumerEvent(context.Background())
		if err != nil {
			return
		}
		kind := C.uint32_t(C.EMU_ENTRY_CONSUMER_EXPIRED)
		if event.Created {
			kind = C.EMU_ENTRY_CONSUMER_NEW
		}
		c.post(kind, uint64(event.ID), nil)
	}
}

// send queues a message, and copies it.
func (c *connection) send(task *C.struct_doca_comch_task_send) {
	message := C.GoBytes(task.msg, C.int(task.len))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, task)
	c.messages = append(c.messages, message)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	if c.lost {
		c.failQueuedLocked()
	}
}

// sendQueued sends queued messages, in order, until the connection ends.
func (c *connection) sendQueued() {
	for {
		select {
		case <-c.wake:
		case <-c.comch.Done():
			return
		}
		for {
			c.mu.Lock()
			if len(c.queue) == 0 {
				c.mu.Unlock()
				break
			}
			task, message := c.queue[0], c.messages[0]
			c.queue, c.messages = c.queue[1:], c.messages[1:]
			c.mu.Unlock()
			c.sent(task, uint64(len(message)), c.comch.Send(context.Background(), message))
		}
	}
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

// lose fails what is queued, and tells the consumers and producers.
func (c *connection) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	c.failQueuedLocked()
	for child := range c.children {
		child.connectionLost()
	}
	clear(c.children)
}

func (c *connection) failQueuedLocked() {
	for _, task := range c.queue {
		c.sent(task, 0, status.NotConnected)
	}
	c.queue, c.messages = nil, nil
}

// takeTurn returns a channel that is closed when the next consumer may be announced, and what to
// call afterwards. Consumers are announced in the order in which they are started: applications
// pair those of both sides in that order.
func (c *connection) takeTurn() (turn <-chan struct{}, done func()) {
	announced := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	turn, c.announced = c.announced, announced
	return turn, func() { close(announced) }
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
