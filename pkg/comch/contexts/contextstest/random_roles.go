// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"encoding/binary"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// controlContext is a server or a client.
type controlContext interface {
	stateful
	sender
	Start(*progress.Engine) error
}

// controlRole is the common part of the roles of servers and clients.
type controlRole struct {
	*actor
	context   controlContext
	configure func() error
	out       int // tasks that are not freed
	held      []*contexts.SendTask
	peers     []*contexts.Connection
}

func (c *controlRole) config(what string) contexts.ControlConfig {
	return contexts.ControlConfig{
		SendTasks:       3,
		SendCompleted:   func(t *contexts.SendTask) { c.held = append(c.held, t) },
		SendFailed:      func(t *contexts.SendTask, _ error) { c.held = append(c.held, t) },
		MessageReceived: func(_ *contexts.Connection, message []byte) { c.checkText(message) },
		ConsumerCreated: func(*contexts.Connection, comch.ConsumerID) {},
		ConsumerExpired: func(*contexts.Connection, comch.ConsumerID) {},
		StateChanged:    c.watch(what, &c.out),
	}
}

// text returns the control message of a given length; checkText recognizes it.
func text(length int) []byte {
	message := make([]byte, length)
	for i := range message {
		message[i] = byte(length + i)
	}
	return message
}

func (c *controlRole) checkText(message []byte) {
	if !slices.Equal(message, text(len(message))) {
		c.fail("control message of %d bytes arrived with other content: %x", len(message), message)
	}
}

// setUp starts a client again if it was faster than its server.
func (c *controlRole) setUp() {
	if c.context.State() == progress.Idle {
		c.expect("start", progress.Idle, inIdle, c.context.Start(c.engine))
	}
}

func (c *controlRole) step(choice int) {
	state := c.context.State()
	switch detail := choice / 8; choice % 8 {
	case 0:
		c.expect("configure", state, inIdle, c.configure())
	case 1:
		c.expect("start", state, inIdle, c.context.Start(c.engine))
	case 2:
		if detail%4 == 0 { // more often, and hardly anything would ever run
			c.expect("stop", state, inUse, c.context.Stop(), status.InUse)
		}
	case 3, 4:
		c.send(state, detail)
	case 5:
		c.free()
	case 6:
		if detail%8 == 0 && state != progress.Idle {
			c.expect("destroy", state, inIdle, c.context.Destroy())
		}
	default:
		c.resubmit(state)
	}
}

func (c *controlRole) send(state progress.State, detail int) {
	var peer *contexts.Connection
	if len(c.peers) > 0 {
		peer = c.peers[detail%len(c.peers)]
	}
	task, err := c.context.AllocateSend(peer, text(detail%64))
	if !c.expect("allocate", state, inUse, err, status.NoMemory, status.InvalidValue) {
		return
	}
	c.out++
	c.expect("submit", state, inUse, task.Submit())
	if detail%3 == 0 {
		if err := task.Free(); status.CodeOf(err) != status.InUse {
			c.fail("free a submitted task: %v", err)
		}
	}
}

func (c *controlRole) free() {
	for _, task := range c.held {
		c.out--
		if err := task.Free(); err != nil {
			c.fail("free a completed task: %v", err)
		}
	}
	c.held = nil
}

func (c *controlRole) resubmit(state progress.State) {
	if len(c.held) == 0 {
		return
	}
	task := c.held[0]
	if c.expect("submit again", state, inUse, task.Submit()) {
		c.held = c.held[1:]
	}
}

func (c *controlRole) shutDown() bool {
	c.free()
	if c.context.State() == progress.Running {
		_ = c.context.Stop() // fails until the workers are seen to be idle
	}
	return c.context.State() == progress.Idle
}

// serverRole is a server that also disconnects clients.
type serverRole struct {
	controlRole
	server *contexts.Server
}

func newServerRole(a *actor) role {
	s := &serverRole{controlRole: controlRole{actor: a}}
	var err error
	if s.server, err = contexts.NewServer(a.suite.Provider, a.suite.ServerDevice(),
		a.suite.Representor, a.name); err != nil {
		a.fail("%v", err)
		return s
	}
	s.context = s.server
	config := contexts.ServerConfig{
		ControlConfig: s.config("server"), Connected: s.connected, Disconnected: s.disconnected,
	}
	config.MessageReceived = s.messageReceived
	s.configure = func() error { return s.server.Configure(config) }
	s.step(0)
	s.step(1)
	return s
}

func (s *serverRole) connected(connection *contexts.Connection, successful bool) {
	if successful {
		s.peers = append(s.peers, connection)
	}
}

func (s *serverRole) disconnected(connection *contexts.Connection, _ bool) {
	i := slices.Index(s.peers, connection)
	if i < 0 {
		s.fail("an unknown connection ended")
		return
	}
	s.peers = slices.Delete(s.peers, i, i+1)
}

// messageReceived stores the connection of a client that introduces itself, and checks any other
// message.
func (s *serverRole) messageReceived(connection *contexts.Connection, message []byte) {
	if len(message) == 1 && int(message[0]) < randomClients {
		s.links[message[0]][0].Store(connection)
		return
	}
	s.checkText(message)
}

func (s *serverRole) step(choice int) {
	if choice%16 != 15 || len(s.peers) == 0 {
		s.controlRole.step(choice)
		return
	}
	state := s.server.State()
	err := s.server.Disconnect(s.peers[choice/16%len(s.peers)])
	s.expect("disconnect", state, inRunning, err, status.InUse, status.NotConnected)
}

// newClientRole returns a client that sends the server its number once it is connected.
func newClientRole(a *actor, number int) role {
	c := &controlRole{actor: a}
	client, err := contexts.NewClient(a.suite.Provider, a.suite.ClientDevice(), a.name)
	if err != nil {
		a.fail("%v", err)
		return c
	}
	c.context = client
	config := contexts.ClientConfig{ControlConfig: c.config("client")}
	watch := config.StateChanged
	config.StateChanged = func(previous, next progress.State) {
		watch(previous, next)
		c.peers = nil
		if next != progress.Running {
			return
		}
		connection, err := client.Connection()
		if err != nil {
			a.fail("%v", err)
			return
		}
		c.peers = []*contexts.Connection{connection}
		a.links[number][1].Store(connection)
		task, err := client.AllocateSend(connection, []byte{byte(number)})
		if err == nil {
			c.out++
			err = task.Submit()
		}
		if err != nil && status.CodeOf(err) != status.NoMemory {
			a.fail("introduce client: %v", err)
		}
	}
	c.configure = func() error { return client.Configure(config) }
	c.step(0)
	c.step(1)
	return c
}

const (
	workerTasks  = 4
	headerLength = 8 // bytes of immediate data: number of producer and of message
)

// workerRole is a consumer and a producer on one side of a connection.
type workerRole struct {
	*actor
	client, side, number int

	consumer     *contexts.Consumer
	receivesOut  int
	heldReceives []*contexts.ReceiveTask
	free         []uint32 // buffers without a task
	buffers      map[*contexts.ReceiveTask]uint32
	next         map[uint32]uint32 // by producer, the lowest number of its next message

	producer  *contexts.Producer
	sendsOut  int
	heldSends []*contexts.ProducerSendTask
	uid       uint32
	sequence  uint32
}

func newWorkerRole(a *actor, client, side, number int) role {
	w := &workerRole{
		actor: a, client: client, side: side, number: number,
		buffers: make(map[*contexts.ReceiveTask]uint32), next: make(map[uint32]uint32),
	}
	for i := range uint32(workerTasks) {
		w.free = append(w.free, i)
	}
	return w
}

// setUp creates a consumer and a producer once the connection exists.
func (w *workerRole) setUp() {
	connection := w.links[w.client][w.side].Load()
	if connection == nil || w.consumer != nil {
		return
	}
	w.renewConsumer(connection)
	w.renewProducer(connection)
}

func (w *workerRole) step(choice int) {
	connection := w.links[w.client][w.side].Load()
	if connection == nil {
		return
	}
	detail := choice / 16
	switch choice % 16 {
	case 0, 1:
		w.renewConsumer(connection)
	case 2:
		w.startConsumer()
	case 3, 4, 5, 6:
		w.receive(detail)
	case 7:
		w.freeReceives()
	case 8, 9:
		w.renewProducer(connection)
	case 10, 11, 12, 13:
		w.send(detail)
	case 14:
		w.freeSends()
	default:
		w.stopOne(detail)
	}
}

func (w *workerRole) stopOne(detail int) {
	switch {
	case detail%2 == 0 && w.consumer != nil:
		w.expect("stop", w.consumer.State(), inUse, w.consumer.Stop())
	case detail%2 == 1 && w.producer != nil:
		w.expect("stop", w.producer.State(), inUse, w.producer.Stop())
	}
}

// renewConsumer replaces an idle consumer, and starts the new one.
func (w *workerRole) renewConsumer(connection *contexts.Connection) {
	if w.consumer != nil {
		state := w.consumer.State()
		if !w.expect("destroy", state, inIdle, w.consumer.Destroy()) {
			w.expect("configure", state, inIdle, w.consumer.Configure(contexts.ConsumerConfig{}))
			return
		}
		w.consumer = nil
	}
	consumer, err := contexts.NewConsumer(connection, workerTasks*bufferSize)
	if err != nil {
		return // the connection has ended
	}
	w.consumer = consumer
	watch := w.watch("consumer", &w.receivesOut)
	slot := &w.ids[w.client][w.side][w.number]
	err = consumer.Configure(contexts.ConsumerConfig{
		ReceiveTasks: workerTasks,
		Received:     w.messageReceived,
		Failed: func(t *contexts.ReceiveTask,
			_ error) {
			w.heldReceives = append(w.heldReceives, t)
		},
		StateChanged: func(previous, next progress.State) {
			watch(previous, next)
			slot.Store(0)
			if next == progress.Running {
				slot.Store(uint32(consumer.ID()))
			}
		},
	})
	if err != nil {
		w.fail("configure consumer: %v", err)
	}
	w.startConsumer()
}

func (w *workerRole) startConsumer() {
	if w.consumer != nil {
		w.expect("start", w.consumer.State(), inIdle, w.consumer.Start(w.engine),
			status.NotConnected)
	}
}

// receive allocates a task, sometimes for an impossible buffer, and submits it, sometimes twice.
func (w *workerRole) receive(detail int) {
	if w.consumer == nil {
		return
	}
	state := w.consumer.State()
	if len(w.free) == 0 || detail%8 == 7 {
		_, err := w.consumer.AllocateReceive(workerTasks*bufferSize, 1)
		w.expect("allocate outside", state, inUse, err, status.InvalidValue)
		if err == nil {
			w.fail("allocated a receive outside the memory")
		}
		return
	}
	buffer := w.free[0]
	task, err := w.consumer.AllocateReceive(buffer*bufferSize, uint32(detail)%(bufferSize+1))
	if !w.expect("allocate receive", state, inUse, err) {
		return
	}
	w.receivesOut++
	w.free = w.free[1:]
	w.buffers[task] = buffer
	if w.expect("submit receive", state, inUse, task.Submit()) && detail%3 == 0 {
		if err := task.Submit(); status.CodeOf(err) != status.InUse {
			w.fail("submit a submitted receive: %v", err)
		}
	}
}

// messageReceived checks the order and the content of a message.
func (w *workerRole) messageReceived(t *contexts.ReceiveTask) {
	w.heldReceives = append(w.heldReceives, t)
	w.randomRun.received.Add(1)
	data, immediate := t.Data(), t.Immediate()
	if len(immediate) != headerLength {
		w.fail("message has %d bytes of immediate data", len(immediate))
		return
	}
	uid, sequence := binary.LittleEndian.Uint32(immediate),
		binary.LittleEndian.Uint32(immediate[4:])
	if sequence < w.next[uid] {
		w.fail("message %d of producer %d arrived after message %d", sequence, uid, w.next[uid]-1)
	}
	w.next[uid] = sequence + 1
	for i, b := range data {
		if b != pattern(uid, sequence, i) {
			w.fail("byte %d of message %d of producer %d is %#x", i, sequence, uid, b)
			return
		}
	}
}

func pattern(uid, sequence uint32, i int) byte { return byte(uid*31 + sequence*7 + uint32(i)) }

func (w *workerRole) freeReceives() {
	for _, t := range w.heldReceives {
		w.free = append(w.free, w.buffers[t])
		delete(w.buffers, t)
		w.receivesOut--
		if err := t.Free(); err != nil {
			w.fail("free a completed receive: %v", err)
		}
	}
	w.heldReceives = nil
}

// renewProducer replaces an idle producer, and starts the new one.
func (w *workerRole) renewProducer(connection *contexts.Connection) {
	if w.producer != nil {
		if !w.expect("destroy", w.producer.State(), inIdle, w.producer.Destroy()) {
			return
		}
		w.producer = nil
	}
	producer, err := contexts.NewProducer(connection)
	if err != nil {
		return // the connection has ended
	}
	w.producer = producer
	w.uid, w.sequence = w.uids.Add(1), 0
	err = producer.Configure(contexts.ProducerConfig{
		SendTasks: workerTasks,
		Sent:      func(t *contexts.ProducerSendTask) { w.heldSends = append(w.heldSends, t) },
		Failed: func(t *contexts.ProducerSendTask,
			_ error) {
			w.heldSends = append(w.heldSends, t)
		},
		StateChanged: w.watch("producer", &w.sendsOut),
	})
	if err != nil {
		w.fail("configure producer: %v", err)
	}
	w.expect("start", producer.State(), inIdle, producer.Start(w.engine), status.NotConnected)
}

// send sends a numbered message to a consumer of the other side, or to an id that no consumer has.
func (w *workerRole) send(detail int) {
	if w.producer == nil {
		return
	}
	state := w.producer.State()
	target := comch.ConsumerID(w.ids[w.client][1-w.side][detail%randomWorkers].Load())
	if detail%16 == 15 {
		target = comch.ConsumerID(detail)
	}
	immediate := binary.LittleEndian.AppendUint32(nil, w.uid)
	immediate = binary.LittleEndian.AppendUint32(immediate, w.sequence)
	message := make([]byte, detail%(bufferSize/2))
	for i := range message {
		message[i] = pattern(w.uid, w.sequence, i)
	}
	task, err := w.producer.AllocateSend(target, message, immediate)
	if !w.expect("allocate send", state, inUse, err, status.NoMemory) {
		return
	}
	w.sequence++
	w.sendsOut++
	w.expect("submit send", state, inUse, task.Submit())
}

func (w *workerRole) freeSends() {
	for _, t := range w.heldSends {
		w.sendsOut--
		if err := t.Free(); err != nil {
			w.fail("free a completed send: %v", err)
		}
	}
	w.heldSends = nil
}

func (w *workerRole) shutDown() bool {
	w.freeReceives()
	w.freeSends()
	idle := true
	if w.consumer != nil {
		if w.consumer.State() == progress.Running {
			w.stopOne(0)
		}
		idle = w.consumer.State() == progress.Idle
	}
	if w.producer != nil {
		if w.producer.State() == progress.Running {
			w.stopOne(1)
		}
		idle = idle && w.producer.State() == progress.Idle
	}
	return idle
}
