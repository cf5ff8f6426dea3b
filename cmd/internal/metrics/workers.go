package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// workerMetrics are those of the data-path workers.
type workerMetrics struct {
	polls, sleeps, lateWakeups, queues *metric
}

func newWorkerMetrics(prefix string) workerMetrics {
	return workerMetrics{
		polls:       define(prefix+"poll_total", Counter, "Turns of the worker's polling loop that found work (hit) or none (miss).", "worker", "outcome"),
		sleeps:      define(prefix+"sleeps_total", Counter, "Times that the worker slept in the kernel for lack of work.", "worker"),
		lateWakeups: define(prefix+"late_wakeups_total", Counter, "Work that the sleeping worker was not woken for. Anything but 0 is a bug.", "worker"),
		queues:      define(prefix+"worker_queues", Gauge, "Queues that the worker serves now.", "worker"),
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
