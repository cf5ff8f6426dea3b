package statusreport

import (
	"math"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Workers describes data-path workers.
func Workers(workers []*datapath.Worker) []Worker {
	all := make([]Worker, len(workers))
	for i, w := range workers {
		stats := w.Stats()
		all[i] = Worker{
			Index: i, Queues: w.Lanes(), Hits: stats.Hits, Misses: stats.Misses, Sleeps: stats.Sleeps, LateWakeups: stats.LateWakeups,
		}
		if cpu := w.CPU(); cpu != datapath.NoCPU {
			all[i].CPU = &cpu
		}
	}
	return all
}

// Queues describes what has been counted.
func Queues(counters *datapath.CounterSet) []Queue {
	counts := counters.Queues()
	all := make([]Queue, len(counts))
	for i := range counts {
		all[i] = queueOf(&counts[i])
	}
	return all
}

func queueOf(counts *datapath.QueueCounts) Queue {
	q := Queue{
		Index: counts.Queue, InFlight: counts.InFlight,
		BackPressure: make(map[string]uint64), Operations: make(map[string]Operation),
	}
	for cause := range datapath.BackPressureCount {
		if n := counts.BackPressure(cause); n > 0 {
			q.BackPressure[cause.String()] = n
		}
	}
	for operation := range iomsg.OperationCount {
		if counts.Total(operation) > 0 {
			q.Operations[operation.String()] = operationOf(counts, operation)
		}
	}
	return q
}

func operationOf(counts *datapath.QueueCounts, operation iomsg.Operation) Operation {
	o := Operation{
		Succeeded: counts.IO(operation, status.Success), Bytes: counts.Bytes(operation),
		Failed: make(map[string]uint64), Latency: latencyOf(counts.Latency(operation)),
	}
	for code := status.Success + 1; int(code) < status.CodeCount; code++ {
		if n := counts.IO(operation, code); n > 0 {
			o.Failed[code.String()] = n
		}
	}
	return o
}

func latencyOf(latency *datapath.Latency) Latency {
	var count uint64
	for _, n := range latency.Buckets {
		count += n
	}
	if count == 0 {
		return Latency{}
	}
	return Latency{
		Sum: latency.SumNs, Mean: new(latency.SumNs / count),
		P50: percentileNs(latency, count, 0.5), P99: percentileNs(latency, count, 0.99), P999: percentileNs(latency, count, 0.999),
	}
}

// percentileNs is the bound of the bucket that holds the percentile. The last
// bucket has no bound: its lower one is taken.
func percentileNs(latency *datapath.Latency, count uint64, part float64) *uint64 {
	rank := uint64(math.Ceil(part * float64(count)))
	var below uint64
	bucket := 0
	for ; bucket < datapath.LatencyBuckets-2; bucket++ {
		if below += latency.Buckets[bucket]; below >= rank {
			break
		}
	}
	const nanosecondsPerSecond = 1e9
	return new(uint64(datapath.LatencyBound(bucket) * nanosecondsPerSecond))
}
