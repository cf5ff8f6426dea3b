package verify

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// findingsKept is how many findings each thread remembers; all are counted.
const findingsKept = 16

// tally counts what one thread has done. Only its thread writes to it; others
// may read what is published at any time, and all of it when the thread has
// ended.
type tally struct {
	writes, reads, flushes                   uint64
	blocksWritten, blocksRead, blocksChecked uint64

	repeated, lossesTold, lostBlocks uint64

	errors     [status.CodeCount]uint64
	errorCount uint64
	firstError error

	findingCount  uint64
	findingsKinds map[Kind]uint64
	findings      []timedFinding

	publishedWritten  atomic.Uint64
	publishedChecked  atomic.Uint64
	publishedProblems atomic.Uint64
}

// timedFinding is a finding and when it was made, so that the first of
// several threads can be told.
type timedFinding struct {
	Finding
	atNs int64
}

// publish lets others see how far the thread is.
func (t *tally) publish() {
	t.publishedWritten.Store(t.blocksWritten)
	t.publishedChecked.Store(t.blocksChecked)
	t.publishedProblems.Store(t.errorCount + t.findingCount)
}

// fail counts a failed request; describe is called for the first.
func (t *tally) fail(code status.Code, describe func() error) {
	if t.firstError == nil {
		t.firstError = describe()
	}
	if !code.Known() {
		code = status.Unknown
	}
	t.errors[code]++
	t.errorCount++
}

func (t *tally) find(f Finding, atNs int64) {
	t.findingCount++
	if t.findingsKinds == nil {
		t.findingsKinds = map[Kind]uint64{}
	}
	t.findingsKinds[f.Kind]++
	if len(t.findings) < findingsKept {
		t.findings = append(t.findings, timedFinding{f, atNs})
	}
}
