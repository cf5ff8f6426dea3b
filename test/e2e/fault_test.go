package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startIO starts a run that goes on until it is ended, and waits until IO is
// under way.
func (c *chain) startIO(command ...string) *process {
	c.t.Helper()
	p := c.initiator(command...)
	eventually(c.t, "IO is under way", func() bool { return c.ioTotal() > 100 })
	return p
}

// ioTotal is how many IOs the relay has answered.
func (c *chain) ioTotal() float64 {
	return sumMetric(c.scrape(c.relay), "zc_relay_io_total")
}

func bench(depth int) []string {
	return []string{"bench", "--rw", "randrw", "--block-size", "4KiB", "--queue-depth", strconv.Itoa(depth), "--runtime", "60s", "--warmup", "0s", "--output", "json"}
}

func startObservedChain(t *testing.T, volumes ...string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: volumes, address: listenAddress()}
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0")
	return c
}

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

func TestStrayClientsAreCutOffAndHarmNobody(t *testing.T) {
	c := startChain(t, "disk=memory:64MiB")
	rdma := c.rdmaAddress()
	var strays []net.Conn
	for _, address := range []string{c.address.String(), rdma} {
		for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 100000), "\x00\x00\x00\x04abcd", "MPA ID Req Frame"} {
			stray, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer stray.Close()
			_, _ = io.WriteString(stray, garbage)
			strays = append(strays, stray)
		}
	}
	c.mustRun("verify", "--queues", "2", "--queue-depth", "16", "--passes", "1", "--length", "16MiB")
	for i, stray := range strays {
		if err := stray.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, stray); os.IsTimeout(err) {
			t.Errorf("stray %d was not cut off", i)
		}
	}
}

// rdmaAddress is where the target listens for RDMA connections, as it logs.
func (c *chain) rdmaAddress() string {
	c.t.Helper()
	const key = `"rdma": "`
	_, rest, found := strings.Cut(c.target.stderr.String(), key)
	if !found {
		c.t.Fatalf("the target does not log its RDMA address")
	}
	address, _, _ := strings.Cut(rest, `"`)
	return address
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

// cpuTime is the time that a process has spent on CPUs.
func cpuTime(t testing.TB, p *process) time.Duration {
	t.Helper()
	text := string(readFile(t, fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux
	return time.Duration(ticks) * time.Second / ticksPerSecond
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
