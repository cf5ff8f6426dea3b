package comchtest

import (
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// controlContext is a server or client in a random test.
type controlContext interface {
	stateful
	sender
	Start(*progress.Engine) error
}

// controlRole is what servers and clients have in common.
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

// text is a control message of a given length that can be recognized.
func text(length int) []byte {
	message := make([]byte, length)
	for i := range message {
		message[i] = byte(length + i)
	}
	return message
}

func (c *controlRole) checkText(message []byte) {
	if !slices.Equal(message, text(len(message))) {
		c.fail("control message of %d bytes arrived changed: %x", len(message), message)
	}
}

// rise has a client try again if it was faster than the server.
func (c *controlRole) rise() {
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
		if detail%4 == 0 { // or nothing would ever be running
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

func (c *controlRole) home() bool {
	c.free()
	if c.context.State() == progress.Running {
		_ = c.context.Stop() // it may take the workers a moment to be seen idle
	}
	return c.context.State() == progress.Idle
}

// serverRole also disconnects clients.
type serverRole struct {
	controlRole
	server *contexts.Server
}

func newServerRole(a *actor) role {
	s := &serverRole{controlRole: controlRole{actor: a}}
	var err error
	if s.server, err = contexts.NewServer(a.suite.Provider, a.suite.device(), a.suite.Representor, a.name); err != nil {
		a.fail("%v", err)
		return s
	}
	s.context = s.server
	config := contexts.ServerConfig{ControlConfig: s.config("server"), Connected: s.connected, Disconnected: s.disconnected}
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
		s.fail("a connection ended that never began")
		return
	}
	s.peers = slices.Delete(s.peers, i, i+1)
}

// messageReceived learns from a client's first message which one it is.
func (s *serverRole) messageReceived(connection *contexts.Connection, message []byte) {
	if len(message) == 1 && int(message[0]) < plotClients {
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

// newClientRole makes a client that tells the server its number.
func newClientRole(a *actor, number int) role {
	c := &controlRole{actor: a}
	client, err := contexts.NewClient(a.suite.Provider, a.suite.hostDevice(), a.name)
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
