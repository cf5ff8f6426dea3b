// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/hook"
)

// A rate needs two samples, so a counter that appears with its first failures hides them from every
// alert. The counters in this file have a fixed set of series, which are there from the start, and
// one more series for the sum of everything else.

// failureCodes are the codes that relays, targets, and volumes give.
var failureCodes = []status.Code{
	status.NotPermitted, status.InUse, status.NotSupported, status.Again, status.InvalidValue,
	status.NoMemory, status.TimeOut, status.Shutdown, status.ConnectionReset, status.NotConnected,
	status.IOFailed, status.BadState, status.Unexpected, status.TooBig,
}

// otherCode is the label of the sum of all other codes.
const otherCode = "OTHER"

// sendFailures sends how many IOs of one owner have failed, by code.
func (q *queueMetrics) sendFailures(out chan<- prometheus.Metric, owner string,
	queues []datapath.QueueCounts) {
	var counts [status.CodeCount]uint64
	for i := range queues {
		for operation := range iomsg.OperationCount {
			for code := range counts {
				counts[code] += queues[i].IO(operation, status.Code(code))
			}
		}
	}
	var others uint64
	for code, n := range counts {
		switch code := status.Code(code); {
		case slices.Contains(failureCodes, code):
			q.failures.send(out, float64(n), owner, code.String())
		case code != status.Success:
			others += n
		}
	}
	q.failures.send(out, float64(others), owner, otherCode)
}

// failureCauses are the causes that file systems, block devices, and Ceph give, and those that a
// volume has itself.
var failureCauses = []string{
	"EIO", "ENOSPC", "EDQUOT", "EROFS", "ESTALE", "ENODEV", "ENXIO", "ENODATA", "EREMOTEIO",
	"ETIMEDOUT", "EUCLEAN", "ESHUTDOWN", status.CauseTruncated.String(),
	status.CauseVolumeFailed.String(), hook.CauseInjected, status.CauseUnknown.String(),
}

// sendVolumeFailures sends how many requests a volume has failed, by operation and cause.
func (m *targetMetrics) sendVolumeFailures(out chan<- prometheus.Metric, name string,
	failures []volume.Failure) {
	type key struct {
		operation iomsg.Operation
		cause     string
	}
	counts := make(map[key]uint64)
	for operation := range iomsg.OperationCount {
		if operation == iomsg.OpOther {
			continue
		}
		for _, cause := range failureCauses {
			counts[key{operation, cause}] = 0
		}
	}
	for _, f := range failures {
		k := key{f.Operation, f.Cause}
		if _, listed := counts[k]; !listed {
			k.cause = status.CauseUnknown.String()
		}
		counts[k] += f.Count
	}
	for k, n := range counts {
		m.failures.send(out, float64(n), name, k.operation.String(), k.cause)
	}
}
