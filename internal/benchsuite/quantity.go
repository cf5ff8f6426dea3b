package benchsuite

import "slices"

// Quantity is something that every run measures.
type Quantity int

// The quantities.
const (
	IOPS Quantity = iota
	BytesPerSecond
	P50
	P90
	P99
	P999
	P9999
	Max
	quantityCount
)

var quantityNames = [quantityCount]string{"iops", "bytes_per_second", "p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns"}

// String returns the name that documents use.
func (q Quantity) String() string { return quantityNames[q] }

// Percentiles are the quantities that are latencies, in order.
func Percentiles() []Quantity { return []Quantity{P50, P90, P99, P999, P9999, Max} }

// Of returns the quantity of a run; false if the run does not tell it.
func (q Quantity) Of(r *Run) (float64, bool) {
	switch q {
	case IOPS:
		return r.IOPS, true
	case BytesPerSecond:
		return float64(r.BytesPerSecond), true
	}
	if r.LatencyNs == nil {
		return 0, false
	}
	l := r.LatencyNs
	ns := map[Quantity]*int64{P50: l.P50, P90: l.P90, P99: l.P99, P999: l.P999, P9999: l.P9999, Max: l.Max}[q]
	if ns == nil {
		return 0, false
	}
	return float64(*ns), true
}

// Values are the quantity of every run that tells it.
func (c *Case) Values(q Quantity) []float64 {
	var values []float64
	for i := range c.Runs {
		if value, ok := q.Of(&c.Runs[i]); ok {
			values = append(values, value)
		}
	}
	return values
}

// Median is that of the quantity over all runs; false if none tells it.
func (c *Case) Median(q Quantity) (float64, bool) {
	values := c.Values(q)
	return Median(values), len(values) > 0
}

// Median is the middle of values, 0 if there are none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread is the distance of the lowest from the highest value, as a share of
// the median; 0 if that is 0.
func Spread(values []float64) float64 {
	middle := Median(values)
	if middle == 0 {
		return 0
	}
	return (slices.Max(values) - slices.Min(values)) / middle
}

// Ratio is the median of the quantity of the case's runs, each divided by that
// of the other case's run that was made next to it, and the spread of those
// ratios. A machine that is faster in one minute than in the next shifts both
// runs of a pair.
func (c *Case) Ratio(other *Case, q Quantity) (ratio, spread float64) {
	var ratios []float64
	for i := range min(len(c.Runs), len(other.Runs)) {
		a, ok := q.Of(&c.Runs[i])
		b, otherOK := q.Of(&other.Runs[i])
		if ok && otherOK && b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return Median(ratios), Spread(ratios)
}
