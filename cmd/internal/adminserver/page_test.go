// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"html"
	"net/http"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
)

var pageStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pageQueues returns the queue of a daemon that has done 1000 reads of 4 KiB per second, each in
// the given time. Three have failed before.
func pageQueues(second uint64, latency time.Duration) []datapath.QueueStatus {
	ios := 1000 * second
	return []datapath.QueueStatus{{
		InFlight: 5, BackPressure: map[string]uint64{"client_receive": 7},
		Throttled: map[string]uint64{"channel": uint64(1500 * time.Millisecond)},
		Operations: map[string]datapath.Operation{"read": {
			Succeeded: ios - 3, Failed: map[string]uint64{"IO_FAILED": 3}, Bytes: ios * 4096,
			Latency: datapath.LatencyStatus{Sum: ios * uint64(latency),
				P99: new(uint64(10 * time.Millisecond))}}}}}
}

func pageDocument(program string, second uint64) *Document {
	return &Document{Program: program, Version: "v1", PID: 42, Ready: true, Started: pageStart,
		Now:     pageStart.Add(time.Duration(second) * time.Second),
		Workers: []datapath.WorkerStatus{}}
}

func relayPage(second uint64) *Document {
	d := pageDocument("zc-relay", second)
	queues := pageQueues(second, 250*time.Microsecond)
	d.Channels = []relay.ChannelStatus{{
		FullName:     "03:00.0/b1:00.0/disk",
		ChannelID:    relay.ChannelID{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"},
		ListenStatus: relay.ListenStatus{State: relay.ChannelListening},
		Target:       netip.MustParseAddrPort("192.0.2.1:7470"), Volume: "ram", VolumeSize: 3 << 30,
		VolumeBlockSize: 4096, Link: relay.LinkStatus{State: relay.LinkReady},
		Targets: []relay.TargetStatus{{Address: netip.MustParseAddrPort("192.0.2.1:7470")},
			{Address: netip.MustParseAddrPort("192.0.2.2:7470"),
				Link: relay.LinkStatus{State: relay.LinkStandBy, Reason: "another one serves"}}},
		QoS:      relay.QoS{Channel: datapath.RateLimits{IOPS: 1000, Bandwidth: 64 << 20}},
		Sessions: 1, SessionsAccepted: 4, ExportedBytes: 1 << 20, Queues: queues,
		OpenSessions: []relay.SessionStatus{{ID: 7, ClientUnknown: true, ClientName: "bench",
			Opened: d.Now.Add(-time.Minute), Operations: queues[0].Operations,
			Queues: []relay.QueueStatus{{Depth: 8, InFlight: 2, Transport: "roce"},
				{Index: 1, Depth: 8, InFlight: 3, Transport: "roce",
					Throttled: 2500 * time.Millisecond}}}},
	}}
	return d
}

func targetPage(second uint64) *Document {
	d := pageDocument("target", second)
	ios := 1000 * second
	d.Sessions = &SessionCount{Open: 2, Total: 9}
	d.OpenSessions = []admin.Session{
		{ID: 1, Opened: d.Now, Peer: "192.0.2.9:5000", Volume: "disk"},
		{ID: 3, Opened: d.Now.Add(-time.Minute), Peer: "192.0.2.9:5001", Volume: "disk",
			Client: "bench on host-a", Queues: 2, Transports: []string{"iwarp", "shm"},
			IO: admin.IO{Succeeded: ios - 3, Failed: 3, Bytes: ios * 4096, InFlight: 5}}}
	d.Volumes = []target.VolumeStatus{
		{Name: "disk", UUID: "u", Size: 1 << 30, BlockSize: 4096, State: "serving",
			Since: pageStart, Holder: "bench on host-a", HolderID: "0123", Queues: pageQueues(second, 0)},
		{Name: "late", State: "failed", Since: d.Now.Add(-time.Minute), Attempt: 6,
			Reason: "file \"/srv/late\" does not exist", NextAttempt: d.Now.Add(20 * time.Second),
			Queues: []datapath.QueueStatus{}},
		{Name: "other", State: "stand-by", Since: d.Now.Add(-time.Minute),
			Queues: []datapath.QueueStatus{}},
	}
	d.Reload = &admin.Reload{Started: d.Now.Add(-time.Minute), Error: "the file is unchanged"}
	d.RestartPending = []string{"workers.count"}
	d.Faults = []Fault{{Rule: "volume:any:delay=5ms", Operations: 1000, Matches: 9}}
	return d
}

func TestThePageShowsTheNumbersOfTheStatus(t *testing.T) {
	for name, c := range map[string]struct {
		document func(second uint64) *Document
		want     []string
	}{
		"relay": {relayPage, []string{
			"IOs per second|1000", "Throughput|3.9 MiB/s", "Mean latency now|250.0 µs",
			"mean 250.0 µs, p99 10.00 ms", "IOs in flight|5", "Sessions|1", "4 so far",
			"Failed IOs|3", "IO_FAILED 3", "1 of 1 channels ready",
			"disk|target ready|device 03:00.0, representor b1:00.0 → volume ram (3.0 GiB in blocks of 4.0 KiB) of 192.0.2.1:7470",
			"Also 192.0.2.2:7470: target stand by: another one serves",
			"Limits: 1000 IOPS in all, 64.0 MiB/s in all",
			"queue|reads/s|writes/s|throughput|latency now|mean|p99|in flight|back pressure|throttled|failed",
			"0|1000|0|3.9 MiB/s|250.0 µs|250.0 µs|10.00 ms|5|7|1.5 s|3",
			"Sessions (1 open, 4 so far, 1.0 MiB exported)",
			"7|bench|host|–|1 min 0 s|2|roce|1000|3.9 MiB/s|250.0 µs|250.0 µs|2.5 s|3|2/8 3/8",
		}},
		"target": {targetPage, []string{
			"IOs per second|1000", "Mean latency now|< 1 µs", "mean < 1 µs, p99 10.00 ms",
			"Sessions|1", "2 control connections",
			"1 of 3 volumes serving; not serving: late (failed), other (stand-by)",
			"Reload 1 min 0 s ago: the file is unchanged", "restart pending: workers.count",
			"Faults are injected: volume:any:delay=5ms (9 of 1000 operations)",
			"disk|serving|1.0 GiB in blocks of 4.0 KiB, UUID u",
			"Open exclusively by bench on host-a, holder 0123",
			"0|1000|0|3.9 MiB/s|< 1 µs|< 1 µs|10.00 ms|5|7|1.5 s|3",
			"Sessions (1 open, 1 standing connection)",
			"3|bench on host-a|192.0.2.9:5001|1 min 0 s|2|iwarp + shm|1000|3.9 MiB/s|< 1 µs|< 1 µs|3|5",
			"late|failed", "For 1 min 0 s: file \"/srv/late\" does not exist",
			"Attempt 7 to open it follows in 20 s.", "other|stand-by", "For 1 min 0 s",
			"No client has it open.",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lines := showPage(t, c.document)
			for _, want := range c.want {
				if !slices.Contains(lines, want) {
					t.Errorf("the page does not show %q:\n%s", want, strings.Join(lines, "\n"))
				}
			}
		})
	}
}

// showPage returns the lines of the page as a browser shows it after at least two readings, with |
// between cells.
func showPage(t *testing.T, document func(second uint64) *Document) []string {
	t.Helper()
	testkit.RequireTools(t, "chromium")
	var second atomic.Uint64
	s, err := Listen(ServerConfig{Address: "127.0.0.1:0", Log: zap.NewNop(),
		Status: func() any { return document(second.Add(1)) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var content string
	testkit.Eventually(t, "two readings", func() bool {
		second.Store(9)
		shown, err := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox",
			"--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(),
			"--virtual-time-budget=5000", "--dump-dom", "http://"+s.Address().String()+"/").Output()
		if err != nil {
			t.Fatalf("render the page: %v", err)
		}
		content = string(shown)
		if _, alert, is := strings.Cut(content, `role="alert" style="display: block;">`); is {
			t.Fatalf("the page cannot show the status: %.200s", alert)
		}
		return regexp.MustCompile(`<body data-readings="([2-9]|[1-9][0-9]+)"`).MatchString(content)
	})
	for _, step := range [][2]string{
		{`(?s)<(script|style).*?</(script|style)>`, ""}, {`\n|<!--.*?-->`, " "},
		{`</t[dh]><t[dh][^>]*>|<b [^>]*>|</h2><span[^>]*>|</span><span[^>]*>`, "|"},
		{`</(tr|p|div|section|h[1-3]|b|svg)>|<(div|section|h[1-3]|table)[^>]*>`, "\n"},
		{`<[^>]*>`, ""}, {` +`, " "}, {` ?\n ?`, "\n"},
	} {
		content = regexp.MustCompile(step[0]).ReplaceAllString(content, step[1])
	}
	return strings.Split(html.UnescapeString(content), "\n")
}
