// SPDX-License-Identifier: Apache-2.0

package command

import (
	"net/netip"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
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
	Name         string         `json:"name"`
	State        string         `json:"state"`            // serving or ended
	Reason       string         `json:"reason,omitempty"` // of the end
	Description  string         `json:"description"`
	Bytes        uint64         `json:"bytes"`
	ReadOnly     bool           `json:"read_only"`
	HolderID     string         `json:"holder_id,omitempty"` // of the gateway, for preempt
	Connections  int            `json:"connections"`
	Accepted     uint64         `json:"connections_total"`
	InFlight     int            `json:"requests_in_flight"`
	BytesRead    uint64         `json:"bytes_read"`
	BytesWritten uint64         `json:"bytes_written"`
	Quarantined  uint64         `json:"quarantined_bytes"` // of memory that silent relays hold
	Requests     []requestCount `json:"requests"`
	// Clients holds the open connections, the oldest first.
	Clients []nbdClientStatus `json:"clients"`
}

// nbdClientStatus is a connection and what it has done.
type nbdClientStatus struct {
	Client       string    `json:"client"`
	Since        time.Time `json:"connected_at"`
	Answered     uint64    `json:"requests_total"`
	Failed       uint64    `json:"requests_failed"`
	InFlight     int       `json:"requests_in_flight"`
	BytesRead    uint64    `json:"bytes_read"`
	BytesWritten uint64    `json:"bytes_written"`
}

// nbdStatusOf includes the exports that have ended, because their volume is lost for good.
func nbdStatusOf(server *nbd.Server, exports []servedExport) *nbdStatus {
	serving := server.Status() // first: the server ends an export after the volume is done
	s := &nbdStatus{Schema: nbdStatusSchema, Software: buildinfo.String("initiator"),
		Exports: []nbdExportStatus{}}
	ended, holders := make(map[string]bool), make(map[string]string)
	quarantined := quarantinedOf(exports)
	for _, e := range exports {
		holders[e.name] = e.volume.Info().OwnHolderID
		select {
		case <-e.volume.Done():
			ended[e.name] = true
			s.Exports = append(s.Exports, nbdExportStatus{Name: e.name, State: "ended",
				Reason: status.Text(e.volume.Err()), Bytes: e.volume.Info().Size,
				Requests: []requestCount{}, Clients: []nbdClientStatus{}})
		default:
		}
	}
	for _, e := range serving {
		if ended[e.Name] {
			continue
		}
		export := nbdExportStatus{Name: e.Name, State: "serving", Description: e.Info.Description,
			Bytes: e.Info.Size, ReadOnly: e.Info.ReadOnly, HolderID: holders[e.Name],
			Connections: e.Connections, Accepted: e.Accepted, InFlight: e.InFlight,
			BytesRead: e.BytesRead, BytesWritten: e.BytesWritten,
			Quarantined: quarantined[e.Name], Requests: requestCountsOf(e.Requests),
			Clients: nbdClientsOf(e.Open)}
		s.Exports = append(s.Exports, export)
	}
	return s
}

// nbdClientsOf describes open connections.
func nbdClientsOf(open []nbd.ConnectionStatus) []nbdClientStatus {
	all := make([]nbdClientStatus, len(open))
	for i := range open {
		c := &open[i]
		answered, failed := c.Answered()
		all[i] = nbdClientStatus{Client: c.Client, Since: c.Since.UTC(), Answered: answered,
			Failed: failed, InFlight: c.InFlight, BytesRead: c.BytesRead,
			BytesWritten: c.BytesWritten}
	}
	return all
}

// The log describes a client by its process and user, or its address and port, and by the name in
// its certificate. What changes with each connection is no part of its name.
var (
	nbdCertificate = regexp.MustCompile(` \((.*)\)$`)
	nbdProcess     = regexp.MustCompile(`^process \d+ of `)
)

// nameNBDClient returns the name under which a client is counted, from its description in the log.
func nameNBDClient(client string) string {
	if match := nbdCertificate.FindStringSubmatch(client); match != nil {
		return match[1]
	}
	if address, err := netip.ParseAddrPort(client); err == nil {
		return address.Addr().Unmap().String()
	}
	return nbdProcess.ReplaceAllString(client, "")
}

// quarantinedOf returns the memory that silent relays hold, keyed by export.
func quarantinedOf(exports []servedExport) map[string]uint64 {
	held := make(map[string]uint64)
	for _, e := range exports {
		held[e.name] = e.volume.Quarantined()
	}
	return held
}

// observedGateway is a gateway as the collector of metrics needs it.
type observedGateway struct {
	*nbd.Server
	exports []servedExport
}

// Quarantined returns the memory that silent relays hold, keyed by export.
func (g observedGateway) Quarantined() map[string]uint64 { return quarantinedOf(g.exports) }

// newNBDCollector returns a collector of the gateway's metrics.
func newNBDCollector(server *nbd.Server, exports []servedExport) prometheus.Collector {
	return metrics.NewNBDCollector(observedGateway{server, exports})
}
