//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

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
	unflushed []ibv.SendWork
	scratch   []ibv.ReceiveWork
	// broken is why the device failed a request before the connection was
	// open.
	earlyFailure error

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
	phaseClosing  // what has arrived is collected; nothing goes to the device
	phaseClosed   // the queue pair is gone, OpDisconnected is yet to be collected
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
		sends:     sendRing{ring: newRing[sendEntry](config.SendRequests)},
		receives:  receiveRing{newRing[receiveEntry](config.ReceiveRequests)},
		unflushed: make([]ibv.SendWork, 0, config.SendRequests),
		scratch:   make([]ibv.ReceiveWork, config.ReceiveRequests),
	}
	if !domain.acquire() {
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
	// Events of the device find the connection by the number of its queue pair.
	c.device.mu.Lock()
	c.device.connections[qp.Number()] = c
	c.device.mu.Unlock()
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
func (c *connection) markEstablished() {
	c.handshake.Store(handshakeDone)
	c.queue.wake()
}

// abandon gives up a connection that was never open, and its endpoint. It
// waits for that no longer than until ctx ends: the connection manager of
// iWARP holds on to the queue pair until the peer has answered or 10 seconds
// have passed. What the connection uses waits for it when it is closed.
func (c *connection) discard(ctx context.Context, e *endpoint) {
	done := make(chan struct{})
	c.queue.discards.Add(1)
	c.domain.discards.Add(1)
	go func() {
		defer close(done)
		defer c.domain.discards.Done()
		defer c.queue.discards.Done()
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

// adopt opens a connection whose handshake has succeeded since the queue's
// thread last looked.
func (c *connection) openIfEstablished() {
	if c.phase != phaseConnecting || c.handshake.Load() != handshakeDone {
		return
	}
	c.phase = phaseOpen
	c.deliver()
	if c.earlyFailure != nil {
		c.beginClose(c.earlyFailure)
	}
}

// Parameters implements rdma.Connection.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Err implements rdma.Connection. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Abort implements rdma.Connection.
func (c *connection) Abort() {
	c.interrupt(status.Errorf(status.ConnectionAborted, "connection to %v was aborted", c.parameters.Remote))
}

// interrupt has the connection end. Any goroutine may call it; the first
// cause counts.
func (c *connection) interrupt(cause error) {
	if c.interruption.CompareAndSwap(nil, &cause) {
		c.queue.wake()
	}
}

// errPeerDisconnected interrupts a connection whose peer has disconnected; what that
// means is found out by the queue's thread.
var errPeerDisconnected = errors.New("the peer has disconnected")

// disconnectReason tells an orderly end from a failure. A queue pair that has
// failed, although its peer only disconnected, has refused something of the
// peer's. iWARP has no orderly end: its queue pairs always fail.
func (c *connection) disconnectReason() error {
	if c.device.limits.Transport == ibv.IWARP {
		return errConnectionClosed
	}
	failed, err := c.qp.Failed()
	if err != nil {
		return err
	}
	if failed {
		return status.Errorf(status.ConnectionReset, "the peer has disconnected after a request of its was refused here")
	}
	return nil
}

// errConnectionClosed is why a connection of iWARP has ended when nothing else is known.
var errConnectionClosed = status.Errorf(status.ConnectionReset, "the peer has closed the connection, or the network has")

// beginClose stops the connection: what the device has completed is still
// collected, then the rest is flushed. cause is nil for an orderly end.
func (c *connection) beginClose(cause error) {
	if c.phase != phaseOpen {
		return
	}
	c.phase = phaseClosing
	c.unflushed = c.unflushed[:0]
	if cause != nil {
		cause = fmt.Errorf("connection to %v: %w", c.parameters.Remote, cause)
		c.failure.Store(&cause)
		level := zap.InfoLevel
		if errors.Is(cause, errConnectionClosed) {
			level = zap.DebugLevel // most likely in order
		}
		c.device.log.Log(level, "connection lost", zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.queue.closing = append(c.queue.closing, c)
}

// Close implements rdma.Connection.
func (c *connection) Close() {
	c.openIfEstablished()
	if c.phase == phaseOpen || c.phase == phaseClosing {
		c.finishClose()
	}
}

// finish destroys the queue pair, after which the device touches no memory on
// behalf of the connection, and flushes what it has not completed.
func (c *connection) finishClose() {
	c.endpoint.connection.Store(nil)
	c.phase = phaseClosed
	c.unflushed = c.unflushed[:0]
	c.endpoint.disconnect()
	c.destroyQueuePair()
	c.completeAllSends()
	c.completeAllReceives()
	if i := slices.Index(c.queue.closing, c); i >= 0 {
		c.queue.closing = slices.Delete(c.queue.closing, i, i+1)
	}
	c.queue.disconnected = append(c.queue.disconnected, c)
}

func (c *connection) destroyQueuePair() {
	if c.qp == nil {
		return
	}
	// The number may be used again as soon as the queue pair is destroyed.
	c.device.mu.Lock()
	delete(c.device.connections, c.qp.Number())
	c.device.mu.Unlock()
	if err := c.qp.Destroy(); err != nil {
		c.device.log.Error("destroy queue pair", zap.Error(err))
	}
}
