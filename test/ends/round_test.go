package ends

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// end is what ends the session of the first owner.
type end int

const (
	ownerKilled  end = iota
	relayTimeout     // the relay's IO timeout expires
	ownerTimeout     // the client's own IO timeout expires
	relayFrozen      // until after the owner has given up on it
	relayKilled      // and started again if the heir uses the same one
	targetFrozen
	targetKilled // and started again
	ends
)

func (e end) String() string {
	return [ends]string{"owner killed", "IO timeout of relay", "IO timeout of owner", "relay frozen",
		"relay killed", "target frozen", "target killed"}[e]
}

// heir is who writes the same blocks after the end.
type heir int

const (
	sameRelay    heir = iota // opens the volume through the same relay
	otherRelay               // opens it through another relay
	livingWriter             // has it open all the time, through another relay
	itself                   // the first owner opens it again
	heirs
)

func (h heir) String() string {
	return [heirs]string{"same relay", "other relay", "living writer", "itself"}[h]
}

// untilAcknowledged is the length of a stall that ends when the heir's writes are acknowledged.
const untilAcknowledged = time.Duration(0)

// longestStall bounds a stall that ends when the heir's writes are acknowledged.
const longestStall = 15 * time.Second

// round is an end of an owner with requests in flight, and the beginning of an heir.
type round struct {
	end   end
	heir  heir
	stall time.Duration // how long the network holds bytes

	// What follows is drawn.
	held      stall
	answers   bool // also what the target sends
	order     order
	gap       time.Duration // how long the rest of the connections is held longer
	early     bool          // the heir does not wait until the first owner is told
	thawLast  bool          // what is frozen continues after the stall, not before it
	exclusive bool
	fua       bool
	isolation string
	blockSize int
	random    *rand.Rand
}

const (
	blocks = 128 // of the volume; the heir writes the first half
	depth  = 32
)

// draw draws the rest of a round.
func (r *round) draw(seed uint64) {
	r.random = rand.New(rand.NewPCG(seed, uint64(r.end)<<8|uint64(r.heir)<<4))
	flip := func() bool { return r.random.IntN(2) == 0 }
	r.held = stall{ends: flip(), fresh: r.random.IntN(4) == 0 && r.stall != untilAcknowledged}
	r.answers = flip()
	r.order = []order{dataFirst, dataFirst, controlFirst, anyOrder}[r.random.IntN(4)]
	r.gap = []time.Duration{0, 300 * time.Millisecond, time.Second,
		2500 * time.Millisecond}[r.random.IntN(4)]
	r.early, r.thawLast, r.fua = flip(), flip(), flip()
	r.exclusive = r.heir != livingWriter && r.random.IntN(4) == 0
	r.isolation = "direct"
	if r.random.IntN(4) == 0 {
		r.isolation = "staged"
	}
	r.blockSize = []int{4 << 10, 16 << 10, 64 << 10}[r.random.IntN(3)]
}

func (r *round) String() string {
	return fmt.Sprintf("%v, %v, stall %v, ends %v, fresh connections %v, answers %v, %v with gap %v, early %v, thaw last %v, exclusive %v, "+
		"FUA %v, %s, blocks of %d", r.end, r.heir, r.stall, r.held.ends, r.held.fresh, r.answers, r.order, r.gap, r.early,
		r.thawLast, r.exclusive, r.fua, r.isolation, r.blockSize)
}

// outcome is what a round has measured, and found.
type outcome struct {
	told     time.Duration // from the stall until the first owner was told; 0 if it was not
	open     time.Duration // how long the heir's open has taken; 0 if it had the volume open
	findings []string
}

// place is where a round happens.
type place struct {
	t         *testing.T
	round     *round
	directory string
	file      string // the volume
	journal   *journal

	targetSpace *namespace
	target      *testkit.Process
	relays      []*testkit.Process
	relaySpaces []*namespace
	networks    []*network
	first, heir *process
	begun       time.Time // the stall
}

// play plays a round. It begins anew on a machine that is too busy: if the IO timeout expires
// before the stall, or not before the network has delivered everything again.
func (r *round) play(t *testing.T) outcome {
	for {
		p := newPlace(t, r)
		if p.beginStall() {
			if o, played := p.play(); played {
				return o
			}
		}
		p.leave()
	}
}

// beginStall lets the first owner write, and then holds what the relay sends for it. It fails if
// the owner's session has ended before.
func (p *place) beginStall() bool {
	p.journal.add("%v", p.round)
	p.first.order(openCommand, loadCommand)
	if p.round.heir == livingWriter {
		p.heir.order(openCommand)
		p.heir.await(opened)
	}
	is := func(condition func() bool) func() bool {
		return func() bool { return condition() || p.first.has(told) }
	}
	testkit.Eventually(p.t, "the first owner writes",
		is(func() bool { return p.first.has(loading) }))
	p.begun = time.Now()
	p.networks[0].hold(p.round.held)
	testkit.Eventually(p.t, "the network holds requests", is(func() bool {
		return p.networks[0].held() >= depth*p.round.blockSize/2
	}))
	if p.round.answers {
		p.networks[0].holdAnswers()
	}
	return !p.first.has(told)
}

// play plays a round whose stall has begun. It fails if the first owner's session does not end.
func (p *place) play() (o outcome, played bool) {
	defer p.keepLogs()
	t, r, begun := p.t, p.round, p.begun
	acknowledgedByHeir := make(chan struct{})
	toldFirst := make(chan struct{})
	healed := p.healLater(begun, toldFirst, acknowledgedByHeir)
	p.carryOutEnd()

	var after []byte // the volume when the first owner was told
	if r.end != ownerKilled {
		openEarly := r.early && (r.end == relayFrozen || r.end == relayKilled) &&
			r.heir == otherRelay
		if openEarly {
			p.heir.order(openCommand, writeCommand)
		}
		if !p.awaitTold() {
			<-healed
			return o, false
		}
		e := p.first.await(told)
		o.told = e.At.Sub(begun)
		after = p.content()
		close(toldFirst)
		if !openEarly {
			p.startHeir()
		}
	} else {
		p.startHeir()
	}
	before := after // the volume when the heir has opened it
	if r.heir != livingWriter {
		e := p.heir.await(opened)
		o.open = e.At.Sub(p.heir.ordered)
		before = p.content()
	}
	p.heir.await(acknowledged)
	close(acknowledgedByHeir)
	<-healed
	for _, n := range p.networks {
		n.awaitDelivery(t)
	}
	testkit.Eventually(t, "the target has the heir's queue alone, if that", func() bool {
		n := p.queues()
		return n == 0 || n == 1
	})
	final := p.content()
	p.heir.order(readCommand)
	if e := p.heir.await(compared); e.Detail != "" {
		o.findings = append(o.findings, "the heir reads other content than it has written: "+e.Detail)
	}
	o.findings = append(o.findings, r.judge(after, before, final)...)
	p.journal.add("told after %v, opened within %v", o.told, o.open)
	for _, finding := range o.findings {
		p.journal.add("%s", finding)
		t.Errorf("%v: %s", r, finding)
	}
	return o, true
}

// awaitTold waits until the first owner is told that its requests have failed. It returns false if
// the owner goes on instead.
func (p *place) awaitTold() bool {
	written := p.first.events.count(loading)
	testkit.Eventually(p.t, "the first owner is told", func() bool {
		return p.first.has(told) || p.first.events.count(loading) > written
	})
	return p.first.has(told)
}

// judge compares the volume at different times: when the first owner was told, if it was, when the
// heir had opened the volume, and at the end.
func (r *round) judge(told, open, final []byte) (findings []string) {
	want := make([]byte, r.blockSize)
	older, reopened, retold := []string{}, []string{}, []string{}
	for i := range blocks {
		at := func(content []byte) []byte { return content[i*r.blockSize:][:r.blockSize] }
		got := at(final)
		if i < blocks/2 {
			fill(want, writeMark, i, uint64(i+1))
			if !slices.Equal(got, want) {
				older = append(older, fmt.Sprintf("block %d is %s", i, describe(got)))
			}
			continue
		}
		if !slices.Equal(got, at(open)) {
			reopened = append(reopened, fmt.Sprintf("block %d was %s, and is %s", i,
				describe(at(open)), describe(got)))
		}
		if told != nil && !slices.Equal(got, at(told)) {
			retold = append(retold, fmt.Sprintf("block %d was %s, and is %s", i,
				describe(at(told)), describe(got)))
		}
	}
	for _, kind := range []struct {
		what   string
		blocks []string
	}{
		{"older content after the heir's writes were acknowledged", older},
		{"changes after the heir had opened the volume", reopened},
		{"changes after the first owner was told that they had failed", retold},
	} {
		if n := len(kind.blocks); n > 0 {
			findings = append(findings, fmt.Sprintf("%s: %d blocks, the first ones: %s", kind.what, n,
				strings.Join(kind.blocks[:min(n, 3)], "; ")))
		}
	}
	return findings
}

// carryOutEnd makes the first owner's session end.
func (p *place) carryOutEnd() {
	p.journal.add("the end: %v", p.round.end)
	switch p.round.end {
	case ownerKilled:
		p.first.Kill()
	case relayFrozen:
		p.relays[0].Stop()
	case relayKilled:
		p.relays[0].Kill()
		if p.round.heir == sameRelay || p.round.heir == itself {
			p.startRelay(0)
		}
	case targetFrozen:
		p.target.Stop()
	case targetKilled:
		p.target.Kill()
		p.startTarget()
	}
	p.journal.add("the end has been carried out")
}

// startHeir makes the heir open the volume, unless it has done so, and write.
func (p *place) startHeir() {
	if p.round.heir == livingWriter {
		p.heir.order(writeCommand)
	} else {
		p.heir.order(openCommand, writeCommand)
	}
}

// healLater ends the stall when it is time, and continues what is frozen.
func (p *place) healLater(
	begun time.Time, toldFirst, acknowledgedByHeir <-chan struct{},
) (healed chan struct{}) {
	healed = make(chan struct{})
	r := p.round
	go func() {
		defer close(healed)
		if r.end == relayFrozen {
			<-toldFirst
		}
		stall := r.stall
		if r.end == relayTimeout || r.end == ownerTimeout {
			stall += ioTimeout
		}
		if r.stall == untilAcknowledged {
			select {
			case <-acknowledgedByHeir:
			case <-time.After(time.Until(begun.Add(longestStall))):
			}
		} else {
			time.Sleep(time.Until(begun.Add(stall)))
		}
		if !r.thawLast {
			p.thaw()
		}
		p.networks[0].heal(r.order, r.gap, r.random)
		if r.thawLast {
			p.thaw()
		}
	}()
	return healed
}

func (p *place) thaw() {
	switch p.round.end {
	case relayFrozen:
		p.journal.add("the relay continues")
		p.relays[0].Continue()
	case targetFrozen:
		p.journal.add("the target continues")
		p.target.Continue()
	}
}

func newPlace(t *testing.T, r *round) *place {
	t.Helper()
	directory, err := os.MkdirTemp("", "zc-ends-") // that of the test has too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	p := &place{t: t, round: r, directory: directory, journal: &journal{},
		file: filepath.Join(directory, "disk"), targetSpace: newNamespace(t)}
	p.startTarget()
	relays := 1
	if r.heir == otherRelay || r.heir == livingWriter {
		relays = 2
	}
	for i := range relays {
		p.relaySpaces = append(p.relaySpaces, newNamespace(t))
		p.networks = append(p.networks, newNetwork(t, fmt.Sprint("relay ", i), p.relaySpaces[i],
			p.targetSpace, p.journal))
		p.relays = append(p.relays, nil)
		p.startRelay(i)
	}
	first := owner{Name: "first", Comch: p.comch(0), Exclusive: r.exclusive, Depth: depth,
		BlockSize: r.blockSize, FUA: r.fua, Seed: r.random.Uint64(),
		ReleaseTimeout: shortestReleaseTimeout}
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

// ioTimeout is the IO timeout that ends a session, and shortestReleaseTimeout the least that makes
// a client's quarantine outlast the lease of its relay.
const (
	ioTimeout              = 300 * time.Millisecond
	shortestReleaseTimeout = 6100 * time.Millisecond
)

func (p *place) startTarget() {
	address := filepath.Join(p.directory, "address")
	_ = os.Remove(address)
	backend := fmt.Sprintf("disk=file:%s,size=%d", p.file, blocks*p.round.blockSize)
	if p.round.exclusive {
		backend += ",exclusive"
	}
	p.target = p.targetSpace.start(p.t, "target", exec.Command(testkit.Plain.Program(p.t, "target"),
		"--listen-port", strconv.Itoa(controlPort), "--rdma-port", strconv.Itoa(dataPort),
		"--rdma-provider", "iwarp", "--volume", backend, "--address-file", address,
		"--metrics-listen", loopback(metricsPort), "--state-directory", p.directory,
		"--log-level", "debug", "--log-sampling", "0"))
	testkit.Eventually(p.t, "the target listens", func() bool {
		_, err := os.Stat(address)
		return err == nil || p.target.HasEnded()
	})
	if p.target.HasEnded() {
		p.t.Fatal("the target has ended")
	}
}

func (p *place) comch(relay int) string {
	return filepath.Join(p.directory, fmt.Sprint("comch", relay))
}

func (p *place) startRelay(i int) {
	args := []string{"run", "--storage-server", loopback(controlPort), "--volume", "disk",
		"--emulated-dir", p.comch(i), "--rdma-provider", "iwarp", "--isolation", p.round.isolation,
		"--log-level", "debug", "--log-sampling", "0"}
	if i == 0 && p.round.end != ownerKilled && p.round.end != ownerTimeout {
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
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), ownerVariable+"="+string(description))
	input, err := command.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	events := &events{name: o.Name, journal: p.journal}
	command.Stdout = events
	owner := &process{Process: testkit.Start(p.t, command), t: p.t, commands: input, events: events}
	owner.Name = events.name
	return owner
}

// leave ends all processes.
func (p *place) leave() {
	for _, process := range append([]*testkit.Process{p.first.Process, p.heir.Process, p.target},
		p.relays...) {
		process.Kill()
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

// queues returns how many queues are connected to the target.
func (p *place) queues() (n int) {
	http := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return p.targetSpace.dial(metricsPort)
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
	if *keep == "" || !p.t.Failed() && !*keepAll {
		return
	}
	directory := filepath.Join(*keep, strings.ReplaceAll(p.t.Name(), "/", "."))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		p.t.Error(err)
		return
	}
	logs := map[string]string{"journal": p.journal.String(), "target": p.target.Stderr.String(),
		"first": p.first.Stderr.String(), "heir": p.heir.Stderr.String()}
	for i, relay := range p.relays {
		logs[fmt.Sprint("relay-", i)] = relay.Stderr.String()
	}
	for name, text := range logs {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			p.t.Error(err)
		}
	}
}
