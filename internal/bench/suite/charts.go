package suite

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/bench/plot"
	"github.com/zc-relay/zc-relay/internal/size"
)

// chartColumns is how many charts stand beside each other.
const chartColumns = 2

// WriteSVG draws the medians: for each block size IOPS against queue depth,
// and for each pattern and block size the percentiles of latency.
func (d *Document) WriteSVG(w io.Writer) error {
	var charts []plot.Chart
	for _, cases := range d.groups(func(c *Case) string { return size.Bytes(c.Workload.BlockSize).String() }) {
		if chart := depthChart(cases); len(chart.Categories) > 1 {
			charts = append(charts, chart)
		}
	}
	for _, cases := range d.groups(func(c *Case) string {
		return string(c.Workload.Pattern) + " " + size.Bytes(c.Workload.BlockSize).String()
	}) {
		if chart := latencyChart(cases); len(chart.Lines) > 0 {
			charts = append(charts, chart)
		}
	}
	return plot.WriteSVG(w, charts, chartColumns)
}

// groups are the cases with the same key, in the order of their first.
func (d *Document) groups(key func(*Case) string) [][]*Case {
	return groupsOf(pointers(d.Cases), key)
}

func pointers(cases []Case) []*Case {
	all := make([]*Case, len(cases))
	for i := range cases {
		all[i] = &cases[i]
	}
	return all
}

func groupsOf(cases []*Case, key func(*Case) string) [][]*Case {
	var groups [][]*Case
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
func depthChart(cases []*Case) plot.Chart {
	var depths []int
	for _, c := range cases {
		depths = append(depths, c.Workload.QueueDepth)
	}
	slices.Sort(depths)
	depths = slices.Compact(depths)
	chart := plot.Chart{
		Title:  fmt.Sprintf("IOPS against depth, %s", size.Bytes(cases[0].Workload.BlockSize)),
		XLabel: "requests outstanding on each queue", YLabel: "IOPS",
	}
	for _, depth := range depths {
		chart.Categories = append(chart.Categories, strconv.Itoa(depth))
	}
	for _, group := range groupsOf(cases, func(c *Case) string { return c.title(false) }) {
		line := plot.Line{Name: group[0].title(false), Values: make([]float64, len(depths))}
		for _, c := range group {
			line.Values[slices.Index(depths, c.Workload.QueueDepth)], _ = c.Median(IOPS)
		}
		chart.Lines = append(chart.Lines, line)
	}
	return chart
}

// latencyChart has a line for each case.
func latencyChart(cases []*Case) plot.Chart {
	w := &cases[0].Workload
	chart := plot.Chart{
		Title:      fmt.Sprintf("Latency, %s %s", w.Pattern, size.Bytes(w.BlockSize)),
		Categories: []string{"p50", "p90", "p99", "p99.9", "p99.99", "max"}, XLabel: "percentile", YLabel: "µs",
	}
	for _, c := range cases {
		line := plot.Line{Name: c.title(true)}
		for _, q := range Percentiles() {
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
func (c *Case) title(latency bool) string {
	w := c.Workload
	if latency {
		w.Pattern = ""
	} else {
		w.QueueDepth = 0
	}
	w.BlockSize = 0
	return strings.TrimSpace(c.System + " " + w.String())
}
