// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func TestTheStreamIsALineForEachEvent(t *testing.T) {
	o := newRelay().mustCall(t,
		"bench --rw randread --runtime 100ms --warmup 20ms --json-stream --interval 20ms --queues 1")
	lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
	if len(lines) < 4 {
		t.Fatalf("the stream is %q", o.stdout)
	}
	for i, text := range lines {
		checkDocument(t, "bench-stream", outcome{stdout: text})
		var line struct {
			Event  string
			Report json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		want := "interval"
		switch i {
		case 0:
			want = "start"
		case len(lines) - 1:
			want = "end"
		}
		if line.Event != want {
			t.Errorf("line %d is %q, want %q", i, line.Event, want)
		}
		if want != "interval" {
			checkDocument(t, "bench-result", outcome{stdout: string(line.Report)})
		}
	}
	r := newRelay()
	r.openError = os.ErrPermission
	if o := r.call(context.Background(), "", "bench --rw read --json-stream"); o.code !=
		program.ExitConnect || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("a run that does not begin: %d %s", o.code, o.stdout)
	}
}

func TestIntervalsArePrintedBesideTheResult(t *testing.T) {
	o := newRelay().mustCall(t,
		"bench --rw randread --runtime 50ms --warmup 10ms --interval 10ms --queues 1 -o json")
	benchDocument(t, o)
	if strings.Count(o.stderr, "\n") < 3 || !strings.Contains(o.stderr, "(warm-up)") ||
		strings.Count(o.stderr, "interval s") != 1 {
		t.Errorf("standard error is %q", o.stderr)
	}
}

func TestADryRunAsksNoRelay(t *testing.T) {
	r := newRelay()
	o := r.mustCall(t,
		"bench --rw randread --rate 1000 --dry-run --title a --label x=1 --label y=2 -o json")
	d := benchDocument(t, o)
	if !d.DryRun || d.Title != "a" || d.Labels["x"] != "1" || d.Labels["y"] != "2" ||
		d.Parameters.Rate != 1000 || d.Measurement.ClosedLoop || len(r.configs) > 0 {
		t.Errorf("%d sessions, %s", len(r.configs), o.stdout)
	}
	if o = r.mustCall(t, "bench --rw read --dry-run"); !strings.Contains(o.stdout,
		"from offset 0 to the end of the volume") {
		t.Errorf("a dry run of the whole volume prints %s", o.stdout)
	}
	if o = r.mustCall(t, "bench --rw read --dry-run"); !strings.Contains(o.stdout,
		"nothing was run") {
		t.Errorf("%s", o.stdout)
	}
	for _, line := range []string{"--label x", "--label =1", "--rate 0", "--interval 1ms",
		"--rate 10 --validate-writes", "--json-stream -o json", "--queue-depth 0"} {
		if o := r.call(context.Background(), "", "bench --rw write --dry-run "+line); o.code !=
			program.ExitUsage {
			t.Errorf("%s: exit code %d: %s", line, o.code, o.stdout)
		}
	}
}

func TestHistogramsGoToAFileThatAppearsAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.hlog")
	newRelay().mustCall(t, "bench --rw read --run-limit-operation-count 100 --hlog "+path)
	if content, err := os.ReadFile(path); err != nil || !bytes.Contains(content,
		[]byte("Tag=read")) {
		t.Errorf("the log is %q, error %v", content, err)
	}
	failed := filepath.Join(t.TempDir(), "failed.hlog")
	newRelay().call(context.Background(), "", "bench --rw read --offset 5MiB --hlog "+failed)
	if _, err := os.Stat(failed); err == nil {
		t.Error("a run that failed left a file behind")
	}
}

func TestMergedLogsAreAsOneRun(t *testing.T) {
	directory := t.TempDir()
	path := func(name string) string { return filepath.Join(directory, name) }
	for name, call := range map[string]string{
		"a.hlog": "--rw read --run-limit-operation-count 100",
		"b.hlog": "--rw randrw --rwmix 50 --run-limit-operation-count 400",
	} {
		newRelay().mustCall(t, "bench --overwrite "+call+" --hlog "+path(name))
	}
	merge := func(logs ...string) (m bench.Merge, o outcome) {
		o = newRelay().call(t.Context(), "", "merge -o json --hlog "+path("all.hlog")+" "+
			strings.Join(logs, " "))
		checkDocument(t, "bench-merge", o)
		if err := json.Unmarshal([]byte(o.stdout), &m); err != nil {
			t.Fatal(err)
		}
		return m, o
	}
	one, _ := merge(path("b.hlog"))
	both, _ := merge(path("a.hlog"), path("b.hlog"))
	again, _ := merge(path("all.hlog")) // what the previous merge wrote
	if len(both.Latencies) != 2 || both.Latencies[0].Tag != "read" ||
		both.Latencies[0].Operations != one.Latencies[0].Operations+100 ||
		both.Latencies[1] != one.Latencies[1] {
		t.Errorf("of one log %+v, of both %+v", one.Latencies, both.Latencies)
	}
	if !slices.Equal(both.Latencies, again.Latencies) {
		t.Errorf("merged %+v, read back %+v", both.Latencies, again.Latencies)
	}
	if o := newRelay().mustCall(t, "merge "+path("a.hlog")); !strings.Contains(o.stdout, "p99.99") {
		t.Errorf("the table is\n%s", o.stdout)
	}

	log, err := os.ReadFile(path("b.hlog"))
	if err != nil {
		t.Fatal(err)
	}
	histogram := string(log[bytes.LastIndexByte(log, ',')+1:])
	for name, content := range map[string]string{
		"empty": "", "text": "no log\n", "broken": "Tag=read,0.1,1.0,2.7,HISTFAAAAEV42pNpmSz\n",
		"cut": string(log[:len(log)-100]), "field": string(log) + "Tag=read,1.0,1.0",
		"time": "1e30,1.0,1.0," + histogram, "tag": "Tag=\x1b[31m,0.1,1.0,1.0," + histogram,
		"long": string(log) + strings.Repeat("x", 2<<20),
	} {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, log := range []string{"missing", "empty", "text", "broken", "cut", "field", "time", "long",
		"", "/dev/zero"} {
		name := path(log)
		if filepath.IsAbs(log) {
			name = log
		}
		m, o := merge(path("a.hlog"), name)
		if o.code != program.ExitUsage || m.Error == nil || len(m.Latencies) != 0 {
			t.Errorf("%q: exit code %d, %+v", log, o.code, m)
		}
	}
	if o := newRelay().mustCall(t, "merge "+path("tag")); strings.Contains(o.stdout, "\x1b") {
		t.Errorf("a terminal gets %q", o.stdout)
	}
	if o := newRelay().call(t.Context(), "", "merge"); o.code != program.ExitUsage ||
		!strings.Contains(o.stderr, "LOG is missing") {
		t.Errorf("without a log: exit code %d: %s", o.code, o.stderr)
	}
}

func TestAJobSetsTheFlagsThatTheCommandLineDoesNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: sweep\nrw: randrw\nrwmixread: 30\nbs: 8k\niodepth: 4\nruntime: 2\n" +
		"ramp_time: 500ms\nlabel: [a=1, b=2]\nqueues: 1\n")
	d := benchDocument(t, newRelay().mustCall(t,
		"bench --dry-run -o json --queue-depth 7 --job "+path))
	p := d.Parameters
	if p.Pattern != "randrw" || p.ReadPercent != 30 || p.BlockSize != 8192 || p.QueueDepth != 7 ||
		p.Runtime.Seconds() != 2 || p.Warmup.Milliseconds() != 500 || d.Title != "sweep" ||
		d.Labels["b"] != "2" || p.Queues != 1 {
		t.Errorf("parameters are %+v", d)
	}
	for text, want := range map[string]string{
		"queue-dept: 3\n":              "line 1: queue-dept is neither a flag of bench nor",
		"iodeth: 3\n":                  "did you mean iodepth?",
		"iodepht: 3\n":                 "did you mean iodepth?",
		"queue-detph: 3\n":             "did you mean queue-depth?",
		"bs: 4k\nblock-size: 8k\n":     "line 2: block-size means the same as bs in line 1",
		"queue-depth: 4\niodepth: 4\n": "line 2: iodepth means the same as queue-depth in line 1",
		"[global]\nrw=randread\n":      "fio's own job files are not",
		"rw: read\nioengine: libaio\n": "line 2: ioengine is neither",
		"rw: sideways\n":               "line 1: rw: ",
		"rw: {a: b}\n":                 "line 1: rw is not a value or a list of values",
		"rw":                           "cannot unmarshal",
	} {
		write(text)
		o := newRelay().call(context.Background(), "", "bench --dry-run --job "+path)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, want) {
			t.Errorf("%q: exit code %d: %s", text, o.code, o.stderr)
		}
	}
}

func TestABenchmarkReportsWhatTheMachineCounted(t *testing.T) {
	r := newRelay()
	const line = "bench --rw read --run-limit-operation-count 100 --output json"
	d := benchDocument(t, r.mustCall(t, line))
	if d.Counters == nil || len(d.Counters.Process) == 0 {
		t.Errorf("the counters are %+v", d.Counters)
	}
	if d := benchDocument(t, r.mustCall(t, line+" --dry-run")); d.Counters != nil {
		t.Errorf("without a run the counters are %+v", d.Counters)
	}
}
