// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// startHookedChain starts a chain with fault rules of the target and of the relay.
func startHookedChain(t *testing.T, target, relay []string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"}, faults: target,
		address: listenAddress(t)}
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	flags := []string{"--metrics-listen", "127.0.0.1:0"}
	for _, rule := range relay {
		flags = append(flags, "--allow-faults", "--fault", rule)
	}
	c.relay = c.startRelay("comch", flags...)
	return c
}

// faultMatches returns how often the rules of a daemon have matched, according to its status.
func (c *chain) faultMatches(p *testkit.Process) map[string]uint64 {
	c.t.Helper()
	var document struct {
		Faults []struct {
			Rule    string `json:"rule"`
			Matches uint64 `json:"matches"`
		} `json:"faults"`
	}
	_, body := get(c.t, p, "/status")
	if err := json.Unmarshal([]byte(body), &document); err != nil {
		c.t.Fatal(err)
	}
	matches := make(map[string]uint64)
	for _, f := range document.Faults {
		matches[f.Rule] = f.Matches
	}
	return matches
}

// expectMatches fails the test unless every rule has matched.
func (c *chain) expectMatches(p *testkit.Process, rules []string) {
	c.t.Helper()
	matches := c.faultMatches(p)
	for _, rule := range rules {
		if matches[rule] == 0 {
			c.t.Errorf("%s: rule %s has not matched", p.Name, rule)
		}
		if !strings.Contains(p.Stderr.String(), rule) {
			c.t.Errorf("%s does not warn of rule %s", p.Name, rule)
		}
	}
}

func TestDelaysHarmNobody(t *testing.T) {
	t.Parallel()
	target := []string{
		"volume:any:p=0.1:seed=1:delay=1ms", "rdma:poll:p=0.1:seed=2:delay=1ms",
		"rdma:post_send:p=0.1:seed=3:delay=1ms", "control:any:delay=1ms",
	}
	relay := []string{
		"rdma:poll:p=0.1:seed=4:delay=1ms", "rdma:post_send:p=0.1:seed=5:delay=1ms",
		"rdma:register:delay=1ms", "comch:consumer.poll:p=0.1:seed=6:delay=1ms",
		"comch:producer.send:p=0.1:seed=7:delay=1ms", "comch:new_consumer:delay=1ms",
		"control:any:delay=1ms",
	}
	c := startHookedChain(t, target, relay)
	c.mustRun("verify", "--queues", "2", "--queue-depth", "16", "--passes", "1", "--length", "4MiB")
	c.expectMatches(c.target, target)
	c.expectMatches(c.relay, relay)
}

func TestInjectedErrorsReachTheInitiatorAndCorruptNothing(t *testing.T) {
	t.Parallel()
	target := []string{"volume:write:nth=100:error=NO_MEMORY"}
	c := startHookedChain(t, target, nil)
	run := c.initiator("verify", "--queues", "1", "--queue-depth", "8", "--passes", "2", "--output",
		"json")
	if code := run.Wait(); code != 1 {
		t.Errorf("verify with a failed write exited with %d", code)
	}
	if r := verifyReport(t, run); r.Result.ErrorsByCode["NO_MEMORY"] == 0 ||
		r.Result.FindingCount != 0 {
		t.Errorf("verify reports %+v", r.Result)
	}
	c.expectMatches(c.target, target)
	c.mustRun("verify", "--queues", "1", "--passes", "1", "--length", "1MiB")
}

func TestTheErrorNumberOfAFailedIOReachesTheInitiator(t *testing.T) {
	t.Parallel()
	target := []string{"volume:write:nth=2:error=ENOSPC"}
	c := startHookedChain(t, target, nil)
	run := c.initiator("verify", "--queues", "1", "--queue-depth", "8", "--passes", "1", "--output",
		"json")
	if code := run.Wait(); code != 1 {
		t.Errorf("verify with a failed write exited with %d", code)
	}
	if r := verifyReport(t, run); r.Result.ErrorsByCode["IO_FAILED"] != 1 ||
		r.Result.ErrorsByCause["ENOSPC"] != 1 {
		t.Errorf("verify reports %+v", r.Result)
	}
	if stderr := run.Stderr.String(); !strings.Contains(stderr,
		"IO_FAILED: ENOSPC (no space left on device)") {
		t.Errorf("verify prints %s", stderr)
	}
	c.expectMatches(c.target, target)
}

func TestADroppedSendLosesTheConnectionAndReconnectingRecovers(t *testing.T) {
	t.Parallel()
	relay := []string{"rdma:post_send:nth=300:drop"}
	c := startHookedChain(t, nil, relay)
	run := c.initiator("verify", "--queues", "2", "--queue-depth", "8", "--passes", "1",
		"--reconnect", "--output", "json")
	if code := run.Wait(); code != 0 {
		t.Errorf("verify exited with %d", code)
	}
	if r := verifyReport(t, run); r.Result.FindingCount != 0 {
		t.Errorf("verify reports %+v", r.Result)
	}
	c.expectMatches(c.relay, relay)
	if !strings.Contains(c.relay.Stderr.String(), "CONNECTION_ABORTED") {
		t.Error("the relay does not say that it lost a connection")
	}
}

func TestFrozenOperationsContinueAfterASignal(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]struct{ target, relay []string }{
		"volume":    {target: []string{"volume:any:while=jam:freeze"}},
		"post_send": {relay: []string{"rdma:post_send:while=jam:freeze"}},
		"producer":  {relay: []string{"comch:producer.send:while=jam:freeze"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := startHookedChain(t, rules.target, rules.relay)
			daemon := c.relay
			if rules.target != nil {
				daemon = c.target
			}
			run := c.startIO("verify", "--queues", "1", "--queue-depth", "8", "--length", "1MiB",
				"--runtime", patience, "--output", "json")
			daemon.Signal(syscall.SIGUSR1)
			testkit.Eventually(t, "something is frozen", func() bool {
				for _, matches := range c.faultMatches(daemon) {
					if matches > 0 {
						return true
					}
				}
				return false
			})
			daemon.Signal(syscall.SIGUSR2)
			before := c.ioTotal()
			testkit.Eventually(t, "IO continues", func() bool { return c.ioTotal() > before+100 })
			interruptVerify(t, run)
		})
	}
}

func TestATraceHoldsEveryMatch(t *testing.T) {
	t.Parallel()
	c := startHookedChain(t, nil, nil)
	trace := filepath.Join(c.dir, "trace")
	c.relay.Terminate()
	c.relay = c.startRelay("comch", "--allow-faults", "--fault", "control:any:kind=open_volume:trace", "--fault",
		"comch:accept:trace", "--trace-operations", trace)
	c.mustRun("info")
	c.relay.Terminate()
	content, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	operations := make(map[string]int)
	for line := range strings.Lines(string(content)) {
		var match struct{ Operation, Kind, Action string }
		if err := json.Unmarshal([]byte(line), &match); err != nil {
			t.Fatal(err)
		}
		operations[match.Operation+" "+match.Kind+" "+match.Action]++
	}
	for _, want := range []string{"control:send open_volume trace",
		"control:receive open_volume trace", "comch:accept  trace"} {
		if operations[want] == 0 {
			t.Errorf("there is no %q in %v", want, operations)
		}
	}
}
