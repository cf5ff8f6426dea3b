// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Endpoint is the part of a connection that is the same however it moves data: its posted requests
// and how they complete. C is the connection, and X what it notes of a send request beyond that.
// PostSend, PostReceive, Parameters, Err, and Abort are those of rdma.Connection.
type Endpoint[C, X any] struct {
	Attached[C]
	Domain   *registration.Domain
	Sends    workqueue.Queue[Send[X]]
	Receives workqueue.Queue[Receive]
	// ReadLimit is the outbound read depth, and Reads the number of Reads posted that do not have
	// their data.
	ReadLimit, Reads uint32
	Aborted          atomic.Bool
}

// Send is a posted Send, Write, or Read.
type Send[X any] struct {
	ID     uint64
	Region *registration.Region // nil if the length is 0
	Local  uint64               // offset in Region
	Remote uint64               // address in the peer's memory, for Writes and Reads
	Length uint32
	Key    uint32 // the peer's, for Writes and Reads
	Opcode rdma.Opcode
	Silent bool
	// Chained is set if the next request was posted together with this one and must follow it
	// directly.
	Chained bool
	Done    bool // a Read has its data
	Extra   X
}

// Receive is a posted receive.
type Receive struct {
	ID     uint64
	Region *registration.Region // nil if the length is 0
	Local  uint64               // offset in Region
	Length uint32
}

// Open makes e an endpoint of self in the domain and the queue of config, which it checks, with its
// receives posted. The endpoint holds a reference to the domain. Release it if the connection is
// not attached to its queue.
func (e *Endpoint[C, X]) Open(
	self *C, d *Device, queue *Queue[C], config *rdma.ConnectionConfig,
) error {
	domain, ok := config.Domain.(*registration.Domain)
	if !ok || domain.Table() != d.Table {
		return status.Errorf(status.InvalidValue,
			"protection domain is missing or belongs to another device")
	}
	if queue == nil {
		return ErrForeignQueue
	}
	if err := d.CheckCounts(config); err != nil {
		return err
	}
	e.Attached.Open(self, queue, config)
	e.Domain = domain
	e.Sends = workqueue.NewQueue[Send[X]](config.SendRequests)
	e.Receives = workqueue.NewQueue[Receive](config.ReceiveRequests)
	if err := e.PostReceive(config.Receives); err != nil {
		return err
	}
	if !domain.Acquire() {
		return status.Errorf(status.BadState, "protection domain is closed")
	}
	return nil
}

// PostSend adds the requests to the send queue, all or none, and schedules the connection for
// transmission by the next Poll, unless Flush comes first.
func (e *Endpoint[C, X]) PostSend(requests []rdma.SendRequest) error {
	if e.Phase == PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint32(len(requests)) > e.Sends.Room() {
		return workqueue.ErrSendQueueFull
	}
	var reads uint32
	for i := range requests {
		r := &requests[i]
		rights, err := workqueue.CheckSend(r, MaxMessageSize)
		if err != nil {
			return err
		}
		var region *registration.Region
		if e.needsMemory() {
			var refusal registration.Refusal
			region, refusal = e.Domain.Find(r.Local.Key, r.Local.Address, r.Local.Length, rights)
			if refusal != registration.Granted {
				return workqueue.PostError(r.Opcode.String(), r.ID,
					e.Domain.LocalError(&r.Local, refusal))
			}
		}
		*e.Sends.At(e.Sends.Tail + uint32(i)) = Send[X]{
			ID: r.ID, Region: region, Local: r.Local.Address, Remote: r.RemoteAddress,
			Length: r.Local.Length, Key: r.RemoteKey, Opcode: r.Opcode, Silent: r.Silent,
			Chained: i < len(requests)-1,
		}
		if r.Opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && e.Phase == PhaseOpen && e.Reads+reads > e.ReadLimit {
		return workqueue.ErrReadDepth
	}
	e.Reads += reads
	e.Sends.Tail += uint32(len(requests))
	if e.Phase == PhaseEnded {
		e.FlushSends(rdma.StatusFlushed)
		return nil
	}
	e.Schedule()
	return nil
}

// PostReceive adds the receives to the receive queue, all or none.
func (e *Endpoint[C, X]) PostReceive(requests []rdma.ReceiveRequest) error {
	if e.Phase == PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint32(len(requests)) > e.Receives.Room() {
		return workqueue.ErrReceiveQueueFull
	}
	for i := range requests {
		r := &requests[i]
		var region *registration.Region
		if e.needsMemory() {
			var refusal registration.Refusal
			region, refusal = e.Domain.Find(
				r.Local.Key, r.Local.Address, r.Local.Length, memory.LocalWrite)
			if refusal != registration.Granted {
				return workqueue.PostError("receive", r.ID, e.Domain.LocalError(&r.Local, refusal))
			}
		}
		*e.Receives.At(e.Receives.Tail + uint32(i)) = Receive{
			ID: r.ID, Region: region, Local: r.Local.Address, Length: r.Local.Length,
		}
	}
	e.Receives.Tail += uint32(len(requests))
	if e.Phase == PhaseEnded {
		e.FlushReceives(rdma.StatusFlushed)
	}
	return nil
}

// needsMemory reports whether posted requests need their memory. After the end of the connection it
// may have been deregistered.
func (e *Endpoint[C, X]) needsMemory() bool { return e.Phase == PhaseOpen }

// CompleteSend removes w, the request at the head of the send queue. A silent request that succeeds
// has no completion; polling the next one frees its slot.
func (e *Endpoint[C, X]) CompleteSend(w *Send[X], outcome rdma.CompletionStatus) {
	w.Region = nil
	if w.Silent && outcome == rdma.StatusSuccess {
		e.Sends.CompleteSilently()
		return
	}
	*e.Sends.Complete(&e.queue.Completions) = rdma.Completion{
		ID: w.ID, Context: e.Context, Opcode: w.Opcode, Status: outcome,
	}
}

// CompleteReceive removes w, the receive at the head of the receive queue.
func (e *Endpoint[C, X]) CompleteReceive(
	w *Receive, length uint32, outcome rdma.CompletionStatus,
) {
	w.Region = nil
	*e.Receives.Complete(&e.queue.Completions) = rdma.Completion{
		ID: w.ID, Context: e.Context, Length: length, Opcode: rdma.OpReceive, Status: outcome,
	}
}

// FlushSends completes all requests of the send queue: the oldest with status first, the others as
// flushed.
func (e *Endpoint[C, X]) FlushSends(first rdma.CompletionStatus) {
	for q := &e.Sends; q.Head != q.Tail; {
		e.CompleteSend(q.At(q.Head), first)
		first = rdma.StatusFlushed
	}
}

// FlushReceives completes all receives in the same way.
func (e *Endpoint[C, X]) FlushReceives(first rdma.CompletionStatus) {
	for q := &e.Receives; q.Head != q.Tail; {
		e.CompleteReceive(q.At(q.Head), 0, first)
		first = rdma.StatusFlushed
	}
}

// Abort has the queue's thread end the connection. Any goroutine may call it.
func (e *Endpoint[C, X]) Abort() {
	if !e.Aborted.Swap(true) {
		e.Notify()
	}
}

// AbortError is the cause of the end of a connection that was aborted.
func (e *Endpoint[C, X]) AbortError() error {
	return status.Errorf(status.ConnectionAborted, "connection to %v was aborted", e.Agreed.Remote)
}

// Join makes the connection take part in its queue's fairness, until Leave.
func (e *Endpoint[C, X]) Join() { e.queue.Fairness.Join(&e.Sharing, e.Domain) }

// Leave takes the connection out of its queue's fairness, and off its open connections.
func (e *Endpoint[C, X]) Leave() {
	e.queue.Connections.End(&e.Attached, e.Slot)
	e.queue.Fairness.Leave(&e.Sharing)
}
