// SPDX-License-Identifier: Apache-2.0

// Package benchsuite holds the document of a series of benchmarks: cases, each of which is several
// runs of a workload on a system, and the verdict on them.
package benchsuite

import (
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/internal/report"
)

// Schema names the format of a document. Within a version, fields may be added, nothing else
// changes.
const Schema = "zc-relay.bench-suite/1"

// Document is everything printed about a series.
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

// Method describes how the series was measured.
type Method struct {
	// Runtime is the duration of one run, after Warmup.
	Runtime time.Duration `json:"runtime_ns"`
	Warmup  time.Duration `json:"warmup_ns"`
	// Repetitions is the number of runs of each case. Runs alternate: each repetition goes through
	// all cases, and through all systems of a workload one after another.
	Repetitions int `json:"repetitions"`
}

// Check is a run that verified data instead of measuring.
type Check struct {
	Name string `json:"name"`
	// Blocks counts the blocks that were read back and compared, Problems the wrong ones.
	Blocks   uint64 `json:"blocks_checked"`
	Problems uint64 `json:"problems"`
}

// Skipped is something that was not measured.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// NewDocument returns an empty document of this machine.
func NewDocument(startedAt time.Time, method Method) *Document {
	return &Document{
		Schema: Schema, StartedAt: startedAt.Truncate(time.Second),
		Environment: report.CurrentEnvironment(), Method: method,
		Cases: []Case{}, Goals: []Goal{}, Checks: []Check{}, Skipped: []Skipped{},
	}
}

// Add adds a run to the case of a system and a workload, which it creates if necessary.
func (d *Document) Add(system string, workload Workload, run Run) {
	if c := d.Find(system, workload); c != nil {
		c.Runs = append(c.Runs, run)
		return
	}
	d.Cases = append(d.Cases, Case{System: system, Workload: workload, Runs: []Run{run}})
}

// Find returns the case of a system and a workload, nil if there is none. The result is valid until
// the next Add.
func (d *Document) Find(system string, workload Workload) *Case {
	for i := range d.Cases {
		if d.Cases[i].System == system && d.Cases[i].Workload == workload {
			return &d.Cases[i]
		}
	}
	return nil
}

// Goal is a figure with its bound.
type Goal struct {
	Name string `json:"name"`
	// Basis describes the origin of the figure.
	Basis  string  `json:"basis"`
	Figure float64 `json:"figure"`
	Unit   string  `json:"unit"` // "" for a ratio
	// Bound is the least value of the figure, or with AtMost the greatest.
	Bound  float64 `json:"bound"`
	AtMost bool    `json:"at_most"`
	Met    bool    `json:"met"`
}

// NewGoal compares a figure with its bound.
func NewGoal(name, basis string, figure float64, unit string, bound float64, atMost bool) Goal {
	met := figure >= bound
	if atMost {
		met = figure <= bound
	}
	return Goal{Name: name, Basis: basis, Figure: figure, Unit: unit, Bound: bound, AtMost: atMost,
		Met: met}
}

// String returns the figure and its bound.
func (g *Goal) String() string {
	return fmt.Sprintf("%s: %s, goal %s", g.Name, g.Text(), g.Demand())
}

// Text returns the figure with its unit.
func (g *Goal) Text() string { return g.value(g.Figure) }

// Demand describes the bound.
func (g *Goal) Demand() string {
	if g.AtMost {
		return "at most " + g.value(g.Bound)
	}
	return "at least " + g.value(g.Bound)
}

func (g *Goal) value(v float64) string {
	if g.Unit == "" {
		return fmt.Sprintf("%.3g×", v)
	}
	return fmt.Sprintf("%.4g %s", v, g.Unit)
}
