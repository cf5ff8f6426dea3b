package bench

import (
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/report"
)

// Schema names the shape of a report. Fields may be added within a number,
// nothing else.
const Schema = "zc-relay.bench/1"

// Report is everything that is printed about a run, as text or as JSON.
type Report struct {
	Schema      string              `json:"schema"`
	StartedAt   time.Time           `json:"started_at"`
	Parameters  Parameters          `json:"parameters"`
	Connection  document.Connection `json:"connection"`
	Volume      *document.Volume    `json:"volume"` // nil if it was not reached
	Environment report.Environment  `json:"environment"`
	Measurement Measurement         `json:"measurement"`
	Result      Result              `json:"result"`
	Error       *report.Failure     `json:"error,omitempty"`
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
