// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/csv"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// SweepSchema names the format of a Sweep. Within a version, fields may be added, nothing else
// changes.
const SweepSchema = "zc-relay.bench-sweep/1"

// Sweep is what was measured with each combination of block size, queue depth, and queues.
type Sweep struct {
	Schema string `json:"schema"`
	// Runs are in the order in which they ran. The last one may have failed.
	Runs  []*Report       `json:"runs"`
	Error *report.Failure `json:"error,omitempty"`
}

// WriteText prints what all runs share, and a row for each run.
func (s *Sweep) WriteText(w io.Writer) error {
	first := s.Runs[0]
	t := &document.Table{}
	t.Row("started", "%s", first.StartedAt.Format(time.RFC3339))
	t.Row("load", "%s, %d %% reads, for %s each", first.Parameters.Pattern,
		first.Parameters.ReadPercent, first.Parameters.bounds())
	t.Connection(&first.Connection, first.Volume)
	if first.DryRun {
		t.Row("dry run", "nothing was run, and no relay was asked")
	}
	fmt.Fprintf(t, "\n%10s %6s %7s %11s %14s %11s %11s %11s %7s\n", "block size", "depth", "queues",
		"IOPS", "throughput", "p50 µs", "p99 µs", "max µs", "errors")
	for _, r := range s.Runs {
		p, result := &r.Parameters, &r.Result
		fmt.Fprintf(t, "%10v %6d %7d %11.0f %14s", size.Bytes(p.BlockSize), p.QueueDepth, p.Queues,
			result.IOPS, size.FormatThroughput(float64(result.BytesPerSecond)))
		if l := result.LatencyNs; l != nil {
			fmt.Fprintf(t, " %11.1f %11.1f %11.1f", float64(l.P50)/1000, float64(l.P99)/1000,
				float64(l.Max)/1000)
		} else {
			fmt.Fprintf(t, " %11s %11s %11s", "-", "-", "-")
		}
		fmt.Fprintf(t, " %7d%s\n", result.Errors, interruption(result))
	}
	t.Failure(s.Error)
	_, err := io.WriteString(w, t.String())
	return err
}

// WriteCSV writes a row for each run, in the units of the document. Latencies are empty if nothing
// completed; complete is false for a run that failed or was interrupted.
func (s *Sweep) WriteCSV(w io.Writer) error {
	rows := [][]string{{"block_size", "queue_depth", "queues", "read_percent", "complete", "operations",
		"errors", "iops", "bytes_per_second", "min_ns", "mean_ns", "p50_ns", "p90_ns", "p99_ns", "p99_9_ns",
		"p99_99_ns", "max_ns"}}
	for _, r := range s.Runs {
		p, result := &r.Parameters, &r.Result
		row := []any{p.BlockSize, p.QueueDepth, p.Queues, p.ReadPercent,
			!result.Interrupted && r.Error == nil, result.Operations, result.Errors, result.IOPS,
			result.BytesPerSecond}
		if l := result.LatencyNs; l != nil {
			row = append(row, l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.Max)
		}
		texts := make([]string, len(rows[0]))
		for i, value := range row {
			texts[i] = fmt.Sprint(value)
		}
		rows = append(rows, texts)
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// WriteSVG draws the rate and the 99th percentile of the latency by queue depth, with a line for
// each block size and number of queues, under what was measured, where, and when. All scales are
// logarithmic.
func (s *Sweep) WriteSVG(w io.Writer) error {
	lines := s.lines()
	d := &drawing{}
	height := panelTop + panelHeight + panelBottom + legendStep*len(lines)
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		2*panelWidth, height)
	fmt.Fprintf(d, `<rect width="%d" height="%d" fill="white"/>`+"\n", 2*panelWidth, height)
	for i, text := range s.titles() {
		d.text(panelWidth, titleStep*(i+1)+4, "middle", text)
	}
	d.panel(0, "IOPS", lines, func(r *Report) float64 { return r.Result.IOPS })
	d.panel(panelWidth, "99th percentile of the latency, µs", lines, func(r *Report) float64 {
		if r.Result.LatencyNs == nil {
			return 0
		}
		return float64(r.Result.LatencyNs.P99) / 1000
	})
	for i, l := range lines {
		y := panelTop + panelHeight + panelBottom + legendStep*i
		fmt.Fprintf(d, `<path d="M %d %d h 24" stroke="%s" stroke-width="2"/>`+"\n", panelLeft, y-4,
			colors[i%len(colors)])
		d.text(panelLeft+32, y, "start", l.name)
	}
	d.WriteString("</svg>\n")
	_, err := io.WriteString(w, d.String())
	return err
}

// titles returns the lines above a picture: what was measured, on which volume, and when.
func (s *Sweep) titles() []string {
	if len(s.Runs) == 0 {
		return nil
	}
	first := s.Runs[0]
	volume := "volume unknown"
	if v := first.Volume; v != nil {
		volume = fmt.Sprintf("volume %s of %s", v.Name, size.FormatBytes(v.Size))
	}
	return []string{
		fmt.Sprintf("initiator bench: %s, %d %% reads, for %s each", first.Parameters.Pattern,
			first.Parameters.ReadPercent, first.Parameters.bounds()),
		fmt.Sprintf("%s, channel %s, started %s", volume, first.Connection.Channel,
			first.StartedAt.Format(time.RFC3339)),
	}
}

// sweepLine holds the runs that differ in nothing but the queue depth, by queue depth.
type sweepLine struct {
	name string
	runs []*Report
}

func (s *Sweep) lines() []sweepLine {
	var lines []sweepLine
	for _, r := range s.Runs {
		name := fmt.Sprintf("%s %v, %d queue", r.Parameters.Pattern,
			size.Bytes(r.Parameters.BlockSize), r.Parameters.Queues)
		if r.Parameters.Queues != 1 {
			name += "s"
		}
		i := slices.IndexFunc(lines, func(l sweepLine) bool { return l.name == name })
		if i < 0 {
			i = len(lines)
			lines = append(lines, sweepLine{name: name})
		}
		lines[i].runs = append(lines[i].runs, r)
	}
	for _, l := range lines {
		slices.SortStableFunc(l.runs, func(a, b *Report) int {
			return a.Parameters.QueueDepth - b.Parameters.QueueDepth
		})
	}
	return lines
}

// The layout of a picture, in pixels.
const (
	panelWidth  = 480
	panelLeft   = 80 // for the labels of the axis
	panelRight  = 20
	panelTop    = 84
	titleStep   = 20 // for the lines above both panels
	panelHeight = 320
	panelBottom = 60
	legendStep  = 18
)

var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// drawing is an SVG image under construction.
type drawing struct{ strings.Builder }

// panel draws a value of all runs by their queue depth. Values that are not positive are left out.
func (d *drawing) panel(left int, title string, lines []sweepLine, value func(*Report) float64) {
	depths, values := scale{}, scale{}
	for _, l := range lines {
		for _, r := range l.runs {
			depths.include(float64(r.Parameters.QueueDepth))
			values.include(value(r))
		}
	}
	if len(values.ticks()) < 2 && values.low > 0 {
		values.widen() // an axis without two labels has no scale
	}
	x := func(depth float64) float64 {
		return float64(left+panelLeft) + depths.at(depth)*(panelWidth-panelLeft-panelRight)
	}
	y := func(v float64) float64 { return panelTop + (1-values.at(v))*panelHeight }
	d.text(left+panelWidth/2, panelTop-16, "middle", title)
	d.text(left+panelWidth/2, panelTop+panelHeight+36, "middle", "queue depth")
	for _, tick := range values.ticks() {
		fmt.Fprintf(d, `<path d="M %d %.1f H %d" stroke="#ddd"/>`+"\n", left+panelLeft, y(tick),
			left+panelWidth-panelRight)
		d.text(left+panelLeft-6, int(y(tick))+4, "end", fmt.Sprintf("%.10g", tick))
	}
	var seen []int
	for i, l := range lines {
		command := "M"
		var path strings.Builder
		for _, r := range l.runs {
			depth := r.Parameters.QueueDepth
			if !slices.Contains(seen, depth) {
				seen = append(seen, depth)
				d.text(int(x(float64(depth))), panelTop+panelHeight+18, "middle", fmt.Sprint(depth))
			}
			if v := value(r); v > 0 {
				fmt.Fprintf(&path, "%s %.1f %.1f ", command, x(float64(depth)), y(v))
				fmt.Fprintf(d, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n",
					x(float64(depth)), y(v), colors[i%len(colors)])
				command = "L"
			}
		}
		if path.Len() > 0 {
			fmt.Fprintf(d, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
				strings.TrimSpace(path.String()), colors[i%len(colors)])
		}
	}
}

func (d *drawing) text(x, y int, anchor, text string) {
	fmt.Fprintf(d, `<text x="%d" y="%d" text-anchor="%s">`, x, y, anchor)
	_ = xml.EscapeText(d, []byte(text)) // a strings.Builder does not fail
	d.WriteString("</text>\n")
}

// scale is a logarithmic scale of the positive values that it includes.
type scale struct{ low, high float64 }

func (s *scale) include(v float64) {
	switch {
	case v <= 0 || math.IsInf(v, 0) || math.IsNaN(v):
	case s.low == 0:
		s.low, s.high = v, v
	default:
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
}

// at returns the place of a value, between 0 and 1.
func (s *scale) at(v float64) float64 {
	if s.low == s.high {
		return 0.5
	}
	return math.Log(v/s.low) / math.Log(s.high/s.low)
}

// widen includes the nearest ticks below and above.
func (s *scale) widen() {
	low, high := s.low, s.high
	around := scale{low: low / 10, high: high * 10}
	s.low, s.high = around.low, around.high
	for _, tick := range around.ticks() {
		if tick <= low {
			s.low = tick
		}
		if tick >= high {
			s.high = tick
			return
		}
	}
}

// ticks returns the values 1, 2, and 5 of each power of ten that are on the scale, or the only
// value there is.
func (s *scale) ticks() []float64 {
	if s.low == s.high {
		if s.low == 0 {
			return nil
		}
		return []float64{s.low}
	}
	var ticks []float64
	for power := math.Pow(10, math.Floor(math.Log10(s.low))); power <= s.high; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * power; v >= s.low && v <= s.high {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}
