// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/schematest"
)

var randomRead = benchsuite.Workload{
	Pattern: benchsuite.RandomRead, BlockSize: 4096, QueueDepth: 32, Queues: 1, Sessions: 1,
	Poll: "adaptive", Volume: "memory",
}

func run(iops float64, p50Ns int64) benchsuite.Run {
	return runOf(&bench.Result{
		IOPS: iops, BytesPerSecond: uint64(iops) * 4096,
		LatencyNs: &bench.Latency{P50: p50Ns, P99: 3 * p50Ns, P999: 10 * p50Ns},
	})
}

// document returns the text of a suite with the given runs.
func document(t *testing.T, version string, runs ...benchsuite.Run) string {
	d := benchsuite.NewDocument(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		benchsuite.Method{Repetitions: len(runs)})
	d.Environment = report.Environment{Version: version, Hostname: "host"}
	for _, r := range runs {
		d.Add("zc-relay", randomRead, r)
	}
	content, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func mustParse(t *testing.T, text string) *Results {
	t.Helper()
	r, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCasesThatDifferInOneSettingAreCompared(t *testing.T) {
	suite := func(workloads ...benchsuite.Workload) *Results {
		d := benchsuite.NewDocument(time.Time{}, benchsuite.Method{})
		for _, w := range workloads {
			d.Add("zc-relay", w, run(1000, 9000))
		}
		content, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return mustParse(t, string(content))
	}
	with := func(depth int, poll string, queues int) benchsuite.Workload {
		w := randomRead
		w.QueueDepth, w.Poll, w.Queues = depth, poll, queues
		return w
	}
	for name, c := range map[string]struct {
		before, after *Results
		settings      []string // of the cases
		left          int
	}{
		"one case of each, two settings": {suite(with(1, "busy", 1)), suite(with(2, "event", 1)),
			[]string{"poll busy event", "queue_depth 1 2"}, 0},
		"the same setting in every case": {suite(with(1, "busy", 1), with(2, "busy", 1)),
			suite(with(1, "event", 1), with(2, "event", 1)),
			[]string{"poll busy event", "poll busy event"}, 0},
		"one case in common, one with another setting": {
			suite(with(1, "busy", 1), with(2, "busy", 2)),
			suite(with(1, "busy", 1), with(2, "busy", 3)), []string{"queues 2 3"}, 0},
		"several could be meant": {suite(with(1, "busy", 1)),
			suite(with(2, "busy", 1), with(3, "busy", 1)), nil, 3},
		"nothing alike": {suite(with(1, "busy", 1), with(2, "busy", 2)),
			suite(with(3, "event", 3), with(4, "event", 4)), nil, 4},
	} {
		r := NewReport("a", "b")
		r.Compare(c.before, c.after)
		var settings []string
		for _, compared := range r.Cases {
			for _, s := range compared.Settings {
				settings = append(settings, s.Name+" "+s.Before+" "+s.After)
			}
		}
		if !slices.Equal(settings, c.settings) || len(r.OnlyBefore)+len(r.OnlyAfter) != c.left {
			t.Errorf("%s: settings %q, left %q and %q", name, settings, r.OnlyBefore, r.OnlyAfter)
		}
	}
}

// example is a report with a value in every field.
func example(t *testing.T) *Report {
	before := mustParse(t, document(t, "v1", run(1000, 9000), run(1010, 9100), run(990, 8900),
		run(1005, 9050), run(995, 9000)))
	after := mustParse(t, document(t, "v2", run(1500, 6000), run(1520, 9100), run(1480, 5900),
		run(1505, 9050), run(1495, 9000)))
	other := randomRead
	other.QueueDepth = 1
	before.merge(benchsuite.Case{System: "zc-relay", Workload: other,
		Runs: []benchsuite.Run{run(1, 1)}})
	after.merge(benchsuite.Case{System: "bare chain", Workload: other,
		Runs: []benchsuite.Run{run(1, 1)}})
	r := NewReport("before.json", "after.json")
	r.Compare(before, after)
	r.Error = &report.Failure{Code: "IO_FAILED", Phase: "prepare", Message: "an example"}
	return r
}

func checkGolden(t *testing.T, name string, form func(io.Writer) error) {
	t.Helper()
	var got bytes.Buffer
	if err := form(&got); err != nil {
		t.Fatal(err)
	}
	goldentest.Check(t, filepath.Join("testdata", name), got.Bytes())
}

func TestBothFormsOfTheReportAreKept(t *testing.T) {
	r := example(t)
	checkGolden(t, "compare.txt", r.WriteText)
	checkGolden(t, "compare.json", func(w io.Writer) error { return report.WriteJSON(w, r) })
}

func TestReportsFitTheSchemaAndEveryFieldIsInIt(t *testing.T) {
	s := schematest.Read(t, "../../../../docs/schemas/bench-compare.schema.json")
	for _, r := range []*Report{example(t), NewReport("a", "b")} {
		if err := s.Check(schematest.Document(t, r)); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyADifferenceThatIsHardlyChanceIsSignificant(t *testing.T) {
	for name, test := range map[string]struct {
		before, after []benchsuite.Run
		significant   bool
	}{
		"apart": {[]benchsuite.Run{run(10, 1), run(11, 1), run(12, 1), run(13, 1)},
			[]benchsuite.Run{run(20, 1), run(21, 1), run(22, 1), run(23, 1)}, true},
		"mixed": {[]benchsuite.Run{run(10, 1), run(21, 1), run(12, 1), run(23, 1)},
			[]benchsuite.Run{run(20, 1), run(11, 1), run(22, 1), run(13, 1)}, false},
		"too few": {[]benchsuite.Run{run(10, 1)}, []benchsuite.Run{run(20, 1)}, false},
		"equal": {[]benchsuite.Run{run(10, 1), run(10, 1), run(10, 1), run(10, 1)},
			[]benchsuite.Run{run(10, 1), run(10, 1), run(10, 1), run(10, 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReport("a", "b")
			r.Compare(mustParse(t, document(t, "v1", test.before...)),
				mustParse(t, document(t, "v1", test.after...)))
			if q := r.Cases[0].Quantities[0]; q.Significant != test.significant {
				t.Errorf("IOPS: %+v", q)
			}
			if len(r.Environment) != 0 {
				t.Errorf("environments differ in %v", r.Environment)
			}
		})
	}
}

func TestDocumentsOfOneFileAreRunsOfOneCase(t *testing.T) {
	content, err := os.ReadFile("../bench/testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	var b bench.Report
	if err := json.Unmarshal(content, &b); err != nil {
		t.Fatal(err)
	}
	b.Error = nil
	one, err := json.Marshal(&b)
	if err != nil {
		t.Fatal(err)
	}
	other := b
	other.Parameters.QueueDepth = 1
	sweep, err := json.Marshal(&bench.Sweep{Schema: bench.SweepSchema,
		Runs: []*bench.Report{&b, &other}})
	if err != nil {
		t.Fatal(err)
	}
	if r := mustParse(t, strings.Repeat(string(sweep)+"\n", 2)); len(r.Cases) != 2 ||
		len(r.Cases[0].Runs) != 2 {
		t.Errorf("two sweeps have %d cases: %+v", len(r.Cases), r.Cases)
	}
	r := mustParse(t, strings.Repeat(string(one)+"\n", 3))
	if len(r.Cases) != 1 || len(r.Cases[0].Runs) != 3 {
		t.Fatalf("there are %d cases: %+v", len(r.Cases), r.Cases)
	}
	if got, want := name(&r.Cases[0]),
		"zc-relay: randrw 4KiB depth=32 queues=2 sessions=3 disk 70 % reads 5000/s validated in place"; got != want {
		t.Errorf("the case is %q, want %q", got, want)
	}
}

func TestWhatCannotBeComparedIsRefused(t *testing.T) {
	failed, err := os.ReadFile("../bench/testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ text, complaint string }{
		"nothing":         {"", "the file is empty"},
		"no JSON":         {"IOPS 1000", `no result of "initiator bench", because it is not JSON (invalid`},
		"cut off":         {`{"schema":`, "document 1 is incomplete: the run was cut off"},
		"other program's": {`{"fio version": "3.39"}`, `schema "" is none of zc-relay.bench/1`},
		"later version": {`{"schema": "zc-relay.bench-suite/2"}`,
			`schema "zc-relay.bench-suite/2" is none`},
		"failed run": {string(failed), "document 1: the run failed (run, IO_FAILED)"},
		"failed sweep": {`{"schema": "zc-relay.bench-sweep/1", "error": {"code": "IO_FAILED"}}`,
			"document 1: the run failed"},
		"sweep of nothing": {`{"schema": "zc-relay.bench-sweep/1", "runs": [{}]}`,
			"run 1: nothing was measured"},
		"run of nothing": {`{"schema": "zc-relay.bench/1"}`, "nothing was measured"},
		"suite of none":  {`{"schema": "zc-relay.bench-suite/1"}`, "nothing was measured"},
		"wrong types":    {`{"schema": "zc-relay.bench-suite/1", "cases": 3}`, "document 1: json"},
		"no object":      {`3`, `document 1: no result of "initiator bench -o json"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(strings.NewReader(test.text))
			if err == nil || !strings.Contains(err.Error(), test.complaint) {
				t.Errorf("error is %v", err)
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file was read")
	}
}

func FuzzParse(f *testing.F) {
	for _, path := range []string{"../bench/testdata/report.json",
		"../../../../internal/benchsuite/testdata/suite.json",
		"../../../../internal/benchsuite/testdata/empty.json"} {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := parse(bytes.NewReader(content))
		if err != nil {
			return
		}
		same := NewReport("a", "a")
		same.Compare(r, r)
		if len(same.Cases) != len(r.Cases) || len(same.OnlyBefore)+len(same.OnlyAfter) != 0 {
			t.Errorf("%d cases, compared with themselves, give %+v", len(r.Cases), same)
		}
		if err := same.WriteText(io.Discard); err != nil {
			t.Error(err)
		}
		if err := report.WriteJSON(io.Discard, same); err != nil {
			t.Error(err)
		}
	})
}
