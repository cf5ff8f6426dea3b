// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// phase is a part of a daemon's life in which a system call is delayed.
type phase string

const (
	starting  phase = "start"
	stopping  phase = "stop"
	reloading phase = "reload"
)

// disturbances are the signals that a daemon gets while a call is delayed; "" for none.
var disturbances = []event{"", terminated, hungUp}

var phases = []phase{starting, stopping, reloading}

var signals = map[event]syscall.Signal{terminated: syscall.SIGTERM, hungUp: syscall.SIGHUP}

// callDelay is how long a call is delayed: enough for the rest of the daemon to go on meanwhile.
const callDelay = 300 * time.Millisecond

// failures holds the error with which a call fails instead of being delayed. Without the other
// calls, Go's runtime cannot run, or nothing can be removed.
var failures = map[string]syscall.Errno{
	"accept4": syscall.EMFILE, "bind": syscall.EACCES, "connect": syscall.ETIMEDOUT,
	"fallocate": syscall.ENOSPC, "fchmod": syscall.EPERM,
	"fdatasync": syscall.EIO, "flock": syscall.ENOLCK, "fstatfs": syscall.EIO,
	"fsync": syscall.EIO, "ftruncate": syscall.ENOSPC, "listen": syscall.EADDRINUSE,
	"lseek": syscall.EIO, "memfd_create": syscall.EMFILE, "mkdirat": syscall.EROFS,
	"openat": syscall.EMFILE, "pread64": syscall.EIO, "pwrite64": syscall.EIO,
	"recvfrom": syscall.ECONNRESET, "recvmsg": syscall.ECONNRESET, "renameat": syscall.ENOSPC,
	"renameat2": syscall.ENOSPC, "sendmsg": syscall.EPIPE, "setsockopt": syscall.ENOBUFS,
	"shutdown": syscall.ENOTCONN, "socket": syscall.EMFILE, "statfs": syscall.EIO,
	"statx": syscall.EIO,
}

// failed is the event that a call fails.
const failed event = "error"

// delay is a system call of one daemon that is delayed in a phase, and a signal that arrives
// meanwhile; or one that fails.
type delay struct {
	name       string // "target" or "relay"
	phase      phase
	call       string
	occurrence int // of the call, in each thread
	event      event
}

func (d delay) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", d.name, d.phase, d.call, d.occurrence,
		d.event))
}

// ofRuntime are the calls that Go's scheduler makes all the time, or the start of any process or
// thread.
var ofRuntime = map[string]bool{
	"access": true, "arch_prctl": true, "brk": true, "execve": true, "getpid": true, "gettid": true,
	"madvise": true, "mincore": true, "mprotect": true, "nanosleep": true, "restart_syscall": true,
	"rseq": true, "rt_sigprocmask": true, "rt_sigreturn": true, "sched_yield": true,
	"set_robust_list": true, "set_tid_address": true, "sigaltstack": true, "tgkill": true,
}

// delayVariable holds a delay to run instead of a sample, such as "target stop fsync 1 HUP".
const delayVariable = "ZC_RELAY_DELAY"

// sampledDelays is how many delays run besides those of everyDelay; negative for all.
var sampledDelays = 8

// everyDelay holds delays that run always: a call of each part of a life, with a signal that each
// daemon has to bear there.
var everyDelay = []string{"relay start listen 1 TERM", "relay start listen 1 HUP",
	"target start renameat 1 HUP", "relay stop exit_group 1 HUP", "relay start listen 2 error"}

// parseDelay is the inverse of String.
func parseDelay(text string) (d delay, err error) {
	_, err = fmt.Sscan(text, &d.name, &d.phase, &d.call, &d.occurrence)
	if fields := strings.Fields(text); len(fields) > 4 {
		d.event = event(fields[4])
	}
	return d, err
}

// sampleDelays returns the delays to run, from the calls that the daemons make.
func sampleDelays(t *testing.T) []delay {
	t.Helper()
	if text := os.Getenv(delayVariable); text != "" {
		d, err := parseDelay(text)
		if err != nil {
			t.Fatalf("%s=%q is not a delay: %v", delayVariable, text, err)
		}
		return []delay{d}
	}
	all := allDelays(recordCalls(t))
	if len(all) < 300 {
		t.Fatalf("there are only %d delays", len(all))
	}
	if sampledDelays < 0 {
		return all
	}
	t.Logf("%d of %d delays; repeat one with its name in %s", sampledDelays, len(all),
		delayVariable)
	var chosen []delay
	for _, text := range everyDelay {
		d, err := parseDelay(text)
		if err != nil {
			t.Fatal(err)
		}
		chosen = append(chosen, d)
	}
	// How often the daemons make a call differs from run to run, and whether they make it hardly
	// does. So the sample consists of first occurrences, by a rank that depends only on the name.
	all = slices.DeleteFunc(all, func(d delay) bool { return d.occurrence > 1 })
	seed := seedtest.Of(t)
	rank := func(d delay) uint64 {
		h := fnv.New64a()
		fmt.Fprint(h, seed, d)
		return rand.NewPCG(h.Sum64(), seed).Uint64()
	}
	slices.SortFunc(all, func(a, b delay) int { return cmp.Compare(rank(a), rank(b)) })
	return append(chosen, all[:sampledDelays]...)
}

// delayedOccurrences is how many occurrences of each call are delayed, at most.
var delayedOccurrences = 3

// calls counts, for the phases of a daemon's life, the calls of the thread that makes most.
type calls map[phase]map[string]int

// occurrences returns the first, the second, and the last of n occurrences of a call, and others
// that are evenly spread between these, up to delayedOccurrences.
func occurrences(n int) []int {
	chosen := []int{1, min(2, n)}
	between := min(n, delayedOccurrences) - 2
	for i := 1; i <= between; i++ {
		chosen = append(chosen, 2+(n-2)*i/between)
	}
	return slices.Compact(chosen)
}

func TestDelayedOccurrencesAreSpread(t *testing.T) {
	defer func(former int) { delayedOccurrences = former }(delayedOccurrences)
	for _, test := range []struct {
		most, n int
		want    []int
	}{
		{3, 1, []int{1}}, {3, 2, []int{1, 2}}, {3, 3, []int{1, 2, 3}}, {3, 90, []int{1, 2, 90}},
		{6, 4, []int{1, 2, 3, 4}}, {6, 90, []int{1, 2, 24, 46, 68, 90}},
	} {
		delayedOccurrences = test.most
		if got := occurrences(test.n); !slices.Equal(got, test.want) {
			t.Errorf("%d of %d occurrences are %d, want %d", test.most, test.n, got, test.want)
		}
	}
}

// allDelays returns the chosen occurrences of each call, with each signal.
func allDelays(recorded map[string]calls) []delay {
	var all []delay
	for name, phases := range recorded {
		for phase, counts := range phases {
			for call, n := range counts {
				for _, occurrence := range occurrences(n) {
					for _, e := range disturbances {
						all = append(all, delay{name, phase, call, occurrence, e})
					}
					if failures[call] != 0 {
						all = append(all, delay{name, phase, call, occurrence, failed})
					}
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b delay) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// recordCalls runs the daemons without delays, and returns which calls each makes.
func recordCalls(t *testing.T) map[string]calls {
	t.Helper()
	recorded := map[string]calls{"target": make(calls), "relay": make(calls)}
	var mu sync.Mutex // guards recorded
	t.Run("record", func(t *testing.T) {
		for name := range recorded {
			for _, phase := range phases {
				t.Run(fmt.Sprint(name, " ", phase), func(t *testing.T) {
					t.Parallel()
					r := newDelayRun(t, delay{name: name, phase: phase})
					r.run()
					maps.DeleteFunc(r.counts, func(call string, _ int) bool {
						return ofRuntime[call]
					})
					mu.Lock()
					defer mu.Unlock()
					recorded[name][phase] = r.counts
				})
			}
		}
	})
	return recorded
}

func TestDelayedSystemCallsHarmNoPhaseOfALife(t *testing.T) {
	requireStrace(t)
	for _, d := range sampleDelays(t) {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			newDelayRun(t, d).run()
		})
	}
}

// delayRun runs one delay.
type delayRun struct {
	delay
	*site
	io     pairRun
	trace  *trace
	counts map[string]int // of the calls in the phase
	// isEarly says that the signal came before the daemon read its configuration.
	isEarly bool
	load    *load // nil until the volume is open
}

func newDelayRun(t *testing.T, d delay) *delayRun {
	s := newSite(t)
	return &delayRun{delay: d, site: s, io: pairRun{site: s, blockSize: 4096,
		written: map[uint64]byte{}}}
}

// environ gives both daemons listeners for operators.
func (r *delayRun) environ() []string {
	return []string{
		"ZC_TARGET__OPERATIONS__ADMIN=unix:" + r.path("target.sock"),
		"ZC_RELAY__OPERATIONS__ADMIN=unix:" + r.path("relay.sock"),
		"ZC_TARGET__OPERATIONS__LISTEN=" + r.address.String() + ":0",
		"ZC_RELAY__OPERATIONS__LISTEN=" + r.address.String() + ":0",
	}
}

func (r *delayRun) run() {
	r.t.Helper()
	if r.phase == starting {
		r.delayedStart()
	} else {
		r.startAll()
		r.load = r.startLoad()
	}
	switch r.phase {
	case stopping:
		r.delayedStop()
	case reloading:
		r.delayedReload()
	}
	r.endAll()
	if r.call != "" {
		r.restart()
	}
}

// startAll starts the daemons that do not run.
func (r *delayRun) startAll() {
	r.t.Helper()
	if r.target == nil {
		r.spawnTarget(nil)
	}
	if !r.target.AwaitLogOrEnd("listening for relays") {
		r.t.Fatal("the target ended at its start")
	}
	testkit.Eventually(r.t, "the target writes its address", func() bool {
		_, err := os.Stat(r.path("target.address"))
		return err == nil || r.target.HasEnded()
	})
	if r.relay == nil {
		r.spawnRelay(nil)
	}
	if !r.relay.AwaitLogOrEnd("listening for clients") {
		r.t.Fatal("the relay ended at its start")
	}
}

func (r *delayRun) spawnTarget(tracer []string) {
	r.configure("info")
	r.target = spawnBy(r.t, tracer, r.environ(), "target", "--config", r.path("target.yaml"))
}

func (r *delayRun) spawnRelay(tracer []string) {
	r.configure("info")
	r.relay = spawnBy(r.t, tracer, r.environ(), "zc-relay", "run", "--config",
		r.path("relay.yaml"))
}

// tested returns the daemon whose calls are delayed.
func (r *delayRun) tested() *testkit.Process {
	if r.name == "target" {
		return r.target
	}
	return r.relay
}

// delayedStart starts the tested daemon under strace.
func (r *delayRun) delayedStart() {
	r.t.Helper()
	r.trace = newTrace(r.t, r.path("trace"), r.delay)
	tracer := append(r.trace.args, "-D", "-q", "-I1") // SIGTERM ends strace
	if r.name == "target" {
		r.spawnTarget(tracer)
	} else {
		r.spawnTarget(nil)
		testkit.Eventually(r.t, "the target writes its address", func() bool {
			_, err := os.Stat(r.path("target.address"))
			return err == nil || r.target.HasEnded()
		})
		r.spawnRelay(tracer)
	}
	r.disturb(r.hasStarted)
	testkit.Eventually(r.t, "the daemon ends or listens", func() bool {
		return r.tested().HasEnded() || r.event != terminated && r.hasStarted()
	})
	r.detach()
	if r.event == failed && r.tested().HasEnded() {
		r.checkFailure()
		return
	}
	if r.isEarly && signals[r.event] != 0 && r.tested().IsKilledBy(signals[r.event]) {
		return // as any program whose main function does not run yet
	}
	if r.event != terminated {
		r.startAll()
		r.load = r.startLoad()
	} else if code := r.tested().Wait(); code != 0 {
		r.t.Errorf("%s exited with %d after SIGTERM at its start", r.tested().Name, code)
	}
}

// hasStarted reports whether the tested daemon has completed its start.
func (r *delayRun) hasStarted() bool {
	if r.name == "target" {
		_, err := os.Stat(r.path("target.address"))
		return err == nil
	}
	return r.tested().HasLogged("listening for")
}

// detach ends the strace that started the tested daemon.
func (r *delayRun) detach() {
	r.t.Helper()
	testkit.Eventually(r.t, "strace detaches", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.tested().Cmd.Process.Pid))
		match := tracerPID.FindSubmatch(text)
		if err != nil || match == nil || r.tested().HasEnded() {
			return true
		}
		if pid, err := strconv.Atoi(string(match[1])); err == nil {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		return false
	})
}

// tracerPID matches the process that traces another, in whose status it is.
var tracerPID = regexp.MustCompile(`(?m)^TracerPid:\t([1-9]\d*)$`)

// checkFailure checks the exit of a daemon that has ended because a call failed.
func (r *delayRun) checkFailure() {
	r.t.Helper()
	code, reason := r.tested().Wait(), failures[r.call].Error()
	if code != 1 && code != 2 || !r.tested().HasLogged(reason) {
		r.t.Errorf("%s ended with %v, and its log says why (%s): %v", r.tested().Name,
			r.tested().Cmd.ProcessState, reason, r.tested().HasLogged(reason))
	}
}

// delayedStop stops the tested daemon with calls delayed.
func (r *delayRun) delayedStop() {
	r.t.Helper()
	tested := r.tested()
	r.attach(tested)
	tested.Signal(syscall.SIGTERM)
	r.disturb(tested.HasEnded)
	code := tested.Wait()
	if r.event == failed && code != 0 {
		r.checkFailure()
		return
	}
	isOrderly := code == 0 && tested.HasLogged("\tended\t")
	if !isOrderly && (r.event != terminated || !tested.IsKilledBy(syscall.SIGTERM)) {
		r.t.Errorf("%s ended after SIGTERM with %v", tested.Name, tested.Cmd.ProcessState)
	}
}

// delayedReload reloads the tested daemon with calls delayed.
func (r *delayRun) delayedReload() {
	r.t.Helper()
	tested := r.tested()
	r.configure("debug")
	r.attach(tested)
	reloaded := func() bool {
		return tested.HasLogged("\treloaded") || tested.HasEnded() ||
			r.event == failed && tested.HasLogged("reload failed")
	}
	tested.Signal(syscall.SIGHUP)
	r.disturb(reloaded)
	if r.event == terminated {
		return
	}
	testkit.Eventually(r.t, "the daemon reloads", reloaded)
	r.trace.stop()
}

// attach starts strace on a running daemon.
func (r *delayRun) attach(d *testkit.Process) {
	r.t.Helper()
	r.trace = newTrace(r.t, r.path("trace"), r.delay)
	r.trace.attach(d.Cmd.Process.Pid)
}

// disturb sends the signal when the call is delayed, or the phase has ended without it.
func (r *delayRun) disturb(hasEnded func() bool) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("%s is called, or the phase ends", r.call), func() bool {
		return r.call != "" && r.trace.counts()[r.call] >= r.occurrence || hasEnded() ||
			r.tested().HasEnded()
	})
	r.counts, r.isEarly = r.trace.counts(), !r.trace.hasOpened(".yaml")
	if s, ok := signals[r.event]; ok {
		r.tested().Signal(s)
	}
}

// endAll ends the daemons that still run, and checks what is left.
func (r *delayRun) endAll() {
	r.t.Helper()
	for _, d := range []*testkit.Process{r.tested(), r.relay, r.target} {
		if d == nil || d.HasEnded() {
			continue
		}
		if d == r.tested() && r.phase == reloading && r.event == terminated {
			if code := d.Wait(); code != 0 {
				r.t.Errorf("%s exited with %d after SIGTERM in a reload", d.Name, code)
			}
			continue
		}
		terminate(r.t, d)
	}
	if r.load != nil {
		maps.Copy(r.io.written, r.load.end())
	}
	r.trace.stop()
	r.checkLogs()
	r.checkContent()
	if err := os.Remove(r.trace.file); err != nil {
		r.t.Error(err)
	}
	if !r.tested().IsKilledBy(syscall.SIGTERM) {
		r.checkLeftovers()
	}
}

// blame matches lines that a delay must not cause.
var blame = regexp.MustCompile(`(?m)^.*(\tERROR\t|\tFATAL\t|panic: |DATA RACE|goroutine \d+ \[).*$`)

// checkLogs fails if a daemon reports an error, although only time has passed, or another error
// than the call's.
func (r *delayRun) checkLogs() {
	r.t.Helper()
	for _, d := range []*testkit.Process{r.target, r.relay} {
		if d == nil {
			continue
		}
		for _, line := range blame.FindAllString(d.Stderr.String(), -1) {
			if r.event != failed || !strings.Contains(line, "\tERROR\t") ||
				!strings.Contains(line, failures[r.call].Error()) {
				r.t.Errorf("%s reports %q", d.Name, line)
			}
		}
	}
}

// checkContent fails if a write that completed is not in the volume's file.
func (r *delayRun) checkContent() {
	r.t.Helper()
	if len(r.io.written) == 0 {
		return
	}
	content, err := os.ReadFile(r.path("disk.img"))
	if err != nil {
		r.t.Fatal(err)
	}
	for block, fill := range r.io.written {
		at := block * uint64(r.io.blockSize)
		if want := bytes.Repeat([]byte{fill}, int(r.io.blockSize)); !bytes.Equal(
			content[at:at+uint64(r.io.blockSize)], want) {
			r.t.Errorf("block %d, whose write completed, is not in the volume", block)
		}
	}
}

// restart starts both daemons again, without delays, and uses them.
func (r *delayRun) restart() {
	r.t.Helper()
	if err := os.RemoveAll(r.path("target.address")); err != nil {
		r.t.Fatal(err)
	}
	r.target, r.relay = nil, nil
	r.startAll()
	v := r.io.open()
	r.io.workload(v)
	if err := v.Close(r.t.Context()); err != nil {
		r.t.Errorf("the volume cannot be closed after the next start: %v", err)
	}
	terminate(r.t, r.relay)
	terminate(r.t, r.target)
	r.checkLeftovers()
}

// load writes one block after another until its session ends.
type load struct {
	stop    atomic.Bool
	stopped chan map[uint64]byte // the content of each block whose write succeeded
	volume  *client.Volume
}

func (r *delayRun) startLoad() *load {
	r.t.Helper()
	v := r.io.open()
	r.io.workload(v)
	l := &load{stopped: make(chan map[uint64]byte, 1), volume: v}
	go func() { l.stopped <- l.run(r.io.blockSize) }()
	r.t.Cleanup(func() { l.stop.Store(true) })
	return l
}

func (l *load) run(size uint32) map[uint64]byte {
	const first, blocks = 16, 64 // other blocks than those of the workload
	written := make(map[uint64]byte)
	results := make([]client.Result, 1)
	for n := uint64(0); !l.stop.Load(); n++ {
		block, fill := first+n%blocks, byte(n)
		delete(written, block)
		copy(l.volume.Memory(), bytes.Repeat([]byte{fill}, int(size)))
		if l.volume.Queue(0).Submit(&client.Request{Type: client.Write, Length: size,
			Offset: block * uint64(size)}) != nil {
			break
		}
		l.volume.Queue(0).Ring()
		for l.volume.Queue(0).Poll(results) == 0 {
			time.Sleep(time.Millisecond) // the load is light
		}
		if results[0].Code != status.Success {
			break
		}
		written[block] = fill
	}
	return written
}

// end waits for the writer, which the end of the session ends as well.
func (l *load) end() map[uint64]byte {
	l.stop.Store(true)
	written := <-l.stopped
	l.volume.Abort()
	return written
}

func requireStrace(t *testing.T) {
	t.Helper()
	testkit.RequireTools(t, "strace")
	if err := exec.Command("strace", "-o", "/dev/null", "true").Run(); err != nil {
		t.Skipf("strace cannot trace here: %v", err)
	}
}

// trace is a run of strace, which records calls in a file.
type trace struct {
	t    testing.TB
	file string
	args []string
	// tracer is the strace that has attached itself, nil if strace started the daemon.
	tracer *testkit.Process
}

func newTrace(t testing.TB, file string, d delay) *trace {
	tr := &trace{t: t, file: file, args: []string{"strace", "-f", "-o", file}}
	if d.call == "" {
		return tr
	}
	effect := fmt.Sprintf("delay_enter=%d", callDelay.Microseconds())
	if d.event == failed {
		effect = fmt.Sprintf("error=%d", failures[d.call])
	}
	tr.args = append(tr.args, "-e", "trace=openat,"+d.call,
		"-e", fmt.Sprintf("inject=%s:%s:when=%d", d.call, effect, d.occurrence))
	return tr
}

// attach traces a running process from now on.
func (tr *trace) attach(pid int) {
	tr.t.Helper()
	args := append(tr.args, "-p", strconv.Itoa(pid))
	tr.tracer = testkit.Start(tr.t, exec.Command(args[0], args[1:]...))
	if !tr.tracer.AwaitLogOrEnd("attached") {
		tr.t.Fatalf("strace cannot attach: %s", tr.tracer.Stderr.String())
	}
}

// stop detaches strace. A strace that started the daemon ends with it.
func (tr *trace) stop() {
	tr.t.Helper()
	if tr.tracer != nil {
		tr.tracer.Signal(syscall.SIGTERM)
		tr.tracer.Wait()
	}
}

// hasOpened reports whether a file with this suffix has been opened.
func (tr *trace) hasOpened(suffix string) bool {
	return bytes.Contains(tr.read(), []byte(suffix+`"`))
}

func (tr *trace) read() []byte {
	tr.t.Helper()
	text, err := os.ReadFile(tr.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		tr.t.Fatal(err)
	}
	return text
}

var tracedCall = regexp.MustCompile(`(?m)^(\d+) +([a-z_0-9]+)\(`)

// counts returns how often the thread that makes a call most has made it.
func (tr *trace) counts() map[string]int {
	tr.t.Helper()
	ofThreads, most := make(map[string]int), make(map[string]int)
	for _, match := range tracedCall.FindAllSubmatch(tr.read(), -1) {
		ofThreads[string(match[0])]++
		call := string(match[2])
		most[call] = max(most[call], ofThreads[string(match[0])])
	}
	return most
}
