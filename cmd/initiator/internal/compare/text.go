package compare

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteText prints the report for people: the same facts as the JSON.
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
		fmt.Fprintf(t, "\n~ is a difference that may be chance: p is not below %v (Mann-Whitney U test, at least 4 runs of each)\n", r.Alpha)
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
	fmt.Fprint(t, "\tbefore\tafter\tratio\t\n")
	for i := range c.Quantities {
		q := &c.Quantities[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t(p=%.3f n=%d+%d)\n", strings.TrimSuffix(q.Name, "_ns"),
			q.Before.text(q.Name), q.After.text(q.Name), q.verdict(), q.P, q.Before.Runs, q.After.Runs)
	}
}

// text is the median of a sample and half of the distance between its
// extremes.
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
