// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Options says how much detail metrics have.
type Options struct {
	// Queues gives the metrics of IO the label "queue". Without it they are sums over all queues.
	Queues bool
}

// queueMetrics are the metrics of the queues of a channel or a volume.
type queueMetrics struct {
	Options
	io, failures, bytes, latency, inFlight, backPressure *metric

	causes []datapath.BackPressure
}

// newQueueMetrics returns the metrics of queues, with the label owner, "channel" or "volume", and
// the given causes of backpressure.
func newQueueMetrics(options Options, prefix, owner, latencyIs string,
	causes ...datapath.BackPressure) queueMetrics {
	labels := func(others ...string) []string { return options.labels(owner, others...) }
	return queueMetrics{
		Options: options,
		io: define(prefix+"io_total", Counter,
			"IOs that have completed, by operation and result; absent for a result that has not occurred.",
			labels("op", "code")...),
		failures: define(prefix+"io_failures_total", Counter,
			"IOs that have failed, of all queues and operations; there from the start, with the code OTHER for codes that are rare.",
			owner, "code"),
		bytes: define(prefix+"io_bytes_total", Counter,
			"Bytes that successful IOs have moved, by operation.", labels("op")...),
		latency: define(prefix+"io_latency_seconds", Histogram, latencyIs+
			" Native histogram, classic with a bucket for each power of two. The clock is read once for all that a poll finds together, so what completes within the poll that has found it counts as 0.",
			labels("op")...),
		inFlight: define(prefix+"io_in_flight", Gauge,
			"IOs that have been received and not completed.", labels()...),
		backPressure: define(prefix+"back_pressure_total", Counter,
			"Waits because of backpressure: "+causeList(causes)+".",
			labels("cause")...),
		causes: causes,
	}
}

// labels returns the labels of a metric of queues, or the values of these.
func (o Options) labels(owner string, others ...string) []string {
	if !o.Queues {
		return append([]string{owner}, others...)
	}
	return append([]string{owner, "queue"}, others...)
}

// values returns the values of the labels of a metric of queues.
func (o Options) values(owner string, queue int, others ...string) []string {
	if !o.Queues {
		return append([]string{owner}, others...)
	}
	return append([]string{owner, strconv.Itoa(queue)}, others...)
}

// of returns the counts to show: those of each queue, or their sum.
func (o Options) of(queues []datapath.QueueCounts) []datapath.QueueCounts {
	if o.Queues {
		return queues
	}
	return []datapath.QueueCounts{*datapath.Total(queues)}
}

// causeHelp describes the causes of backpressure.
var causeHelp = map[datapath.BackPressure]string{
	datapath.NoClientReceive: "responses for which the client had posted no receive (client_receive)",
	datapath.NoResponseRoom:  "requests that arrived before the responses to earlier ones had been sent (answer_room)",
	datapath.NoReadCredit:    "writes beyond the RDMA Reads that a connection may have outstanding (rdma_read)",
	datapath.NoLease:         "changes whose relay had not answered the target's questions for too long (lease)",
}

func causeList(causes []datapath.BackPressure) string {
	var text string
	for i, cause := range causes {
		if i > 0 {
			text += ", "
		}
		text += causeHelp[cause]
	}
	return text
}

func (q *queueMetrics) all() []*metric {
	return []*metric{q.io, q.failures, q.bytes, q.latency, q.inFlight, q.backPressure}
}

// collect sends the counts of all queues of one owner.
func (q *queueMetrics) collect(out chan<- prometheus.Metric, owner string,
	queues []datapath.QueueCounts) {
	q.sendFailures(out, owner, queues)
	shown := q.of(queues)
	for i := range shown {
		counts := &shown[i]
		values := func(others ...string) []string {
			return q.values(owner, counts.Queue, others...)
		}
		q.inFlight.send(out, float64(counts.InFlight), values()...)
		for _, cause := range q.causes {
			q.backPressure.send(out, float64(counts.BackPressure(cause)),
				values(cause.String())...)
		}
		for operation := range iomsg.OperationCount {
			if isCounted(operation, counts) {
				q.collectOperation(out, values, operation, counts)
			}
		}
	}
}

// collectOperation sends the counts of one operation.
func (q *queueMetrics) collectOperation(out chan<- prometheus.Metric,
	values func(others ...string) []string, operation iomsg.Operation,
	counts *datapath.QueueCounts) {
	op := operation.String()
	for code := range status.Code(status.CodeCount) {
		n := counts.IO(operation, code)
		if n > 0 || code == status.Success {
			q.io.send(out, float64(n), values(op, code.String())...)
		}
	}
	if operation.MovesData() {
		q.bytes.send(out, float64(counts.Bytes(operation)), values(op)...)
	}
	out <- newLatencyHistogram(q.latency.desc, q.latency.Labels, values(op),
		counts.Latency(operation))
}

// workerMetrics are the metrics of the data-path workers.
type workerMetrics struct {
	polls, sleeps, lateWakeups, queues *metric
}

func newWorkerMetrics(prefix string) workerMetrics {
	return workerMetrics{
		polls: define(prefix+"poll_total", Counter,
			"Turns of the worker's polling loop that found work (hit) or none (miss).", "worker",
			"outcome"),
		sleeps: define(prefix+"sleeps_total", Counter,
			"Times that the worker slept in the kernel for lack of work.", "worker"),
		lateWakeups: define(prefix+"late_wakeups_total", Counter,
			"Work that the sleeping worker was not woken for. Anything but 0 is a bug.", "worker"),
		queues: define(prefix+"worker_queues", Gauge, "Queues that the worker serves now.",
			"worker"),
	}
}

func (w *workerMetrics) all() []*metric {
	return []*metric{w.polls, w.sleeps, w.lateWakeups, w.queues}
}

func (w *workerMetrics) collect(out chan<- prometheus.Metric, workers []*datapath.Worker) {
	for i, worker := range workers {
		index := strconv.Itoa(i)
		stats := worker.Stats()
		w.polls.send(out, float64(stats.Hits), index, "hit")
		w.polls.send(out, float64(stats.Misses), index, "miss")
		w.sleeps.send(out, float64(stats.Sleeps), index)
		w.lateWakeups.send(out, float64(stats.LateWakeups), index)
		w.queues.send(out, float64(worker.Lanes()), index)
	}
}

const nanosecondsPerSecond = 1e9

// classicStride is the number of native buckets in one classic bucket, which spans one power of
// two.
const classicStride = 1 << datapath.LatencySchema

// latencyHistogram is a latency distribution as a native and a classic histogram at once; the
// client library's constant metrics are only one of them. Servers that scrape protocol buffers get
// both, others get the classic one.
type latencyHistogram struct {
	desc    *prometheus.Desc
	labels  []*dto.LabelPair
	latency *datapath.Latency
}

func newLatencyHistogram(desc *prometheus.Desc, names, values []string,
	latency *datapath.Latency) prometheus.Metric {
	labels := make([]*dto.LabelPair, len(names))
	for i := range names {
		labels[i] = &dto.LabelPair{Name: new(names[i]), Value: new(values[i])}
	}
	return &latencyHistogram{desc: desc, labels: labels, latency: latency}
}

// Desc returns the metric's description.
func (h *latencyHistogram) Desc() *prometheus.Desc { return h.desc }

// Write fills in both histograms.
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

// firstNativeIndex is the native histogram's index of the bucket after the first: index i ends at
// 2^(i/8).
const firstNativeIndex = datapath.LatencyFirstExponent*classicStride + 1

// writeNative writes the non-empty buckets, each as its difference from the previous one, in spans
// of adjacent buckets (the format of Prometheus). The first bucket is the native histogram's zero
// bucket.
func (h *latencyHistogram) writeNative(out *dto.Histogram) {
	buckets := &h.latency.Buckets
	out.Schema = new(int32(datapath.LatencySchema))
	out.ZeroThreshold = new(datapath.LatencyBound(0))
	out.ZeroCount = new(buckets[0])
	// An empty span distinguishes a native histogram without buckets from a classic one.
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
