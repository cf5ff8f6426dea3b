// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAKilledInitiatorIsReleasedAndOthersContinue(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:64MiB")
	victim := c.startIO(append(bench(32), "--overwrite", "--length", "32MiB")...)
	other := c.initiator("verify", "--overwrite", "--queues", "1", "--queue-depth", "16",
		"--runtime", patience, "--offset", "32MiB", "--length", "1MiB", "--output", "json")
	testkit.Eventually(t, "both are connected",
		func() bool { return sumMetric(c.scrape(c.relay), "zc_relay_sessions") == 2 })
	victim.Signal(syscall.SIGKILL)
	killed := time.Now()
	// Every timeout exceeds this wait, so the relay has to notice that the process is gone.
	testkit.Eventually(t, "the relay releases the session",
		func() bool { return sumMetric(c.scrape(c.relay), "zc_relay_sessions") == 1 })
	t.Logf("the session was released after %v", time.Since(killed))
	before := c.ioTotal()
	testkit.Eventually(t, "the other initiator continues", func() bool { return c.ioTotal() > before+100 })
	interruptVerify(t, other)
}

func TestAKilledTargetFailsRunsAndServesAgainAfterItsReturn(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{
		bench(32),
		{"verify", "--queues", "2", "--queue-depth", "16", "--runtime", patience},
	} {
		t.Run(command[0], func(t *testing.T) {
			c := startObservedChain(t, "disk=memory:64MiB")
			run := c.startIO(command...)
			c.target.Signal(syscall.SIGKILL)
			if code := run.Wait(); code == 0 {
				t.Error("the run ended with success")
			}
			if !strings.Contains(run.Stderr.String()+run.Stdout.String(), "CONNECTION_RESET") {
				t.Error("the run does not say what happened")
			}
			if code := c.initiator("info", "--control-timeout", "2s").Wait(); code != 3 {
				t.Errorf("info without a target exited with %d", code)
			}
			c.startTarget()
			c.mustRun("verify", "--queues", "1", "--passes", "1", "--length", "8MiB")
		})
	}
}

func TestAKilledRelayFailsRunsAndTheTargetServesTheNext(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:64MiB")
	run := c.startIO(bench(32)...)
	c.relay.Signal(syscall.SIGKILL)
	if code := run.Wait(); code == 0 {
		t.Error("the run ended with success")
	}
	c.relay = c.startRelay("comch")
	c.mustRun("verify", "--queues", "1", "--passes", "1", "--length", "8MiB")
}

// deadAfterSeconds are flags with which a relay declares a silent target dead within seconds.
var deadAfterSeconds = []string{"--keep-alive-interval", "200ms", "--keep-alive-dead-after", "3s"}

func TestAStoppedTargetIsDeclaredDeadAndHarmsNobodyWhenItContinues(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:64MiB", deadAfterSeconds...)
	run := c.startIO("verify", "--queues", "2", "--queue-depth", "16", "--runtime", patience)
	c.target.Stop()
	if code := run.Wait(); code == 0 {
		t.Error("the run ended with success")
	}
	c.target.Continue()
	testkit.Eventually(t, "the chain serves again", func() bool {
		return c.initiator("verify", "--queues", "1", "--passes", "1",
			"--length", "8MiB").Wait() == 0
	})
}

func TestADiskErrorFailsOnlyThatIO(t *testing.T) {
	t.Parallel()
	c := startFaultyChain(t, "volume:any:p=0.2:seed=7:error=IO_FAILED")
	run := c.initiator("bench", "--rw", "randread", "--block-size", "4KiB", "--queue-depth", "8",
		"--run-limit-operation-count", "2000", "--output", "json")
	if code := run.Wait(); code != 1 {
		t.Errorf("a run with failed IOs exited with %d", code)
	}
	if !strings.Contains(run.Stdout.String(), "IO_FAILED") {
		t.Error("the result does not name the error")
	}
	if code := c.initiator("info").Wait(); code != 0 {
		t.Errorf("info afterwards exited with %d", code)
	}
}

func TestVerifyDetectsAndLocatesCorruption(t *testing.T) {
	t.Parallel()
	c := startFaultyChain(t, "volume:any:p=0.01:seed=7:corrupt")
	run := c.initiator("verify", "--queues", "2", "--queue-depth", "16", "--passes", "1")
	if code := run.Wait(); code != 1 {
		t.Errorf("verify of a corrupting volume exited with %d", code)
	}
	if text := run.Stdout.String() + run.Stderr.String(); !strings.Contains(text, "offset") {
		t.Error("verify does not say where")
	}
}

func TestConcurrentVerifiersFindNothing(t *testing.T) {
	t.Parallel()
	c := startChain(t, "disk=memory:64MiB")
	c.startRelay("second")
	first := c.initiator("verify", "--overwrite", "--queues", "4", "--queue-depth", "64",
		"--passes", "2", "--length", "32MiB")
	second := c.initiatorAt("second", "verify", "--overwrite", "--queues", "4",
		"--queue-depth", "64", "--passes", "2", "--offset", "32MiB")
	for _, run := range []*testkit.Process{first, second} {
		if code := run.Wait(); code != 0 {
			t.Errorf("verify exited with %d", code)
		}
	}
}

func TestSIGTERMEndsEverythingCleanly(t *testing.T) {
	t.Parallel()
	c := startObservedChain(t, "disk=memory:64MiB")
	run := c.startIO(bench(8)...)
	c.relay.Terminate()
	if code := run.Wait(); code == 0 {
		t.Error("a run whose relay went away ended with success")
	}
	if !strings.Contains(run.Stderr.String()+run.Stdout.String(), "SHUTDOWN") {
		t.Error("the run does not say that the relay was shut down")
	}
	c.target.Terminate()
	entries, err := filepath.Glob(filepath.Join(c.dir, "comch", "*", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if info, err := os.Lstat(entry); err == nil && info.Mode()&os.ModeSocket != 0 {
			t.Errorf("socket %s was left behind", entry)
		}
	}
}

func TestAnIdleChainUsesHardlyAnyCPU(t *testing.T) {
	// Not parallel: other tests would make its processes sleep more often.
	c := startChain(t, "disk=memory:64MiB")
	c.mustRun("info")
	daemons := []*testkit.Process{c.relay, c.target}
	measure := func() (wakes int, used time.Duration) {
		for _, p := range daemons {
			wakes, used = wakes+wakeups(t, p), used+cpuTime(t, p)
		}
		return wakes, used
	}
	begun := time.Now()
	wakesBefore, usedBefore := measure()
	time.Sleep(3 * time.Second)
	wakes, used := measure()
	watched := time.Since(begun) // longer on a busy machine
	wakes, used = wakes-wakesBefore, used-usedBefore
	t.Logf("relay and target together used %v of CPU, and woke up %d times, in %v of idling", used,
		wakes, watched)
	// The number of wakeups does not depend on the machine: most of them come from the Go runtime,
	// 100 per second and process. A thread that polled without sleeping would show in the CPU time
	// instead, of which it would use all it could get.
	if float64(wakes) > 500*watched.Seconds() {
		t.Errorf("relay and target together woke up %d times in %v of idling", wakes, watched)
	}
	if used > watched/10 {
		t.Errorf("relay and target together used %v of CPU in %v of idling", used, watched)
	}
}

func TestATargetThatContinuesTooLateCannotWriteToTheBuffer(t *testing.T) {
	t.Parallel()
	const depth, size = 32, 128 << 10
	c := startObservedChain(t, "disk=memory:64MiB", deadAfterSeconds...)
	config := c.clientConfig(depth)
	config.BufferSize, config.SyncDepth = size, 0
	v, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	if _, err := v.WriteAt(bytes.Repeat([]byte{0xEE}, depth*size), 0); err != nil {
		t.Fatal(err)
	}
	c.target.Stop()
	q := v.Queue(0)
	for i := range uint64(depth) {
		if err := q.Submit(&client.Request{Type: client.Read, Length: size, Offset: i * size,
			Memory: i * size, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	q.Ring()
	failed := 0
	results := make([]client.Result, depth)
	testkit.Eventually(t, "every read has failed", func() bool {
		for _, r := range results[:q.Poll(results)] {
			if failed++; r.Code == status.Success {
				t.Error("a read of a stopped target succeeded")
			}
		}
		return failed == depth
	})
	want := bytes.Repeat([]byte{0x11}, len(v.Memory()))
	copy(v.Memory(), want)
	c.target.Continue()
	// Its first session is the relay's standing connection, which may have been heard just in time.
	clientsEnd := regexp.MustCompile(`session ended\s+{"session": ([2-9]|1\d)`)
	testkit.Eventually(t, "the target has ended its session with the client",
		func() bool { return clientsEnd.MatchString(c.target.Stderr.String()) })
	if !bytes.Equal(v.Memory(), want) {
		t.Error("the target has written to a buffer that the client had back")
	}
}
