// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/machinecounters"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/schematest"
)

// exampleReport has a value in every field.
func exampleReport() *Report {
	latency := &Latency{Min: 16053, Mean: 30468, P50: 23343, P90: 30047, P99: 81983, P999: 2260991,
		P9999: 4657151, Max: 5016647}
	writes := &Latency{Min: 62573, Mean: 157244, P50: 137855, P90: 247679, P99: 303359,
		P999: 488703, P9999: 4349951, Max: 4912311}
	return &Report{
		Schema: Schema, StartedAt: time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC),
		Title: "nightly", Labels: map[string]string{"build": "17"},
		Parameters: Parameters{
			Pattern: benchsuite.RandomMixed, ReadPercent: 70, BlockSize: 4096, QueueDepth: 32,
			Queues: 2, Sessions: 3, CPUs: []int{2, 3},
			Runtime: 10 * time.Second, OperationLimit: 1000000, Warmup: time.Second,
			Offset: 1 << 20, Length: 1 << 30, InPlace: true,
			Seed: 42, Poll: "adaptive", Validate: true, PlainContent: "content.bin",
			DrainTimeout: 10 * time.Second, Rate: 5000, Interval: time.Second,
		},
		Connection: document.Connection{Provider: "emulated", Device: "b1:00.0",
			Channel: "storage_zero_copy_comch"},
		Volume: &document.Volume{
			Name: "disk", UUID: "00112233-4455-6677-8899-aabbccddeeff", Size: 2 << 30,
			BlockSize: 512, ReadOnly: true,
			Transport: "iwarp", Relay: "zc-relay v1.0.0",
		},
		Environment: report.Environment{
			Version: "v1.0.0", GoVersion: "go1.26.8", Architecture: "linux/amd64", Hostname: "host",
			Kernel:   "6.12.0",
			CPUModel: "Fast CPU", CPUs: 16, MaxProcessors: 4, NUMANodes: "0-1", ClockSource: "tsc",
			FrequencyGovernor: "performance",
		},
		Measurement: CurrentMeasurement(true),
		Result: Result{
			Operations: 499990, Errors: 10, IOPS: 49999.125, BytesPerSecond: 204796416,
			Bytes: 2047959040, DurationNs: 9999975000,
			LatencyNs: latency,
			Read: Direction{Operations: 350000, IOPS: 35000.088, BytesPerSecond: 143360360,
				LatencyNs: latency},
			Write: Direction{Operations: 149990, IOPS: 14999.037, BytesPerSecond: 61436055,
				LatencyNs: writes},
			ErrorsByCode:  map[string]uint64{"IO_FAILED": 9, "TIME_OUT": 1},
			ErrorsByCause: map[string]uint64{"ENOSPC": 9}, Validated: 499989,
			Mismatches: 1, Interrupted: true,
			Engine: Engine{Hits: 65525, Misses: 1300230, HitRatePercent: 4.798, Sleeps: 101,
				LateWakeups: 1},
		},
		Counters: &machinecounters.Counts{
			Ports: []machinecounters.PortCounts{{Device: "mlx5_0", Port: 1,
				Counters:   map[string]uint64{"received_bytes": 2047959040, "port_rcv_errors": 0},
				HWCounters: map[string]uint64{"out_of_sequence": 3}}},
			Process:    map[string]uint64{"user_time_ns": 8700000000, "system_time_ns": 1200000},
			Processors: map[string]uint64{"cycles": 31000000000},
		},
		Error: &report.Failure{Code: "IO_FAILED", Phase: "run", Message: "10 requests failed"},
	}
}

// emptyReport is the report of a run that did not start.
func emptyReport() *Report {
	r := exampleReport()
	r.Volume, r.Result, r.Parameters.CPUs, r.Parameters.PlainContent = nil, NoResult(), []int{}, ""
	r.Counters = nil
	return r
}

func TestTheShapeOfTheDocumentIsKept(t *testing.T) {
	for name, r := range map[string]*Report{"report.json": exampleReport(),
		"empty.json": emptyReport()} {
		var document bytes.Buffer
		if err := report.WriteJSON(&document, r); err != nil {
			t.Fatal(err)
		}
		goldentest.Check(t, filepath.Join("testdata", name), document.Bytes())
	}
}

func TestTheTextTellsTheSame(t *testing.T) {
	var text bytes.Buffer
	if err := exampleReport().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	goldentest.Check(t, filepath.Join("testdata", "report.txt"), text.Bytes())
}

func TestTheTextShowsNoHitRateIfNothingWasPolled(t *testing.T) {
	r := exampleReport()
	r.Result.Engine = Engine{Sleeps: 3}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "engine hit rate    nothing was polled, 3 sleeps") ||
		strings.Contains(text.String(), "hits:misses") {
		t.Error(text.String())
	}
}

// schemaPath is the path of the published schema.
const schemaPath = "../../../../docs/schemas/bench-result.schema.json"

func TestTheTextSaysThatARateWasNotReached(t *testing.T) {
	for _, c := range []struct {
		rate uint64
		want string
	}{{0, ""}, {49999, ""}, {52000, ""}, {100000, "50.0 % of the rate"}} {
		r := exampleReport()
		r.Parameters.Rate = c.rate
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if c.want == "" && strings.Contains(text.String(), "% of the rate") ||
			!strings.Contains(text.String(), c.want) {
			t.Errorf("with a rate of %d:\n%s", c.rate, text.String())
		}
	}
}

func TestDocumentsAreValidAndEveryFieldIsDescribed(t *testing.T) {
	s := schematest.Read(t, schemaPath)
	for name, r := range map[string]*Report{"example": exampleReport(), "empty": emptyReport()} {
		if err := s.Check(schematest.Document(t, r)); err != nil {
			t.Errorf("%s: %s", name, err)
		}
	}
}

func TestTheSchemaRefusesWhatIsNoDocument(t *testing.T) {
	s := schematest.Read(t, schemaPath)
	for name, spoil := range map[string]func(map[string]any){
		"other schema":   func(d map[string]any) { d["schema"] = "zc-relay.bench/2" },
		"missing result": func(d map[string]any) { delete(d, "result") },
		"float for a whole number": func(d map[string]any) {
			d["result"].(map[string]any)["operations"] = 1.5
		},
		"text for a number": func(d map[string]any) { d["result"].(map[string]any)["iops"] = "fast" },
		"unknown pattern":   func(d map[string]any) { d["parameters"].(map[string]any)["rw"] = "sideways" },
		"negative": func(d map[string]any) {
			d["result"].(map[string]any)["latency_ns"].(map[string]any)["min"] = -1.0
		},
		"field nobody has described": func(d map[string]any) { d["surprise"] = true },
	} {
		d := schematest.Document(t, exampleReport()).(map[string]any)
		spoil(d)
		if s.Check(d) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}
