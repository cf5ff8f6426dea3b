package main

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// nbdStatusSchema names the format of the status document of a gateway.
const nbdStatusSchema = "zc-relay.nbd-status/1"

// nbdStatus is the status document of a gateway.
type nbdStatus struct {
	Schema   string            `json:"schema"`
	Software string            `json:"software"`
	Exports  []nbdExportStatus `json:"exports"`
}

type nbdExportStatus struct {
	Name         string            `json:"name"`
	State        string            `json:"state"`            // serving or ended
	Reason       string            `json:"reason,omitempty"` // of the end
	Description  string            `json:"description"`
	Bytes        uint64            `json:"bytes"`
	ReadOnly     bool              `json:"read_only"`
	Connections  int               `json:"connections"`
	Accepted     uint64            `json:"connections_total"`
	InFlight     int               `json:"requests_in_flight"`
	BytesRead    uint64            `json:"bytes_read"`
	BytesWritten uint64            `json:"bytes_written"`
	Requests     []nbdRequestCount `json:"requests"`
}

type nbdRequestCount struct {
	Command string `json:"command"`
	Error   string `json:"error"`
	Count   uint64 `json:"count"`
}

// endedExports holds the final status of the exports whose volume is lost for good.
type endedExports struct {
	mu  sync.Mutex
	all []nbdExportStatus
}

func (e *endedExports) add(name string, info client.Info, reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, nbdExportStatus{Name: name, State: "ended", Reason: status.Text(reason),
		Bytes: info.Size, Requests: []nbdRequestCount{}})
}

func (e *endedExports) list() []nbdExportStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]nbdExportStatus{}, e.all...)
}

func nbdStatusOf(server *nbd.Server, ended *endedExports) *nbdStatus {
	serving := server.Status() // first: an export is among the ended before the server ends it
	s := &nbdStatus{Schema: nbdStatusSchema, Software: buildinfo.String("initiator"),
		Exports: ended.list()}
	for _, e := range serving {
		hasEnded := func(other nbdExportStatus) bool { return other.Name == e.Name }
		if slices.ContainsFunc(s.Exports, hasEnded) {
			continue
		}
		export := nbdExportStatus{Name: e.Name, State: "serving", Description: e.Info.Description,
			Bytes: e.Info.Size, ReadOnly: e.Info.ReadOnly, Connections: e.Connections,
			Accepted: e.Accepted, InFlight: e.InFlight, BytesRead: e.BytesRead,
			BytesWritten: e.BytesWritten, Requests: []nbdRequestCount{}}
		for _, r := range e.Requests {
			export.Requests = append(export.Requests, nbdRequestCount{
				Command: r.Command.String(), Error: r.Error.Error(), Count: r.Count})
		}
		s.Exports = append(s.Exports, export)
	}
	return s
}

// newNBDCollector returns a collector of the gateway's metrics.
func newNBDCollector(server *nbd.Server) prometheus.Collector {
	return metrics.NewNBDCollector(server)
}
