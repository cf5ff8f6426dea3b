package suite

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteMarkdown prints the document for people: medians over the runs of each
// case, and how far those are apart.
func (d *Document) WriteMarkdown(w io.Writer) error {
	var t strings.Builder
	d.writeHead(&t)
	d.writeCases(&t)
	d.writeGoals(&t)
	for _, c := range d.Checks {
		fmt.Fprintf(&t, "- verified: %s: %d blocks checked, %d problems\n", c.Name, c.Blocks, c.Problems)
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

func (d *Document) writeHead(t *strings.Builder) {
	e := &d.Environment
	fmt.Fprintf(t, "# zc-relay %s, %s\n\n", e.Version, d.StartedAt.Format(time.RFC3339))
	fmt.Fprintf(t, "%d × %s, kernel %s, %s %s. ", e.CPUs, e.CPUModel, e.Kernel, e.GoVersion, e.Architecture)
	fmt.Fprintf(t, "Median of %d runs of %s after %s of warm-up; ± is half of the distance between the extremes.\n\n",
		d.Method.Repetitions, size.FormatDuration(d.Method.Runtime), size.FormatDuration(d.Method.Warmup))
}

func (d *Document) writeCases(t *strings.Builder) {
	if len(d.Cases) == 0 {
		return
	}
	t.WriteString("| workload | system | IOPS | ± | MiB/s | p50 µs | p99 µs | p99.9 µs | max µs |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for i := range d.Cases {
		c := &d.Cases[i]
		iops, _ := c.Median(IOPS)
		bandwidth, _ := c.Median(BytesPerSecond)
		fmt.Fprintf(t, "| %s | %s | %.0f | %.0f %% | %.0f |", c.Workload, c.System, iops,
			Spread(c.Values(IOPS))*50, bandwidth/float64(size.MiB))
		for _, q := range []Quantity{P50, P99, P999, Max} {
			fmt.Fprintf(t, " %s |", c.microseconds(q))
		}
		t.WriteByte('\n')
	}
	t.WriteByte('\n')
}

func (c *Case) microseconds(q Quantity) string {
	ns, ok := c.Median(q)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.1f", ns/1000)
}

func (d *Document) writeGoals(t *strings.Builder) {
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
		fmt.Fprintf(t, "| %s | %s | %s | %s | %s |\n", g.Name, g.value(g.Figure), g.Demand(), met, g.Basis)
	}
	t.WriteByte('\n')
}
