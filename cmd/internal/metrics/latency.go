package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

const nanosecondsPerSecond = 1e9

// classicStride is how many native buckets make one classic bucket: those of
// one power of two.
const classicStride = 1 << datapath.LatencySchema

// latencyHistogram is a latency distribution as a native and as a classic
// histogram at once: the client library's own constant metrics are either.
// Servers that scrape as protocol buffers get both, others the classic one.
type latencyHistogram struct {
	desc    *prometheus.Desc
	labels  []*dto.LabelPair
	latency *datapath.Latency
}

func newLatencyHistogram(desc *prometheus.Desc, names, values []string, latency *datapath.Latency) prometheus.Metric {
	labels := make([]*dto.LabelPair, len(names))
	for i := range names {
		labels[i] = &dto.LabelPair{Name: new(names[i]), Value: new(values[i])}
	}
	return &latencyHistogram{desc: desc, labels: labels, latency: latency}
}

// Desc implements prometheus.Metric.
func (h *latencyHistogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric.
func (h *latencyHistogram) Write(out *dto.Metric) error {
	histogram := &dto.Histogram{SampleSum: new(float64(h.latency.SumNs) / nanosecondsPerSecond)}
	h.writeClassic(histogram)
	h.writeNative(histogram)
	out.Label, out.Histogram = h.labels, histogram
	return nil
}

func (h *latencyHistogram) writeClassic(out *dto.Histogram) {
	var count uint64
	for i, n := range h.latency.Buckets {
		count += n
		if i%classicStride == 0 {
			out.Bucket = append(out.Bucket, &dto.Bucket{
				CumulativeCount: new(count), UpperBound: new(datapath.LatencyBound(i)),
			})
		}
	}
	out.SampleCount = new(count)
}

// firstNativeIndex is the index, in the native histogram, of the bucket behind
// the first: index i ends at 2^(i/8).
const firstNativeIndex = datapath.LatencyFirstExponent*classicStride + 1

// writeNative writes the buckets that are not empty, each as its difference
// from the one before, in spans of neighbours (the format of Prometheus). The
// first bucket is the native histogram's zero bucket.
func (h *latencyHistogram) writeNative(out *dto.Histogram) {
	buckets := &h.latency.Buckets
	out.Schema = new(int32(datapath.LatencySchema))
	out.ZeroThreshold = new(datapath.LatencyBound(0))
	out.ZeroCount = new(buckets[0])
	// A histogram without buckets is told from a classic one by its spans.
	out.PositiveSpan = []*dto.BucketSpan{{Offset: new(int32(0)), Length: new(uint32(0))}}
	span := out.PositiveSpan[0]
	end := int32(0) // index behind the last span
	var before int64
	for i, n := range buckets[1:] {
		if n == 0 {
			continue
		}
		index := int32(firstNativeIndex + i)
		if index != end || *span.Length == 0 {
			span = &dto.BucketSpan{Offset: new(index - end), Length: new(uint32(0))}
			out.PositiveSpan = append(out.PositiveSpan, span)
		}
		*span.Length++
		end = index + 1
		out.PositiveDelta = append(out.PositiveDelta, int64(n)-before)
		before = int64(n)
	}
}
