package compare

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/report"
)

// Schema names the shape of a report. Fields may be added within a number,
// nothing else.
const Schema = "zc-relay.bench-compare/1"

// Report says how two results differ.
type Report struct {
	Schema string `json:"schema"`
	Before string `json:"before"` // path of the file
	After  string `json:"after"`
	// Alpha is the probability below which a difference counts as
	// significant (Mann-Whitney U test).
	Alpha       float64      `json:"alpha"`
	Environment []Difference `json:"environment_differences"`
	Cases       []Case       `json:"cases"`
	// OnlyBefore and OnlyAfter name the cases that the other file has not.
	OnlyBefore []string        `json:"only_before"`
	OnlyAfter  []string        `json:"only_after"`
	Error      *report.Failure `json:"error,omitempty"`
}

// Difference is a value that was another before.
type Difference struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Case is a workload on a system that both files have.
type Case struct {
	System     string              `json:"system"`
	Workload   benchsuite.Workload `json:"workload"`
	Quantities []Quantity          `json:"quantities"`
}

// Quantity is what both have measured.
type Quantity struct {
	Name   string `json:"name"`
	Before Sample `json:"before"`
	After  Sample `json:"after"`
	// Ratio is the median after divided by that before; nil if that is 0.
	Ratio *float64 `json:"ratio"`
	// P is the probability to see such a difference if there is none.
	P float64 `json:"p"`
	// Significant tells that P is less than Alpha. With fewer than four runs
	// on either side it never is.
	Significant bool `json:"significant"`
}

// Sample is what several runs have measured.
type Sample struct {
	Runs   int     `json:"runs"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// compared are the quantities that are told.
var compared = []benchsuite.Quantity{benchsuite.IOPS, benchsuite.BytesPerSecond, benchsuite.P50, benchsuite.P99, benchsuite.P999}

// NewReport makes a report of nothing.
func NewReport(before, after string) *Report {
	return &Report{
		Schema: Schema, Before: before, After: after, Alpha: benchmath.DefaultThresholds.CompareAlpha,
		Environment: []Difference{}, Cases: []Case{}, OnlyBefore: []string{}, OnlyAfter: []string{},
	}
}

// Compare fills the report with what two files hold.
func (r *Report) Compare(before, after *Results) {
	r.compareEnvironments(&before.Environment, &after.Environment)
	for i := range before.Cases {
		b := &before.Cases[i]
		a := after.find(b)
		if a == nil {
			r.OnlyBefore = append(r.OnlyBefore, name(b))
			continue
		}
		r.Cases = append(r.Cases, r.compareCase(b, a))
	}
	for i := range after.Cases {
		if a := &after.Cases[i]; before.find(a) == nil {
			r.OnlyAfter = append(r.OnlyAfter, name(a))
		}
	}
}

func name(c *benchsuite.Case) string { return c.System + ": " + c.Workload.String() }

func (r *Report) compareEnvironments(before, after *report.Environment) {
	for _, d := range []Difference{
		{"version", before.Version, after.Version},
		{"go_version", before.GoVersion, after.GoVersion},
		{"architecture", before.Architecture, after.Architecture},
		{"hostname", before.Hostname, after.Hostname},
		{"kernel", before.Kernel, after.Kernel},
		{"cpu_model", before.CPUModel, after.CPUModel},
		{"cpu_frequency_governor", before.FrequencyGovernor, after.FrequencyGovernor},
	} {
		if d.Before != d.After {
			r.Environment = append(r.Environment, d)
		}
	}
}

func (r *Report) compareCase(before, after *benchsuite.Case) Case {
	c := Case{System: before.System, Workload: before.Workload, Quantities: []Quantity{}}
	for _, q := range compared {
		b, a := before.Values(q), after.Values(q)
		if len(b) > 0 && len(a) > 0 {
			c.Quantities = append(c.Quantities, r.compareValues(q.String(), b, a))
		}
	}
	return c
}

func (r *Report) compareValues(name string, before, after []float64) Quantity {
	q := Quantity{Name: name, Before: sampleOf(before), After: sampleOf(after)}
	if q.Before.Median != 0 {
		q.Ratio = new(round(q.After.Median / q.Before.Median))
	}
	thresholds := benchmath.DefaultThresholds
	outcome := benchmath.AssumeNothing.Compare(benchmath.NewSample(before, &thresholds), benchmath.NewSample(after, &thresholds))
	q.P = round(outcome.P)
	q.Significant = outcome.P < r.Alpha
	return q
}

func sampleOf(values []float64) Sample {
	return Sample{Runs: len(values), Median: benchsuite.Median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

// round keeps four decimals.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
