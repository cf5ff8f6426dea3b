// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
)

const schemaPath = "../../../docs/schemas/status.schema.json"

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

func exampleRelay() *adminserver.Document {
	return &adminserver.Document{
		Schema: adminserver.Schema, Program: "zc-relay", Version: "v1.2.3", PID: 42,
		Started: testNow.Add(-90 * time.Minute), Now: testNow,
		Reason: "1 of 2 channels cannot serve",
		Workers: []datapath.WorkerStatus{
			{Index: 0, CPU: new(3), Queues: 1, Hits: 10, Misses: 20, Sleeps: 5},
			{Index: 1}},
		Channels: []relay.ChannelStatus{
			{
				FullName:  "03:00.0/b1:00.0/disk",
				ChannelID: relay.ChannelID{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"},
				Address:   "/run/x", ListenStatus: relay.ListenStatus{State: "listening", Since: testNow},
				Target: netip.MustParseAddrPort("192.0.2.1:7470"), Volume: "ram",
				VolumeSize: 1 << 30, VolumeBlockSize: 4096,
				Link: relay.LinkStatus{State: "ready", Since: testNow, Connects: 3, Losses: 2},
				Targets: []relay.TargetStatus{
					{Address: netip.MustParseAddrPort("192.0.2.3:7470"), Link: relay.LinkStatus{
						State: "stand-by", Since: testNow,
						Reason: "another one serves", NextAttempt: new(testNow.Add(time.Second))}},
					{Address: netip.MustParseAddrPort("192.0.2.1:7470"), Link: relay.LinkStatus{
						State: "ready", Since: testNow,
						Connects: 3, Losses: 2}},
				},
				TargetMoves: 1,
				Sessions:    1, SessionsAccepted: 7, Queues: exampleQueues(),
				OpenSessions: []relay.SessionStatus{{ID: 7, ClientPID: 100, ClientUID: 1000,
					ClientName: "bench on host-a (process 100)",
					Operations: exampleQueues()[0].Operations,
					Opened:     testNow.Add(-time.Minute), Queues: []relay.QueueStatus{
						{Index: 0, Depth: 32, InFlight: 3, Transport: "shm",
							Throttled: 1500 * time.Millisecond},
						{Index: 1, Depth: 32, InFlight: 4, Transport: "shm"}}}},
				QoS: relay.QoS{
					Channel: datapath.RateLimits{IOPS: 1000, Bandwidth: 64 << 20, Burst: 1e8},
					Session: datapath.RateLimits{IOPS: 100}},
			},
			{
				FullName:  "03:00.0/b1:00.1/other",
				ChannelID: relay.ChannelID{Device: "03:00.0", Representor: "b1:00.1", Name: "other"},
				Target:    netip.MustParseAddrPort("192.0.2.2:7470"), Volume: "disk",
				ListenStatus: relay.ListenStatus{State: "retiring", Since: testNow},
				Link: relay.LinkStatus{State: "waiting", Failures: 3, Since: testNow,
					Reason: "target cannot be reached", Attempt: 3, MaxAttempts: new(8),
					NextAttempt: new(testNow.Add(1500 * time.Millisecond))},
				OpenSessions: []relay.SessionStatus{}, Queues: []datapath.QueueStatus{},
				Retiring: true, SessionsRefused: 1,
				ExportedBytes: 1 << 20,
			},
			{
				FullName:  "03:00.0/b1:00.2/late",
				ChannelID: relay.ChannelID{Device: "03:00.0", Representor: "b1:00.2", Name: "late"},
				Target:    netip.MustParseAddrPort("192.0.2.1:7470"), Volume: "late",
				ListenStatus: relay.ListenStatus{State: "waiting", Since: testNow.Add(-time.Minute),
					Attempt: 14, Reason: "device 03:00.0 has no representor b1:00.2 [NOT_FOUND]",
					NextAttempt: testNow.Add(4 * time.Second)},
				Link:         relay.LinkStatus{State: "ready", Since: testNow, Connects: 1},
				OpenSessions: []relay.SessionStatus{}, Queues: []datapath.QueueStatus{},
			},
		},
	}
}

func exampleTarget() *adminserver.Document {
	return &adminserver.Document{
		Schema: adminserver.Schema, Program: "target", Version: "v1.2.3", PID: 43, Started: testNow,
		Now: testNow, Ready: true,
		Reload: &admin.Reload{Started: testNow.Add(-time.Minute), Ended: new(testNow),
			Error: "the configuration is unchanged"},
		RestartPending: []string{"listen.port", "workers.count"},
		Workers:        []datapath.WorkerStatus{},
		Sessions:       &adminserver.SessionCount{Open: 2, Total: 9},
		OpenSessions: []admin.Session{{ID: 3, Opened: testNow, Peer: "192.0.2.9:5001",
			Volume: "disk", Client: "verify on host-a", HolderID: "0123456789abcdef", Queues: 2,
			IO: admin.IO{Succeeded: 5, Failed: 1}, Transports: []string{"shm"}}},
		Volumes: []target.VolumeStatus{{Name: "disk", UUID: "00000000-0000-0000-0000-000000000001",
			Size: 1 << 30, BlockSize: 4096, ReadOnly: true, State: "failed", Since: testNow,
			Reason: "another program has truncated it", Holder: "verify on host-a",
			HolderID: "0123456789abcdef", Queues: exampleQueues()},
			{Name: "late", UUID: "00000000-0000-0000-0000-000000000000", BlockSize: 4096,
				State: "failed", Since: testNow.Add(-time.Minute), Attempt: 6,
				Queues:      []datapath.QueueStatus{},
				Reason:      "file \"/srv/late\" does not exist [NOT_FOUND]",
				NextAttempt: testNow.Add(20 * time.Second)}},
		Faults: []adminserver.Fault{
			{Rule: "volume:write:p=0.01:delay=5ms", Operations: 1000, Matches: 9}},
	}
}

func TestDocumentsAreValidAndEveryFieldIsDescribed(t *testing.T) {
	s := schematest.Read(t, schemaPath)
	for name, d := range map[string]*adminserver.Document{"relay": exampleRelay(),
		"target": exampleTarget()} {
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
	for name, d := range map[string]*adminserver.Document{"relay.txt": exampleRelay(),
		"target.txt": exampleTarget()} {
		var text bytes.Buffer
		writeStatus(&text, d)
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
	session := &d.Channels[0].OpenSessions[0]
	session.Unreleased, session.UnreleasedReason = true, "the target's disk hangs"
	var text bytes.Buffer
	writeStatus(&text, d)
	if n := strings.Count(text.String(), ", ended but not released: the target's disk hangs\n"); n != 1 {
		t.Errorf("%d sessions are marked:\n%s", n, &text)
	}
}

func TestTheSummaryOfChannelsSaysWhoseStateItTells(t *testing.T) {
	channel := func(name string, state relay.ChannelState,
		link relay.LinkState) relay.ChannelStatus {
		return relay.ChannelStatus{FullName: name, ListenStatus: relay.ListenStatus{State: state},
			Link: relay.LinkStatus{State: link}}
	}
	for _, c := range []struct {
		isReady  bool
		channels []relay.ChannelStatus
		want     string
	}{
		{true, []relay.ChannelStatus{channel("one", "listening", "ready"),
			channel("two", "listening", "waiting"),
			channel("three", "waiting", "ready"), channel("four", "opening", "waiting")},
			"channels: 1 of 4 ready; not ready: two (target waiting), three (waiting), four (opening)"},
		{false, []relay.ChannelStatus{channel("one", "listening", "ready")}, // is being drained
			"channels: 1 of 1 ready; but the relay accepts no new sessions"},
		{false, []relay.ChannelStatus{channel("one", "listening", "given_up")},
			"channels: 0 of 1 ready; not ready: one (target given up)"},
	} {
		d := adminserver.Document{Ready: c.isReady, Channels: c.channels}
		if got := channelSummary(&d); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestNumbersOfTimesAreEnglish(t *testing.T) {
	for n, want := range map[uint64]string{1: "once", 2: "2 times"} {
		link := relay.LinkStatus{State: "ready", Losses: n}
		if got := linkText(&link, testNow); got != "ready, lost "+want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestATargetWhoseHostIsUnknownHasNoAddress(t *testing.T) {
	d := adminserver.Document{Channels: []relay.ChannelStatus{{FullName: "c", Volume: "disk"}}}
	var text strings.Builder
	writeStatus(&text, &d)
	if !strings.Contains(text.String(), "target    not known yet, volume disk\n") {
		t.Errorf("the text is %s", text.String())
	}
}
