package adminserver

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/datapath"
)

const schemaPath = "../../../docs/status.schema.json"

var testNow = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

func exampleQueues() []datapath.QueueStatus {
	return []datapath.QueueStatus{{
		Index: 0, InFlight: 3, BackPressure: map[string]uint64{"client_receive": 2},
		Operations: map[string]datapath.Operation{
			"read": {
				Succeeded: 1000, Failed: map[string]uint64{"IO_FAILED": 1, "TIME_OUT": 2},
				Bytes: 4096000,
				Latency: datapath.LatencyStatus{Sum: 20_000_000, Mean: new(uint64(20_000)),
					P50: new(uint64(19_000)), P99: new(uint64(50_100)), P999: new(uint64(99_000))},
			},
			"flush": {Succeeded: 0, Failed: map[string]uint64{"SHUTDOWN": 1}},
		},
	}}
}

func exampleRelay() *Document {
	return &Document{
		Schema: Schema, Program: "zc-relay", Version: "v1.2.3", PID: 42,
		Started: testNow.Add(-90 * time.Minute), Now: testNow,
		Reason: "1 of 2 channels cannot serve",
		Workers: []datapath.WorkerStatus{{Index: 0, CPU: new(3), Queues: 1, Hits: 10, Misses: 20, Sleeps: 5},
			{Index: 1}},
		Channels: []Channel{
			{
				Name: "03:00.0/b1:00.0/disk", Device: "03:00.0", Representor: "b1:00.0",
				Service: "disk", Address: "/run/x", State: "listening", Since: testNow, Target: "192.0.2.1:7470", Volume: "ram",
				Link: Link{State: "ready", Since: testNow, Connects: 3, Losses: 2},
				Targets: []Target{
					{Address: "192.0.2.3:7470", Link: Link{State: "stand-by", Since: testNow,
						Reason: "another one serves", NextAttempt: new(testNow.Add(time.Second))}},
					{Address: "192.0.2.1:7470", Link: Link{State: "ready", Since: testNow,
						Connects: 3, Losses: 2}},
				},
				TargetMoves:  1,
				SessionCount: SessionCount{Open: 1, Total: 7}, Queues: exampleQueues(),
				Sessions: []Session{{ID: 7, ClientPID: 100, ClientUID: 1000,
					ClientName: "bench on host-a (process 100)",
					Operations: exampleQueues()[0].Operations,
					Opened:     testNow.Add(-time.Minute), Queues: []SessionQueue{
						{Index: 0, Depth: 32, InFlight: 3, Transport: "shm",
							Throttled: uint64(1500 * time.Millisecond)},
						{Index: 1, Depth: 32, InFlight: 4, Transport: "shm"}}}},
				QoS: &QoS{Channel: &RateLimits{IOPS: 1000, Bandwidth: 64 << 20, Burst: 1e8},
					Session: &RateLimits{IOPS: 100}},
			},
			{
				Name: "03:00.0/b1:00.1/other", Device: "03:00.0", Representor: "b1:00.1",
				Service: "other", Target: "192.0.2.2:7470", Volume: "disk",
				State: "retiring", Since: testNow,
				Link: Link{State: "waiting", Failures: 3, Since: testNow,
					Reason: "target cannot be reached", Attempt: 3, MaxAttempts: new(8),
					NextAttempt: new(testNow.Add(1500 * time.Millisecond))},
				Sessions: []Session{}, Queues: []datapath.QueueStatus{}, Retiring: true, Refused: 1,
				Exported: 1 << 20,
			},
			{
				Name: "03:00.0/b1:00.2/late", Device: "03:00.0", Representor: "b1:00.2",
				Service: "late", Target: "192.0.2.1:7470", Volume: "late",
				State: "waiting", Since: testNow.Add(-time.Minute), Attempt: 14,
				Reason:      "device 03:00.0 has no representor b1:00.2 [NOT_FOUND]",
				NextAttempt: new(testNow.Add(4 * time.Second)),
				Link:        Link{State: "ready", Since: testNow, Connects: 1},
				Sessions:    []Session{}, Queues: []datapath.QueueStatus{},
			},
		},
	}
}

func exampleTarget() *Document {
	return &Document{
		Schema: Schema, Program: "target", Version: "v1.2.3", PID: 43, Started: testNow,
		Now: testNow, Ready: true,
		Reload: &Reload{Started: testNow.Add(-time.Minute), Ended: new(testNow),
			Error: "the configuration is unchanged"},
		RestartPending: []string{"listen.port", "workers.count"},
		Workers:        []datapath.WorkerStatus{}, Sessions: &SessionCount{Open: 2, Total: 9},
		Volumes: []Volume{{Name: "disk", UUID: "00000000-0000-0000-0000-000000000001",
			Size: 1 << 30, BlockSize: 4096, ReadOnly: true, State: "failed", Since: testNow,
			Reason: "another program has truncated it", Holder: "verify on host-a",
			HolderID: "0123456789abcdef", Queues: exampleQueues()},
			{Name: "late", UUID: "00000000-0000-0000-0000-000000000000", BlockSize: 4096,
				State: "failed", Since: testNow.Add(-time.Minute), Attempt: 6, Queues: []datapath.QueueStatus{},
				Reason:      "file \"/srv/late\" does not exist [NOT_FOUND]",
				NextAttempt: new(testNow.Add(20 * time.Second))}},
		Faults: []Fault{{Rule: "volume:write:p=0.01:delay=5ms", Operations: 1000, Matches: 9}},
	}
}

func TestDocumentsAreValidAndEveryFieldIsDescribed(t *testing.T) {
	s := schematest.Read(t, schemaPath)
	for name, d := range map[string]*Document{"relay": exampleRelay(), "target": exampleTarget()} {
		if err := s.Check(schematest.Document(t, d)); err != nil {
			t.Errorf("%s: %s", name, err)
		}
	}
}

func TestTheSchemaRefusesWhatIsNoStatus(t *testing.T) {
	s := schematest.Read(t, schemaPath)
	for name, spoil := range map[string]func(map[string]any){
		"other schema":    func(d map[string]any) { d["schema"] = "zc-relay.status/2" },
		"missing workers": func(d map[string]any) { delete(d, "workers") },
		"unknown state": func(d map[string]any) {
			d["channels"].([]any)[0].(map[string]any)["link"].(map[string]any)["state"] = "sideways"
		},
		"field nobody has described": func(d map[string]any) { d["surprise"] = true },
	} {
		d := schematest.Document(t, exampleRelay()).(map[string]any)
		spoil(d)
		if s.Check(d) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}

func TestTheTextSaysWhatTheDocumentDoes(t *testing.T) {
	for name, d := range map[string]*Document{"relay.txt": exampleRelay(),
		"target.txt": exampleTarget()} {
		var text bytes.Buffer
		if err := d.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		goldentest.Check(t, "testdata/"+name, text.Bytes())
	}
}

// TestLatenciesBelowTheFirstBucket have no other value: several requests may have the same time.
func TestLatenciesBelowTheFirstBucket(t *testing.T) {
	for ns, want := range map[uint64]string{0: "<1µs", 953: "<1µs", 2000: "2.00µs"} {
		if got := latencyText(&ns); got != want {
			t.Errorf("%d ns are shown as %q, want %q", ns, got, want)
		}
	}
}

func TestTheTextMarksASessionThatIsNotReleased(t *testing.T) {
	d := exampleRelay()
	session := &d.Channels[0].Sessions[0]
	session.Unreleased, session.UnreleasedReason = true, "the target's disk hangs"
	var text bytes.Buffer
	if err := d.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), ", ended but not released: the target's disk hangs\n"); n != 1 {
		t.Errorf("%d sessions are marked:\n%s", n, &text)
	}
}

func TestTheSummaryOfChannelsSaysWhoseStateItTells(t *testing.T) {
	channel := func(name, state, link string) Channel {
		return Channel{Name: name, State: state, Link: Link{State: link}}
	}
	for _, c := range []struct {
		isReady  bool
		channels []Channel
		want     string
	}{
		{true, []Channel{channel("one", "listening", "ready"), channel("two", "listening", "waiting"),
			channel("three", "waiting", "ready"), channel("four", "opening", "waiting")},
			"channels: 1 of 4 ready; not ready: two (target waiting), three (waiting), four (opening)"},
		{false, []Channel{channel("one", "listening", "ready")}, // is being drained
			"channels: 1 of 1 ready; but the relay accepts no new sessions"},
		{false, []Channel{channel("one", "listening", "given_up")},
			"channels: 0 of 1 ready; not ready: one (target given up)"},
	} {
		d := Document{Ready: c.isReady, Channels: c.channels}
		if got := d.ChannelSummary(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestNumbersOfTimesAreEnglish(t *testing.T) {
	for n, want := range map[uint64]string{1: "once", 2: "2 times"} {
		link := Link{State: "ready", Losses: n}
		if got := link.text(testNow); got != "ready, lost "+want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestATargetWhoseHostIsUnknownHasNoAddress(t *testing.T) {
	d := Document{Channels: []Channel{{Name: "c", Volume: "disk"}}}
	var text strings.Builder
	if err := d.WriteText(&text); err != nil || !strings.Contains(text.String(),
		"target    not known yet, volume disk\n") {
		t.Errorf("error %v, the text is %s", err, text.String())
	}
}
