// Package suite is what a series of benchmarks has measured: cases, each a
// workload on a system, with several runs of each, and what follows from them.
package benchsuite

import (
	"fmt"
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

// Goal is a figure and what it is to be.
type Goal struct {
	Name string `json:"name"`
	// Basis is what the figure was made of.
	Basis  string  `json:"basis"`
	Figure float64 `json:"figure"`
	Unit   string  `json:"unit"` // "" for a ratio
	// Bound is what the figure has to reach, or with AtMost not to exceed.
	Bound  float64 `json:"bound"`
	AtMost bool    `json:"at_most"`
	Met    bool    `json:"met"`
}

// NewGoal holds a figure against a bound.
func NewGoal(name, basis string, figure float64, unit string, bound float64, atMost bool) Goal {
	met := figure >= bound
	if atMost {
		met = figure <= bound
	}
	return Goal{Name: name, Basis: basis, Figure: figure, Unit: unit, Bound: bound, AtMost: atMost, Met: met}
}

// String tells figure and bound.
func (g *Goal) String() string {
	return fmt.Sprintf("%s: %s, to be %s", g.Name, g.Text(), g.Demand())
}

// Text is the figure with its unit.
func (g *Goal) Text() string { return g.value(g.Figure) }

// Demand tells the bound.
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
