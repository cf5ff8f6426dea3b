// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements rdma.Connection. The handshake sets the first group of fields, which then
// stay constant. Only the thread that polls the completion queue uses the second group, which
// begins at phase. Any goroutine may use the atomic fields.
type connection struct {
	device *device
	domain *protectionDomain
	queue  *completionQueue
	// deviceQueue is the ibv_cq of queue that the connection uses.
	deviceQueue *deviceQueue
	endpoint    *endpoint
	qp          *ibv.QueuePair
	context     uint64 // of the caller
	token       uint32 // names the connection in work IDs
	parameters  rdma.Parameters

	phase    phase
	listed   bool // the connection is in queue.unflushed
	sends    sendRing
	receives receiveRing
	reads    int // outstanding Reads
	// unflushed holds requests for the device's send queue, and scratch is for posting receives.
	// Both are allocated at full capacity.
	unflushed []ibv.SendWork
	scratch   []ibv.ReceiveWork
	// earlyFailure is the error of a request that failed before the connection was open.
	earlyFailure error

	handshake atomic.Uint32 // progress: handshakePrepared, handshakeDone
	// interruption is why another thread wants the connection to end.
	interruption atomic.Pointer[error]
	failure      atomic.Pointer[error] // why the connection has ended
}

// phase is the state of a connection, as the thread of its completion queue sees it.
type phase uint8

const (
	phaseConnecting phase = iota // completions are held back
	phaseOpen
	phaseClosing  // completions are still polled from the device, but nothing is posted to it
	phaseClosed   // the queue pair is destroyed; OpDisconnected has not been polled
	phaseDetached // OpDisconnected has been polled
)

// The progress of a handshake, for the thread of the completion queue. The atomic store also makes
// earlier writes of the handshake visible to that thread.
const (
	handshakePrepared uint32 = iota + 1 // the first receives are posted
	handshakeDone
)

// newConnection returns a connection that is attached to its completion queue but has no queue
// pair.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, queue, err := d.checkConfig(config)
	if err != nil {
		return nil, err
	}
	c := &connection{
		device:    d,
		domain:    domain,
		queue:     queue,
		context:   config.Context,
		sends:     sendRing{Queue: workqueue.NewQueue[sendEntry](config.SendRequests)},
		receives:  receiveRing{workqueue.NewQueue[receiveEntry](config.ReceiveRequests)},
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

// checkConfig rejects values that the device cannot provide.
func (d *device) checkConfig(
	config *rdma.ConnectionConfig,
) (*protectionDomain, *completionQueue, error) {
	domain, ok := config.Domain.(*protectionDomain)
	if !ok || domain.device != d {
		return nil, nil, status.Errorf(status.InvalidValue,
			"protection domain is missing, or belongs to another device")
	}
	queue, ok := config.Queue.(*completionQueue)
	if !ok || queue.device != d {
		return nil, nil, status.Errorf(status.InvalidValue,
			"completion queue is missing, or belongs to another device")
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
			return nil, nil, status.Errorf(status.InvalidValue,
				"invalid %s %d: must be between %d and %d on RDMA device %s",
				c.name, c.value, c.min, c.max, d.location.device)
		}
	}
	return domain, queue, nil
}

// inlineBytes is the length of the longest message that is worth copying while posting, an IO
// message.
const inlineBytes = 64

// createQueuePair creates the queue pair and posts the first receives.
func (c *connection) createQueuePair(e *endpoint, receives []rdma.ReceiveRequest) error {
	qp, err := c.domain.pd.NewQueuePair(ibv.QueuePairConfig{
		Queue:           c.deviceQueue.cq,
		SendRequests:    c.sends.Limit(),
		ReceiveRequests: c.receives.Limit(),
		InlineBytes:     inlineBytes,
	})
	if err != nil {
		return err
	}
	c.qp, c.endpoint = qp, e
	// Device events find the connection by the number of its queue pair.
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

// minRNRTimer encodes 0.64 ms, how long a peer pauses when its message finds no receive.
const minRNRTimer = 12

// makeReady moves the queue pair to the state in which it can send.
func (c *connection) makeReady(depths readDepths) error {
	o := &c.device.options
	gidIndex, err := c.qp.MakeReady(c.endpoint.id, &ibv.QueuePairSettings{
		InboundReads:  depths.inbound,
		OutboundReads: depths.outbound,
		PathMTU:       o.PathMTU,
		AckTimeout:    uint8(ackTimeoutExponent(o.AckTimeout)),
		RetryCount:    uint8(o.RetryCount),
		RNRRetryCount: uint8(o.RNRRetryCount),
		MinRNRTimer:   minRNRTimer,
	})
	if err != nil {
		return err
	}
	if o.GIDIndex != nil && gidIndex >= 0 && gidIndex != *o.GIDIndex {
		return status.Errorf(status.BadConfig,
			"address %v has GID index %d, not %d: use the address of that entry, or set the "+
				"connection manager's RoCE mode (cma_roce_mode)",
			c.device.address, gidIndex, *o.GIDIndex)
	}
	return nil
}

// connectionParameters returns the parameters to send to the peer.
func (c *connection) connectionParameters(
	depths readDepths, privateData []byte,
) ibv.ConnectionParameters {
	return ibv.ConnectionParameters{
		QueuePair:     c.qp.Number(),
		InboundReads:  depths.inbound,
		OutboundReads: depths.outbound,
		RetryCount:    uint8(c.device.options.RetryCount),
		RNRRetryCount: uint8(c.device.options.RNRRetryCount),
		PrivateData:   privateData,
	}
}

// markEstablished hands the connection to the thread of its completion queue.
func (c *connection) markEstablished() {
	c.handshake.Store(handshakeDone)
	c.queue.wake()
}

// discard destroys a connection whose handshake failed, and its endpoint. It returns when ctx ends,
// even if that is not finished: the connection manager of iWARP holds the queue pair until the peer
// responds or 10 seconds have passed. Close of the completion queue and of the protection domain
// waits for the rest.
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

// openIfEstablished opens the connection if its handshake has succeeded since the thread of its
// completion queue last looked.
func (c *connection) openIfEstablished() {
	if c.phase != phaseConnecting || c.handshake.Load() != handshakeDone {
		return
	}
	c.phase = phaseOpen
	if err := c.queue.startPolling(c.deviceQueue); err != nil && c.earlyFailure == nil {
		c.earlyFailure = err
	}
	c.deliver()
	if c.earlyFailure != nil {
		c.beginClose(c.earlyFailure)
	}
}

// Parameters returns what both sides agreed on in the handshake. Any goroutine may call it.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Err returns why the connection failed. It returns nil for a connection that is open or ended in
// an orderly way. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Abort ends the connection as if the network were lost. Any goroutine may call it.
func (c *connection) Abort() {
	c.interrupt(status.Errorf(status.ConnectionAborted,
		"connection to %v was aborted", c.parameters.Remote))
}

// interrupt makes the thread of the completion queue end the connection. Any goroutine may call it;
// only the first cause counts.
func (c *connection) interrupt(cause error) {
	if c.interruption.CompareAndSwap(nil, &cause) {
		c.queue.wake()
	}
}

// errPeerDisconnected interrupts a connection whose peer has disconnected. The thread of the
// completion queue then asks disconnectReason what that means.
var errPeerDisconnected = errors.New("peer has disconnected")

// disconnectReason distinguishes an orderly end, for which it returns nil, from a failure. If the
// queue pair has failed although the peer only disconnected, this side has rejected a request from
// the peer. On iWARP, queue pairs always fail, so there is no orderly end.
func (c *connection) disconnectReason() error {
	if c.device.limits.Transport == ibv.IWARP {
		return errConnectionClosed
	}
	failed, err := c.qp.Failed()
	if err != nil {
		return err
	}
	if failed {
		return status.Errorf(status.ConnectionReset,
			"peer has disconnected after this side rejected one of its requests")
	}
	return nil
}

// errConnectionClosed is the reason for the end of an iWARP connection if nothing more is known.
var errConnectionClosed = status.Errorf(status.ConnectionReset,
	"connection was closed by the peer or the network")

// beginClose starts to close the connection: Poll still collects what the device has completed, and
// then completes the rest as flushed. cause is nil for an orderly end.
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
			level = zap.DebugLevel // most likely an orderly end
		}
		c.device.log.Log(level, "connection lost",
			zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.queue.closing = append(c.queue.closing, c)
}

// Close implements rdma.Connection. It does not wait for outstanding requests: they complete as
// flushed.
func (c *connection) Close() {
	c.openIfEstablished()
	if c.phase == phaseOpen || c.phase == phaseClosing {
		c.finishClose()
	}
}

// finishClose destroys the queue pair, after which the device no longer touches memory on behalf of
// the connection, and completes the outstanding requests as flushed.
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
	// Another queue pair may get the number as soon as this one is destroyed.
	c.device.mu.Lock()
	delete(c.device.connections, c.qp.Number())
	c.device.mu.Unlock()
	if err := c.qp.Destroy(); err != nil {
		c.device.log.Error("cannot destroy queue pair", zap.Error(err))
	}
}
