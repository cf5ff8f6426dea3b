// SPDX-License-Identifier: Apache-2.0

package benchsuite_test

import (
	"bytes"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/schematest"
)

func workload(pattern benchsuite.Pattern, blockSize uint32, depth int) benchsuite.Workload {
	return benchsuite.Workload{
		Pattern: pattern, BlockSize: blockSize, QueueDepth: depth, Queues: 1, Sessions: 1,
		Poll: "adaptive", Volume: "memory",
	}
}

func run(iops float64, w benchsuite.Workload, p50 int64) benchsuite.Run {
	return benchsuite.Run{
		IOPS: iops, BytesPerSecond: uint64(iops) * uint64(w.BlockSize),
		LatencyNs: &benchsuite.Latency{
			Min: new(p50 / 2), Mean: &p50, P50: &p50, P90: new(p50 * 2), P99: new(p50 * 3),
			P999: new(p50 * 10), P9999: new(p50 * 100), Max: new(p50 * 150),
		},
	}
}

// exampleDocument has a value in every field.
func exampleDocument() *benchsuite.Document {
	d := benchsuite.NewDocument(time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC), benchsuite.Method{
		Runtime: 2 * time.Second, Warmup: 500 * time.Millisecond, Repetitions: 3,
	})
	d.Environment = report.Environment{
		Version: "v1.0.0", GoVersion: "go1.26.8", Architecture: "linux/amd64", Hostname: "host",
		Kernel:   "6.12.0",
		CPUModel: "Fast CPU", CPUs: 16, MaxProcessors: 4, NUMANodes: "0-1", ClockSource: "tsc",
		FrequencyGovernor: "performance",
	}
	for i := range 3 {
		for _, depth := range []int{1, 32} {
			w := workload(benchsuite.RandomRead, 4096, depth)
			d.Add("zc-relay", w, run(40000*float64(depth+i), w, int64(23000+i)))
			d.Add("bare chain", w, run(50000*float64(depth+i), w, 18000))
		}
		w := workload(benchsuite.Write, 128<<10, 32)
		w.Queues, w.Sessions, w.Poll, w.CRC, w.Volume, w.Condition = 2, 4, "busy", true, "file",
			"beside <another>"
		d.Add("zc-relay", w, run(10000, w, 1e6))
		d.Add("stream", benchsuite.Workload{BlockSize: 128 << 10},
			benchsuite.Run{BytesPerSecond: 3 << 30})
	}
	d.Goals = append(d.Goals,
		benchsuite.NewGoal("beside the bare chain", "median of 3 pairs", 0.8, "", 1, false),
		benchsuite.NewGoal("cost of an IO", "10 runs", 132.5, "ns", 150, true))
	d.Checks = append(d.Checks, benchsuite.Check{Name: "adaptive", Blocks: 16384, Problems: 1})
	d.Skipped = append(d.Skipped, benchsuite.Skipped{Name: "ucx_perftest",
		Reason: "it is not installed: apt-get install ucx-utils"})
	d.Error = &report.Failure{Code: "IO_FAILED", Phase: "run", Message: "1 block is wrong"}
	return d
}

func emptyDocument() *benchsuite.Document {
	d := exampleDocument()
	e := benchsuite.NewDocument(d.StartedAt, d.Method)
	e.Environment = d.Environment
	return e
}

func checkGolden(t *testing.T, name string, print func(io.Writer) error) {
	t.Helper()
	var got bytes.Buffer
	if err := print(&got); err != nil {
		t.Fatal(err)
	}
	goldentest.Check(t, filepath.Join("testdata", name), got.Bytes())
}

func TestEveryFormOfTheDocumentIsKept(t *testing.T) {
	for name, d := range map[string]*benchsuite.Document{"suite": exampleDocument(),
		"empty": emptyDocument()} {
		checkGolden(t, name+".json", func(w io.Writer) error { return report.WriteJSON(w, d) })
	}
}

func TestDocumentsAreValidAndEveryFieldIsDescribed(t *testing.T) {
	s := schematest.Read(t, "../../docs/schemas/bench-suite.schema.json")
	for name, d := range map[string]*benchsuite.Document{"example": exampleDocument(),
		"empty": emptyDocument()} {
		if err := s.Check(schematest.Document(t, d)); err != nil {
			t.Errorf("%s: %s", name, err)
		}
	}
	spoiled := schematest.Document(t, exampleDocument()).(map[string]any)
	spoiled["cases"].([]any)[0].(map[string]any)["runs"].([]any)[0].(map[string]any)["iops"] = -1.0
	if s.Check(spoiled) == nil {
		t.Error("the schema accepts a negative number of operations")
	}
}

func TestRunsOfOneWorkloadOnOneSystemMakeOneCase(t *testing.T) {
	d := exampleDocument()
	if len(d.Cases) != 6 {
		t.Fatalf("there are %d cases", len(d.Cases))
	}
	for _, c := range d.Cases {
		if len(c.Runs) != 3 {
			t.Errorf("%s %v has %d runs", c.System, c.Workload, len(c.Runs))
		}
	}
	if d.Find("nobody", d.Cases[0].Workload) != nil {
		t.Error("a case was found that was never added")
	}
}

func TestMedianAndSpreadAreThoseOfTheValues(t *testing.T) {
	for _, test := range []struct {
		values         []float64
		median, spread float64
	}{
		{nil, 0, 0},
		{[]float64{0}, 0, 0},
		{[]float64{5}, 5, 0},
		{[]float64{9, 1, 5}, 5, 1.6},
		{[]float64{4, 1, 3, 2}, 2.5, 1.2},
	} {
		if got := benchsuite.Median(test.values); got != test.median {
			t.Errorf("median of %v is %v", test.values, got)
		}
		if got := benchsuite.Spread(test.values); math.Abs(got-test.spread) > 1e-9 {
			t.Errorf("spread of %v is %v", test.values, got)
		}
	}
}

func TestARatioIsThatOfNeighbouringRuns(t *testing.T) {
	w := workload(benchsuite.RandomRead, 4096, 1)
	d := benchsuite.NewDocument(time.Now(), benchsuite.Method{})
	for _, machine := range []float64{1, 2, 0.5} { // as fast as the machine is at the moment
		d.Add("ours", w, run(90000*machine, w, 1000))
		d.Add("theirs", w, run(60000*machine, w, 1000))
	}
	ratio, spread := d.Find("ours", w).Ratio(d.Find("theirs", w), benchsuite.IOPS)
	if ratio != 1.5 || spread != 0 {
		t.Errorf("ratio is %v, spread %v", ratio, spread)
	}
	empty := benchsuite.Case{Runs: []benchsuite.Run{{}}}
	if ratio, _ := d.Find("ours", w).Ratio(&empty, benchsuite.IOPS); ratio != 0 {
		t.Errorf("ratio to nothing is %v", ratio)
	}
	if values := empty.Values(benchsuite.P99); len(values) != 0 {
		t.Errorf("a run without latencies has %v", values)
	}
}

func TestAGoalIsMetOnTheRightSideOfItsBound(t *testing.T) {
	for _, test := range []struct {
		figure, bound float64
		atMost, met   bool
	}{{1, 1, false, true}, {0.9, 1, false, false}, {1, 1, true, true}, {1.1, 1, true, false}} {
		g := benchsuite.NewGoal("goal", "basis", test.figure, "", test.bound, test.atMost)
		if g.Met != test.met {
			t.Errorf("%v: met is %v", &g, g.Met)
		}
	}
}

func TestTheNameOfAWorkloadLeavesOutWhatIsUsual(t *testing.T) {
	w := workload(benchsuite.RandomRead, 4096, 32)
	if got := w.String(); got != "randread 4KiB depth=32" {
		t.Errorf("name is %q", got)
	}
	w.Queues, w.Sessions, w.Poll, w.CRC, w.Volume, w.Condition = 2, 8, "event", true, "file",
		"with collections"
	if got := w.String(); !strings.HasSuffix(got,
		"queues=2 sessions=8 event crc file with collections") {
		t.Errorf("name is %q", got)
	}
}
