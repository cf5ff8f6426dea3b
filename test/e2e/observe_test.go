// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMetricsAndHealthFollowTheChain(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:64MiB")
	c.awaitReady(c.relay)
	if code, _ := get(t, c.relay, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	c.mustRun("bench", "--rw", "randread", "--block-size", "4KiB", "--queues", "1",
		"--queue-depth", "4", "--run-limit-operation-count", "500", "--warmup", "0s")
	c.awaitMetrics(c.relay,
		`zc_relay_io_total{channel="03:00.0/b1:00.0/storage_zero_copy_comch",code="SUCCESS",op="read",queue="0"} 500`,
		`zc_relay_io_bytes_total{channel="03:00.0/b1:00.0/storage_zero_copy_comch",op="read",queue="0"} 2.048e+06`,
		`zc_relay_io_latency_seconds_count{channel="03:00.0/b1:00.0/storage_zero_copy_comch",op="read",queue="0"} 500`,
		`zc_relay_io_in_flight{channel="03:00.0/b1:00.0/storage_zero_copy_comch",queue="0"} 0`,
		`zc_relay_poll_total{outcome="hit",worker="0"}`,
		`zc_relay_late_wakeups_total{worker="0"} 0`,
		`zc_relay_sessions{channel="03:00.0/b1:00.0/storage_zero_copy_comch"} 0`,
	)
	c.awaitMetrics(c.target,
		`zc_target_io_total{code="SUCCESS",op="read",queue="0",volume="disk"} 500`,
		`zc_target_io_latency_seconds_count{op="read",queue="0",volume="disk"} 500`,
	)
	c.target.Signal(syscall.SIGKILL)
	testkit.Eventually(t, "the relay is not ready without its target", func() bool {
		code, _ := get(t, c.relay, "/readyz")
		return code == http.StatusServiceUnavailable
	})
}

// statusDocument is the part of a daemon's status document that the tests read.
type statusDocument struct {
	Ready    bool `json:"ready"`
	Channels []struct {
		Volume     string `json:"volume"`
		VolumeSize uint64 `json:"volume_size_bytes"`
		Open       int    `json:"sessions_open"`
		Link       struct {
			State string `json:"state"`
		} `json:"link"`
		Queues []struct {
			Operations map[string]struct {
				Succeeded uint64 `json:"succeeded"`
			} `json:"operations"`
		} `json:"queues"`
	} `json:"channels"`
}

func TestStatusShowsTheOpenSessions(t *testing.T) {
	t.Parallel()
	c, admin := startAdministeredChain(t)
	c.startIO(bench(8)...)
	schema := schematest.Read(t, "../../docs/schemas/status.schema.json")
	var d statusDocument
	testkit.Eventually(t, "the status shows a session with IO", func() bool {
		p := spawn(t, "zc-relay", "status", "--admin", admin, "-o", "json")
		if p.Wait() != 0 {
			t.Fatal("status failed")
		}
		d = statusDocument{}
		var document any
		for _, into := range []any{&d, &document} {
			if err := json.Unmarshal([]byte(p.Stdout.String()), into); err != nil {
				t.Fatal(err)
			}
		}
		if err := schema.Check(document); err != nil {
			t.Error(err)
		}
		return len(d.Channels) == 1 && d.Channels[0].Open == 1 && len(d.Channels[0].Queues) > 0 &&
			d.Channels[0].Queues[0].Operations["read"].Succeeded > 0
	})
	if !d.Ready || d.Channels[0].Link.State != "ready" || d.Channels[0].Volume != "disk" ||
		d.Channels[0].VolumeSize == 0 {
		t.Errorf("the status is %+v", d)
	}
	p := spawn(t, "zc-relay", "status", "--admin", admin)
	if code, text := p.Wait(), p.Stdout.String(); code != 0 ||
		!strings.Contains(text, "volume disk: ready") ||
		!strings.Contains(text, "sessions  1 open") {
		t.Errorf("status as text exited with %d:\n%s", code, text)
	}
}

func TestStatusExplainsWhyItIsUnavailable(t *testing.T) {
	t.Parallel()
	p := spawn(t, "zc-relay", "status", "--admin", "unix:"+filepath.Join(t.TempDir(), "none"))
	if code := p.Wait(); code != 3 ||
		!strings.Contains(p.Stderr.String(), "does it run with --admin-listen") {
		t.Errorf("status exited with %d", code)
	}
	if p = spawn(t, "zc-relay", "status", "--admin", "somewhere"); p.Wait() != 2 {
		t.Error("an invalid address is not a usage error")
	}
}

// renderPage returns a daemon's page as a browser shows it.
func renderPage(t *testing.T, daemon *testkit.Process) string {
	t.Helper()
	testkit.RequireTools(t, "chromium")
	// The page's virtual clock runs ahead of the daemon's, so that the page reads the status
	// several times in quick succession.
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	render := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage",
		"--user-data-dir="+t.TempDir(), "--virtual-time-budget=10000", "--dump-dom", "http://"+
			opsAddress(t, daemon)+"/")
	output, err := render.Output()
	if err != nil {
		t.Fatalf("render the page: %v", err)
	}
	return string(output)
}

func TestThePageShowsWhichChannelsAreDownInABrowser(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget()
	text := fmt.Sprintf("comch: {directory: %q}\noperations: {listen: '127.0.0.1:0'}\nchannels:\n",
		filepath.Join(c.dir, "comch"))
	nobody := netip.AddrPortFrom(c.address.Addr(), 1)
	for i := range 6 {
		address := c.address
		if i%2 == 1 {
			address = nobody
		}
		text += fmt.Sprintf("- {name: channel-%d, target: %q, volume: disk, "+
			"reconnect: {first_pause: 1h, longest_pause: 1h}}\n", i, address)
	}
	file := filepath.Join(c.dir, "relay.yaml")
	writeFile(t, file, []byte(text))
	c.relay = spawn(t, "zc-relay", "run", "--config", file)
	testkit.Eventually(t, "three channels are ready, and three wait", func() bool {
		metrics := c.scrape(c.relay)
		return sumMetric(metrics, "zc_relay_target_ready") == 3 &&
			strings.Count(metrics, `state="waiting"`) == 3
	})
	page := renderPage(t, c.relay)
	pattern := regexp.MustCompile(`<div id="channels" role="status" class="bad">3 of 6 channels ` +
		`ready; not ready: \S*channel-1 \(target waiting\), \S*channel-3 \(target waiting\), ` +
		`\S*channel-5 \(target waiting\)</div>`)
	if !pattern.MatchString(page) {
		t.Errorf("the page does not show which channels are down:\n%s", tail(page))
	}
}

func TestThePageOfATargetShowsVolumesAndSessionsInABrowser(t *testing.T) {
	t.Parallel()
	c, _ := startAdministeredChain(t)
	c.startIO(bench(8)...)
	testkit.Eventually(t, "the target does IO", func() bool {
		return sumMetric(c.scrape(c.target), "zc_target_io_bytes_total") > 0
	})
	page := renderPage(t, c.target)
	for name, pattern := range map[string]string{
		"the volume":  `<h2>disk</h2><span class="badge good">serving</span>`,
		"the session": `<b id="sessions">1</b>`,
		"its client":  `<td class="text">initiator on [^<]*</td><td class="text">[0-9.:]+</td>`,
		"its latency": `<span class="dim" id="latency-total">mean [^<]+, p99 [^<]+</span>`,
		"all volumes": `<div id="channels" role="status" class="dim">1 of 1 volumes serving</div>`,
		"connections": `Sessions \(1 open, 1 standing connection\)`,
	} {
		if !regexp.MustCompile(pattern).MatchString(page) {
			t.Errorf("the page does not show %s:\n%s", name, tail(page))
		}
	}
}

func TestThePageShowsLiveRatesInABrowser(t *testing.T) {
	t.Parallel()
	c, _ := startAdministeredChain(t)
	c.startIO(bench(8)...)
	page := renderPage(t, c.relay)
	for name, pattern := range map[string]string{
		"several readings": `<body data-readings="([2-9]|[1-9][0-9]+)"`,
		"readiness":        `<span id="ready" class="badge good">ready</span>`,
		"the channel":      `<h2>storage_zero_copy_comch</h2>`,
		"the target":       `<span class="badge good">target ready</span>`,
		"a rate of IOs":    `<b id="iops">[0-9]`,
		"a throughput":     `<b id="bytes">[0-9.]+ [KMG]?i?B/s</b>`,
		"the open session": `<b id="sessions">1</b>`,
		"what it does": `initiator on [^<]*</td><td>\d+</td><td>\d+</td><td>[^<]*</td><td>\d+</td>` +
			`<td>\w+</td><td>[0-9–][^<]*</td><td>[^<]+</td><td>[^<]+</td><td>[^<]+</td>` +
			`<td>0</td><td class="dim">0</td>`,
		"all channels":     `<div id="channels" role="status" class="dim">1 of 1 channels ready</div>`,
		"a rate over time": `<polyline points="[0-9]`,
	} {
		if !regexp.MustCompile(pattern).MatchString(page) {
			t.Errorf("the page does not show %s:\n%s", name, tail(page))
		}
	}
}
