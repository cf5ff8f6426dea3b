package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queueMetrics are those of the queues of a channel or a volume.
type queueMetrics struct {
	io, bytes, latency, inFlight, backPressure *metric

	causes []datapath.BackPressure
}

// newQueueMetrics makes the metrics of queues that belong to what owner names,
// "channel" or "volume", with the given causes of back pressure.
func newQueueMetrics(prefix, owner, latencyIs string, causes ...datapath.BackPressure) queueMetrics {
	return queueMetrics{
		io:    define(prefix+"io_total", Counter, "IOs that have been answered, by operation and result.", owner, "queue", "op", "code"),
		bytes: define(prefix+"io_bytes_total", Counter, "Bytes that successful IOs have moved, by operation.", owner, "queue", "op"),
		latency: define(prefix+"io_latency_seconds", Histogram, latencyIs+
			" Native histogram, classic with a bucket for each power of two. The clock is read once for all IOs that a poll finds together.", owner, "queue", "op"),
		inFlight: define(prefix+"io_in_flight", Gauge, "IOs that have been taken and not been answered.", owner, "queue"),
		backPressure: define(prefix+"back_pressure_total", Counter, "Waits for want of something: "+causeList(causes)+".",
			owner, "queue", "cause"),
		causes: causes,
	}
}

// causeHelp says what is wanting.
var causeHelp = map[datapath.BackPressure]string{
	datapath.NoClientReceive: "answers for which the client had posted no receive (client_receive)",
	datapath.NoResponseRoom:    "requests that came before the answers to earlier ones had left (answer_room)",
	datapath.NoReadCredit:    "writes beyond the RDMA Reads that a connection may have outstanding (rdma_read)",
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
	return []*metric{q.io, q.bytes, q.latency, q.inFlight, q.backPressure}
}

// collect sends the counts of all queues of one owner.
func (q *queueMetrics) collect(out chan<- prometheus.Metric, owner string, counters *datapath.CounterSet) {
	queues := counters.Queues()
	for i := range queues {
		counts := &queues[i]
		index := strconv.Itoa(counts.Queue)
		q.inFlight.send(out, float64(counts.InFlight), owner, index)
		for _, cause := range q.causes {
			q.backPressure.send(out, float64(counts.BackPressure(cause)), owner, index, cause.String())
		}
		for operation := range iomsg.OperationCount {
			q.collectOperation(out, owner, index, operation, counts)
		}
	}
}

// collectOperation sends nothing of operations that have never been asked for,
// except that reads and writes are there from the start, so that rates can be
// taken.
func (q *queueMetrics) collectOperation(out chan<- prometheus.Metric, owner, index string, operation iomsg.Operation, counts *datapath.QueueCounts) {
	if counts.Total(operation) == 0 && !operation.MovesData() {
		return
	}
	for code := range status.Code(status.CodeCount) {
		n := counts.IO(operation, code)
		if n > 0 || code == status.Success {
			q.io.send(out, float64(n), owner, index, operation.String(), code.String())
		}
	}
	if operation.MovesData() {
		q.bytes.send(out, float64(counts.Bytes(operation)), owner, index, operation.String())
	}
	out <- newLatencyHistogram(q.latency.desc, q.latency.Labels, []string{owner, index, operation.String()}, counts.Latency(operation))
}
