// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// stateful is the common part of all contexts.
type stateful interface {
	State() progress.State
	Err() error
	Stop() error
	Destroy() error
}

// harness is the state of one test of contexts: an engine, which the contexts share, and helpers to
// use it.
type harness struct {
	t      *testing.T
	suite  *suite
	engine *progress.Engine
}

func (s *suite) newHarness(t *testing.T) *harness {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Busy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return &harness{t: t, suite: s, engine: engine}
}

// await makes progress until condition holds.
func (h *harness) await(what string, condition func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for !condition() {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s did not happen within %v", what, testkit.Patience)
		}
		if h.engine.Progress() == 0 {
			runtime.Gosched()
		}
	}
}

func (h *harness) awaitState(c stateful, want progress.State) {
	h.t.Helper()
	h.await("state "+want.String(), func() bool { return c.State() == want })
}

// settle makes progress for a while, so that something that must not happen would show.
func (h *harness) settle() {
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		h.engine.Progress()
		runtime.Gosched()
	}
}

// transitions records the states of a context.
type transitions struct{ seen []progress.State }

func (r *transitions) changed(previous, next progress.State) {
	if len(r.seen) == 0 {
		r.seen = append(r.seen, previous)
	}
	r.seen = append(r.seen, next)
}

func (r *transitions) check(t *testing.T, want ...progress.State) {
	t.Helper()
	if !slices.Equal(r.seen, want) {
		t.Errorf("states were %v, want %v", r.seen, want)
	}
}

// completion is the outcome of a send task.
type completion struct {
	task *contexts.SendTask
	err  error
}

// recordedEvent is a connection event or a consumer event.
type recordedEvent struct {
	connection *contexts.Connection
	what       string
	successful bool
	consumer   comch.ConsumerID
}

// recorder records the callbacks of a server or client.
type recorder struct {
	transitions
	completions []completion
	messages    []string
	senders     []*contexts.Connection
	events      []recordedEvent // of connections
	consumers   []recordedEvent
	seen        []string // messages, and what became of consumers
	// onMessage, if set, is called for each message.
	onMessage func(*contexts.Connection, []byte)
}

const sendTasks = 8

func (p *recorder) controlConfig() contexts.ControlConfig {
	consumerEvent := func(what string) func(*contexts.Connection, comch.ConsumerID) {
		return func(c *contexts.Connection, id comch.ConsumerID) {
			p.consumers = append(p.consumers, recordedEvent{connection: c, what: what,
				consumer: id})
			p.seen = append(p.seen, what)
		}
	}
	return contexts.ControlConfig{
		SendTasks: sendTasks,
		SendCompleted: func(t *contexts.SendTask) {
			p.completions = append(p.completions,
				completion{t, nil})
		},
		SendFailed: func(t *contexts.SendTask, err error) {
			p.completions = append(p.completions, completion{t, err})
		},
		MessageReceived: func(c *contexts.Connection, message []byte) {
			p.messages = append(p.messages, string(message))
			p.seen = append(p.seen, string(message))
			p.senders = append(p.senders, c)
			if p.onMessage != nil {
				p.onMessage(c, message)
			}
		},
		ConsumerCreated: consumerEvent("created"),
		ConsumerExpired: consumerEvent("expired"),
		StateChanged:    p.changed,
	}
}

func (p *recorder) serverConfig() contexts.ServerConfig {
	connectionEvent := func(what string) func(*contexts.Connection, bool) {
		return func(c *contexts.Connection, successful bool) {
			p.events = append(p.events, recordedEvent{connection: c, what: what,
				successful: successful})
		}
	}
	return contexts.ServerConfig{
		ControlConfig: p.controlConfig(),
		Connected:     connectionEvent("connected"),
		Disconnected:  connectionEvent("disconnected"),
	}
}

// recordingServer is a server with a record of its callbacks.
type recordingServer struct {
	recorder
	*contexts.Server
	name string
}

// recordingClient is a client with a record of its callbacks.
type recordingClient struct {
	recorder
	*contexts.Client
}

// newServer returns a configured server. change, if set, alters the configuration.
func (h *harness) newServer(change func(*contexts.ServerConfig)) *recordingServer {
	h.t.Helper()
	p := &recordingServer{name: comchtest.NewName()}
	server, err := contexts.NewServer(h.suite.Provider, h.suite.ServerDevice(), h.suite.Representor,
		p.name)
	if err != nil {
		h.t.Fatal(err)
	}
	p.Server = server
	config := p.serverConfig()
	if change != nil {
		change(&config)
	}
	h.must(server.Configure(config))
	h.t.Cleanup(func() { h.stopAndWait(server) })
	return p
}

func (h *harness) startServer(change func(*contexts.ServerConfig)) *recordingServer {
	h.t.Helper()
	server := h.newServer(change)
	h.must(server.Start(h.engine))
	return server
}

func (h *harness) newClient(name string, change func(*contexts.ClientConfig)) *recordingClient {
	h.t.Helper()
	client, err := contexts.NewClient(h.suite.Provider, h.suite.ClientDevice(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	p := &recordingClient{Client: client}
	config := contexts.ClientConfig{ControlConfig: p.controlConfig()}
	if change != nil {
		change(&config)
	}
	h.must(client.Configure(config))
	h.t.Cleanup(func() { h.stopAndWait(client) })
	return p
}

// startClient returns a client that is connected.
func (h *harness) startClient(name string) *recordingClient {
	h.t.Helper()
	client := h.newClient(name, nil)
	h.must(client.Start(h.engine))
	h.awaitState(client, progress.Running)
	return client
}

// stopAndWait stops a context that a test has left running. The test must have freed its tasks.
func (h *harness) stopAndWait(c stateful) {
	if c.State() == progress.Running {
		_ = c.Stop() // fails while it is in use; then the cleanup of its users stops it
	}
	if h.t.Failed() {
		return
	}
	h.await("state idle at the end of the test", func() bool { return c.State() == progress.Idle })
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// contextPair is a server and a client, with both sides of their connection.
type contextPair struct {
	*harness
	server             *recordingServer
	client             *recordingClient
	atServer, atClient *contexts.Connection
}

func (s *suite) newContextPair(t *testing.T) *contextPair {
	t.Helper()
	h := s.newHarness(t)
	server := h.startServer(nil)
	return h.join(server)
}

// join connects another client to a server.
func (h *harness) join(server *recordingServer) *contextPair {
	h.t.Helper()
	before := len(server.events)
	client := h.startClient(server.name)
	h.await("the connection event", func() bool { return len(server.events) > before })
	atClient, err := client.Connection()
	h.must(err)
	return &contextPair{
		harness: h, server: server, client: client,
		atServer: server.events[before].connection, atClient: atClient,
	}
}

// sender is a server or a client.
type sender interface {
	AllocateSend(*contexts.Connection, []byte) (*contexts.SendTask, error)
}

// submitMessage sends a control message and returns its task.
func (h *harness) submitMessage(from sender, connection *contexts.Connection,
	text string) *contexts.SendTask {
	h.t.Helper()
	task, err := from.AllocateSend(connection, []byte(text))
	h.must(err)
	h.must(task.Submit())
	return task
}

// free frees completed tasks.
func (p *recorder) free(t *testing.T) {
	t.Helper()
	for _, c := range p.completions {
		if err := c.task.Free(); err != nil {
			t.Errorf("free a completed task: %v", err)
		}
	}
	p.completions = nil
}

// wantIdle checks that a context is idle and has no error.
func wantIdle(t *testing.T, c stateful) {
	t.Helper()
	if c.State() != progress.Idle || c.Err() != nil {
		t.Errorf("context is %v with error %v", c.State(), c.Err())
	}
}

// receiver is a consumer with a record of its callbacks.
type receiver struct {
	transitions
	*contexts.Consumer
	received []*contexts.ReceiveTask
	failed   []*contexts.ReceiveTask
	errs     []error
}

// transmitter is a producer with a record of its callbacks.
type transmitter struct {
	transitions
	*contexts.Producer
	sent   []*contexts.ProducerSendTask
	failed []*contexts.ProducerSendTask
	errs   []error
}

func (r *receiver) config() contexts.ConsumerConfig {
	return contexts.ConsumerConfig{
		ReceiveTasks: receives,
		Received:     func(t *contexts.ReceiveTask) { r.received = append(r.received, t) },
		Failed: func(t *contexts.ReceiveTask, err error) {
			r.failed, r.errs = append(r.failed, t), append(r.errs, err)
		},
		StateChanged: r.changed,
	}
}

func (p *transmitter) config() contexts.ProducerConfig {
	return contexts.ProducerConfig{
		SendTasks: sendTasks,
		Sent:      func(t *contexts.ProducerSendTask) { p.sent = append(p.sent, t) },
		Failed: func(t *contexts.ProducerSendTask, err error) {
			p.failed, p.errs = append(p.failed, t), append(p.errs, err)
		},
		StateChanged: p.changed,
	}
}

func (h *harness) newReceiver(on *contexts.Connection) *receiver {
	h.t.Helper()
	consumer, err := contexts.NewConsumer(on, memorySize)
	h.must(err)
	r := &receiver{Consumer: consumer}
	h.must(consumer.Configure(r.config()))
	h.t.Cleanup(func() { h.stopAndWait(consumer) })
	return r
}

func (h *harness) startReceiver(on *contexts.Connection) *receiver {
	h.t.Helper()
	r := h.newReceiver(on)
	h.must(r.Start(h.engine))
	h.awaitState(r, progress.Running)
	return r
}

func (h *harness) newTransmitter(on *contexts.Connection) *transmitter {
	h.t.Helper()
	producer, err := contexts.NewProducer(on)
	h.must(err)
	p := &transmitter{Producer: producer}
	h.must(producer.Configure(p.config()))
	h.t.Cleanup(func() { h.stopAndWait(producer) })
	return p
}

func (h *harness) startTransmitter(on *contexts.Connection) *transmitter {
	h.t.Helper()
	p := h.newTransmitter(on)
	h.must(p.Start(h.engine))
	return p
}

// link is a consumer, and a producer of the peer that sends to it.
type link struct {
	*harness
	receiver    *receiver
	transmitter *transmitter
}

// bothLinks runs a test in either direction.
func (s *suite) bothLinks(t *testing.T, run func(l *link, from, to *contexts.Connection)) {
	t.Run("ClientToServer", func(t *testing.T) {
		c := s.newContextPair(t)
		run(c.newLink(c.atClient, c.atServer), c.atClient, c.atServer)
	})
	t.Run("ServerToClient", func(t *testing.T) {
		c := s.newContextPair(t)
		run(c.newLink(c.atServer, c.atClient), c.atServer, c.atClient)
	})
}

func (h *harness) newLink(from, to *contexts.Connection) *link {
	h.t.Helper()
	return &link{harness: h, receiver: h.startReceiver(to), transmitter: h.startTransmitter(from)}
}

// post submits a receive of length bytes at the start of the buffer with that number.
func (l *link) post(buffer, length uint32) *contexts.ReceiveTask {
	l.t.Helper()
	task, err := l.receiver.AllocateReceive(buffer*bufferSize, length)
	l.must(err)
	l.must(task.Submit())
	return task
}

// send submits a message to the link's consumer.
func (l *link) send(message, immediate string) *contexts.ProducerSendTask {
	l.t.Helper()
	return l.sendTo(l.receiver.ID(), message, immediate)
}

func (l *link) sendTo(id comch.ConsumerID, message, immediate string) *contexts.ProducerSendTask {
	l.t.Helper()
	task, err := l.transmitter.AllocateSend(id, []byte(message), []byte(immediate))
	l.must(err)
	l.must(task.Submit())
	return task
}

// awaitOutcomes makes progress until the given numbers of tasks have completed since the last free.
func (l *link) awaitOutcomes(received, receivesFailed, sent, sendsFailed int) {
	l.t.Helper()
	l.await("the completion of tasks", func() bool {
		return len(l.receiver.received) >= received && len(l.receiver.failed) >= receivesFailed &&
			len(l.transmitter.sent) >= sent && len(l.transmitter.failed) >= sendsFailed
	})
	got := [4]int{len(l.receiver.received), len(l.receiver.failed), len(l.transmitter.sent),
		len(l.transmitter.failed)}
	if want := [4]int{received, receivesFailed, sent, sendsFailed}; got != want {
		l.t.Errorf("completed: %v (received, receives failed, sent, sends failed), want %v", got,
			want)
	}
}

// free frees all completed tasks and clears the records.
func (l *link) free() {
	l.t.Helper()
	for _, tasks := range [][]*contexts.ReceiveTask{l.receiver.received, l.receiver.failed} {
		for _, task := range tasks {
			l.must(task.Free())
		}
	}
	for _, tasks := range [][]*contexts.ProducerSendTask{l.transmitter.sent, l.transmitter.failed} {
		for _, task := range tasks {
			l.must(task.Free())
		}
	}
	l.receiver.received, l.receiver.failed, l.receiver.errs = nil, nil, nil
	l.transmitter.sent, l.transmitter.failed, l.transmitter.errs = nil, nil, nil
}
