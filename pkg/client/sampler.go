// SPDX-License-Identifier: Apache-2.0

package client

import (
	"math/rand/v2"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// sampler chooses the requests of a queue that are traced, and records them.
type sampler struct {
	tracer  *trace.Tracer // nil if none are
	every   int
	queue   int
	count   int // requests since the last one
	lastID  uint32
	records []trace.Record // by the queue's slot, with ID 0 if its request is not traced
}

func newSampler(c *Config, queue, depth int) sampler {
	if c.Tracer == nil || c.TraceEvery <= 0 {
		return sampler{}
	}
	return sampler{tracer: c.Tracer, every: c.TraceEvery, queue: queue,
		lastID:  rand.Uint32(), // other queues and clients count from elsewhere
		records: make([]trace.Record, depth)}
}

func (s *sampler) isOn() bool { return s.tracer != nil }

// sample returns the ID of the next request, or 0 if it is not traced.
func (s *sampler) sample() uint32 {
	if s.count++; s.count < s.every || !s.tracer.IsOn() {
		return 0
	}
	s.count = 0
	s.lastID = max(s.lastID+1, 1)
	return s.lastID
}

// begin notes that a request has been submitted, with an ID or 0.
func (s *sampler) begin(slot, id uint32, operation iomsg.Operation, offset uint64, size uint32) {
	s.records[slot].ID = id
	if id != 0 {
		s.records[slot] = trace.Record{ID: id, Operation: operation, Queue: s.queue,
			Offset: offset, Size: size, BeginNs: time.Now().UnixNano()}
	}
}

// end records a request that has completed, if it is traced.
func (s *sampler) end(slot uint32, result status.Code) {
	r := &s.records[slot]
	if r.ID == 0 {
		return
	}
	r.Result, r.EndNs = result, time.Now().UnixNano()
	s.tracer.Record(r)
	r.ID = 0
}
