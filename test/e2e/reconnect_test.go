// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// startFileChain is startObservedChain with a volume that survives its target.
func startFileChain(t *testing.T) *chain {
	t.Helper()
	return startObservedChain(t, "disk=file:"+filepath.Join(t.TempDir(), "disk.img")+",size=32MiB")
}

// reconnectingVerify returns the arguments of a verification that runs until the test ends it.
func reconnectingVerify(more ...string) []string {
	return append([]string{
		"verify", "--queues", "2", "--queue-depth", "16", "--runtime", "24h", "--output", "json",
		"--reconnect", "--reconnect-first-pause", "20ms", "--reconnect-longest-pause", "200ms",
	}, more...)
}

// verifyDocument is the part of verify's JSON document that the tests read.
type verifyDocument struct {
	Result struct {
		Errors        uint64            `json:"errors"`
		ErrorsByCode  map[string]uint64 `json:"errors_by_code"`
		ErrorsByCause map[string]uint64 `json:"errors_by_cause"`
		BlocksWritten uint64            `json:"blocks_written"`
		BlocksChecked uint64            `json:"blocks_checked"`
		FindingCount  uint64            `json:"finding_count"`
		LostBlocks    uint64            `json:"lost_blocks"`
		Interrupted   bool              `json:"interrupted"`
		Reconnections *struct {
			Count            int    `json:"count"`
			OutageNs         int64  `json:"outage_ns"`
			LongestOutageNs  int64  `json:"longest_outage_ns"`
			RepeatedRequests uint64 `json:"repeated_requests"`
			LostWrites       uint64 `json:"lost_writes"`
		} `json:"reconnections"`
	} `json:"result"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// verifyReport returns the report that verify has printed.
func verifyReport(t testing.TB, p *testkit.Process) verifyDocument {
	t.Helper()
	var r verifyDocument
	if err := json.Unmarshal([]byte(p.Stdout.String()), &r); err != nil {
		t.Fatalf("verify printed no valid report: %v", err)
	}
	return r
}

// interruptVerify ends a run of verify, which must not have found anything wrong so far.
func interruptVerify(t testing.TB, p *testkit.Process) {
	t.Helper()
	p.Signal(syscall.SIGINT)
	if code := p.Wait(); code != 1 { // because the verification is incomplete
		t.Errorf("verify exited with %d", code)
	}
	if r := verifyReport(t, p); r.Result.FindingCount > 0 || r.Result.Errors > 0 ||
		!r.Result.Interrupted || r.Result.BlocksWritten == 0 {
		t.Errorf("the result is %+v, error %+v", r.Result, r.Error)
	}
}

// restartTarget ends the target, in even rounds cleanly and in odd rounds by force, and starts it
// again.
func (c *chain) restartTarget(round int) {
	c.t.Helper()
	if round%2 == 0 {
		c.target.Terminate()
	} else {
		c.target.Signal(syscall.SIGKILL)
		c.target.Wait()
	}
	c.startTarget()
}

// awaitIO waits until the only session completes IO that was submitted after this call.
func (c *chain) awaitIO() {
	c.t.Helper()
	before := c.ioTotal()
	testkit.Eventually(c.t, "IO completes again", func() bool {
		return sumMetric(c.scrape(c.relay), "zc_relay_sessions") == 1 && c.ioTotal() > before+500
	})
}

// targetRestarts is how often the target is restarted under load.
var targetRestarts = 5

func TestVerifySurvivesRestartsOfTheTarget(t *testing.T) {
	t.Parallel()
	c := startFileChain(t)
	c.mustRun("verify", "--queues", "2", "--length", "1MiB")
	testkit.Eventually(t, "all sessions are released", c.hasNoSession)
	before := c.relay.Descriptors()
	run := c.initiator(reconnectingVerify("--length", "8MiB")...)
	c.awaitIO()
	for round := range targetRestarts {
		c.restartTarget(round)
		c.awaitIO()
	}
	run.Signal(syscall.SIGINT)
	if code := run.Wait(); code != 1 { // because the verification is incomplete
		t.Errorf("verify exited with %d", code)
	}
	r := verifyReport(t, run)
	if r.Result.FindingCount > 0 || r.Result.Errors > 0 || r.Result.LostBlocks > 0 ||
		!r.Result.Interrupted ||
		r.Result.Reconnections.Count != targetRestarts || r.Result.BlocksChecked == 0 {
		t.Errorf("the result is %+v, reconnections %+v", r.Result, r.Result.Reconnections)
	}
	t.Logf("%d restarts: %d blocks written, %d checked, %d requests repeated, outages of %v in all, the longest %v; %d acknowledged writes not flushed",
		targetRestarts, r.Result.BlocksWritten, r.Result.BlocksChecked,
		r.Result.Reconnections.RepeatedRequests,
		time.Duration(r.Result.Reconnections.OutageNs),
		time.Duration(r.Result.Reconnections.LongestOutageNs),
		r.Result.Reconnections.LostWrites)
	testkit.Eventually(t, "all sessions are released", c.hasNoSession)
	testkit.Eventually(t, fmt.Sprintf("the relay has no more descriptors than the %d before", before),
		func() bool { return c.relay.Descriptors() <= before })
}

func TestVerifySurvivesRestartsOfTheRelay(t *testing.T) {
	t.Parallel()
	c := startFileChain(t)
	run := c.startIO(reconnectingVerify()...)
	for round := range 3 {
		if round%2 == 0 {
			c.relay.Terminate()
		} else {
			c.relay.Signal(syscall.SIGKILL)
			c.relay.Wait()
		}
		c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0")
		testkit.Eventually(t, "IO completes again", func() bool { return c.ioTotal() > 500 })
	}
	run.Signal(syscall.SIGINT)
	run.Wait()
	if r := verifyReport(t, run); r.Result.FindingCount > 0 || r.Result.Errors > 0 ||
		r.Result.Reconnections.Count != 3 || r.Result.Reconnections.LostWrites > 0 {
		t.Errorf("the result is %+v, reconnections %+v", r.Result, r.Result.Reconnections)
	}
}

func TestTheLossOfAMemoryVolumeIsReported(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:32MiB")
	run := c.startIO(reconnectingVerify()...)
	c.restartTarget(1)
	if code := run.Wait(); code != 1 {
		t.Errorf("verify exited with %d", code)
	}
	if r := verifyReport(t, run); r.Error == nil || !strings.Contains(r.Error.Message, "UUID") ||
		r.Result.FindingCount > 0 {
		t.Errorf("the result is %+v, error %+v", r.Result, r.Error)
	}
}

func TestBenchContinuesAfterARestartAndReportsIt(t *testing.T) {
	t.Parallel()
	c := startFileChain(t)
	run := c.startIO(append(bench(16), "--reconnect")...)
	c.restartTarget(0)
	c.awaitIO()
	run.Signal(syscall.SIGINT)
	if code := run.Wait(); code != 0 {
		t.Errorf("bench exited with %d", code)
	}
	for _, want := range []string{`"reconnections"`, `"count": 1`, `"errors": 0`} {
		if !strings.Contains(run.Stdout.String(), want) {
			t.Errorf("the result lacks %s", want)
		}
	}
}

func TestReconnectFlagsAreCheckedAndObeyed(t *testing.T) {
	t.Parallel()
	c := startFileChain(t)
	if code := c.initiator("verify", "--reconnect-attempts", "3").Wait(); code != 2 {
		t.Errorf("a policy without --reconnect exited with %d", code)
	}
	wrong := c.initiator("bench", "--rw", "read", "--reconnect", "--reconnect-timeout", "soon")
	if code := wrong.Wait(); code != 2 {
		t.Errorf("a wrong bound exited with %d", code)
	}
	run := c.startIO(reconnectingVerify("--reconnect-attempts", "2")...)
	c.relay.Signal(syscall.SIGKILL)
	if code := run.Wait(); code != 1 || !strings.Contains(run.Stdout.String(), "2 attempts") {
		t.Errorf("a policy of two attempts exited with %d", code)
	}
}
