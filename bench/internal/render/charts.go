// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteSVG draws the medians of a document: for each block size IOPS against queue depth, and for
// each pattern and block size the percentiles of latency.
func WriteSVG(w io.Writer, d *benchsuite.Document) error {
	cases := make([]*benchsuite.Case, len(d.Cases))
	for i := range d.Cases {
		cases[i] = &d.Cases[i]
	}
	blockSize := func(c *benchsuite.Case) string {
		return size.Bytes(c.Workload.BlockSize).String()
	}
	var charts []chart
	for _, group := range groups(cases, blockSize) {
		if c := depthChart(group); len(c.lines) > 0 {
			charts = append(charts, c)
		}
	}
	for _, group := range groups(cases,
		func(c *benchsuite.Case) string {
			return string(c.Workload.Pattern) + " " +
				blockSize(c)
		}) {
		if c := latencyChart(group); len(c.lines) > 0 {
			charts = append(charts, c)
		}
	}
	return writeCharts(w, charts)
}

// groups returns the cases with the same key together, ordered by the first case of each group.
func groups(cases []*benchsuite.Case, key func(*benchsuite.Case) string) [][]*benchsuite.Case {
	var all [][]*benchsuite.Case
	places := map[string]int{}
	for _, c := range cases {
		place, ok := places[key(c)]
		if !ok {
			place = len(all)
			places[key(c)] = place
			all = append(all, nil)
		}
		all[place] = append(all[place], c)
	}
	return all
}

// depthChart has one line for all cases that differ in nothing but their queue depth. What was
// measured at one depth only is not a line.
func depthChart(cases []*benchsuite.Case) chart {
	var depths []int
	for _, c := range cases {
		depths = append(depths, c.Workload.QueueDepth)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	all := chart{
		title: fmt.Sprintf("IOPS against queue depth, %s blocks",
			size.Bytes(cases[0].Workload.BlockSize)),
		xLabel: "requests outstanding on each queue", yLabel: "operations per second",
	}
	for _, depth := range depths {
		all.categories = append(all.categories, strconv.Itoa(depth))
	}
	name := func(c *benchsuite.Case) string {
		w := c.Workload
		w.QueueDepth, w.BlockSize = 0, 0
		return strings.TrimSpace(c.System + " " + w.String())
	}
	for _, group := range groups(cases, name) {
		if len(group) == 1 {
			continue
		}
		values := make([]float64, len(depths))
		for _, c := range group {
			values[slices.Index(depths, c.Workload.QueueDepth)], _ = c.Median(benchsuite.IOPS)
		}
		all.lines = append(all.lines, line{name: name(group[0]), values: values})
	}
	return all
}

// latencyChart has one line for each case that measured latencies.
func latencyChart(cases []*benchsuite.Case) chart {
	w := &cases[0].Workload
	all := chart{
		title:      fmt.Sprintf("Latency, %s %s", w.Pattern, size.Bytes(w.BlockSize)),
		categories: []string{"p50", "p90", "p99", "p99.9", "p99.99", "max"}, xLabel: "percentile",
		yLabel: "latency (µs)",
	}
	for _, c := range cases {
		var values []float64
		for q := benchsuite.P50; q <= benchsuite.Max; q++ {
			ns, _ := c.Median(q)
			values = append(values, ns/1000)
		}
		if slices.Max(values) > 0 {
			w := c.Workload
			w.Pattern, w.BlockSize = "", 0
			all.lines = append(all.lines, line{name: strings.TrimSpace(c.System + " " + w.String()),
				values: values})
		}
	}
	return all
}

// chart is a set of lines over the same categories, with a logarithmic vertical axis.
type chart struct {
	title          string
	categories     []string // along the horizontal axis, at equal distances
	xLabel, yLabel string
	lines          []line
}

// line holds one value for each category. Values that a logarithmic axis cannot show are left out.
type line struct {
	name   string
	values []float64
}

// The layout, in typographic points.
const (
	columns    = 2
	chartWidth = 520
	plotHeight = 320 // with title and axes
	legendLine = 14
	margin     = 12
)

// writeCharts draws charts side by side in rows, each with its legend below.
func writeCharts(w io.Writer, charts []chart) error {
	across := max(1, min(columns, len(charts)))
	rows := slices.Collect(slices.Chunk(charts, across))
	var heights []vg.Length
	total := vg.Length(0)
	for _, row := range rows {
		lines := 0
		for i := range row {
			lines = max(lines, len(row[i].lines))
		}
		heights = append(heights, vg.Length(plotHeight+legendLine*lines+2*margin))
		total += heights[len(heights)-1]
	}
	canvas := vgsvg.New(vg.Length(across)*chartWidth, max(total, 1))
	page := draw.New(canvas)
	page.FillPolygon(color.White, []vg.Point{
		page.Min, {X: page.Max.X, Y: page.Min.Y}, page.Max, {X: page.Min.X, Y: page.Max.Y},
	})
	top := page.Max.Y
	for r, row := range rows {
		for i := range row {
			tile := page
			tile.Min.X = chartWidth*vg.Length(i) + margin
			tile.Max.X = tile.Min.X + chartWidth - 2*margin
			tile.Max.Y = top - margin
			tile.Min.Y = top - heights[r] + margin
			if err := row[i].draw(tile); err != nil {
				return fmt.Errorf("draw %q: %w", row[i].title, err)
			}
		}
		top -= heights[r]
	}
	_, err := canvas.WriteTo(w)
	return err
}

// draw draws the chart into a tile of the page.
func (c *chart) draw(tile draw.Canvas) error {
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.xLabel, c.yLabel
	p.Title.Padding = 8
	p.X.Label.Padding, p.Y.Label.Padding = 4, 4
	p.X.Padding, p.Y.Padding = 8, 4
	for text, points := range map[*font.Font]vg.Length{
		&p.Title.TextStyle.Font: 14, &p.X.Label.TextStyle.Font: 12, &p.Y.Label.TextStyle.Font: 12,
		&p.X.Tick.Label.Font: 11, &p.Y.Tick.Label.Font: 11, &legend.TextStyle.Font: 11,
	} {
		*text = font.From(sans, points)
	}
	var categories plot.ConstantTicks
	for i, name := range c.categories {
		categories = append(categories, plot.Tick{Value: float64(i), Label: name})
	}
	p.X.Tick.Marker = categories
	p.X.Min, p.X.Max = -0.5, max(0.5, float64(len(c.categories))-0.5)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(logTicks)
	p.Y.Min, p.Y.Max = c.bounds()
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color, grid.Horizontal.Width = color.Gray{Y: 0xcc}, 0.5
	p.Add(grid)
	for i, l := range c.lines {
		var points plotter.XYs
		for x, y := range l.values {
			if drawable(y) && x < len(c.categories) {
				points = append(points, plotter.XY{X: float64(x), Y: y})
			}
		}
		if len(points) == 0 {
			continue
		}
		curve, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		curve.Width = 1.5
		curve.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
		curve.Dashes = plotutil.Dashes(i / len(plotutil.DefaultColors))
		marks.Shape, marks.Radius = plotutil.Shape(i), 3
		p.Add(curve, marks)
		legend.Add(l.name, curve, marks)
	}
	legend.Left, legend.Top = true, true
	legend.ThumbnailWidth, legend.Padding = 28, 2
	area, below := tile, tile
	area.Min.Y = tile.Max.Y - plotHeight
	below.Max.Y = area.Min.Y - margin/2
	p.Draw(area)
	legend.Draw(below)
	return nil
}

// The values that can be drawn: a logarithmic axis has no zero.
const (
	smallest = 1e-9
	largest  = 1e18
)

func drawable(v float64) bool { return v >= smallest && v <= largest }

// bounds returns the range of the vertical axis: the ticks around all values.
func (c *chart) bounds() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, l := range c.lines {
		for _, v := range l.values {
			if drawable(v) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 {
		return 1, 10
	}
	ticks := ticksAround(low, high)
	return ticks[0], ticks[len(ticks)-1]
}

// ticksAround returns the values 1, 2 and 5 times a power of ten from the last one below low to the
// first one above high.
func ticksAround(low, high float64) []float64 {
	var ticks []float64
	for decade := math.Floor(math.Log10(low)) - 1; ; decade++ {
		for _, step := range []float64{1, 2, 5} {
			v := step * math.Pow(10, decade)
			if v < low {
				ticks = ticks[:0]
			}
			ticks = append(ticks, v)
			if v > high {
				return ticks
			}
		}
	}
}

// logTicks labels the steps of a logarithmic axis.
func logTicks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for _, v := range ticksAround(low, high) {
		if v >= low*(1-1e-9) && v <= high*(1+1e-9) {
			ticks = append(ticks, plot.Tick{Value: v, Label: formatTick(v)})
		}
	}
	return ticks
}

// formatTick writes a number with an SI prefix.
func formatTick(v float64) string {
	for _, unit := range []struct {
		factor float64
		prefix string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if v >= unit.factor {
			return strconv.FormatFloat(v/unit.factor, 'g', 4, 64) + unit.prefix
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
