// Package suite is what a series of benchmarks has measured: cases, each a
// workload on a system, with several runs of each, and what follows from them.
package benchsuite

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/report"
)

// Schema names the shape of a document. Fields may be added within a number,
// nothing else.
const Schema = "zc-relay.bench-suite/1"

// Document is everything that is printed about a series.
type Document struct {
	Schema      string             `json:"schema"`
	StartedAt   time.Time          `json:"started_at"`
	Environment report.Environment `json:"environment"`
	Method      Method             `json:"method"`
	Cases       []Case             `json:"cases"`
	Goals       []Goal             `json:"goals"`
	Checks      []Check            `json:"checks"`
	Skipped     []Skipped          `json:"skipped"`
	Error       *report.Failure    `json:"error,omitempty"`
}

// Method is how it was measured.
type Method struct {
	// Runtime is that of one run, after Warmup.
	Runtime time.Duration `json:"runtime_ns"`
	Warmup  time.Duration `json:"warmup_ns"`
	// Repetitions is how many runs each case has. They alternate: each
	// repetition goes through all cases, and through all systems of a
	// workload one after another.
	Repetitions int `json:"repetitions"`
}

// Check is a run that looked at data instead of time.
type Check struct {
	Name string `json:"name"`
	// Blocks is how many blocks were read back and compared.
	Blocks uint64 `json:"blocks_checked"`
	// Problems is how many of them were wrong.
	Problems uint64 `json:"problems"`
}

// Skipped is what was not measured.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// NewDocument makes one with nothing in it.
func NewDocument(startedAt time.Time, method Method) *Document {
	return &Document{
		Schema: Schema, StartedAt: startedAt.Truncate(time.Second), Environment: report.CurrentEnvironment(), Method: method,
		Cases: []Case{}, Goals: []Goal{}, Checks: []Check{}, Skipped: []Skipped{},
	}
}

// Add adds a run to the case of a system and a workload, which is made if
// there is none.
func (d *Document) Add(system string, workload Workload, run Run) {
	if c := d.Find(system, workload); c != nil {
		c.Runs = append(c.Runs, run)
		return
	}
	d.Cases = append(d.Cases, Case{System: system, Workload: workload, Runs: []Run{run}})
}

// Find returns the case of a system and a workload, nil if there is none. It
// is valid until the next Add.
func (d *Document) Find(system string, workload Workload) *Case {
	for i := range d.Cases {
		if d.Cases[i].System == system && d.Cases[i].Workload == workload {
			return &d.Cases[i]
		}
	}
	return nil
}
