// SPDX-License-Identifier: Apache-2.0

// Package compare compares the results of two benchmarks.
package compare

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchmath"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// schema names the format of a report. Within a version, fields may be added, nothing else changes.
const schema = "zc-relay.bench-compare/1"

// Report describes how two results differ.
type Report struct {
	Schema string `json:"schema"`
	Before string `json:"before"` // path of the file
	After  string `json:"after"`
	// Alpha is the probability below which a difference counts as significant (Mann-Whitney U
	// test).
	Alpha       float64      `json:"alpha"`
	Environment []Difference `json:"environment_differences"`
	Cases       []Case       `json:"cases"`
	// OnlyBefore and OnlyAfter name the cases that only one file has.
	OnlyBefore []string        `json:"only_before"`
	OnlyAfter  []string        `json:"only_after"`
	Error      *report.Failure `json:"error,omitempty"`
}

// Difference is a value of the environment that changed.
type Difference struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Case is a workload on a system that is in both files, perhaps with another setting.
type Case struct {
	System   string              `json:"system"`
	Workload benchsuite.Workload `json:"workload"` // of the first file
	// Settings holds the settings of the workload in which the files differ, by their names.
	Settings   []Difference `json:"setting_differences,omitempty"`
	Quantities []Quantity   `json:"quantities"`
}

// Quantity compares one measured quantity.
type Quantity struct {
	Name   string `json:"name"`
	Before Sample `json:"before"`
	After  Sample `json:"after"`
	// Ratio is the median after divided by the median before; nil if the latter is 0.
	Ratio *float64 `json:"ratio"`
	// P is the probability of such a difference by chance.
	P float64 `json:"p"`
	// Significant means that P is less than Alpha, which takes at least four runs on each side.
	Significant bool `json:"significant"`
}

// Sample summarizes the runs of one side.
type Sample struct {
	Runs   int     `json:"runs"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// compared lists the quantities to report.
var compared = []benchsuite.Quantity{benchsuite.IOPS, benchsuite.BytesPerSecond, benchsuite.P50,
	benchsuite.P99, benchsuite.P999}

// NewReport returns an empty report.
func NewReport(before, after string) *Report {
	return &Report{
		Schema: schema, Before: before, After: after,
		Alpha:       benchmath.DefaultThresholds.CompareAlpha,
		Environment: []Difference{}, Cases: []Case{}, OnlyBefore: []string{}, OnlyAfter: []string{},
	}
}

// Compare fills the report from the contents of two files.
func (r *Report) Compare(before, after *Results) {
	r.compareEnvironments(&before.Environment, &after.Environment)
	var restBefore, restAfter []*benchsuite.Case
	for i := range before.Cases {
		b := &before.Cases[i]
		if a := after.find(b); a != nil {
			r.Cases = append(r.Cases, r.compareCase(b, a))
		} else {
			restBefore = append(restBefore, b)
		}
	}
	for i := range after.Cases {
		if a := &after.Cases[i]; before.find(a) == nil {
			restAfter = append(restAfter, a)
		}
	}
	pairs, restBefore, restAfter := pairBySetting(restBefore, restAfter)
	for _, p := range pairs {
		r.Cases = append(r.Cases, r.compareCase(p.before, p.after))
	}
	for _, b := range restBefore {
		r.OnlyBefore = append(r.OnlyBefore, name(b))
	}
	for _, a := range restAfter {
		r.OnlyAfter = append(r.OnlyAfter, name(a))
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
	c := Case{System: before.System, Workload: before.Workload,
		Settings:   settingsBetween(&before.Workload, &after.Workload),
		Quantities: []Quantity{}}
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
	outcome := benchmath.AssumeNothing.Compare(benchmath.NewSample(before, &thresholds),
		benchmath.NewSample(after, &thresholds))
	q.P = round(outcome.P)
	q.Significant = outcome.P < r.Alpha
	return q
}

func sampleOf(values []float64) Sample {
	return Sample{Runs: len(values), Median: benchsuite.Median(values), Min: slices.Min(values),
		Max: slices.Max(values)}
}

// round rounds to four decimals.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// WriteText prints the report for people, with the same facts as the JSON.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "before\t%s\nafter\t%s\n", r.Before, r.After)
	for _, d := range r.Environment {
		fmt.Fprintf(t, "%s differs\t%s\t→ %s\n", d.Name, d.Before, d.After)
	}
	for i := range r.Cases {
		r.writeCase(t, &r.Cases[i])
	}
	if len(r.Cases) > 0 {
		fmt.Fprintf(t,
			"\n~ is a difference that may be chance: p is not below %v (Mann-Whitney U test, at least 4 runs of each)\n",
			r.Alpha)
	}
	for _, name := range r.OnlyBefore {
		fmt.Fprintf(t, "only before\t%s\n", name)
	}
	for _, name := range r.OnlyAfter {
		fmt.Fprintf(t, "only after\t%s\n", name)
	}
	if r.Error != nil {
		fmt.Fprintf(t, "FAILED\t%s (%s): %s\n", r.Error.Phase, r.Error.Code, r.Error.Message)
	}
	return t.Flush()
}

func (r *Report) writeCase(t io.Writer, c *Case) {
	fmt.Fprintf(t, "\n%s: %s\n", c.System, c.Workload)
	for _, s := range c.Settings {
		fmt.Fprintf(t, "%s\t%s\t→ %s\n", s.Name, s.Before, s.After)
	}
	fmt.Fprint(t, "\tbefore\tafter\tratio\t\n")
	for i := range c.Quantities {
		q := &c.Quantities[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t(p=%.3f n=%d+%d)\n", strings.TrimSuffix(q.Name, "_ns"),
			q.Before.text(q.Name), q.After.text(q.Name), q.verdict(), q.P, q.Before.Runs,
			q.After.Runs)
	}
}

// text returns the median of a sample and half the distance between its extremes.
func (s *Sample) text(quantity string) string {
	spread := 0.0
	if s.Median != 0 {
		spread = (s.Max - s.Min) / s.Median * 50
	}
	return fmt.Sprintf("%s ± %.0f%%", formatted(quantity, s.Median), spread)
}

func formatted(quantity string, v float64) string {
	switch quantity {
	case benchsuite.IOPS.String():
		return fmt.Sprintf("%.0f", v)
	case benchsuite.BytesPerSecond.String():
		return size.FormatThroughput(v)
	}
	return fmt.Sprintf("%.1fµs", v/1000)
}

func (q *Quantity) verdict() string {
	if q.Ratio == nil {
		return "?"
	}
	text := fmt.Sprintf("%.3f", *q.Ratio)
	if !q.Significant {
		text += " ~"
	}
	return text
}
