package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAKilledInitiatorIsReleasedWithinASecondAndOthersGoOn(t *testing.T) {
	c := startObservedChain(t, "disk=memory:64MiB")
	victim := c.startIO(append(bench(32), "--length", "32MiB")...)
	other := c.initiator("verify", "--queues", "1", "--queue-depth", "16", "--runtime", "3s", "--offset", "32MiB")
	eventually(t, "both are connected", func() bool { return sumMetric(c.scrape(c.relay), "zc_relay_sessions") == 2 })
	victim.signal(syscall.SIGKILL)
	killed := time.Now()
	eventually(t, "the relay releases the session", func() bool { return sumMetric(c.scrape(c.relay), "zc_relay_sessions") < 2 })
	if took := time.Since(killed); took > time.Second {
		t.Errorf("the session was released after %v", took)
	}
	if code := other.wait(); code != 0 {
		t.Errorf("the other initiator ended with %d", code)
	}
}

func TestAKilledTargetFailsRunsAtOnceAndServesAgainWhenItIsBack(t *testing.T) {
	for _, command := range [][]string{
		bench(32),
		{"verify", "--queues", "2", "--queue-depth", "16", "--runtime", "60s"},
	} {
		t.Run(command[0], func(t *testing.T) {
			c := startObservedChain(t, "disk=memory:64MiB")
			run := c.startIO(command...)
			c.target.signal(syscall.SIGKILL)
			if code := run.waitWithin(5 * time.Second); code == 0 {
				t.Error("the run ended with success")
			}
			if !strings.Contains(run.stderr.String()+run.stdout.String(), "CONNECTION_RESET") {
				t.Error("the run does not say what happened")
			}
			if code := c.initiator("info", "--control-timeout", "2s").wait(); code != 3 {
				t.Errorf("info without a target ended with %d", code)
			}
			c.startTarget()
			c.mustRun("verify", "--queues", "1", "--passes", "1", "--length", "8MiB")
		})
	}
}

func TestAKilledRelayIsNoticedAndTheTargetIsReadyForTheNext(t *testing.T) {
	c := startObservedChain(t, "disk=memory:64MiB")
	run := c.startIO(bench(32)...)
	c.relay.signal(syscall.SIGKILL)
	if code := run.waitWithin(5 * time.Second); code == 0 {
		t.Error("the run ended with success")
	}
	c.relay = c.startRelay("comch")
	c.mustRun("verify", "--queues", "1", "--passes", "1", "--length", "8MiB")
}

func TestAStoppedTargetIsDeclaredDeadAndItsAwakeningHarmsNobody(t *testing.T) {
	c := startObservedChain(t, "disk=memory:64MiB")
	run := c.startIO("verify", "--queues", "2", "--queue-depth", "16", "--runtime", "60s")
	c.target.signal(syscall.SIGSTOP)
	if code := run.waitWithin(15 * time.Second); code == 0 {
		t.Error("the run ended with success")
	}
	c.target.signal(syscall.SIGCONT)
	eventually(t, "the chain serves again", func() bool {
		return c.initiator("verify", "--queues", "1", "--passes", "1", "--length", "8MiB", "--control-timeout", "2s").wait() == 0
	})
}

func TestAnErrorOfTheDiskIsTheFailureOfThatIO(t *testing.T) {
	c := startChain(t, "disk=fault:eio=0.2,seed=7:memory:16MiB")
	run := c.initiator("bench", "--rw", "randread", "--block-size", "4KiB", "--queue-depth", "8", "--run-limit-operation-count", "2000", "--output", "json")
	if code := run.wait(); code != 1 {
		t.Errorf("a run with failed IOs ended with %d", code)
	}
	if !strings.Contains(run.stdout.String(), "IO_FAILED") {
		t.Error("the result does not name the error")
	}
	if code := c.initiator("info").wait(); code != 0 {
		t.Errorf("info afterwards ended with %d", code)
	}
}

func TestAVolumeThatCorruptsIsCaughtAndLocated(t *testing.T) {
	c := startChain(t, "disk=fault:corrupt=0.01,seed=7:memory:16MiB")
	run := c.initiator("verify", "--queues", "2", "--queue-depth", "16", "--passes", "1")
	if code := run.wait(); code != 1 {
		t.Errorf("verify of a corrupting volume ended with %d", code)
	}
	if text := run.stdout.String() + run.stderr.String(); !strings.Contains(text, "offset") {
		t.Error("verify does not say where")
	}
}

func TestManyVerifiersFindNothing(t *testing.T) {
	c := startChain(t, "disk=memory:64MiB")
	c.startRelay("second")
	first := c.initiator("verify", "--queues", "4", "--queue-depth", "64", "--passes", "2", "--length", "32MiB")
	second := c.initiatorAt("second", "verify", "--queues", "4", "--queue-depth", "64", "--passes", "2", "--offset", "32MiB")
	for _, run := range []*process{first, second} {
		if code := run.wait(); code != 0 {
			t.Errorf("verify ended with %d", code)
		}
	}
}

func TestSIGTERMEndsEverythingInOrder(t *testing.T) {
	c := startObservedChain(t, "disk=memory:64MiB")
	run := c.startIO(bench(8)...)
	c.relay.terminate()
	if code := run.waitWithin(5 * time.Second); code == 0 {
		t.Error("a run whose relay went away ended with success")
	}
	if !strings.Contains(run.stderr.String()+run.stdout.String(), "SHUTDOWN") {
		t.Error("the run does not say that the relay was shut down")
	}
	c.target.terminate()
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

func TestAnIdleChainUsesNextToNoCPU(t *testing.T) {
	c := startChain(t, "disk=memory:64MiB")
	c.mustRun("info")
	before := cpuTime(t, c.relay) + cpuTime(t, c.target)
	const watched = 5 * time.Second
	time.Sleep(watched)
	used := cpuTime(t, c.relay) + cpuTime(t, c.target) - before
	if used > watched/100 {
		t.Errorf("relay and target together used %v of CPU in %v of idling", used, watched)
	}
}

func TestATargetThatWakesUpTooLateFindsNoWayToTheBuffer(t *testing.T) {
	const depth, size = 32, 128 << 10
	c := startChain(t, "disk=memory:64MiB")
	v, err := client.Open(testContext(t), client.Config{
		Provider: emulated.New(emulated.Options{Directory: filepath.Join(c.dir, "comch")}),
		Device:   emulated.DefaultHostDevice, Queues: 1, Depth: depth, BufferSize: size,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	if _, err := v.WriteAt(bytes.Repeat([]byte{0xEE}, depth*size), 0); err != nil {
		t.Fatal(err)
	}
	c.target.signal(syscall.SIGSTOP)
	eventually(t, "every thread of the target has stopped", c.target.stopped)
	q := v.Queue(0)
	for i := range uint64(depth) {
		if err := q.Submit(&client.Request{Type: iomsg.Read, Length: size, Offset: i * size, Memory: i * size, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
	failed := 0
	results := make([]client.Result, depth)
	eventually(t, "every read has failed", func() bool {
		for _, r := range results[:q.Poll(results)] {
			if failed++; r.Code == status.Success {
				t.Error("a read of a stopped target succeeded")
			}
		}
		return failed == depth
	})
	want := bytes.Repeat([]byte{0x11}, len(v.Memory()))
	copy(v.Memory(), want)
	c.target.signal(syscall.SIGCONT)
	c.target.awaitLog("session ended") // it has found its connections gone
	time.Sleep(100 * time.Millisecond)
	if !bytes.Equal(v.Memory(), want) {
		t.Error("the target has written into a buffer that was given back")
	}
}
