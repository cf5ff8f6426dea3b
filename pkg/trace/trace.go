// SPDX-License-Identifier: Apache-2.0

// Package trace records sampled IOs, so that one IO can be followed through client, relay, and
// target. The client samples: it gives one IO in so many an ID, which the IO's messages carry. Each
// program whose Tracer is on records the IOs that have one.
package trace

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/recorder"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Record is the passage of an IO through one program. Times are nanoseconds since 1970.
type Record struct {
	ID        uint32
	Operation iomsg.Operation
	Result    status.Code
	Queue     int    // of the session
	Offset    uint64 // in the volume, in bytes
	Size      uint32 // bytes
	// BeginNs and EndNs are when the program got the IO and when it completed it.
	BeginNs, EndNs int64
	// NextBeginNs and NextEndNs are when the program passed the IO on to what comes next (the
	// target after the relay, the volume after the target), and when the outcome arrived. Both are
	// 0 if it did not pass the IO on.
	NextBeginNs, NextEndNs int64
}

// MaxRecords is how many records a Tracer keeps from one start to the next. Later ones are only
// counted.
const MaxRecords = 1 << 14

// Tracer keeps records while it is on. A nil Tracer is off. The methods may be called concurrently.
type Tracer struct {
	records atomic.Pointer[recorder.Recorder[Record]] // nil while the tracer is off

	mu sync.Mutex // serializes Start and Stop
}

// Start turns the tracer on, and forgets former records.
func (t *Tracer) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records.Store(recorder.New[Record](MaxRecords))
}

// IsOn reports whether the tracer keeps records.
func (t *Tracer) IsOn() bool { return t != nil && t.records.Load() != nil }

// Record keeps a record if the tracer is on. It neither locks nor allocates.
func (t *Tracer) Record(r *Record) {
	if t == nil {
		return
	}
	if records := t.records.Load(); records != nil {
		records.Record(r)
	}
}

// Stop turns the tracer off, and returns what it has recorded since Start, and how many records it
// has lost because there were more than MaxRecords. It returns nothing if the tracer is off.
func (t *Tracer) Stop() (records []Record, lost uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.records.Swap(nil)
	if kept == nil {
		return nil, 0
	}
	records = make([]Record, MaxRecords)
	return records[:kept.Collect(records)], kept.Lost()
}
