package bench

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Schema names the shape of a report. Fields may be added within a number,
// nothing else.
const Schema = "zc-relay.bench/1"

// Report is everything that is printed about a run, as text or as JSON.
type Report struct {
	Schema      string              `json:"schema"`
	StartedAt   time.Time           `json:"started_at"`
	Parameters  Parameters          `json:"parameters"`
	Connection  Connection          `json:"connection"`
	Volume      *Volume             `json:"volume"` // nil if it was not reached
	Environment program.Environment `json:"environment"`
	Measurement Measurement         `json:"measurement"`
	Result      Result              `json:"result"`
	Error       *program.Failure    `json:"error,omitempty"`
}

// Connection is the way to the relay.
type Connection struct {
	Provider string `json:"comch_provider"`
	Device   string `json:"device"`
	Channel  string `json:"command_channel_name"`
}

// Volume is what a run was carried out on.
type Volume struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	Size      uint64 `json:"size_bytes"`
	BlockSize uint32 `json:"block_size_bytes"`
	Transport string `json:"transport"`
	Relay     string `json:"relay"`
}

// VolumeOf is what a report says of a volume.
func VolumeOf(info *client.Info) *Volume {
	return &Volume{
		Name: info.Name, UUID: volume.UUID(info.UUID).String(), Size: info.Size, BlockSize: info.BlockSize,
		Transport: info.Transport, Relay: info.Relay,
	}
}

// Measurement says what the latencies of a report are.
type Measurement struct {
	Latency            string `json:"latency"`
	SignificantDigits  int    `json:"histogram_significant_digits"`
	OmissionCorrected  bool   `json:"coordinated_omission_corrected"`
	WarmupExcluded     bool   `json:"warmup_excluded"`
	ClosedLoop         bool   `json:"closed_loop"`
	ClockReadsPerBatch int    `json:"clock_reads_per_batch"`
}

// CurrentMeasurement describes how this package measures.
func CurrentMeasurement() Measurement {
	return Measurement{
		Latency: "submit to completion", SignificantDigits: significantDigits,
		WarmupExcluded: true, ClosedLoop: true, ClockReadsPerBatch: 1,
	}
}
