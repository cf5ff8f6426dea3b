// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// iops runs a benchmark and returns its IOs per second.
func iops(c *chain, args ...string) float64 {
	c.t.Helper()
	p := c.initiator(append([]string{"bench", "--rw", "randread", "--queue-depth", "16", "--warmup",
		"0s", "--output", "json"}, args...)...)
	if code := p.Wait(); code != 0 {
		c.t.Fatalf("bench exited with %d: %s", code, p.Stderr.String())
	}
	var document struct {
		Result struct {
			IOPS float64 `json:"iops"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(p.Stdout.String()), &document); err != nil {
		c.t.Fatal(err)
	}
	return document.Result.IOPS
}

// throttledSeconds sums up the metric of the relay for the limits of one level.
func throttledSeconds(c *chain, level string) float64 {
	c.t.Helper()
	sum, found := 0.0, false
	pattern := regexp.MustCompile(`(?m)^zc_relay_throttled_seconds_total\{[^}]*limit="` + level +
		`"[^}]*\} (\S+)$`)
	for _, match := range pattern.FindAllStringSubmatch(c.scrape(c.relay), -1) {
		seconds, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			c.t.Fatal(err)
		}
		sum, found = sum+seconds, true
	}
	if !found {
		c.t.Fatalf("the metrics lack zc_relay_throttled_seconds_total for %q", level)
	}
	return sum
}

func TestRateLimitsHoldAndChangeForOpenSessions(t *testing.T) {
	// Not parallel: it measures rates.
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	file, admin := filepath.Join(c.dir, "relay.yaml"), "unix:"+filepath.Join(c.dir, "relay.sock")
	configure := func(qos string) {
		writeFile(t, file, []byte(fmt.Sprintf("channels:\n- {qos: %s}\n", qos)))
	}
	configure("{session: {iops: 300, burst: 10ms}}")
	c.startTarget()
	c.relay = c.startRelay("comch", "--config", file, "--admin-listen", admin, "--metrics-listen",
		"127.0.0.1:0")
	reload := func(qos string) {
		t.Helper()
		configure(qos)
		if code, _, errs := call(t, "zc-relay", "reload", "--admin", admin); code != 0 {
			t.Fatalf("reload: %s", errs)
		}
	}

	if got := iops(c, "--runtime", "1s"); got > 400 {
		t.Errorf("a session limited to 300 IOPS has %.0f", got)
	}
	if seconds := throttledSeconds(c, "session"); seconds == 0 {
		t.Error("no waits for the session's limits are counted")
	}
	reload("{channel: {bandwidth: 2MiB, burst: 10ms}}")
	if got := iops(c, "--runtime", "1s", "--block-size", "64KiB"); got > 60 {
		t.Errorf("a channel limited to 32 IOs of 64 KiB per second has %.0f", got)
	}
	if seconds := throttledSeconds(c, "channel"); seconds == 0 {
		t.Error("no waits for the channel's limits are counted")
	}

	// Two hours of IO at one IOPS, if the reload did not reach the open session.
	reload("{session: {iops: 1}}")
	p := c.initiator("bench", "--rw", "randread", "--queue-depth", "16", "--run-limit-operation-count", "7200",
		"--io-timeout", "120s")
	testkit.Eventually(t, "the status shows the limits and the waiting session", func() bool {
		_, text, _ := call(t, "zc-relay", "status", "--admin", admin)
		return strings.Contains(text, "limits    1 IOPS a session") &&
			regexp.MustCompile(`(?m)[1-9]\S*s +\d+ of 16$`).MatchString(text)
	})
	configure("{}")
	c.relay.Signal(syscall.SIGHUP)
	if code := p.Wait(); code != 0 {
		t.Errorf("the session whose limits were removed ended with %d: %s", code, p.Stderr.String())
	}
	if _, text, _ := call(t, "zc-relay", "status", "--admin", admin); strings.Contains(text,
		"limits    ") {
		t.Errorf("the status still shows limits:\n%s", text)
	}
}

// The flood and the reader share a worker, so that without a limit the flood would take most of it.
func TestASessionsRateLimitBoundsAFlood(t *testing.T) {
	// Not parallel: it measures rates.
	const limit, reads = 100, 2000
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	c.startTarget()
	file := filepath.Join(c.dir, "relay.yaml")
	writeFile(t, file, []byte(fmt.Sprintf("comch: {directory: %q}\nworkers: {count: 1}\n"+
		"operations: {listen: '127.0.0.1:0'}\nchannels:\n"+
		"- {name: flood, target: %q, volume: disk, qos: {session: {iops: %d, burst: 10ms}}}\n"+
		"- {name: reader, target: %q, volume: disk}\n", filepath.Join(c.dir, "comch"), c.address,
		limit, c.address)))
	c.relay = spawn(t, "zc-relay", "run", "--config", file)
	completed := func(channel string) float64 {
		pattern := regexp.MustCompile(`(?m)^(zc_relay_io_total)\{[^}]*channel="[^"]*` + channel +
			`"[^}]*\}`)
		return sumMetric(pattern.ReplaceAllString(c.scrape(c.relay), "flooded"), "flooded")
	}
	began := time.Now()
	c.initiator("bench", "--rw", "randread", "--queue-depth", "128", "--runtime", patience,
		"--warmup", "0s", "--command-channel-name", "flood")
	testkit.Eventually(t, "the flood has begun", func() bool { return completed("flood") > limit/10 })
	c.mustRun("bench", "--rw", "randread", "--queue-depth", "1", "--run-limit-operation-count",
		strconv.Itoa(reads), "--warmup", "0s", "--command-channel-name", "reader")
	flooded := completed("flood")
	if allowed := limit * (time.Since(began).Seconds() + 1); flooded > allowed {
		t.Errorf("the flood has completed %.0f IOs, its limit allows %.0f", flooded, allowed)
	}
	if got := completed("reader"); got < reads {
		t.Errorf("the reader has completed %.0f of %d IOs", got, reads)
	}
}
