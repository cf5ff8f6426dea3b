// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// lane is what both kinds of lanes share: a worker, two RDMA connections, and the life from attach
// to close. Once it is attached, its state belongs to the worker's thread, except inFlight, ready,
// quiesced, and released.
//
// A lane ends in steps, which the control plane takes after the lane has failed or when it wants
// the session to end:
//
//  1. Revoke closes both connections. From then on the peer has no access to memory through this
//     lane.
//  2. FailReads, on the relay only, completes every read in flight with a code. All lanes of the
//     session must have been revoked, and the client's memory deregistered.
//  3. FailRequests, on the relay only, does the same with what is left, and rejects every later
//     request with the code until Close. No change in flight may take effect any more.
//  4. Close waits until the lane is quiesced, which means that no connection, volume request, or
//     copy uses its memory any more, and releases it.
//
// The table shows the effect of each event. An arrow precedes the new state; without one, the state
// stays the same. An empty cell means no effect, and a dash that the event cannot occur. A failed
// post and a message that breaks the protocol have the effect of a timeout, except that nothing is
// delivered afterwards.
//
//	                     connecting    running       failed        rejecting   closed
//	Start                → running     BAD_STATE     BAD_STATE     BAD_STATE   BAD_STATE
//	request, relay       unread        forwarded     unread²       rejected    unread
//	request, target      → failed      served        dropped       –           –
//	response, relay      → failed      completes     dropped¹      –           –
//	SHUTDOWN, relay      → failed      holds³        dropped¹      –           –
//	peer disconnects     → failed      → failed
//	timeout, relay       –             → failed
//	Drain                no new IO⁴    no new IO⁴
//	Revoke               → failed      → failed
//	FailRequests, relay  → rejecting   → rejecting   → rejecting
//	Close                → closed      → closed      → closed      → closed
//
//	¹ A relay lane that failed while it was running, because of a disconnect or a
//	  timeout, still delivers the responses that the target has sent.
//	² Requests that the lane had polled together with the one that made it fail
//	  are rejected with CONNECTION_RESET.
//	³ A target that shuts down has not carried out the request. The lane keeps it
//	  in flight for FailRequests, and drains.
//	⁴ A draining relay lane leaves requests unread; a draining target lane
//	  completes new ones with SHUTDOWN.
type lane struct {
	worker       *Worker
	dispatcher   *dispatcher
	registration registrationID
	source       progress.Source
	waiters      []progress.Waiter
	counters     *counters
	onFailure    func(error)

	state       laneState
	draining    bool
	stop        stopState
	tracer      *trace.Tracer
	stopMessage message
	stopped     chan struct{} // closed when stop is stopCompleted

	connections [iomsg.ConnectionRoleCount]connection
	// keepsDelivering is set if the lane failed while it was running and the peer has not broken
	// the protocol: its responses still count until Revoke.
	keepsDelivering bool
	messages        *messageMemory
	submitted       int // in progress: volume requests of a target lane, copies of a relay lane

	nowNs    int64        // of the batch in progress, 0 if not read yet
	inFlight atomic.Int64 // for observers
	// transport names the data connection's transport, for observers; nil until it is established.
	transport atomic.Pointer[string]

	ready    [iomsg.ConnectionRoleCount]chan error
	quiesced chan struct{}

	// What follows belongs to the control plane.
	sets     []*CounterSet // that include the counters
	detached bool          // from the worker
	freeing  devicecall.Step
	freed    bool
}

// laneState is the stage of a lane's life.
type laneState uint8

const (
	laneConnecting laneState = iota // connections are being set up
	laneRunning                     // requests are forwarded or served
	laneFailed                      // nothing new starts
	laneRejecting                   // the relay completes every request with an error code
	laneClosed
)

// stopState is how far a queue's stop message has travelled. The client sends it after its last
// request; the relay forwards it to the target when everything before it has completed, and the
// target returns it the same way.
type stopState uint8

const (
	stopNone      stopState = iota
	stopReceived            // no request may follow
	stopForwarded           // by the relay, to the target
	stopReturned            // by the target, to the relay
	stopCompleted           // returned to the sender
)

// init prepares a lane for attach.
func (l *lane) init(worker *Worker, tracer *trace.Tracer, onFailure func(error)) {
	l.worker, l.tracer, l.onFailure = worker, tracer, onFailure
	l.counters = &counters{}
	for role := range iomsg.ConnectionRoleCount {
		l.ready[role] = make(chan error, 1)
	}
	l.quiesced, l.stopped = make(chan struct{}), make(chan struct{})
}

// observe lets sets include what the attached lane counts, until it is closed.
func (l *lane) observe(queue int, sets []*CounterSet) {
	l.sets = sets
	for _, set := range sets {
		set.include(l.counters, queue)
	}
}

// retireCounters leaves to the sets what the lane has counted. Its worker counts nothing more.
func (l *lane) retireCounters() {
	for _, set := range l.sets {
		set.retire(l.counters)
	}
}

// Stopped returns a channel that is closed when the lane has returned the stop message, after the
// rest of the chain, and every request before it has completed.
func (l *lane) Stopped() <-chan struct{} { return l.stopped }

// isAlive reports whether the lane may still exchange messages with its peer.
func (l *lane) isAlive() bool { return l.state == laneConnecting || l.state == laneRunning }

// attach puts the lane on its worker, which then polls source, sleeps on waiters, and dispatches
// the completions of the lane's connections to handler.
func (l *lane) attach(ctx context.Context, device rdma.Device, handler completionHandler,
	source progress.Source, waiters ...progress.Waiter) error {
	var failed, err error
	if l.dispatcher, err = l.worker.dispatcherOn(ctx, device); err != nil {
		return err
	}
	l.source = source
	err = l.worker.do(ctx, func() {
		engine := l.worker.engine
		for _, waiter := range waiters {
			if failed = engine.AddWaiter(waiter); failed != nil {
				break
			}
			l.waiters = append(l.waiters, waiter)
		}
		if failed == nil {
			failed = engine.Add(source)
		}
		if failed != nil {
			for _, waiter := range l.waiters {
				engine.RemoveWaiter(waiter)
			}
			return
		}
		l.registration = l.dispatcher.register(handler)
		l.worker.lanes.Add(1)
	})
	return errors.Join(err, failed)
}

// adopt gives the lane an established connection. If the lane has ended in the meantime, adopt
// closes the connection and returns false.
func (l *lane) adopt(role iomsg.ConnectionRole, established rdma.Connection) bool {
	c := &l.connections[role]
	c.rdma = established
	if role == iomsg.DataConnection {
		parameters := established.Parameters()
		transport := parameters.Name()
		l.transport.Store(&transport)
	}
	if l.isAlive() && !c.disconnected {
		return true
	}
	if !c.disconnected {
		established.Close() // revoke could not: the lane did not have the connection yet
	}
	c.closed = true
	l.signalReady(role, errSessionEnded)
	return false
}

// connectByDetails establishes a connection to a program of the DOCA applications, which knows no
// hellos: exchange passes the details of this side's end to the peer, and returns those of the
// peer's. config lacks what belongs to the lane.
func (l *lane) connectByDetails(
	ctx context.Context, device rdma.Device, role iomsg.ConnectionRole,
	config rdma.ConnectionConfig, exchange func(details []byte) ([]byte, error),
) error {
	capable, ok := device.(rdma.DetailsDevice)
	if !ok {
		return status.Errorf(status.NotSupported, "an RDMA device of transport %s cannot connect "+
			"to programs written for DOCA", device.Capabilities().Transport)
	}
	c := &l.connections[role]
	config.Queue, config.Context = l.dispatcher.queue, l.registration.context(role)
	config.ReceiveRequests, config.Receives = int(c.receives), c.initialReceives()
	end, err := capable.Prepare(config)
	if err != nil {
		return fmt.Errorf("prepare %v connection: %w", role, err)
	}
	details, err := exchange(end.Details())
	if err != nil {
		return errors.Join(err, end.Discard())
	}
	established, err := end.Connect(details)
	if err != nil {
		return fmt.Errorf("connect %v connection: %w", role, err)
	}
	err = l.worker.do(ctx, func() {
		if l.adopt(role, established) {
			c.ready = true
		}
	})
	if err != nil {
		established.Abort()
	}
	return err
}

var errSessionEnded = status.Errorf(status.ConnectionReset, "the session has ended")

// signalReady reports the outcome of a connection's set-up. Only the first outcome counts.
func (l *lane) signalReady(role iomsg.ConnectionRole, err error) {
	select {
	case l.ready[role] <- err:
	default:
	}
}

// awaitReady waits until the hellos of a connection have been exchanged.
func (l *lane) awaitReady(ctx context.Context, role iomsg.ConnectionRole) error {
	select {
	case err := <-l.ready[role]:
		l.signalReady(role, err) // for the next caller
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start lets the lane accept requests. Both connections must be ready.
func (l *lane) start() error {
	for role := range iomsg.ConnectionRoleCount {
		if c := &l.connections[role]; l.state != laneConnecting || !c.ready || c.rdma == nil {
			return status.Errorf(status.BadState,
				"the %v connection is not ready, or the lane has already started or ended", role)
		}
	}
	l.state = laneRunning
	return nil
}

// Drain makes the lane start nothing new, so that requests in flight can complete.
func (l *lane) Drain(ctx context.Context) error {
	return l.worker.do(ctx, func() { l.draining = true })
}

// OnAll takes a step on all lanes of a session at the same time, so that a lane whose worker is
// stuck does not hold up the others, and waits for all. It returns their errors, by queue.
func OnAll[L any](lanes []L, step func(lane L) error) error {
	return errors.Join(onEach(lanes, step)...)
}

// onEach returns the outcome of the step on each lane.
func onEach[L any](lanes []L, step func(lane L) error) []error {
	errs := make([]error, len(lanes))
	var steps sync.WaitGroup
	for queue, lane := range lanes {
		steps.Go(func() {
			if err := step(lane); err != nil {
				errs[queue] = fmt.Errorf("queue %d: %w", queue, err)
			}
		})
	}
	steps.Wait()
	return errs
}

// drainPoll is how often DrainAll checks for requests in flight.
const drainPoll = 2 * time.Millisecond

// DrainAll drains lanes and waits until their requests in flight have completed, or ctx ends. It
// does not wait for a lane that has lost both connections. It returns how many requests were still
// in flight when ctx ended; those that a drained lane has declined since then are not among them.
func DrainAll[L interface {
	Drain(ctx context.Context) error
	InFlight() int
	Quiesced() <-chan struct{}
}](ctx context.Context, lanes []L) (unfinished int) {
	var left atomic.Int64
	_ = OnAll(lanes, func(lane L) error {
		if err := lane.Drain(ctx); err != nil {
			left.Add(int64(lane.InFlight()))
			return err
		}
		ticker := time.NewTicker(drainPoll)
		defer ticker.Stop()
		for lane.InFlight() > 0 {
			select {
			case <-ticker.C:
			case <-lane.Quiesced():
				return nil
			case <-ctx.Done():
				left.Add(int64(lane.InFlight()))
				return nil
			}
		}
		return nil
	})
	return int(left.Load())
}

// CloseAll closes the lanes of a session. It returns those that it could not close.
func CloseAll[L interface {
	Close(ctx context.Context) error
}](
	ctx context.Context, lanes []L,
) (open []L, err error) {
	errs := onEach(lanes, func(lane L) error { return lane.Close(ctx) })
	for queue, lane := range lanes {
		if errs[queue] != nil {
			open = append(open, lane)
		}
	}
	return open, errors.Join(errs...)
}

// InFlight returns the number of requests that have not completed, for observers. On a target it
// includes those whose responses are still being sent.
func (l *lane) InFlight() int { return int(l.inFlight.Load()) }

// Transport returns the name of the data connection's transport (rdma.Parameters.Name), or "" until
// it is established. Any goroutine may call it.
func (l *lane) Transport() string {
	if t := l.transport.Load(); t != nil {
		return *t
	}
	return ""
}

// fail stops the lane because of an error. Requests in flight stay in flight: until the session has
// been revoked, the peer can still reach the client's memory.
func (l *lane) fail(err error) {
	if !l.isAlive() {
		return
	}
	l.state = laneFailed
	for role := range iomsg.ConnectionRoleCount {
		l.signalReady(role, err)
	}
	l.onFailure(err)
}

// postGathered posts what the lane has gathered on a connection, and the receives before that: a
// response allows the peer another request, which needs a posted receive. Once the lane has failed,
// it drops what was gathered. On a relay the slots stay claimed: FailRequests completes the
// requests.
func (l *lane) postGathered(c *connection) {
	requests := c.finish()
	if len(requests) == 0 || !l.isAlive() {
		return
	}
	err := c.postReceives()
	if err == nil {
		err = c.post(requests)
	}
	if err != nil {
		l.fail(err)
	}
}

// handleConnectionEnd handles a completion if it ends its connection, and reports whether it does.
// The first such completion is a flushed work request, a send before a receive; OpDisconnected
// comes last, even if this side has closed the connection.
func (l *lane) handleConnectionEnd(c *connection, completion *rdma.Completion) bool {
	if completion.Status == rdma.StatusSuccess && completion.Opcode != rdma.OpDisconnected {
		return false
	}
	if l.isAlive() { // otherwise the end is a consequence of the lane's own
		l.keepsDelivering = l.state == laneRunning
		l.fail(c.failure(completion))
	}
	if completion.Opcode == rdma.OpDisconnected {
		c.disconnected = true
		l.checkQuiesced()
	}
	return true
}

// revoke closes both connections. From then on the peer has no access to memory through this lane.
func (l *lane) revoke() {
	if l.isAlive() {
		l.state = laneFailed
	}
	for role := range iomsg.ConnectionRoleCount {
		l.signalReady(role, errSessionEnded)
		l.connections[role].close()
	}
	l.checkQuiesced()
}

// checkQuiesced closes quiesced once no connection, volume request, or copy can use the lane's
// memory any more.
func (l *lane) checkQuiesced() {
	if l.isAlive() || l.submitted > 0 {
		return
	}
	for role := range iomsg.ConnectionRoleCount {
		if !l.connections[role].isGone() {
			return
		}
	}
	select {
	case <-l.quiesced:
	default:
		close(l.quiesced)
	}
}

// Quiesced returns a channel that is closed when the lane has failed or been revoked, none of its
// volume requests and copies is in progress, and its connections have delivered their last
// completion.
func (l *lane) Quiesced() <-chan struct{} { return l.quiesced }

// detach waits until the revoked lane is quiesced, and takes it off its worker. unfinished returns
// the number of requests that will never complete: none after FailRequests.
func (l *lane) detach(ctx context.Context, unfinished func() int) error {
	select {
	case <-l.quiesced:
	case <-l.worker.ended:
		l.retireCounters()
		return errWorkerStopped
	case <-ctx.Done():
		return fmt.Errorf("wait for its connections and for %d requests in flight: %w",
			l.InFlight(), ctx.Err())
	}
	err := l.worker.do(ctx, func() {
		l.state = laneClosed
		l.counters.discard(unfinished())
		l.counters.publish()
		l.worker.engine.Remove(l.source)
		for _, waiter := range l.waiters {
			l.worker.engine.RemoveWaiter(waiter)
		}
		l.dispatcher.unregister(l.registration)
		l.worker.lanes.Add(-1)
	})
	if l.detached = err == nil; l.detached {
		l.retireCounters()
	}
	return err
}

// free frees what the detached lane has used. If ctx ends because a device does not let go of it,
// free can be called again.
func (l *lane) free(ctx context.Context, release func() error) error {
	if l.freed {
		return nil
	}
	err := l.freeing.Take(ctx, "free the memory of a queue", release)
	l.freed = !l.freeing.IsUnderWay()
	return err
}

// now returns the time, which is read once per batch.
func (l *lane) now() int64 {
	if l.nowNs == 0 {
		l.nowNs = nanotime()
	}
	return l.nowNs
}
