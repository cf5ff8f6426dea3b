package iwarp

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements rdma.Connection. Everything in it belongs to the
// thread of its completion queue, but for what is atomic and for parameters,
// which do not change.
type connection struct {
	socket     socket
	queue      *completionQueue
	domain     *protectionDomain
	context    uint64
	parameters rdma.Parameters
	useCRC     bool
	// stableSource: callers know that they must not change a source in
	// flight, so it can be summed in place.
	stableSource bool

	phase phase
	slot  int32 // in the queue, for the poller
	// listed: the connection is in its queue's list of those with something
	// to transmit.
	listed bool

	sends     sendQueue
	receives  receiveQueue
	responder readResponder
	reads     readRequester
	freeing   uint32 // send slots that the next completion gives back

	transmitter transmitter
	receiver    receiver

	aborted atomic.Bool
	failure atomic.Pointer[error] // why the connection ended
}

// phase is how far a connection's life has come.
type phase uint8

const (
	phaseOpen     phase = iota
	phaseEnded          // the socket is closed, OpDisconnected is yet to be collected
	phaseDetached       // OpDisconnected has been collected
)

// established is what the handshake leaves to the connection.
type established struct {
	socket     socket
	parameters rdma.Parameters
	useCRC     bool
	initiator  bool
	// rtr is the ready-to-receive frame that the handshake has dealt with.
	rtr readyToReceive
	// probed: the handshake has sent a first Read Request.
	probed bool
}

func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, queue, err := d.checkConfig(config)
	if err != nil {
		return nil, err
	}
	c := &connection{
		socket: socket{noDescriptor}, queue: queue, domain: domain, context: config.Context,
		stableSource: d.options.CRC,
		sends:        newSendQueue(config.SendRequests),
		receives:     newReceiveQueue(config.ReceiveRequests),
	}
	if err := c.PostReceive(config.Receives); err != nil {
		return nil, err
	}
	if !domain.uses.acquire() {
		return nil, status.Errorf(status.BadState, "protection domain is closed")
	}
	return c, nil
}

// checkConfig refuses what a connection cannot be made with.
func (d *device) checkConfig(config *rdma.ConnectionConfig) (*protectionDomain, *completionQueue, error) {
	domain, ok := config.Domain.(*protectionDomain)
	if !ok || domain.device != d {
		return nil, nil, status.Errorf(status.InvalidValue, "protection domain is missing or of another device")
	}
	queue, ok := config.Queue.(*completionQueue)
	if !ok || queue.device != d {
		return nil, nil, status.Errorf(status.InvalidValue, "completion queue is missing or of another device")
	}
	for _, c := range []struct {
		name            string
		value, min, max int
	}{
		{"SendRequests", config.SendRequests, 1, maxRequests},
		{"ReceiveRequests", config.ReceiveRequests, 1, maxRequests},
		{"InboundReads", config.InboundReads, 0, maxReadDepth},
		{"OutboundReads", config.OutboundReads, 0, maxReadDepth},
		{"length of PrivateData", len(config.PrivateData), 0, rdma.MaxPrivateData},
	} {
		if c.value < c.min || c.value > c.max {
			return nil, nil, status.Errorf(status.InvalidValue, "%s %d is not between %d and %d", c.name, c.value, c.min, c.max)
		}
	}
	return domain, queue, nil
}

// abandon gives up a connection that was never established.
func (c *connection) abandon() { c.domain.uses.release() }

// establish makes the connection ready for its queue.
func (c *connection) establish(e established) error {
	c.socket, c.parameters, c.useCRC = e.socket, e.parameters, e.useCRC
	// One inbound Read is always granted on the wire, see wireDepth.
	c.responder = newReadResponder(wireDepth(e.parameters.InboundReads))
	c.reads = newReadRequester(e.parameters.OutboundReads)
	c.transmitter = newTransmitter(e)
	c.receiver = newReceiver(e)
	if e.useCRC {
		c.transmitter.batch.stable = make([]byte, stableBytes)
	}
	c.transmitter.measure(c.socket)
	if err := c.queue.attach(c); err != nil {
		c.socket.close()
		return err
	}
	return nil
}

// Parameters implements rdma.Connection.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Flush implements rdma.Connection.
func (c *connection) Flush() {
	c.adopt()
	if c.phase == phaseOpen {
		c.transmit()
	}
}

// adopt makes sure that the queue knows the connection, which may still lie
// in its inbox.
func (c *connection) adopt() {
	if c.slot == unassigned {
		c.queue.empty()
	}
}

// Close implements rdma.Connection.
func (c *connection) Close() {
	c.adopt()
	if c.phase == phaseOpen {
		c.end(nil, rdma.StatusFlushed)
	}
}

// Abort implements rdma.Connection.
func (c *connection) Abort() {
	if !c.aborted.Swap(true) {
		c.queue.alert()
	}
}

// Err implements rdma.Connection. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}
