// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// clientMetrics are the metrics of the clients of a channel or a volume, by name. They have no
// histograms, which would be most of the series.
type clientMetrics struct{ io, failures, bytes, seconds, inFlight *metric }

// newClientMetrics returns the metrics of clients, with the label owner, "channel" or "volume".
func newClientMetrics(prefix, owner string) clientMetrics {
	const byName = " Only with metrics.per_session."
	return clientMetrics{
		io: define(prefix+"client_io_total", Counter,
			"IOs of a client that have succeeded, by operation. The name is the client's own; "+
				datapath.OtherClients+" sums up the clients beyond the limit."+byName,
			owner, "client", "op"),
		failures: define(prefix+"client_io_failures_total", Counter,
			"IOs of a client that have failed."+byName, owner, "client"),
		bytes: define(prefix+"client_io_bytes_total", Counter,
			"Bytes that successful IOs of a client have moved, by operation."+byName,
			owner, "client", "op"),
		seconds: define(prefix+"client_io_seconds_total", Counter,
			"Latencies of a client's IOs, added up, by operation. Divided by the number of IOs, their mean; an IO that completes within one poll counts as 0."+
				byName, owner, "client", "op"),
		inFlight: define(prefix+"client_io_in_flight", Gauge,
			"IOs of a client that have been received and not completed."+byName, owner, "client"),
	}
}

func (m *clientMetrics) all() []*metric {
	return []*metric{m.io, m.failures, m.bytes, m.seconds, m.inFlight}
}

// collect sends the counts of the clients of one owner.
func (m *clientMetrics) collect(out chan<- prometheus.Metric, owner string,
	clients []datapath.ClientCounts) {
	for _, c := range clients {
		var failed uint64
		for operation := range iomsg.OperationCount {
			failed += c.Failed(operation)
			if !isCounted(operation, c.QueueCounts) {
				continue
			}
			op := operation.String()
			m.io.send(out, float64(c.IO(operation, status.Success)), owner, c.Client, op)
			m.seconds.send(out, float64(c.Latency(operation).SumNs)/nanosecondsPerSecond, owner,
				c.Client, op)
			if operation.MovesData() {
				m.bytes.send(out, float64(c.Bytes(operation)), owner, c.Client, op)
			}
		}
		m.failures.send(out, float64(failed), owner, c.Client)
		m.inFlight.send(out, float64(c.InFlight), owner, c.Client)
	}
}

// isCounted reports whether an operation has metrics: reads and writes have them from the start, so
// that rates can be computed, the others when they have been requested.
func isCounted(operation iomsg.Operation, counts *datapath.QueueCounts) bool {
	return counts.Total(operation) > 0 ||
		slices.Contains([]iomsg.Operation{iomsg.OpRead, iomsg.OpWrite}, operation)
}
