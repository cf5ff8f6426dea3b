// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"encoding/binary"
	"errors"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// PostSend adds requests to the send queue.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	if c.Phase == softrdma.PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint64(len(requests)) > uint64(c.sends.Room()) {
		return workqueue.ErrSendQueueFull
	}
	reads := 0
	for i := range requests {
		w := c.sends.At(c.sends.Tail + uint32(i))
		w.request = requests[i]
		r := &w.request
		_, err := workqueue.CheckSend(r, c.device.maxMessageSize)
		if r.Opcode == rdma.OpRead {
			if reads++; err == nil && c.reads+reads > c.Agreed.OutboundReads {
				err = workqueue.ErrReadDepth
			}
		}
		if err == nil {
			if err = c.take(w, r.Opcode == rdma.OpRead); err != nil {
				err = workqueue.PostError(r.Opcode.String(), r.ID, err)
			}
		}
		if err != nil {
			c.drop(&c.sends, i)
			return err
		}
	}
	c.reads += reads
	c.sends.Tail += uint32(len(requests))
	if c.Phase == softrdma.PhaseEnded {
		c.flushSends()
	}
	return nil
}

// Flush starts the posted requests.
func (c *connection) Flush() {
	if c.Phase == softrdma.PhaseOpen {
		c.submit()
	}
}

// submit starts what was posted, as far as libdoca accepts it.
func (c *connection) submit() {
	c.submitReceives()
	c.submitSends()
}

// hasUnsubmitted reports whether a turn would submit something. A request that waits for a key does
// not count: the answer notifies.
func (c *connection) hasUnsubmitted() bool {
	return c.receives.Next != c.receives.Tail || c.sends.Next != c.sends.Tail && !c.asking
}

func (c *connection) submitSends() {
	for q := &c.sends; q.Next != q.Tail && !c.asking; q.Next++ {
		w := q.At(q.Next)
		remote, err := c.remoteOf(&w.request)
		if c.asking {
			return
		}
		if err == nil && w.request.Local.Length == 0 && w.request.Opcode != rdma.OpSend {
			w.ended = true // there is nothing to move
			continue
		}
		if err == nil {
			err = c.rdma.Submit(operations[w.request.Opcode], q.Slot(q.Next), w.local(), remote)
		}
		if errors.Is(err, status.Again) {
			return
		}
		if err != nil {
			w.ended, w.status = true, rdma.StatusRemoteAccess
			c.fail(err)
			return
		}
	}
}

var operations = [...]doca.RDMAOperation{
	rdma.OpSend: doca.RDMASend, rdma.OpWrite: doca.RDMAWrite, rdma.OpRead: doca.RDMARead,
}

// maxImports bounds the regions of the peer that a connection uses.
const maxImports = 256

// remoteOf returns the peer's memory that a Write or Read names. If its key is not known yet,
// remoteOf asks the peer for it, and asking is set until it has answered.
func (c *connection) remoteOf(r *rdma.SendRequest) (doca.Segment, error) {
	if r.Opcode == rdma.OpSend || r.Local.Length == 0 {
		return doca.Segment{}, nil
	}
	m := c.imports[r.RemoteKey]
	if i := (*c.domain.imports.Load())[r.RemoteKey]; c.stream == nil && i != nil {
		m = i.memory
	}
	if m == nil {
		switch {
		case c.stream == nil:
			return doca.Segment{}, errNoSuchMemory
		case len(c.imports) >= maxImports:
			return doca.Segment{}, status.Errorf(status.Full,
				"the connection uses %d regions of its peer already", maxImports)
		}
		c.asking = true
		c.stream.send(frame{frameAsk, binary.LittleEndian.AppendUint32(nil, r.RemoteKey)})
		return doca.Segment{}, nil
	}
	offset := r.RemoteAddress - m.Base()
	if r.RemoteAddress < m.Base() || offset > m.Len() ||
		uint64(r.Local.Length) > m.Len()-offset {
		return doca.Segment{}, status.Errorf(status.IOFailed,
			"%d bytes at %#x are not within the peer's memory", r.Local.Length, r.RemoteAddress)
	}
	return doca.Segment{Map: m, Offset: offset, Length: uint64(r.Local.Length)}, nil
}

// learn takes the peer's answer about a key.
func (c *connection) learn() {
	if !c.asking {
		return
	}
	a := c.answered.Swap(nil)
	if a == nil {
		return
	}
	c.asking = false
	w := c.sends.At(c.sends.Next)
	if a.err == nil && a.key != w.request.RemoteKey {
		a.release()
		a.err = badFrame("an export that was not asked for")
	}
	if a.err != nil {
		w.ended, w.status = true, rdma.StatusRemoteAccess
		c.fail(a.err)
		return
	}
	c.imports[a.key] = a.memory
}

func (c *connection) completeSend(w *work) {
	if w.request.Opcode == rdma.OpRead {
		c.reads--
	}
	if w.request.Silent && w.status == rdma.StatusSuccess {
		w.region.Store(nil)
		c.sends.CompleteSilently()
		return
	}
	c.complete(&c.sends, w, w.request.Opcode)
}

func (c *connection) flushSends() {
	for q := &c.sends; q.Head != q.Tail; {
		w := q.At(q.Head)
		flush(w)
		c.completeSend(w)
	}
	c.sends.Next = c.sends.Tail
}
