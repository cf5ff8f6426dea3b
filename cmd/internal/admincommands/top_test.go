// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// documentAt returns the status of a relay that has done so many reads of 4 KiB in 20 µs each.
func documentAt(seconds int, reads uint64) *adminserver.Document {
	return &adminserver.Document{
		Program: "zc-relay", Version: "v1", PID: 42, Started: testStart, Ready: true,
		Now:     testStart.Add(time.Duration(seconds) * time.Second),
		Workers: []datapath.WorkerStatus{{Hits: reads, Misses: reads, Sleeps: uint64(seconds)}},
		Channels: []relay.ChannelStatus{
			{FullName: "one", Link: relay.LinkStatus{State: "ready"},
				OpenSessions: []relay.SessionStatus{{ID: 7, ClientPID: 99, Opened: testStart,
					ClientName: "bench",
					Operations: map[string]datapath.Operation{"read": {
						Succeeded: reads / 2, Failed: map[string]uint64{"IO_FAILED": reads / 25600},
						Bytes: reads / 2 * 4096,
						Latency: datapath.LatencyStatus{Sum: reads * 20_000,
							P99: new(uint64(10_000_000))}}},
					Queues: []relay.QueueStatus{{Depth: 8, InFlight: 5}}}},
				Queues: []datapath.QueueStatus{{InFlight: 5,
					Operations: map[string]datapath.Operation{"read": {
						Succeeded: reads, Bytes: reads * 4096,
						Latency: datapath.LatencyStatus{Sum: reads * 20_000,
							P99: new(uint64(10_000_000))}}}}}},
			{FullName: "two", Link: relay.LinkStatus{State: "waiting"}},
		},
	}
}

func TestTheViewShowsRatesBetweenReadings(t *testing.T) {
	m := &top{interval: time.Second}
	m.accept(reading{document: documentAt(10, 1_000_000)})
	if text := m.visible(); !strings.Contains(text, "IOPS                      0") {
		t.Errorf("a single reading has rates:\n%s", text)
	}
	m.accept(reading{document: documentAt(12, 1_051_200)})
	text := m.visible()
	for _, want := range []string{
		"zc-relay v1, process 42, up 12s, ready", "channels: 1 of 2 ready; not ready: two (target waiting)",
		"IOPS                  25600  ▁█", "throughput        100 MiB/s  ▁█",
		"latency              20.0µs", "in flight                 5  ██",
		"one                ready           0  25600   100 MiB/s   20.0µs  10.0ms          5         0",
		"two                waiting", "      7  one          99       12s       1  12801  50.0 MiB/s   40.0µs  10.0ms          5         1  bench",
		"one                    0  25600   100 MiB/s   20.0µs  10.0ms          5         0",
		"     0   any       0    50.0 %         1              0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func TestTheViewFitsTerminals(t *testing.T) {
	for _, width := range []int{40, 60, 80, 120} {
		m := &top{interval: time.Second, width: width, height: 24}
		for i := range 70 {
			m.accept(reading{document: documentAt(10+2*i, uint64(1_000_000+51_200*i))})
		}
		text := m.visible()
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > width {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
		for _, want := range []string{"IOPS", "25600", "P99", "10.0ms", "q quits, space pauses"} {
			if !strings.Contains(text, want) {
				t.Errorf("width %d: %q is missing in\n%s", width, want, text)
			}
		}
		goldentest.Check(t, fmt.Sprintf("testdata/top-%d.txt", width), []byte(text+"\n"))
	}
}

func TestTheViewOfATargetShowsItsSessions(t *testing.T) {
	m := &top{interval: time.Second, width: 60}
	for _, second := range []int{10, 12} {
		m.accept(reading{document: &adminserver.Document{Program: "target", Started: testStart,
			Now:     testStart.Add(time.Duration(second) * time.Second),
			Volumes: []target.VolumeStatus{{Name: "disk", State: "failed"}},
			OpenSessions: []admin.Session{{ID: 1, Peer: "192.0.2.9:5000", Volume: "disk"},
				{ID: 3, Peer: "192.0.2.9:5001", Volume: "disk", Client: "bench", Queues: 2,
					Transports: []string{"shm"}, Opened: testStart,
					IO: admin.IO{Succeeded: uint64(second) * 1000,
						LatencyNs: uint64(second) * 5_000_000}}}}})
	}
	text := m.visible()
	for _, want := range []string{"volumes: 0 of 1 serving; not serving: disk (failed)",
		"disk               failed     0",
		"SESSION  VOLUME  RELAY           RDMA  IOPS  LATENCY  NAME",
		"      3  disk    192.0.2.9:5001   shm  1000   5.00µs  bench\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func TestTheViewSurvivesTheDaemon(t *testing.T) {
	m := &top{interval: time.Second}
	m.accept(reading{document: documentAt(10, 1_000_000)})
	m.accept(reading{err: errors.New("connection refused")})
	if text := m.visible(); !strings.Contains(text, "no reading since 12:00:10: connection refused") {
		t.Errorf("%s", text)
	}
	restarted := documentAt(20, 10)
	restarted.Started = testStart.Add(15 * time.Second)
	m.accept(reading{document: restarted})
	if m.before != nil || m.err != nil || m.total().ios != 0 {
		t.Errorf("rates across a restart: %+v", m.total())
	}
}

func TestKeysPauseScrollAndQuit(t *testing.T) {
	m := &top{interval: time.Second}
	m.accept(reading{document: documentAt(10, 0)})
	key := func(k tea.KeyPressMsg) tea.Cmd {
		_, command := m.Update(k)
		return command
	}
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 3})
	first := m.visible()
	if lines := strings.Split(first, "\n"); len(lines) != 3 || len([]rune(lines[0])) > 20 {
		t.Errorf("the screen of 20×3 shows %q", first)
	}
	key(tea.KeyPressMsg{Code: tea.KeyDown})
	if m.visible() == first {
		t.Error("the view does not scroll")
	}
	key(tea.KeyPressMsg{Code: tea.KeyUp})
	key(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	if _, command := m.Update(tick{}); !m.paused || command == nil || !strings.Contains(m.text(),
		"paused") {
		t.Error("the space bar does not pause")
	}
	if command := key(tea.KeyPressMsg{Code: 'q', Text: "q"}); command == nil {
		t.Error("q does not quit")
	} else if _, quits := command().(tea.QuitMsg); !quits {
		t.Error("q does something else")
	}
}
