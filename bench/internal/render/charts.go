package render

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// chartColumns is how many charts stand beside each other.
const chartColumns = 2

// WriteSVG draws the medians: for each block size IOPS against queue depth,
// and for each pattern and block size the percentiles of latency.
func WriteSVG(w io.Writer, d *benchsuite.Document) error {
	var charts []Chart
	for _, cases := range groups(d, func(c *benchsuite.Case) string { return size.Bytes(c.Workload.BlockSize).String() }) {
		if chart := depthChart(cases); len(chart.Categories) > 1 {
			charts = append(charts, chart)
		}
	}
	for _, cases := range groups(d, func(c *benchsuite.Case) string {
		return string(c.Workload.Pattern) + " " + size.Bytes(c.Workload.BlockSize).String()
	}) {
		if chart := latencyChart(cases); len(chart.Lines) > 0 {
			charts = append(charts, chart)
		}
	}
	return writeCharts(w, charts, chartColumns)
}

// groups are the cases with the same key, in the order of their first.
func groups(d *benchsuite.Document, key func(*benchsuite.Case) string) [][]*benchsuite.Case {
	return groupsOf(pointers(d.Cases), key)
}

func pointers(cases []benchsuite.Case) []*benchsuite.Case {
	all := make([]*benchsuite.Case, len(cases))
	for i := range cases {
		all[i] = &cases[i]
	}
	return all
}

func groupsOf(cases []*benchsuite.Case, key func(*benchsuite.Case) string) [][]*benchsuite.Case {
	var groups [][]*benchsuite.Case
	places := map[string]int{}
	for _, c := range cases {
		place, ok := places[key(c)]
		if !ok {
			place = len(groups)
			places[key(c)] = place
			groups = append(groups, nil)
		}
		groups[place] = append(groups[place], c)
	}
	return groups
}

// depthChart has a line for everything that differs in more than the depth.
func depthChart(cases []*benchsuite.Case) Chart {
	var depths []int
	for _, c := range cases {
		depths = append(depths, c.Workload.QueueDepth)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	chart := Chart{
		Title:  fmt.Sprintf("IOPS against depth, %s", size.Bytes(cases[0].Workload.BlockSize)),
		XLabel: "requests outstanding on each queue", YLabel: "IOPS",
	}
	for _, depth := range depths {
		chart.Categories = append(chart.Categories, strconv.Itoa(depth))
	}
	for _, group := range groupsOf(cases, func(c *benchsuite.Case) string { return title(c, false) }) {
		line := Line{Name: title(group[0], false), Values: make([]float64, len(depths))}
		for _, c := range group {
			line.Values[slices.Index(depths, c.Workload.QueueDepth)], _ = c.Median(benchsuite.IOPS)
		}
		chart.Lines = append(chart.Lines, line)
	}
	return chart
}

// latencyChart has a line for each case.
func latencyChart(cases []*benchsuite.Case) Chart {
	w := &cases[0].Workload
	chart := Chart{
		Title:      fmt.Sprintf("Latency, %s %s", w.Pattern, size.Bytes(w.BlockSize)),
		Categories: []string{"p50", "p90", "p99", "p99.9", "p99.99", "max"}, XLabel: "percentile", YLabel: "µs",
	}
	for _, c := range cases {
		line := Line{Name: title(c, true)}
		for _, q := range benchsuite.Percentiles() {
			ns, _ := c.Median(q)
			line.Values = append(line.Values, ns/1000)
		}
		if slices.Max(line.Values) > 0 {
			chart.Lines = append(chart.Lines, line)
		}
	}
	return chart
}

// title names a case within a chart of its block size, or of its block size
// and pattern.
func title(c *benchsuite.Case, latency bool) string {
	w := c.Workload
	if latency {
		w.Pattern = ""
	} else {
		w.QueueDepth = 0
	}
	w.BlockSize = 0
	return strings.TrimSpace(c.System + " " + w.String())
}
