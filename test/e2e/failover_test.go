// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// The tests of fail-over run in a network namespace of their own, which test/ceph/run.sh makes. Its
// bridge "storage" leads to the cluster. They are not parallel: each cuts the bridges.

const (
	storageBridge = "storage"
	relayBridge   = "relays"
)

// host is a network namespace with a target, like a machine with two ports: one in the network of
// the cluster, and one in that of the relays.
type host struct {
	t       *testing.T
	number  int
	holder  *testkit.Process // keeps the namespace
	command []string         // of the target
	target  *testkit.Process
	taken   int // how often earlier processes of the target have taken the volume over
}

// newHost makes the namespace, and connects it to both bridges.
func newHost(t *testing.T, number int, volume string) *host {
	h := &host{t: t, number: number, holder: spawnCommand(t, "host", "unshare", "--net", "sh", "-c",
		"ip link set lo up && echo up && exec sleep 7200")}
	testkit.Eventually(t, "the namespace exists", func() bool { return h.holder.Stdout.String() != "" })
	for i, bridge := range []string{storageBridge, relayBridge} {
		outside, inside := h.port(bridge), fmt.Sprint("port", i)
		ip(t, "link", "add", "name", outside, "type", "veth", "peer", "name", inside, "netns",
			fmt.Sprint(h.holder.Cmd.Process.Pid))
		t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", outside).Run() })
		ip(t, "link", "set", outside, "master", bridge, "up")
		h.run("ip", "address", "add", fmt.Sprintf("10.73.%d.%d/24", i+1, number), "dev", inside)
		h.run("ip", "link", "set", inside, "up")
	}
	h.command = h.inside(program(t, "target"), "--listen-address", h.address(),
		"--listen-port", "7470", "--volume", volume)
	return h
}

// port returns the outer end of the host's port in the network of a bridge.
func (h *host) port(bridge string) string { return fmt.Sprint(bridge, h.number) }

func (h *host) address() string { return fmt.Sprintf("10.73.2.%d", h.number) }

// inside returns a command that runs another one in the namespace, in the same process.
func (h *host) inside(command ...string) []string {
	return append([]string{"nsenter", "--target", fmt.Sprint(h.holder.Cmd.Process.Pid), "--net",
		"--"}, command...)
}

func (h *host) run(command ...string) {
	h.t.Helper()
	run(h.t, h.inside(command...)...)
}

func ip(t *testing.T, arguments ...string) {
	t.Helper()
	run(t, append([]string{"ip"}, arguments...)...)
}

// run runs a command and returns its standard output.
func run(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, output, &stderr)
	}
	return string(output)
}

func (h *host) start() {
	h.taken = h.takeOvers()
	h.target = spawnCommand(h.t, "target", h.command...)
}

// takeOvers returns how often the target has taken the volume over.
func (h *host) takeOvers() int {
	if h.target == nil {
		return 0
	}
	return h.taken + strings.Count(h.target.Stderr.String(), "this target owns the volume")
}

// cut makes a network lose everything that the host sends or should receive, without a sign, and
// reattach undoes that.
func (h *host) cut(bridge string)      { ip(h.t, "link", "set", h.port(bridge), "nomaster") }
func (h *host) reattach(bridge string) { ip(h.t, "link", "set", h.port(bridge), "master", bridge) }

// site is two hosts whose targets serve one image, and two relays that know both.
type site struct {
	*chain
	t       *testing.T
	hosts   [2]*host
	relays  [2]*testkit.Process
	clients [2]*testkit.Process
	gaps    [2]gap
	random  *rand.Rand
}

// gap is the longest time without a completed IO of a relay's client.
type gap struct{ longest atomic.Int64 } // nanoseconds

func newSite(t *testing.T) *site {
	t.Helper()
	if err := exec.Command("ip", "link", "show", storageBridge).Run(); err != nil {
		t.Fatalf("there is no bridge %q to the cluster: run make test-ceph", storageBridge)
	}
	s := &site{t: t, chain: &chain{t: t, dir: t.TempDir()}, random: seedtest.Random(t, 0)}
	ip(t, "link", "add", "name", relayBridge, "type", "bridge")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", relayBridge).Run() })
	ip(t, "address", "add", "10.73.2.1/24", "dev", relayBridge)
	ip(t, "link", "set", relayBridge, "up")
	volume := newImage(t, "64MiB") + ",takeover"
	var addresses []string
	for i := range s.hosts {
		s.hosts[i] = newHost(t, i+2, volume)
		addresses = append(addresses, strconv.Quote(s.hosts[i].address()+":7470"))
	}
	writeFile(t, s.dir+"/relay.yaml", fmt.Appendf(nil,
		"channels:\n  - {targets: [%s], volume: disk}\n", strings.Join(addresses, ", ")))
	return s
}

func (s *site) startRelays() {
	for i := range s.relays {
		s.relays[i] = spawn(s.t, "zc-relay", "run", "--config", s.dir+"/relay.yaml",
			"--emulated-dir", filepath.Join(s.dir, campaignDirectory(i)),
			"--metrics-listen", "127.0.0.1:0")
	}
}

// startClients starts a verifying client of each relay, on a range of its own.
func (s *site) startClients() {
	for i := range s.clients {
		s.clients[i] = s.initiatorAt(campaignDirectory(i), reconnectingVerify("--overwrite",
			"--queue-depth", "32", "--offset", fmt.Sprintf("%dMiB", 8*i), "--length", "8MiB")...)
	}
	s.awaitIO()
}

// succeeded returns how many IOs of a relay have been successful.
func (s *site) succeeded(relay int) float64 {
	var lines strings.Builder
	for line := range strings.Lines(s.scrape(s.relays[relay])) {
		if strings.Contains(line, `code="SUCCESS"`) {
			lines.WriteString(line)
		}
	}
	return sumMetric(lines.String(), "zc_relay_io_total")
}

// awaitIO waits until both clients have completed IO that they submitted after this call.
func (s *site) awaitIO() {
	s.t.Helper()
	for i := range s.clients {
		before := s.succeeded(i)
		testkit.Eventually(s.t, "IO completes", func() bool {
			select {
			case <-s.clients[i].Ended():
				s.t.Fatal("a client has ended")
			default:
			}
			return s.succeeded(i) > before+500
		})
	}
}

// watchGaps measures the gaps until the test ends.
func (s *site) watchGaps() {
	stop := make(chan struct{})
	done := make(chan struct{}, len(s.gaps))
	for i := range s.gaps {
		go func() {
			defer func() { done <- struct{}{} }()
			last, since := s.succeeded(i), time.Now()
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				now := s.succeeded(i)
				longest := &s.gaps[i].longest
				longest.Store(max(longest.Load(), int64(time.Since(since))))
				if now != last {
					last, since = now, time.Now()
				}
			}
		}()
	}
	s.t.Cleanup(func() {
		close(stop)
		for range s.gaps {
			<-done
		}
	})
}

// has reports whether a target's link has a state at both relays.
func (s *site) has(h *host, state string) bool {
	return !slices.ContainsFunc(s.relays[:], func(relay *testkit.Process) bool {
		for line := range strings.Lines(s.scrape(relay)) {
			if strings.HasPrefix(line, "zc_relay_target_state{") &&
				strings.Contains(line, strconv.Quote(h.address()+":7470")) &&
				strings.Contains(line, strconv.Quote(state)) {
				return false
			}
		}
		return true
	})
}

// roles waits until one target serves and the other is a stand-by, and returns them.
func (s *site) roles() (owner, standBy *host) {
	s.t.Helper()
	testkit.Eventually(s.t, "one target serves, and the other is a stand-by", func() bool {
		for i, h := range s.hosts {
			if s.has(h, "ready") && s.has(s.hosts[1-i], "stand-by") {
				owner, standBy = h, s.hosts[1-i]
				return true
			}
		}
		return false
	})
	return owner, standBy
}

// trap is a client's writes that are in flight when their target is stopped.
type trap struct {
	s        *site
	volume   *client.Volume
	inFlight int
}

const (
	trapOffset = 32 << 20
	trapWrites = 64
	trapLength = 128 << 10
)

func (s *site) trapConfig() client.Config {
	config := s.clientConfig(trapWrites)
	config.Provider = emulated.New(emulated.Options{
		Directory: filepath.Join(s.dir, campaignDirectory(0))})
	config.BufferSize = trapLength
	return config
}

// stopAmidWrites stops a target while writes of another client are in flight.
func (s *site) stopAmidWrites(h *host) *trap {
	config := s.trapConfig()
	v, err := client.Open(testkit.Context(s.t), config)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range v.Memory() {
		v.Memory()[i] = 0x0d
	}
	queue := v.Queue(0)
	for i := range uint64(trapWrites) {
		if err := queue.Submit(&client.Request{Type: client.Write, Length: trapLength,
			Offset: trapOffset + i*trapLength, Memory: i * trapLength, Tag: i}); err != nil {
			s.t.Fatal(err)
		}
	}
	queue.Ring()
	// The writes are on their way, each round elsewhere.
	time.Sleep(time.Duration(s.random.Int64N(int64(30 * time.Millisecond))))
	h.target.Stop()
	// What the target has completed is on its way to the client for a moment.
	results := make([]client.Result, trapWrites)
	inFlight := trapWrites
	for last := time.Now(); time.Since(last) < completionPause; time.Sleep(time.Millisecond) {
		if n := queue.Poll(results); n > 0 {
			inFlight, last = inFlight-n, time.Now()
		}
	}
	return &trap{s: s, volume: v, inFlight: inFlight}
}

// completionPause is how long no write completes before the rest counts as in flight.
const completionPause = 100 * time.Millisecond

// continueFormer fills the range of the writes through the new owner, continues the former one, and
// counts the bytes that differ after the former owner knows that it is none.
func (p *trap) continueFormer(former *host) (ghosts int) {
	t := p.s.t
	p.volume.Abort()
	config := p.s.trapConfig()
	config.SyncDepth = 0
	v, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	want := bytes.Repeat([]byte{0xf1}, trapWrites*trapLength)
	if _, err := v.WriteAt(want, trapOffset); err != nil {
		t.Fatal(err)
	}
	before := strings.Count(former.target.Stderr.String(), "this target has lost the volume")
	former.target.Continue()
	testkit.Eventually(t, "the former owner knows that it is none", func() bool {
		return strings.Count(former.target.Stderr.String(), "this target has lost the volume") >
			before
	})
	got := make([]byte, len(want))
	for end := time.Now().Add(ghostTime); ghosts == 0 && time.Now().Before(end); {
		if _, err := v.ReadAt(got, trapOffset); err != nil {
			t.Fatal(err)
		}
		ghosts = len(got) - bytes.Count(got, []byte{0xf1})
	}
	return ghosts
}

// ghostTime is how long writes of a former owner may take to arrive after it knows that it is none.
const ghostTime = time.Second

// failOverRounds is how often the target fails: 6 rounds are one of each kind. The test with the
// tag soak sets more.
var failOverRounds = 6

// Whatever happens to the target that serves, another one takes its place: nothing that a client
// was told is lost, and nothing that the former target had in flight arrives later.
func TestCephClientsSurviveEveryFailOver(t *testing.T) {
	s := newSite(t)
	checkFences := recordFences(t)
	s.hosts[0].start()
	s.hosts[1].start()
	s.startRelays()
	s.roles()
	s.startClients()
	s.watchGaps()

	var caught *trap
	inFlight, ghosts := 0, 0
	faults := []struct {
		name       string
		begin, end func(owner *host)
	}{
		{"stopped", func(owner *host) { caught = s.stopAmidWrites(owner) }, func(former *host) {
			inFlight += caught.inFlight
			ghosts += caught.continueFormer(former)
		}},
		{"cut off from the cluster",
			func(owner *host) { owner.cut(storageBridge) },
			func(former *host) { former.reattach(storageBridge) }},
		{"cut off from the relays",
			func(owner *host) { owner.cut(relayBridge) },
			func(former *host) { former.reattach(relayBridge) }},
		{"cut off", func(owner *host) {
			owner.cut(storageBridge)
			owner.cut(relayBridge)
		}, func(former *host) {
			former.reattach(storageBridge)
			former.reattach(relayBridge)
		}},
		{"killed", func(owner *host) {
			owner.target.Signal(syscall.SIGKILL)
			owner.target.Wait()
		}, (*host).start},
		{"ended", func(owner *host) { owner.target.Terminate() }, (*host).start},
	}
	outages := make([][]time.Duration, len(faults))
	for round := range failOverRounds {
		kind := round % len(faults)
		owner, standBy := s.roles()
		s.awaitIO()
		taken := standBy.takeOvers()
		for i := range s.gaps {
			s.gaps[i].longest.Store(0)
		}
		faults[kind].begin(owner)
		testkit.Eventually(t, "the other target has taken over", func() bool {
			return standBy.takeOvers() > taken
		})
		s.awaitIO()
		longest := time.Duration(max(s.gaps[0].longest.Load(), s.gaps[1].longest.Load()))
		outages[kind] = append(outages[kind], longest)
		t.Logf("round %d: %s: %v without IO", round, faults[kind].name,
			longest.Round(10*time.Millisecond))
		faults[kind].end(owner)
	}
	for _, run := range s.clients {
		interruptVerify(t, run)
		r := verifyReport(t, run).Result
		if r.LostBlocks > 0 || r.Reconnections.LostWrites > 0 {
			t.Errorf("the result is %+v, reconnections %+v", r, r.Reconnections)
		}
		t.Logf("%d blocks written, %d checked, %d reconnections, %d requests repeated, the longest "+
			"outage %v", r.BlocksWritten, r.BlocksChecked, r.Reconnections.Count,
			r.Reconnections.RepeatedRequests, time.Duration(r.Reconnections.LongestOutageNs).
				Round(10*time.Millisecond))
	}
	for kind, all := range outages {
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		t.Logf("%s: %d times, the median of the outages %v, the longest %v", faults[kind].name,
			len(all), all[(len(all)-1)/2].Round(10*time.Millisecond),
			all[len(all)-1].Round(10*time.Millisecond))
	}
	checkFences()
	t.Logf("%d writes were in flight in stopped targets", inFlight)
	if inFlight == 0 {
		t.Error("no write was in flight in a target that was stopped, so the test has shown nothing")
	}
	if ghosts > 0 {
		t.Errorf("former owners have changed %d bytes after a take-over", ghosts)
	}
}

// recordFences returns a function that fails the test unless former owners have been fenced since,
// each for years.
func recordFences(t *testing.T) (check func()) {
	t.Helper()
	list := func() map[string]string {
		// The program may say how many entries there are, before or after them.
		text := run(t, "ceph", "osd", "blocklist", "ls", "--format", "json")
		var entries []struct{ Addr, Until string }
		start := max(strings.IndexByte(text, '['), 0)
		if err := json.NewDecoder(strings.NewReader(text[start:])).Decode(&entries); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		fences := make(map[string]string)
		for _, e := range entries {
			fences[e.Addr] = e.Until
		}
		return fences
	}
	before := list()
	return func() {
		t.Helper()
		years, added := time.Now().AddDate(9, 0, 0), 0
		for address, until := range list() {
			if before[address] != "" {
				continue
			}
			added++
			if date, _, _ := strings.Cut(until, "T"); date < years.Format(time.DateOnly) {
				t.Errorf("%s is fenced until %s only", address, until)
			}
		}
		if added == 0 {
			t.Error("nobody was fenced")
		}
	}
}

// A former owner that nothing fences overwrites data. This shows that the tests above would notice.
func TestCephFormerOwnersOverwriteDataWithoutTheFence(t *testing.T) {
	s := newSite(t)
	s.hosts[0].start()
	s.hosts[1].start()
	s.startRelays()
	for round := range unfencedRounds {
		owner, standBy := s.roles()
		taken := standBy.takeOvers()
		// A stand-by that stands still until the lock is broken has nobody to fence.
		standBy.target.Stop()
		caught := s.stopAmidWrites(owner)
		address := breakLockWithoutFence(t)
		standBy.target.Continue()
		testkit.Eventually(t, "the other target has taken over", func() bool {
			return standBy.takeOvers() > taken
		})
		ghosts := caught.continueFormer(owner)
		t.Logf("round %d: %d writes in flight, %d bytes changed after the take-over", round,
			caught.inFlight, ghosts)
		if list := run(t, "ceph", "osd", "blocklist", "ls"); strings.Contains(list, address) {
			t.Fatalf("%s was fenced: %s", address, list)
		}
		if ghosts > 0 {
			return
		}
	}
	t.Errorf("no former owner has changed anything in %d take-overs without a fence",
		unfencedRounds)
}

// unfencedRounds bounds the attempts: how much a target has sent when it is stopped varies.
const unfencedRounds = 8

// breakLockWithoutFence takes the lock of the test's image from its owner, and returns the owner's
// address. librbd would also fence the owner.
func breakLockWithoutFence(t *testing.T) string {
	t.Helper()
	image := imagePath(t)
	var locks []struct{ ID, Locker, Address string }
	decode(t, []byte(run(t, "rbd", "lock", "ls", "--format", "json", image)), &locks)
	if len(locks) != 1 {
		t.Fatalf("the locks of image %s are %v", image, locks)
	}
	run(t, "rbd", "lock", "rm", "--rbd_blocklist_on_break_lock=false", image, locks[0].ID,
		locks[0].Locker)
	return locks[0].Address
}

// Two targets that want the same image at the same time agree on one, for as long as it is there.
func TestCephTargetsDoNotTakeTheImageFromEachOther(t *testing.T) {
	s := newSite(t)
	s.startRelays()
	for round := range contestRounds {
		for _, h := range s.hosts {
			h.start()
		}
		owner, _ := s.roles()
		before := [2]int{s.hosts[0].takeOvers(), s.hosts[1].takeOvers()}
		s.startClients()
		time.Sleep(contestTime) // the subject of the test
		for i, h := range s.hosts {
			if after := h.takeOvers(); after != before[i] {
				t.Errorf("round %d: target %d has taken the image over %d times", round, i,
					after-before[i])
			}
		}
		if now, _ := s.roles(); now != owner {
			t.Errorf("round %d: the owner has changed", round)
		}
		for _, run := range s.clients {
			interruptVerify(t, run)
			if r := verifyReport(t, run).Result; r.Reconnections.Count > 0 {
				t.Errorf("round %d: %d reconnections", round, r.Reconnections.Count)
			}
		}
		for _, h := range s.hosts {
			h.target.Signal(syscall.SIGKILL)
			h.target.Wait()
		}
	}
}

// contestRounds is how often two targets start at the same time, contestTime how long they are
// watched each time.
var contestRounds, contestTime = 1, 3 * time.Second
