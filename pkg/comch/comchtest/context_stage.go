package comchtest

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// stateful is what all contexts have.
type stateful interface {
	State() progress.State
	Err() error
	Stop() error
	Destroy() error
}

// stage is a test's engine, which its contexts share, and what it sees.
type stage struct {
	t      *testing.T
	suite  *suite
	engine *progress.Engine
}

func (s *suite) newStage(t *testing.T) *stage {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Busy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return &stage{t: t, suite: s, engine: engine}
}

// await makes progress until condition holds.
func (s *stage) await(what string, condition func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s did not happen within %v", what, patience)
		}
		if s.engine.Progress() == 0 {
			runtime.Gosched()
		}
	}
}

func (s *stage) awaitState(c stateful, want progress.State) {
	s.t.Helper()
	s.await("state "+want.String(), func() bool { return c.State() == want })
}

// settle makes progress for a while in which something should not happen.
func (s *stage) settle() {
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		s.engine.Progress()
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

// completion is how a send task ended.
type completion struct {
	task *contexts.SendTask
	err  error
}

// occurrence is a connection event or a consumer event.
type occurrence struct {
	connection *contexts.Connection
	what       string
	successful bool
	consumer   comch.ConsumerID
}

// party is a server or client that records what it is told.
type party struct {
	transitions
	completions []completion
	messages    []string
	senders     []*contexts.Connection
	events      []occurrence // of connections
	consumers   []occurrence
	// onMessage, if set, is called for each message.
	onMessage func(*contexts.Connection, []byte)
}

const sendTasks = 8

func (p *party) controlConfig() contexts.ControlConfig {
	consumerEvent := func(what string) func(*contexts.Connection, comch.ConsumerID) {
		return func(c *contexts.Connection, id comch.ConsumerID) {
			p.consumers = append(p.consumers, occurrence{connection: c, what: what, consumer: id})
		}
	}
	return contexts.ControlConfig{
		SendTasks:     sendTasks,
		SendCompleted: func(t *contexts.SendTask) { p.completions = append(p.completions, completion{t, nil}) },
		SendFailed:    func(t *contexts.SendTask, err error) { p.completions = append(p.completions, completion{t, err}) },
		MessageReceived: func(c *contexts.Connection, message []byte) {
			p.messages = append(p.messages, string(message))
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

func (p *party) serverConfig() contexts.ServerConfig {
	connectionEvent := func(what string) func(*contexts.Connection, bool) {
		return func(c *contexts.Connection, successful bool) {
			p.events = append(p.events, occurrence{connection: c, what: what, successful: successful})
		}
	}
	return contexts.ServerConfig{
		ControlConfig: p.controlConfig(),
		Connected:     connectionEvent("connected"),
		Disconnected:  connectionEvent("disconnected"),
	}
}

// serverParty is a server with its records.
type serverParty struct {
	party
	*contexts.Server
	name string
}

// clientParty is a client with its records.
type clientParty struct {
	party
	*contexts.Client
}

// newServer makes an idle server that is configured.
func (s *stage) newServer(change func(*contexts.ServerConfig)) *serverParty {
	s.t.Helper()
	p := &serverParty{name: newName()}
	server, err := contexts.NewServer(s.suite.Provider, s.suite.device(), s.suite.Representor, p.name)
	if err != nil {
		s.t.Fatal(err)
	}
	p.Server = server
	config := p.serverConfig()
	if change != nil {
		change(&config)
	}
	s.must(server.Configure(config))
	s.t.Cleanup(func() { s.end(server) })
	return p
}

func (s *stage) startServer(change func(*contexts.ServerConfig)) *serverParty {
	s.t.Helper()
	server := s.newServer(change)
	s.must(server.Start(s.engine))
	return server
}

func (s *stage) newClient(name string, change func(*contexts.ClientConfig)) *clientParty {
	s.t.Helper()
	client, err := contexts.NewClient(s.suite.Provider, s.suite.hostDevice(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	p := &clientParty{Client: client}
	config := contexts.ClientConfig{ControlConfig: p.controlConfig()}
	if change != nil {
		change(&config)
	}
	s.must(client.Configure(config))
	s.t.Cleanup(func() { s.end(client) })
	return p
}

// startClient makes a client that is connected.
func (s *stage) startClient(name string) *clientParty {
	s.t.Helper()
	client := s.newClient(name, nil)
	s.must(client.Start(s.engine))
	s.awaitState(client, progress.Running)
	return client
}

// end brings a context home whatever the test has left of it. Nothing else
// but contexts without tasks may be left.
func (s *stage) end(c stateful) {
	if c.State() == progress.Running {
		_ = c.Stop() // it may be in use: then its users end first
	}
	if s.t.Failed() {
		return
	}
	s.await("the end of the test", func() bool { return c.State() == progress.Idle })
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// couple is a server and a client that are connected, with both ends.
type couple struct {
	*stage
	server           *serverParty
	client           *clientParty
	atServer, atHost *contexts.Connection
}

func (s *suite) newCouple(t *testing.T) *couple {
	t.Helper()
	stage := s.newStage(t)
	server := stage.startServer(nil)
	return stage.join(server)
}

// join connects one more client.
func (s *stage) join(server *serverParty) *couple {
	s.t.Helper()
	before := len(server.events)
	client := s.startClient(server.name)
	s.await("the connection event", func() bool { return len(server.events) > before })
	atHost, err := client.Connection()
	s.must(err)
	return &couple{stage: s, server: server, client: client, atServer: server.events[before].connection, atHost: atHost}
}

// sender is a server or a client.
type sender interface {
	AllocateSend(*contexts.Connection, []byte) (*contexts.SendTask, error)
}

// submitMessage sends a control message and returns its task.
func (s *stage) submitMessage(from sender, connection *contexts.Connection, text string) *contexts.SendTask {
	s.t.Helper()
	task, err := from.AllocateSend(connection, []byte(text))
	s.must(err)
	s.must(task.Submit())
	return task
}

// free frees completed tasks.
func (p *party) free(t *testing.T) {
	t.Helper()
	for _, c := range p.completions {
		if err := c.task.Free(); err != nil {
			t.Errorf("free a completed task: %v", err)
		}
	}
	p.completions = nil
}

// wantIdle checks that a context came to rest without a reason to complain.
func wantIdle(t *testing.T, c stateful) {
	t.Helper()
	if c.State() != progress.Idle || c.Err() != nil {
		t.Errorf("context is %v with error %v", c.State(), c.Err())
	}
}

// receiver is a consumer that records what it is told.
type receiver struct {
	transitions
	*contexts.Consumer
	received []*contexts.ReceiveTask
	failed   []*contexts.ReceiveTask
	errs     []error
}

// transmitter is a producer that records what it is told.
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

func (s *stage) newReceiver(on *contexts.Connection) *receiver {
	s.t.Helper()
	consumer, err := contexts.NewConsumer(on, memorySize)
	s.must(err)
	r := &receiver{Consumer: consumer}
	s.must(consumer.Configure(r.config()))
	s.t.Cleanup(func() { s.end(consumer) })
	return r
}

func (s *stage) startReceiver(on *contexts.Connection) *receiver {
	s.t.Helper()
	r := s.newReceiver(on)
	s.must(r.Start(s.engine))
	s.awaitState(r, progress.Running)
	return r
}

func (s *stage) newTransmitter(on *contexts.Connection) *transmitter {
	s.t.Helper()
	producer, err := contexts.NewProducer(on)
	s.must(err)
	p := &transmitter{Producer: producer}
	s.must(producer.Configure(p.config()))
	s.t.Cleanup(func() { s.end(producer) })
	return p
}

func (s *stage) startTransmitter(on *contexts.Connection) *transmitter {
	s.t.Helper()
	p := s.newTransmitter(on)
	s.must(p.Start(s.engine))
	return p
}

// link is a consumer and a producer of the peer.
type link struct {
	*stage
	receiver    *receiver
	transmitter *transmitter
}

// bothLinks runs a test in either direction.
func (s *suite) bothLinks(t *testing.T, run func(l *link, from, to *contexts.Connection)) {
	t.Run("ClientToServer", func(t *testing.T) {
		c := s.newCouple(t)
		run(c.newLink(c.atHost, c.atServer), c.atHost, c.atServer)
	})
	t.Run("ServerToClient", func(t *testing.T) {
		c := s.newCouple(t)
		run(c.newLink(c.atServer, c.atHost), c.atServer, c.atHost)
	})
}

func (s *stage) newLink(from, to *contexts.Connection) *link {
	s.t.Helper()
	return &link{stage: s, receiver: s.startReceiver(to), transmitter: s.startTransmitter(from)}
}

// post submits a receive of a buffer by its number.
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

// awaitOutcomes makes progress until so many tasks of each kind have
// completed.
func (l *link) awaitOutcomes(received, receivesFailed, sent, sendsFailed int) {
	l.t.Helper()
	l.await("the completion of tasks", func() bool {
		return len(l.receiver.received) >= received && len(l.receiver.failed) >= receivesFailed &&
			len(l.transmitter.sent) >= sent && len(l.transmitter.failed) >= sendsFailed
	})
	got := [4]int{len(l.receiver.received), len(l.receiver.failed), len(l.transmitter.sent), len(l.transmitter.failed)}
	if want := [4]int{received, receivesFailed, sent, sendsFailed}; got != want {
		l.t.Errorf("completed: %v (received, receives failed, sent, sends failed), want %v", got, want)
	}
}

// free frees everything that has completed.
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
