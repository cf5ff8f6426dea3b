// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ControlConfig is the common part of ServerConfig and ClientConfig.
type ControlConfig struct {
	// SendTasks is the size of the pool of send tasks. Mandatory.
	SendTasks int
	// SendCompleted and SendFailed return a send task to the application. Mandatory.
	SendCompleted func(task *SendTask)
	SendFailed    func(task *SendTask, err error)
	// MessageReceived is called with each control message. The message is valid only during the
	// call. Mandatory.
	MessageReceived func(connection *Connection, message []byte)

	// ConsumerCreated and ConsumerExpired are called when the peer creates and destroys a consumer.
	// Set both or neither; consumers and producers can be started on a connection only if they are
	// set.
	ConsumerCreated func(connection *Connection, id comch.ConsumerID)
	ConsumerExpired func(connection *Connection, id comch.ConsumerID)
	// MaxMessageSize is the size in bytes of the largest control message. Client and server must
	// agree; 0 means the maximum of the device.
	MaxMessageSize int
	// ReceiveQueue is the number of received messages that are kept for each connection; 0 means
	// the default of the provider.
	ReceiveQueue int
	// StateChanged, if set, is called after each change of state.
	StateChanged StateChanged
}

// control is the common part of Server and Client.
type control struct {
	lifecycle
	config       ControlConfig
	capabilities comch.Capabilities
	tasks        pool[SendTask]
	// ended is called when a connection has ended.
	ended func(c *Connection)
	// outstanding counts the connections and goroutines that a stopping context waits for.
	outstanding int

	mu          sync.Mutex // guards connections and their children
	connections map[*Connection]struct{}
}

// create initializes a context. It fails with status.NotSupported if the device does not support
// the kind of context.
func (c *control) create(
	kind string, provider comch.Provider, device, name string,
	supported func(comch.Capabilities) bool,
) error {
	capabilities, err := provider.Capabilities(device)
	if err != nil {
		return err
	}
	if !supported(capabilities) {
		return status.Errorf(status.NotSupported, "device %s does not support Comch %ss",
			device, kind)
	}
	err = checkCount("length of server name", len(name), capabilities.MaxNameLength)
	if err != nil {
		return err
	}
	c.kind = kind
	c.capabilities = capabilities
	c.finishStop = c.completeStop
	c.connections = make(map[*Connection]struct{})
	return nil
}

// checkConfig rejects an invalid configuration, and any configuration unless the context is idle.
func (c *control) checkConfig(config *ControlConfig) error {
	if err := c.allow(configure); err != nil {
		return err
	}
	err := checkCallbacks(c.kind,
		callback{"SendCompleted", config.SendCompleted != nil},
		callback{"SendFailed", config.SendFailed != nil},
		callback{"MessageReceived", config.MessageReceived != nil})
	if err == nil && (config.ConsumerCreated == nil) != (config.ConsumerExpired == nil) {
		err = status.Errorf(status.InvalidValue,
			"configure %s: only one of ConsumerCreated and ConsumerExpired is set: "+
				"set both or neither", c.kind)
	}
	return errors.Join(err,
		checkCount("SendTasks", config.SendTasks, c.capabilities.MaxSendTasks),
		checkOptional("MaxMessageSize", config.MaxMessageSize, c.capabilities.MaxMessageSize),
		checkOptional("ReceiveQueue", config.ReceiveQueue, c.capabilities.MaxReceiveQueue))
}

// apply applies a configuration that has been checked.
func (c *control) apply(config ControlConfig) {
	c.config = config
	c.stateChanged = config.StateChanged
	c.tasks = newPool(config.SendTasks, func(t *SendTask) {
		t.control, t.context = c, &c.lifecycle
	})
	c.configured = true
}

// addConnection adds a connection from the provider to this context.
func (c *control) addConnection(peer comch.Connection) *Connection {
	connection := &Connection{
		control: c, engine: c.engine, events: c.config.ConsumerCreated != nil,
		peer: peer, process: peer.Peer(), children: make(map[child]struct{}),
	}
	connection.sending, connection.stopSending = context.WithCancel(context.Background())
	c.mu.Lock()
	c.connections[connection] = struct{}{}
	c.mu.Unlock()
	c.outstanding++
	return connection
}

// markClosing makes connections reject new consumers and producers. If one of the connections has
// any, markClosing fails with status.InUse and changes nothing.
func (c *control) markClosing(connections ...*Connection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, connection := range connections {
		if n := len(connection.children); n > 0 {
			return status.Errorf(status.InUse,
				"%d consumers and producers of the connection to process %d are not idle: stop them first",
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

// disconnect starts the orderly end of a connection. The goroutine that receives from the peer
// reports when the connection has ended.
func (c *control) disconnect(connection *Connection) {
	c.inBackground(connection.disconnect, nil)
}

// inBackground runs f on a goroutine of its own, and then runs afterwards, unless it is nil, on the
// engine's thread. A stopping context waits for both.
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

// connectionEnded is called when a connection has ended, whichever side ended it.
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

// releaseConnection releases a connection that has ended, unless it still has consumers or
// producers: the last of them to become idle calls it again.
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
	c.inBackground(connection.disconnect, func() { c.outstanding-- })
}

// completeStop makes a stopping context idle once it has nothing to wait for.
func (c *control) completeStop() {
	if c.is(progress.Stopping) && c.outstanding == 0 && c.allocated == 0 {
		c.enter(progress.Idle)
	}
}

// SendTask sends one control message. The message must not change between the submission of the
// task and its completion.
type SendTask struct {
	task
	control    *control
	connection *Connection
	message    []byte
}

// AllocateSend returns a task from the pool that sends message, which need not be registered
// memory. It fails with status.NoMemory if all tasks are in use, and with status.TooBig if the
// message exceeds the agreed size.
func (c *control) AllocateSend(connection *Connection, message []byte) (*SendTask, error) {
	if err := c.allow(allocate); err != nil {
		return nil, err
	}
	if connection == nil || connection.control != c || connection.peer == nil {
		return nil, status.Errorf(status.InvalidValue,
			"allocate send task: the connection does not belong to this %s", c.kind)
	}
	if limit := connection.peer.MaxMessageSize(); len(message) > limit {
		return nil, status.Errorf(status.TooBig,
			"allocate send task: message of %d bytes exceeds the limit of %d", len(message), limit)
	}
	t, err := c.tasks.get()
	if err != nil {
		return nil, err
	}
	t.claim()
	t.connection, t.message = connection, message
	return t, nil
}

// Connection returns the connection that the task sends on.
func (t *SendTask) Connection() *Connection { return t.connection }

// Submit starts to send the message. The task completes with success when the peer has room for the
// message. The peer then receives the message unless the connection is lost.
func (t *SendTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	t.owner = library
	switch {
	case t.context.is(progress.Stopping):
		t.complete(errFlushed)
	case t.connection.released:
		t.complete(t.connection.notConnected())
	default:
		t.connection.send(t)
	}
	return nil
}

// complete makes the engine's thread return the task to the application. Any goroutine may call it.
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

// Free returns the task to the pool. It fails with status.InUse while the task is submitted.
func (t *SendTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.connection, t.message = nil, nil
	t.control.tasks.put(t)
	return nil
}
