// SPDX-License-Identifier: Apache-2.0

package command

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/ublk"
)

// ublkStatusSchema names the format of the status document of a gateway.
const ublkStatusSchema = "zc-relay.ublk-status/1"

// ublkStatus is the status document of a gateway.
type ublkStatus struct {
	Schema   string             `json:"schema"`
	Software string             `json:"software"`
	Devices  []ublkDeviceStatus `json:"devices"`
}

type ublkDeviceStatus struct {
	Device     string `json:"device"`
	Volume     string `json:"volume"`
	UUID       string `json:"volume_uuid"`
	HolderID   string `json:"holder_id,omitempty"` // of the gateway, for preempt
	Bytes      uint64 `json:"bytes"`
	BlockBytes uint32 `json:"block_bytes"`
	ReadOnly   bool   `json:"read_only"`
	Queues     int    `json:"queues"`
	Depth      int    `json:"queue_depth"`
	// CanRecover is set if the device outlives the gateway, and Recovered if this gateway has taken
	// it over.
	CanRecover   bool           `json:"can_recover"`
	Recovered    bool           `json:"recovered"`
	Since        time.Time      `json:"serving_since"`
	InFlight     int            `json:"requests_in_flight"`
	BytesRead    uint64         `json:"bytes_read"`
	BytesWritten uint64         `json:"bytes_written"`
	Quarantined  uint64         `json:"quarantined_bytes"` // of memory that silent relays hold
	Requests     []requestCount `json:"requests"`
}

func (s *servedDevice) status() *ublkStatus {
	d, info := s.device.Status(), s.volume.Info()
	device := ublkDeviceStatus{Device: d.Path, Volume: info.Name, UUID: info.UUID.String(),
		HolderID: info.OwnHolderID, Bytes: d.Size, BlockBytes: d.BlockSize, ReadOnly: d.ReadOnly,
		Queues: d.Queues, Depth: d.Depth, CanRecover: d.CanRecover, Recovered: d.Recovered,
		Since: d.Since.UTC(), InFlight: d.InFlight, BytesRead: d.BytesRead,
		BytesWritten: d.BytesWritten, Quarantined: s.volume.Quarantined(),
		Requests: requestCountsOf(d.Requests)}
	return &ublkStatus{Schema: ublkStatusSchema, Software: buildinfo.String("initiator"),
		Devices: []ublkDeviceStatus{device}}
}

// collector returns a collector of the gateway's metrics.
func (s *servedDevice) collector() prometheus.Collector {
	return metrics.NewUblkCollector(observedDevice{s.device, s.volume})
}

// observedDevice is a device as the collector of metrics needs it.
type observedDevice struct {
	*ublk.Device
	volume volume
}

// Quarantined returns the memory that silent relays hold.
func (o observedDevice) Quarantined() uint64 { return o.volume.Quarantined() }
