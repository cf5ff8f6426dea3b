// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteMarkdown prints a document for people: medians over the runs of each case, and their spread.
func WriteMarkdown(w io.Writer, d *benchsuite.Document) error {
	var t strings.Builder
	writeHead(&t, d)
	writeCases(&t, d)
	writeGoals(&t, d)
	for _, c := range d.Checks {
		fmt.Fprintf(&t, "- verified: %s: %d blocks checked, %d problems\n", c.Name, c.Blocks,
			c.Problems)
	}
	for _, s := range d.Skipped {
		fmt.Fprintf(&t, "- skipped: %s: %s\n", s.Name, s.Reason)
	}
	if d.Error != nil {
		fmt.Fprintf(&t, "\n**FAILED** (%s, %s): %s\n", d.Error.Phase, d.Error.Code, d.Error.Message)
	}
	_, err := io.WriteString(w, t.String())
	return err
}

func writeHead(t *strings.Builder, d *benchsuite.Document) {
	e := &d.Environment
	fmt.Fprintf(t, "# zc-relay %s, %s\n\n", e.Version, d.StartedAt.Format(time.RFC3339))
	fmt.Fprintf(t, "%d × %s, kernel %s, %s %s. ", e.CPUs, e.CPUModel, e.Kernel, e.GoVersion,
		e.Architecture)
	fmt.Fprintf(t,
		"Median of %d runs of %s after %s of warm-up; ± is half of the distance between the extremes.\n\n",
		d.Method.Repetitions, size.FormatDuration(d.Method.Runtime),
		size.FormatDuration(d.Method.Warmup))
}

func writeCases(t *strings.Builder, d *benchsuite.Document) {
	if len(d.Cases) == 0 {
		return
	}
	t.WriteString("| workload | system | IOPS | ± | MiB/s | p50 µs | p99 µs | p99.9 µs | max µs |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for i := range d.Cases {
		c := &d.Cases[i]
		iops, _ := c.Median(benchsuite.IOPS)
		bandwidth, _ := c.Median(benchsuite.BytesPerSecond)
		fmt.Fprintf(t, "| %s | %s | %.0f | %.0f %% | %.0f |", c.Workload, c.System, iops,
			benchsuite.Spread(c.Values(benchsuite.IOPS))*50, bandwidth/float64(size.MiB))
		for _, q := range []benchsuite.Quantity{benchsuite.P50, benchsuite.P99, benchsuite.P999,
			benchsuite.Max} {
			fmt.Fprintf(t, " %s |", microseconds(c, q))
		}
		t.WriteByte('\n')
	}
	t.WriteByte('\n')
}

func microseconds(c *benchsuite.Case, q benchsuite.Quantity) string {
	ns, ok := c.Median(q)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.1f", ns/1000)
}

func writeGoals(t *strings.Builder, d *benchsuite.Document) {
	if len(d.Goals) == 0 {
		return
	}
	t.WriteString("| goal | figure | to be | met | basis |\n|---|--:|--:|---|---|\n")
	for i := range d.Goals {
		g := &d.Goals[i]
		met := "no"
		if g.Met {
			met = "yes"
		}
		fmt.Fprintf(t, "| %s | %s | %s | %s | %s |\n", g.Name, g.Text(), g.Demand(), met, g.Basis)
	}
	t.WriteByte('\n')
}
