//go:build verbs

package verbs

import (
	"context"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements rdma.Connection. What the handshake has set does not
// change; everything else belongs to the thread of its completion queue, but
// for what is atomic.
type connection struct {
	device     *device
	domain     *protectionDomain
	queue      *completionQueue
	endpoint   *endpoint
	qp         *ibv.QueuePair
	context    uint64
	token      uint32
	parameters rdma.Parameters

	phase phase
	// listed: the connection is in its queue's list of those with requests
	// that the device does not have yet.
	listed   bool
	sends    sendRing
	receives receiveRing
	reads    int // outstanding
	// posted are requests for the device's send queue, and scratch is used to
	// post receives. Both have their full capacity from the start.
	posted  []ibv.SendWork
	scratch []ibv.ReceiveWork
	// broken is why the device failed a request before the connection was
	// open.
	broken error

	handshake atomic.Uint32 // how far it has come, see below
	// interruption is why another thread wants the connection to end.
	interruption atomic.Pointer[error]
	failure      atomic.Pointer[error] // why the connection has ended
}

// phase is how far a connection's life has come.
type phase uint8

const (
	phaseConnecting phase = iota // completions are kept back
	phaseOpen
	phaseEnding   // what has arrived is collected; nothing goes to the device
	phaseEnded    // the queue pair is gone, OpDisconnected is yet to be collected
	phaseDetached // OpDisconnected has been collected
)

// The progress of a handshake, told to the queue's thread. Storing it also
// orders what was written before with what that thread reads.
const (
	handshakePrepared uint32 = iota + 1 // receives are posted
	handshakeDone
)

// newConnection makes a connection that its queue knows, without queue pair.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, queue, err := d.checkConfig(config)
	if err != nil {
		return nil, err
	}
	c := &connection{
		device: d, domain: domain, queue: queue, context: config.Context,
		sends: newSendRing(config.SendRequests), receives: newReceiveRing(config.ReceiveRequests),
		posted:  make([]ibv.SendWork, 0, config.SendRequests),
		scratch: make([]ibv.ReceiveWork, config.ReceiveRequests),
	}
	if !domain.use() {
		return nil, status.Errorf(status.BadState, "protection domain is closed")
	}
	if err := queue.attach(c); err != nil {
		domain.release()
		return nil, err
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
	limits := d.Capabilities()
	for _, c := range []struct {
		name            string
		value, min, max int
	}{
		{"SendRequests", config.SendRequests, 1, limits.MaxSendRequests},
		{"ReceiveRequests", config.ReceiveRequests, 1, limits.MaxReceiveRequests},
		{"InboundReads", config.InboundReads, 0, limits.MaxInboundReads},
		{"OutboundReads", config.OutboundReads, 0, limits.MaxOutboundReads},
		{"length of PrivateData", len(config.PrivateData), 0, rdma.MaxPrivateData},
		{"number of Receives", len(config.Receives), 0, config.ReceiveRequests},
	} {
		if c.value < c.min || c.value > c.max {
			return nil, nil, status.Errorf(status.InvalidValue, "%s %d is not between %d and %d (the limits of RDMA device %s)",
				c.name, c.value, c.min, c.max, d.location.device)
		}
	}
	return domain, queue, nil
}

// inlineBytes is the length of the messages that are worth to be taken while
// posting: an IO message.
const inlineBytes = 64

// createQueuePair makes the queue pair and posts the first receives.
func (c *connection) createQueuePair(e *endpoint, receives []rdma.ReceiveRequest) error {
	qp, err := c.domain.pd.NewQueuePair(ibv.QueuePairConfig{
		Queue: c.queue.cq, SendRequests: int(c.sends.limit), ReceiveRequests: int(c.receives.limit), InlineBytes: inlineBytes,
	})
	if err != nil {
		return err
	}
	c.qp, c.endpoint = qp, e
	c.device.addConnection(qp.Number(), c)
	e.connection.Store(c)
	if err := qp.Initialize(e.id); err != nil {
		return err
	}
	if len(receives) > 0 {
		work, err := c.prepareReceives(receives)
		if err != nil {
			return err
		}
		if err := qp.PostReceive(work); err != nil {
			return err
		}
	}
	c.handshake.Store(handshakePrepared)
	return nil
}

// minRNRTimer is the code of 0.64 ms, the pause of a peer whose message finds
// no receive.
const minRNRTimer = 12

// makeReady takes the queue pair to the state in which it can send.
func (c *connection) makeReady(depths readDepths) error {
	o := &c.device.options
	gidIndex, err := c.qp.MakeReady(c.endpoint.id, &ibv.QueuePairSettings{
		InboundReads: depths.inbound, OutboundReads: depths.outbound, PathMTU: o.PathMTU,
		AckTimeout: uint8(ackTimeoutExponent(o.AckTimeout)), RetryCount: uint8(o.RetryCount),
		RNRRetryCount: uint8(o.RNRRetryCount), MinRNRTimer: minRNRTimer,
	})
	if err != nil {
		return err
	}
	if o.GIDIndex != nil && gidIndex >= 0 && gidIndex != *o.GIDIndex {
		return status.Errorf(status.BadConfig, "address %v has GID index %d, not %d: choose the address of that entry, or set the RoCE "+
			"mode of the connection manager (cma_roce_mode)", c.device.address, gidIndex, *o.GIDIndex)
	}
	return nil
}

// connectionParameters are what the peer is told.
func (c *connection) connectionParameters(depths readDepths, privateData []byte) ibv.ConnectionParameters {
	return ibv.ConnectionParameters{
		QueuePair: c.qp.Number(), InboundReads: depths.inbound, OutboundReads: depths.outbound,
		RetryCount: uint8(c.device.options.RetryCount), RNRRetryCount: uint8(c.device.options.RNRRetryCount),
		PrivateData: privateData,
	}
}

// open hands the connection over to its queue's thread.
func (c *connection) open() {
	c.handshake.Store(handshakeDone)
	c.queue.wakeUp()
}

// abandon gives up a connection that was never open, and its endpoint. It
// waits for that no longer than until ctx ends: the connection manager of
// iWARP holds on to the queue pair until the peer has answered or 10 seconds
// have passed. What the connection uses waits for it when it is closed.
func (c *connection) abandon(ctx context.Context, e *endpoint) {
	done := make(chan struct{})
	c.queue.leaving.Add(1)
	c.domain.leaving.Add(1)
	go func() {
		defer close(done)
		defer c.domain.leaving.Done()
		defer c.queue.leaving.Done()
		e.connection.Store(nil)
		c.destroyQueuePair()
		e.destroy()
		c.queue.detach(c)
		c.domain.release()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Parameters implements rdma.Connection.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Flush implements rdma.Connection.
func (c *connection) Flush() {
	c.adopt()
	c.submit()
}

// Close implements rdma.Connection.
func (c *connection) Close() {
	c.adopt()
	if c.phase == phaseOpen || c.phase == phaseEnding {
		c.finish()
	}
}

// Abort implements rdma.Connection.
func (c *connection) Abort() {
	c.interrupt(status.Errorf(status.ConnectionAborted, "connection to %v was aborted", c.parameters.Remote))
}

// interrupt has the connection end. Any goroutine may call it; the first
// cause counts.
func (c *connection) interrupt(cause error) {
	if c.interruption.CompareAndSwap(nil, &cause) {
		c.queue.wakeUp()
	}
}

// Err implements rdma.Connection. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}
