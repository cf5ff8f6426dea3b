// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements rdma.Connection. It belongs to the thread that polls its queue, which other
// goroutines notify; only halt may take libdoca's context away from that thread.
type connection struct {
	softrdma.Attached[connection]
	device *device
	domain *domain
	queue  *completionQueue
	rdma   *doca.RDMA
	stream *stream // nil if the peer is a program written for DOCA
	armed  bool

	sends    workqueue.Queue[work]
	receives workqueue.Queue[work]
	reads    int // posted, and not completed

	imports  map[uint32]*doca.MemoryMap // the peer's memory, by its keys
	asking   bool                       // the peer was asked for a key
	answered atomic.Pointer[answer]

	// failure is set once, by any goroutine, when the connection is to end.
	failure atomic.Pointer[outcome]

	halting sync.Mutex
	halted  bool // nothing uses memory any more
}

// outcome is how a connection ends; err is nil for an orderly end.
type outcome struct{ err error }

// newConnection checks config and makes a connection whose context is running, with its receives
// posted.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, ok := config.Domain.(*domain)
	if !ok || domain.device != d {
		return nil, status.Errorf(status.InvalidValue,
			"protection domain is missing or belongs to another device")
	}
	queue, ok := config.Queue.(*completionQueue)
	if !ok || queue.device != d {
		return nil, softrdma.ErrForeignQueue
	}
	if err := d.CheckCounts(config); err != nil {
		return nil, err
	}
	c := &connection{
		device: d, domain: domain, queue: queue,
		sends:    workqueue.NewQueue[work](config.SendRequests),
		receives: workqueue.NewQueue[work](config.ReceiveRequests),
		imports:  make(map[uint32]*doca.MemoryMap),
	}
	c.Open(c, &queue.Queue, config)
	c.Agreed.OutboundReads = config.OutboundReads
	var err error
	c.rdma, err = doca.NewRDMA(doca.RDMAConfig{Device: d.doca, Sends: c.sends.Slots(),
		Receives: c.receives.Slots(), Reads: config.OutboundReads, Wait: d.wait,
		GIDIndex: d.gid, PathMTU: d.options.PathMTU, RNRRetryCount: d.options.RNRRetryCount})
	if err != nil {
		return nil, err
	}
	err = domain.attach(c)
	if err == nil {
		err = c.start(config.Receives)
	}
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// start starts libdoca's context and posts receives.
func (c *connection) start(receives []rdma.ReceiveRequest) error {
	if err := c.rdma.Start(); err != nil {
		return err
	}
	if err := c.await(progress.Running); err != nil {
		return err
	}
	if err := c.PostReceive(receives); err != nil {
		return err
	}
	c.submitReceives()
	return nil
}

const (
	// stateTimeout bounds how long libdoca may take to start or stop a context.
	stateTimeout = 5 * time.Second
	// stateBudget bounds the steps of progress between two looks at the state.
	stateBudget = 64
)

// await makes progress until libdoca's context is in a state.
func (c *connection) await(state progress.State) error {
	deadline := time.Now().Add(stateTimeout)
	for c.rdma.State() != state {
		if c.rdma.Progress(stateBudget) > 0 {
			continue
		}
		if time.Now().After(deadline) {
			return status.Errorf(status.TimeOut, "RDMA context is %v, not %v after %v",
				c.rdma.State(), state, stateTimeout)
		}
		time.Sleep(50 * time.Microsecond) // the slow path of starting and stopping
	}
	return nil
}

// halt ends all use of memory by the connection. Any goroutine may call it, provided that the
// connection is failing.
func (c *connection) halt() error {
	c.halting.Lock()
	defer c.halting.Unlock()
	if c.halted {
		return nil
	}
	for !c.rdma.Revoke() {
		runtime.Gosched() // a turn of the owner is in progress
	}
	if c.rdma.State() != progress.Idle {
		if err := c.rdma.Stop(); err != nil {
			return err
		}
		if err := c.await(progress.Idle); err != nil {
			return err
		}
	}
	c.halted = true
	return nil
}

// discard releases everything of a connection that is not in its queue: it has ended, or was not
// established.
func (c *connection) discard() error {
	c.fail(errDiscarded)
	err := c.halt()
	if err == nil {
		err = c.rdma.Close()
	}
	if err == nil {
		c.rdma.Free()
	}
	for _, m := range c.imports {
		err = errors.Join(err, m.Close())
	}
	if a := c.answered.Swap(&answer{}); a != nil {
		a.release()
	}
	c.imports = nil
	c.domain.detach(c)
	return err
}

var errDiscarded = status.Errorf(status.Shutdown, "the connection was discarded")

// fail makes the queue's thread end the connection. Any goroutine may call it.
func (c *connection) fail(err error) { c.conclude(&outcome{err}) }

// finish is fail for an orderly end by the peer.
func (c *connection) finish() { c.conclude(&outcome{}) }

func (c *connection) conclude(o *outcome) {
	if c.failure.CompareAndSwap(nil, o) {
		c.Notify()
	}
}

// Abort has the effect of a lost network.
func (c *connection) Abort() {
	c.fail(status.Errorf(status.ConnectionAborted, "connection to %v was aborted",
		c.Agreed.Remote))
}

// Close ends the connection at once.
func (c *connection) Close() {
	if c.Phase != softrdma.PhaseOpen {
		return
	}
	c.failure.CompareAndSwap(nil, &outcome{})
	if c.HasArrived() {
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen {
		c.end()
	}
}

// turnRecords is how many operations one turn of a connection takes from libdoca.
const turnRecords = 64

// turn submits what was posted and collects what has ended.
func (c *connection) turn() {
	c.learn()
	c.submit()
	c.collect()
	if c.failure.Load() != nil {
		c.end()
	}
}

// end ends the connection: what has arrived is delivered, memory is out of use, and what is left is
// flushed.
func (c *connection) end() {
	for c.collect() {
	}
	reason := c.failure.Load().err
	if err := c.halt(); err != nil {
		reason = errors.Join(reason, err)
	}
	c.SetErr(reason)
	if c.stream != nil {
		c.stream.send(encodeEnd(reason))
	}
	c.Phase = softrdma.PhaseEnded
	c.flushReceives()
	c.flushSends()
	c.queue.remove(c)
}
