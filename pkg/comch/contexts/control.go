package contexts

import (
	"errors"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ControlConfig is what servers and clients have in common.
type ControlConfig struct {
	// SendTasks is the size of the pool of send tasks. Mandatory.
	SendTasks int
	// SendCompleted and SendFailed give a send task back to the application.
	// Mandatory.
	SendCompleted func(task *SendTask)
	SendFailed    func(task *SendTask, err error)
	// MessageReceived is told of each control message, which is valid during
	// the call only. Mandatory.
	MessageReceived func(connection *Connection, message []byte)

	// ConsumerCreated and ConsumerExpired are told of the peer's consumers.
	// They are mandatory if there are to be consumers or producers.
	ConsumerCreated func(connection *Connection, id comch.ConsumerID)
	ConsumerExpired func(connection *Connection, id comch.ConsumerID)
	// MaxMessageSize is the largest control message in bytes, the same on both
	// sides; 0 means the device's maximum.
	MaxMessageSize int
	// ReceiveQueue is how many received messages are kept for each connection;
	// 0 leaves it to the provider.
	ReceiveQueue int
	// StateChanged, if set, is called after each change of state.
	StateChanged StateChanged
}

// control is what servers and clients have in common.
type control struct {
	lifecycle
	config       ControlConfig
	capabilities comch.Capabilities
	tasks        pool[SendTask]
	// ended is the server's or client's part of the end of a connection.
	ended func(c *Connection)
	// outstanding counts connections and goroutines that a stopping context
	// waits for.
	outstanding int

	mu          sync.Mutex // guards connections and their children
	connections map[*Connection]struct{}
}

// create prepares a context on a device that supports it.
func (c *control) create(kind string, provider comch.Provider, device, name string, supported func(comch.Capabilities) bool) error {
	capabilities, err := provider.Capabilities(device)
	if err != nil {
		return err
	}
	if !supported(capabilities) {
		return status.Errorf(status.NotSupported, "device %s cannot be used for a Comch %s", device, kind)
	}
	if err := checkCount("length of server name", len(name), capabilities.MaxNameLength); err != nil {
		return err
	}
	c.kind = kind
	c.capabilities = capabilities
	c.finishStop = c.completeStop
	c.connections = make(map[*Connection]struct{})
	return nil
}

func (c *control) configure(config *ControlConfig) error {
	if err := c.allow(configure); err != nil {
		return err
	}
	err := checkCallbacks(c.kind,
		callback{"SendCompleted", config.SendCompleted != nil}, callback{"SendFailed", config.SendFailed != nil},
		callback{"MessageReceived", config.MessageReceived != nil})
	if err == nil && (config.ConsumerCreated == nil) != (config.ConsumerExpired == nil) {
		err = status.Errorf(status.InvalidValue, "configure %s: ConsumerCreated and ConsumerExpired go together", c.kind)
	}
	return errors.Join(err,
		checkCount("SendTasks", config.SendTasks, c.capabilities.MaxSendTasks),
		checkOptional("MaxMessageSize", config.MaxMessageSize, c.capabilities.MaxMessageSize),
		checkOptional("ReceiveQueue", config.ReceiveQueue, c.capabilities.MaxReceiveQueue))
}

// accept takes over a valid configuration.
func (c *control) apply(config ControlConfig) {
	c.config = config
	c.stateChanged = config.StateChanged
	c.tasks = newPool(config.SendTasks, func(t *SendTask) { t.control, t.context = c, &c.lifecycle })
	c.configured = true
}

// open begins to serve a connection.
func (c *control) addConnection(peer comch.Connection) *Connection {
	connection := &Connection{
		control: c, engine: c.engine, events: c.config.ConsumerCreated != nil, peer: peer, process: peer.Peer(),
		sends: make(chan *SendTask, c.config.SendTasks), sending: make(chan struct{}), children: make(map[child]struct{}),
	}
	c.mu.Lock()
	c.connections[connection] = struct{}{}
	c.mu.Unlock()
	c.outstanding++
	go connection.send()
	return connection
}

// markClosing lets no more consumers and producers come to connections, unless
// some of them have any.
func (c *control) markClosing(connections ...*Connection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, connection := range connections {
		if n := len(connection.children); n > 0 {
			return status.Errorf(status.InUse, "%d consumers and producers of the connection to process %d are not idle: stop them first",
				n, connection.process.PID)
		}
	}
	for _, connection := range connections {
		connection.closing = true
	}
	return nil
}

func (c *control) allConnections() []*Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*Connection, 0, len(c.connections))
	for connection := range c.connections {
		all = append(all, connection)
	}
	return all
}

// close says goodbye to the peer. The goroutine that receives tells when that
// is done.
func (c *control) disconnect(connection *Connection) {
	c.inBackground(func() { closePeer(connection.peer) }, nil)
}

func closePeer(peer comch.Connection) {
	if peer.Close() != nil {
		peer.Abort()
	}
}

// inBackground runs f apart from the engine's thread and then, on it,
// afterwards. A stopping context waits for both.
func (c *control) inBackground(f, afterwards func()) {
	c.outstanding++
	go func() {
		f()
		c.engine.Do(func() {
			c.outstanding--
			if afterwards != nil {
				afterwards()
			}
			c.completeStop()
		})
	}()
}

func (c *control) messageReceived(connection *Connection, message []byte) {
	if c.is(progress.Running) {
		c.config.MessageReceived(connection, message)
	}
}

func (c *control) consumerEvent(connection *Connection, event comch.ConsumerEvent) {
	switch {
	case !c.is(progress.Running) || c.config.ConsumerCreated == nil:
	case event.Created:
		c.config.ConsumerCreated(connection, event.ID)
	default:
		c.config.ConsumerExpired(connection, event.ID)
	}
}

// connectionEnded is the end of a connection, whoever wanted it.
func (c *control) connectionEnded(connection *Connection) {
	connection.gone = true
	reason := connection.notConnected()
	c.mu.Lock()
	connection.closing = true
	for member := range connection.children {
		member.connectionEnded(reason)
	}
	c.mu.Unlock()
	c.ended(connection)
	c.releaseConnection(connection)
}

// dismiss releases a connection that has ended when its last consumer and
// producer is gone.
func (c *control) releaseConnection(connection *Connection) {
	c.mu.Lock()
	finished := connection.gone && len(connection.children) == 0 && !connection.released
	if finished {
		connection.released = true
		delete(c.connections, connection)
	}
	c.mu.Unlock()
	if !finished {
		return
	}
	close(connection.sends)
	c.inBackground(func() {
		closePeer(connection.peer)
		<-connection.sending
	}, func() { c.outstanding-- })
}

// completeStop makes a stopping context idle once nothing is left of it.
func (c *control) completeStop() {
	if c.is(progress.Stopping) && c.outstanding == 0 && c.allocated == 0 {
		c.enter(progress.Idle)
	}
}

// SendTask sends one control message. Once it is submitted its message must
// not be changed until it completes.
type SendTask struct {
	task
	control    *control
	connection *Connection
	message    []byte
}

// AllocateSend takes a task from the pool. The message need not be registered
// memory. status.NoMemory if all tasks are in use, status.TooBig if the
// message exceeds the agreed size.
func (c *control) AllocateSend(connection *Connection, message []byte) (*SendTask, error) {
	if err := c.allow(allocate); err != nil {
		return nil, err
	}
	if connection == nil || connection.control != c || connection.peer == nil {
		return nil, status.Errorf(status.InvalidValue, "allocate send task: the connection is not one of this %s", c.kind)
	}
	if limit := connection.peer.MaxMessageSize(); len(message) > limit {
		return nil, status.Errorf(status.TooBig, "allocate send task: message of %d bytes, the limit is %d", len(message), limit)
	}
	t, err := c.tasks.get()
	if err != nil {
		return nil, err
	}
	t.claim()
	t.connection, t.message = connection, message
	return t, nil
}

// Connection is where the message goes.
func (t *SendTask) Connection() *Connection { return t.connection }

// Submit sends the message. Success completes the task when the peer has room
// for the message, which will be received unless the connection breaks.
func (t *SendTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	t.owner = library
	if t.context.is(progress.Stopping) {
		t.complete(errFlushed)
		return nil
	}
	if t.connection.released {
		t.complete(t.connection.notConnected())
		return nil
	}
	t.connection.sends <- t
	return nil
}

// complete gives the task back to the application, soon. Any goroutine may
// call it.
func (t *SendTask) complete(err error) {
	t.context.engine.Do(func() {
		t.owner = application
		if err == nil {
			t.control.config.SendCompleted(t)
		} else {
			t.control.config.SendFailed(t, err)
		}
	})
}

// Free gives the task back to the pool. It fails with status.InUse while the
// task is submitted.
func (t *SendTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.connection, t.message = nil, nil
	t.control.tasks.put(t)
	return nil
}
