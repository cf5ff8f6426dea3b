// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// place is where a round happens.
type place struct {
	t         *testing.T
	round     *round
	directory string
	file      string // the volume
	journal   *journal

	targetSpace *namespace
	targets     [hosts]*testkit.Process // the second one is a stand-by, if there is one
	relays      []*testkit.Process
	relaySpaces []*namespace
	networks    []*network // the first one is that of the first owner
	stalled     []*network // those that hold bytes
	first, heir *process
	begun       time.Time // the stall

	takingOver sync.WaitGroup
	left       chan struct{} // closed when nobody is to take over any more
	leaving    sync.Once
}

// hosts is how many targets there are at most.
const hosts = 2

func newPlace(t *testing.T, r *round) *place {
	t.Helper()
	directory := makeDirectory(t)
	p := &place{t: t, round: r, directory: directory, journal: &journal{},
		file: filepath.Join(directory, "disk"), targetSpace: newNamespace(t),
		left: make(chan struct{})}
	t.Cleanup(p.stopTakeOver)
	p.awaitTarget(0)
	if r.end.isTakeOver() && p.startTarget(1) {
		t.Fatal("two targets serve the same file")
	}
	relays := 1
	if r.heir == otherRelay || r.heir == livingWriter {
		relays = 2
	}
	for i := range relays {
		p.relaySpaces = append(p.relaySpaces, newNamespace(t))
		toFirst := p.newNetwork(i, 0)
		if i == 0 || r.everywhere {
			p.stalled = append(p.stalled, toFirst)
		}
		if r.end.isTakeOver() {
			p.newNetwork(i, 1)
		}
		p.relays = append(p.relays, nil)
		p.startRelay(i)
	}
	first := owner{Name: "first", Comch: p.comch(0), Exclusive: r.exclusive, Depth: depth,
		BlockSize: r.blockSize, FUA: r.fua, Seed: r.random.Uint64(),
		ReleaseTimeout: time.Millisecond} // the client waits for as long as it has to
	if r.end == relayFrozen || r.end == ownerTimeout {
		first.IOTimeout = ioTimeout
	}
	p.first = p.startOwner(first)
	if r.heir == itself {
		p.heir = p.first
		return p
	}
	p.heir = p.startOwner(owner{Name: "heir", Comch: p.comch(relays - 1),
		Exclusive: r.exclusive, Depth: depth, BlockSize: r.blockSize, FUA: r.fua})
	return p
}

// makeDirectory makes a directory of a round. That of the test has too long a name for sockets.
func makeDirectory(t testing.TB) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "zc-ends-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return directory
}

// ioTimeout is the IO timeout that ends a session.
const ioTimeout = 300 * time.Millisecond

// newNetwork connects a relay to a target.
func (p *place) newNetwork(relay int, h host) *network {
	n := newNetwork(p.t, fmt.Sprintf("relay %d, target %d:", relay, h), p.relaySpaces[relay],
		p.targetSpace, h, p.journal)
	p.networks = append(p.networks, n)
	return n
}

func (p *place) awaitTarget(h host) {
	if !p.startTarget(h) {
		p.t.Fatal("the target has ended")
	}
}

// startTarget starts a target, and waits until it listens. It returns false if the target is a
// stand-by, because another one serves the volume.
func (p *place) startTarget(h host) (serves bool) {
	directory := filepath.Join(p.directory, fmt.Sprint("target", h))
	address := directory + ".address"
	_ = os.Remove(address)
	backend := fmt.Sprintf("disk=file:%s,size=%d", p.file, blocks*p.round.blockSize)
	if p.round.exclusive {
		backend += ",exclusive"
	}
	if p.round.end.isTakeOver() {
		backend += ",shared=fenced-by-operator"
	}
	controlAddress, _, _ := strings.Cut(h.address(controlPort), ":")
	target := p.targetSpace.start(p.t, fmt.Sprint("target-", h),
		exec.Command(testkit.Plain.Program(p.t, "target"), "--listen-address", controlAddress,
			"--listen-port", strconv.Itoa(controlPort), "--rdma-port", strconv.Itoa(dataPort),
			"--rdma-provider", "iwarp", "--volume", backend, "--address-file", address,
			"--metrics-listen", h.address(metricsPort), "--state-directory", directory,
			"--log-level", "debug", "--log-sampling", "0"))
	p.targets[h] = target
	for {
		hasEnded := target.HasEnded()
		if _, err := os.Stat(address); err == nil {
			p.journal.add("target %d listens", h)
			target.AwaitLog("listening for relays") // the address is there before
			return target.HasLogged("serving volume")
		}
		if hasEnded {
			p.t.Errorf("target %d has ended", h)
			return false
		}
		time.Sleep(startPause)
	}
}

// startPause is how often to look whether a target has started, or has taken over.
const startPause = 10 * time.Millisecond

// takeOverAfter sends the first target a signal that ends it. The stand-by then takes over: the
// lock of the file decides when. It does not wait.
func (p *place) takeOverAfter(s syscall.Signal) {
	p.takingOver.Go(func() {
		if !p.sleep(time.Until(p.begun.Add(p.round.delay))) {
			return
		}
		p.journal.add("target 0 gets %v", s)
		p.targets[0].Signal(s)
		for !p.targets[1].HasLogged("this target owns the volume") {
			if !p.sleep(startPause) {
				return
			}
		}
		if !p.round.addressMoves {
			return
		}
		for _, n := range p.networks {
			n.redirect(1)
		}
	})
}

// sleep returns false if nobody is to take over any more.
func (p *place) sleep(pause time.Duration) bool {
	select {
	case <-p.left:
		return false
	case <-time.After(pause):
		return true
	}
}

// stopTakeOver waits until nothing starts the stand-by any more.
func (p *place) stopTakeOver() {
	p.leaving.Do(func() { close(p.left) })
	p.takingOver.Wait()
}

func (p *place) comch(relay int) string {
	return filepath.Join(p.directory, fmt.Sprint("comch", relay))
}

func (p *place) startRelay(i int) {
	targets := host(0).address(controlPort)
	if p.round.end.isTakeOver() {
		targets += "," + host(1).address(controlPort)
	}
	args := []string{"run", "--storage-servers", targets, "--volume", "disk",
		"--emulated-dir", p.comch(i), "--rdma-provider", "iwarp", "--isolation", p.round.isolation,
		"--log-level", "debug", "--log-sampling", "0"}
	if i == 0 && p.round.end >= relayTimeout {
		args = append(args, "--io-timeout", ioTimeout.String())
	}
	p.relays[i] = p.relaySpaces[i].start(p.t, fmt.Sprint("relay-", i),
		exec.Command(testkit.Plain.Program(p.t, "zc-relay"), args...))
	p.relays[i].AwaitLog("listening for clients")
}

func (p *place) startOwner(o owner) *process {
	description, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return startSelf(p.t, o.Name, ownerVariable, string(description), p.journal)
}

// leave ends all processes.
func (p *place) leave() {
	p.stopTakeOver()
	for _, process := range slices.Concat([]*testkit.Process{p.first.Process, p.heir.Process},
		p.targets[:], p.relays) {
		if process != nil {
			process.Kill()
		}
	}
}

// content returns the volume.
func (p *place) content() []byte {
	p.t.Helper()
	content, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	return content
}

// queues returns how many queues are connected to the target that serves the volume.
func (p *place) queues() (n int) {
	http := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return p.targetSpace.dial(p.round.end.lastHost().address(metricsPort))
		}}}
	response, err := http.Get("http://target/metrics")
	if err != nil {
		return -1
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if rest, found := strings.CutPrefix(lines.Text(), "zc_target_connected_queues{"); found {
			_, value, _ := strings.Cut(rest, "} ")
			count, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return -1
			}
			n += int(count)
		}
	}
	return n
}

// journal is what has happened in a round.
type journal struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	at   time.Time
	text string
}

func (j *journal) add(format string, args ...any) { j.addAt(time.Now(), format, args...) }

func (j *journal) addAt(at time.Time, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line{at, fmt.Sprintf(format, args...)})
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	slices.SortStableFunc(j.lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range j.lines {
		fmt.Fprintf(&b, "%s %s\n", l.at.Format("2006-01-02T15:04:05.000000Z07:00"), l.text)
	}
	return b.String()
}

// keepLogs writes the logs of a round that has failed where -keep says.
func (p *place) keepLogs() {
	p.stopTakeOver()
	logs := map[string]string{"journal": p.journal.String(), "first": p.first.Stderr.String(),
		"heir": p.heir.Stderr.String()}
	for i, target := range p.targets {
		if target != nil {
			logs[fmt.Sprint("target-", i)] = target.Stderr.String()
		}
	}
	for i, relay := range p.relays {
		logs[fmt.Sprint("relay-", i)] = relay.Stderr.String()
	}
	keepLogs(p.t, logs)
}

// keepLogs writes the logs of a round, by name, if it has failed.
func keepLogs(t testing.TB, logs map[string]string) {
	if *keep == "" || !t.Failed() && !*keepAll {
		return
	}
	directory := filepath.Join(*keep, strings.ReplaceAll(t.Name(), "/", "."))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Error(err)
		return
	}
	for name, text := range logs {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}
