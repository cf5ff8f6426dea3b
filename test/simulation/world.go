// SPDX-License-Identifier: Apache-2.0

// Package simulation runs initiators, a relay, targets, and disks in one process, on a virtual
// clock and a seeded scheduler.
//
// The programs are the real ones: clients, control machines, lanes, registries, the iWARP provider
// and the emulated Comch provider with its shared memory. Simulated are what is below them: TCP
// (internet), Unix sockets (bus), disks, the turns of data-path threads, and time, which
// testing/synctest makes virtual. In each step the scheduler waits until all goroutines wait, and
// lets one thing happen: a thread takes a turn, bytes arrive, a disk completes a request, an
// application polls, a fault begins, or time passes.
//
// The goroutines that one step wakes run in the order that the Go scheduler picks, and a select
// with several ready cases picks one at random: that is the one thing a seed does not determine.
//
// The applications know what each block may hold, and check every result, every block that is
// written to a disk, and their buffers after each result.
package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// Bounds of a schedule.
const (
	maxChaosSteps = 20_000
	// calmTime is how much virtual time the system gets to recover once all faults have ended.
	calmTime     = 5 * time.Minute
	maxCalmSteps = 400_000
	traceLength  = 4_000
)

type world struct {
	plan   *Plan
	random *rand.Rand
	log    *zap.Logger
	// credentials are those of relays and targets, nil without TLS.
	credentials *mutualtls.Credentials

	internet *internet
	bus      *bus
	disks    []*disk // the volume of each target, and those of the estates
	relays   []*process
	targets  []*process
	alive    []*process
	buried   []*process
	running  sync.WaitGroup // main functions

	applications     []*application
	estates          []*estate
	callers          []*caller
	gateway          *nbdGateway // nil without one
	applicationCount int
	processes        int
	usedBlocks       []int
	stamp            uint64
	restarts         []restart
	flips            int // bits still to invert
	hostile          []*hostileHost
	strangers        []*process
	scratch          []*disk // of the targets, for hostile hosts
	heals            map[[2]netip.Addr]time.Time
	expiredAt        time.Time
	choiceBuffer     []choice
	locks            []*sync.Mutex // of publish
	callerGoroutines int           // of the applications that use blocking methods
	lastFault        time.Time     // when the latest fault of the plan has begun
	faultsLeft       bool          // some of the plan's faults have not begun
	killed           bool          // some process was
	calmed           bool          // all faults have ended, but hostile peers may be left
	ending           bool          // processes that exit are not started again

	steps int
	pause time.Duration // the next step of time

	// productive is set when something has happened that may concern every process.
	productive atomic.Bool
	timePassed bool

	mu          sync.Mutex // guards what goroutines of processes write
	freeThreads []*thread
	violation   error
	history     []string // the last steps
}

// restart is the start of a process that is due.
type restart struct {
	at    time.Time
	start func()
}

// blocksPerDisk has room for the applications of a schedule, newcomers included.
const blocksPerDisk = 256

// run runs a schedule and returns the first violation. It must be called in a synctest bubble.
// Without credentials, there is no TLS.
func (p Plan) run(log *zap.Logger, credentials *mutualtls.Credentials) (w *world) {
	w = &world{
		plan: &p, random: rand.New(rand.NewPCG(p.Seed, 2)), log: log, credentials: credentials,
		internet: newInternet(p.delays()),
		bus:      newBus(), targets: make([]*process, p.Targets),
		usedBlocks: make([]int, p.Targets),
		pause:      minPause,
		relays:     make([]*process, max(p.Relays, 1)),
		scratch:    make([]*disk, p.Targets), heals: make(map[[2]netip.Addr]time.Time),
	}
	before := openDescriptors()
	for i := range p.Targets {
		w.addDisk(fmt.Sprintf("disk%d", i), i, 3)
	}
	w.addEstateDisks()
	w.addGatewayDisk()
	for i := range p.Targets {
		w.startTarget(i)
	}
	for k := range w.relays {
		w.startRelay(k)
	}
	for i := range p.Applications {
		w.startInitiator(i%p.Targets, p.Requests)
	}
	if p.Callers > 0 {
		w.startCaller(0)
	}
	w.addEstates()
	w.addGateway()
	w.chaos()
	w.calm()
	w.newcomers("after all faults")
	w.handOver()
	w.handOverConnections()
	w.shutdown()
	w.checkDescriptors(before)
	return w
}

// dataSecurity returns what relays and targets want for their RDMA connections.
func (w *world) dataSecurity() controlmsg.DataSecurity {
	if w.credentials == nil {
		return controlmsg.DataSecurityOff
	}
	return controlmsg.DataSecurityRequired
}

// addDisk adds a disk of a target.
func (w *world) addDisk(name string, target int, stream uint64) *disk {
	d := newDisk(name, blocksPerDisk, rand.New(rand.NewPCG(w.plan.Seed, stream)))
	d.target = target
	d.inspect = func(block int, data []byte) { w.inspect(d, block, data) }
	w.disks = append(w.disks, d)
	return d
}

// ownedDisks returns the disks that have channels of their own: those of the estates, and of the
// gateway.
func (w *world) ownedDisks() []*disk { return w.disks[w.plan.Targets:] }

// disksOf returns the disks of a target.
func (w *world) disksOf(target int) []*disk {
	var all []*disk
	for _, d := range w.disks {
		if d.target == target {
			all = append(all, d)
		}
	}
	return all
}

// checkDescriptors compares the open descriptors with those before the schedule. Only processes
// that could end by themselves must have closed everything: the threads of a killed one did not run
// when its sessions ended.
func (w *world) checkDescriptors(before map[string]string) {
	left := openDescriptors()
	for descriptor := range before {
		delete(left, descriptor)
	}
	const ownDirectory = 1
	if len(left) > ownDirectory && !w.killed && w.violation == nil {
		w.violate("descriptors are left: %v", left)
	}
	closeDescriptors(left)
}

// stepsPerCheck is how many steps lie between two calls of checkBounds.
const stepsPerCheck = 256

// checkBounds checks that what the programs hold stays within a bound for each peer.
func (w *world) checkBounds() {
	if w.violation != nil {
		return
	}
	for _, resource := range []struct {
		name              string
		count, perProcess int
	}{
		{"goroutines", runtime.NumGoroutine() - w.callerGoroutines, 36},
		{"directions of connections", len(w.internet.network.Flows()), 16},
		{"descriptors", len(descriptorNames()), 48},
	} {
		if bound := resource.perProcess * w.processes; resource.count > bound {
			w.violate("%d %s are more than %d for each of %d processes", resource.count,
				resource.name, resource.perProcess, w.processes)
		}
	}
}

func (w *world) isRelay(p *process) bool { return slices.Contains(w.relays, p) }

// relayAt returns the relay of an address, or the first one.
func (w *world) relayAt(address netip.Addr) *process {
	for _, p := range w.relays {
		if p.address == address {
			return p
		}
	}
	return w.relays[0]
}

func (w *world) inspect(d *disk, block int, data []byte) {
	stamp, _ := identify(data, block)
	var owner *application // of the content, or the latest of the block
	for _, a := range w.applications {
		if a.has(d, block) && (owner == nil || owner.stamps[stamp] == nil) {
			owner = a
		}
	}
	if owner != nil {
		owner.inspect(block, data)
		return
	}
	for _, c := range w.callers {
		if c.inspect(d, block, data) {
			return
		}
	}
	w.violate("block %d of %s belongs to no application", block, d.name)
}

// violate records the first violation.
func (w *world) violate(format string, arguments ...any) {
	if w.violation == nil {
		w.violation = fmt.Errorf("step %d, %v after the start: %s", w.steps, w.elapsed(),
			fmt.Sprintf(format, arguments...))
		w.trace("VIOLATION %v", w.violation)
	}
}

// epoch is when time begins in a synctest bubble.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) elapsed() time.Duration { return time.Since(epoch) }

// tracing is set while a failing plan runs again.
var tracing bool

func (w *world) trace(format string, arguments ...any) {
	if !tracing {
		return
	}
	if len(w.history) == traceLength {
		w.history = slices.Delete(w.history, 0, traceLength/4)
	}
	w.history = append(w.history,
		fmt.Sprintf("%6d %12v  ", w.steps, w.elapsed())+fmt.Sprintf(format, arguments...))
}

// traceText returns the last steps.
func (w *world) traceText() string { return strings.Join(w.history, "\n") }

// chaos runs the applications while the plan's faults happen.
func (w *world) chaos() {
	synctest.Wait()
	faults := w.plan.Faults
	for w.steps < maxChaosSteps && w.violation == nil {
		for len(faults) > 0 && w.isDue(&faults[0]) {
			w.begin(&faults[0])
			w.lastFault = time.Now()
			faults = faults[1:]
			synctest.Wait()
		}
		w.faultsLeft = len(faults) > 0
		if len(faults) == 0 && len(w.internet.holds) == 0 && w.allFinished() {
			return
		}
		w.step()
	}
}

// changesPatience is how many steps a fault waits at most for changes in flight.
const changesPatience = 3000

// isDue reports whether a fault begins now.
func (w *world) isDue(f *Fault) bool {
	switch {
	case w.steps < f.Step || time.Since(w.lastFault) < f.After:
		return false
	case f.Changes == 0 || w.steps >= f.Step+changesPatience:
		return true
	}
	return slices.ContainsFunc(w.estates,
		func(e *estate) bool { return e.present().changesInFlight() >= f.Changes })
}

// calm ends all faults and waits until every application has all its results, while hostile peers
// are still there.
func (w *world) calm() {
	w.faultsLeft, w.calmed = false, true
	for _, p := range w.alive {
		p.thaw()
		p.deafUntil = time.Time{}
	}
	clear(w.internet.cut)
	w.internet.holds = nil
	clear(w.heals)
	w.flips = 0
	for _, d := range w.disks {
		d.errors, d.slowUntil = 0, time.Time{}
		if d.isStalled() {
			d.stalled = time.Now()
		}
	}
	w.await("all requests to be answered", w.allFinished)
	w.newcomers("beside hostile peers")
	for _, h := range w.hostile {
		h.leave(w)
	}
	for _, p := range w.strangers {
		w.kill(p)
		w.bury(p)
	}
	for _, a := range w.applications {
		if a.failure != nil && !a.process.dead && !a.isPassing() && w.violation == nil {
			w.violate("%s: the volume failed for good: %v", a.name, a.failure)
		}
	}
	for _, c := range w.callers {
		if c.failure != nil && !c.process.dead {
			w.violate("%s: the volume failed for good: %v", c.name, c.failure)
		}
	}
	if g := w.gateway; g != nil && g.failure != nil {
		w.violate("%s: the volume failed for good: %v", g.process.name, g.failure)
	}
}

// await runs the schedule until condition holds.
func (w *world) await(what string, condition func() bool) {
	begun, steps := time.Now(), w.steps
	synctest.Wait()
	for !condition() && w.violation == nil {
		if time.Since(begun) > calmTime || w.steps-steps > maxCalmSteps {
			w.violate("no progress: waiting for %s since %v and %d steps: %s", what,
				time.Since(begun), w.steps-steps, w.describe())
			return
		}
		w.step()
	}
}

func (w *world) allFinished() bool {
	return !slices.ContainsFunc(w.applications,
		func(a *application) bool { return !a.finished && !a.process.dead }) &&
		!slices.ContainsFunc(w.callers,
			func(c *caller) bool { return !c.finished.Load() && !c.process.dead }) &&
		!slices.ContainsFunc(w.estates, func(e *estate) bool { return !e.isSettled() }) &&
		(w.gateway == nil || w.gateway.isFinished())
}

// clients returns the processes that use volumes.
func (w *world) clients() []*process {
	var all []*process
	for _, a := range w.applications {
		all = append(all, a.process)
	}
	for _, c := range w.callers {
		all = append(all, c.process)
	}
	if w.gateway != nil {
		all = append(all, w.gateway.process)
	}
	return all
}

// laterNewcomers is how often newcomers uses each channel, newcomerRequests how many requests a
// newcomer has.
const (
	laterNewcomers   = 2
	newcomerRequests = 10
)

// newcomers lets an honest newcomer use each channel.
func (w *world) newcomers(when string) {
	if w.violation != nil {
		return
	}
	first := len(w.applications)
	for c := range w.plan.Targets {
		w.startInitiator(c, newcomerRequests)
	}
	w.await("newcomers to be served "+when, w.allFinished)
	for _, a := range w.applications[first:] {
		if a.failure != nil {
			w.violate("%s, a newcomer %s: %v", a.name, when, a.failure)
		}
	}
}

// shutdown ends all processes: clients, the relay, and targets. Then those that have died before
// get turns again, so that their goroutines end.
func (w *world) shutdown() {
	w.ending = true
	for _, a := range w.applications {
		for slot := range a.slots {
			if !a.process.dead && !a.closing {
				a.checkPoison(slot)
			}
		}
		if w.plan.Heirs > 0 && !a.process.dead && a.openHeir() == nil {
			a.checkDisk()
		}
	}
	for _, p := range w.clients() {
		p.stop()
	}
	if w.gateway != nil {
		defer w.gateway.leave()
	}
	w.await("clients to close", func() bool {
		return !slices.ContainsFunc(w.clients(),
			func(p *process) bool { return !p.dead && !p.exited.Load() })
	})
	for _, p := range w.relays {
		p.stop()
	}
	w.await("the relays to exit", func() bool { return haveExited(w.relays) })
	for _, t := range w.targets {
		t.stop()
	}
	w.await("the targets to exit", func() bool { return haveExited(w.targets) })
	for _, p := range slices.Clone(w.alive) {
		w.bury(p)
	}
	isRunning := func(p *process) bool { return !p.exited.Load() }
	for i := 0; slices.ContainsFunc(w.buried, isRunning); i++ {
		if i > maxCalmSteps {
			panic("simulation: goroutines of dead processes do not end: " + w.describe())
		}
		w.resurrect()
	}
	w.running.Wait()
	w.bus.endLoans(true)
	// Memory is released by timers.
	time.Sleep(time.Minute)
	synctest.Wait()
}

func haveExited(all []*process) bool {
	return !slices.ContainsFunc(all, func(p *process) bool { return !p.exited.Load() })
}

// resurrect gives every waiting thread of the buried processes a turn, and lets arrive what is on
// its way.
func (w *world) resurrect() {
	synctest.Wait()
	busy := w.productive.Swap(false)
	var waiting []*thread
	for _, p := range w.buried {
		busy = p.productive.Swap(false) || busy
		waiting = append(waiting, p.threads...)
		p.threads = nil
	}
	// The goroutines that run from here on change these.
	moving, packets := slices.Clone(w.internet.moving), slices.Clone(w.bus.inFlight)
	dials := slices.Clone(w.internet.dials)
	w.publish()
	for _, t := range waiting {
		t.resume <- struct{}{}
	}
	for _, f := range moving {
		w.internet.deliver(f, window, -1)
	}
	for _, d := range packets {
		w.bus.deliver(d)
	}
	for _, d := range dials {
		w.internet.allow(d)
	}
	if !busy {
		time.Sleep(10 * time.Millisecond)
	}
}

// describe says what everybody is doing, for a schedule that makes no progress.
func (w *world) describe() string {
	var b strings.Builder
	for _, a := range w.applications {
		fmt.Fprintf(&b, "\n  %s: opened %v, finished %v, dead %v, %d left, %d outstanding", a.name,
			a.volume != nil, a.finished, a.process.dead, a.left, len(a.operation))
		for _, o := range a.operation {
			fmt.Fprintf(&b, "\n    %v", o)
		}
	}
	for _, c := range w.callers {
		fmt.Fprintf(&b, "\n  %s: opened %v, finished %v, dead %v", c.name, c.volume.Load() != nil,
			c.finished.Load(), c.process.dead)
	}
	if w.gateway != nil {
		b.WriteString(w.gateway.describe())
	}
	for _, p := range w.alive {
		fmt.Fprintf(&b, "\n  %s: frozen %v, exited %v, %d threads wait", p.name, p.frozen,
			p.exited.Load(), len(p.threads))
	}
	for _, f := range w.internet.network.Flows() {
		if n := f.Buffered(); n > 0 {
			fmt.Fprintf(&b, "\n  %s: %d in flight of %d bytes", describe(f), f.InFlight(), n)
		}
	}
	for _, d := range w.disks {
		if d.opened != nil && len(d.opened.pending) > 0 {
			fmt.Fprintf(&b, "\n  %s: %d requests pending", d.name, len(d.opened.pending))
		}
	}
	return b.String()
}
