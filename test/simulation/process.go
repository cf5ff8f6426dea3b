// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/socketstest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// serverName is the name in the certificates of all processes.
const serverName = "simulation.test"

// process is a run of a program, from its start until it dies or exits. When it dies, its
// goroutines live on in this process, but nothing that they do reaches the world: their connections
// are closed, their disk is detached, and their data-path threads do not get another turn until the
// schedule is over.
type process struct {
	world   *world
	id      int
	name    string
	address netip.Addr
	host    *networktest.Host
	sockets *socketstest.Process
	// passed, if set, is called with each descriptor that the process sends or receives.
	passed func(descriptor int)

	dead        bool
	frozen      bool
	terminated  bool // by SIGTERM, which a frozen process handles when it continues
	frozenUntil time.Time
	deafUntil   time.Time   // it reads nothing from Unix sockets before
	exited      atomic.Bool // its main function has returned
	threads     []*thread
	// productive is set when the process has done or received something, so that its threads, and
	// those it shares memory with, deserve a turn. awake is what follows from that in a step.
	productive atomic.Bool
	awake      bool
	stop       context.CancelFunc // SIGTERM
	restart    func()             // starts the program again; nil if it stays dead

	disk     *openDisk      // of a target, perhaps closed
	estates  []*openDisk    // of a target, with heirs
	target   *target.Target // of a target
	isEnding bool           // the target does not open its disk any more; guarded by world.mu
	relay    *relay.Relay   // of the relay
	// copies have not begun; guarded by world.mu.
	copies []pendingCopy
}

// thread is a data-path thread that waits for its next turn.
type thread struct {
	idle   bool // its last turn did no work
	resume chan struct{}
}

func (w *world) newProcess(name string, address netip.Addr) *process {
	w.processes++
	p := &process{world: w, id: w.processes, name: name, address: address}
	p.host, p.sockets = w.internet.host(p), w.bus.socketsOf(p)
	w.alive = append(w.alive, p)
	return p
}

// step makes a data-path thread wait for its next turn.
func (p *process) step(work int) {
	w := p.world
	w.mu.Lock()
	t := w.newThread()
	t.idle = work == 0
	p.threads = append(p.threads, t)
	if work > 0 {
		p.productive.Store(true)
	}
	w.mu.Unlock()
	<-t.resume
	w.mu.Lock()
	w.freeThreads = append(w.freeThreads, t)
	w.mu.Unlock()
}

// newThread returns a thread that is not in use, perhaps an old one. The caller holds world.mu.
func (w *world) newThread() *thread {
	n := len(w.freeThreads)
	if n == 0 {
		return &thread{resume: make(chan struct{}, 1)}
	}
	t := w.freeThreads[n-1]
	w.freeThreads = w.freeThreads[:n-1]
	return t
}

// sharesMemory reports whether two processes share memory: the relay does with every host.
func (p *process) sharesMemory(other *process) bool {
	w := p.world
	return p.disk == nil && other.disk == nil && (w.isRelay(p) || w.isRelay(other))
}

func (p *process) policy() progress.Policy {
	return progress.Policy{Mode: progress.Stepped, Step: p.step}
}

func (p *process) rdma() rdma.Provider {
	return iwarp.New(iwarp.Options{CRC: p.world.plan.CRC, Network: p.host, Logger: p.log()})
}

func (p *process) comch() comch.Provider {
	return emulated.New(emulated.Options{Sockets: p.sockets, Logger: p.log()})
}

func (p *process) log() *zap.Logger {
	return p.world.log.Named(p.name).WithOptions(zap.WrapCore(
		func(core zapcore.Core) zapcore.Core { return zapcore.NewTee(core, drainJudge{p}) }))
}

// drainJudge is a log that checks that a process without a limit for draining cuts nothing off.
type drainJudge struct{ process *process }

func (drainJudge) Enabled(level zapcore.Level) bool    { return level >= zapcore.InfoLevel }
func (j drainJudge) With([]zapcore.Field) zapcore.Core { return j }
func (drainJudge) Sync() error                         { return nil }

func (j drainJudge) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == "session ended" {
		return checked.AddCore(e, j)
	}
	return checked
}

func (j drainJudge) Write(_ zapcore.Entry, fields []zapcore.Field) error {
	w := j.process.world
	for _, f := range fields {
		reason, _ := f.Interface.(error)
		if f.Key != "error" || status.CodeOf(reason) != status.Shutdown ||
			!strings.Contains(reason.Error(), "(drain)") || !strings.Contains(reason.Error(), "requests") {
			continue
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !j.process.dead && w.plan.DrainTimeout == infinite {
			w.violate("%s cuts off requests although it may drain for ever: %v", j.process.name,
				reason)
		}
	}
	return nil
}

// unpinned returns CPUs for the plan's number of workers.
func (p *process) unpinned() []int {
	cpus := make([]int, p.world.plan.Workers)
	for i := range cpus {
		cpus[i] = datapath.NoCPU
	}
	return cpus
}

// run runs the main function of a process on its goroutine.
func (p *process) run(main func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.world.running.Go(func() {
		err := main(ctx)
		cancel()
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		p.exited.Store(true)
		p.world.productive.Store(true)
		if err != nil && !p.dead {
			p.world.trace("%s exits: %v", p.name, err)
		}
	})
}

// Addresses and names of the world.
const (
	controlPort = 7470
	rdmaPort    = 7471
	volumeName  = "volume"
	device      = emulated.DefaultDevice
	representor = emulated.DefaultRepresentor
)

func relayAddress(k int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + k)}) }

func targetAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}) }

func channelName(i int) string { return fmt.Sprintf("channel%d", i) }

// through returns the name of a channel of relay k. All relays have channels to the same volumes.
func through(k int, channel string) string {
	if k == 0 {
		return channel
	}
	return fmt.Sprintf("relay%d-%s", k+1, channel)
}

// keepAlive returns how relays and targets notice that the other one is silent.
func (p *Plan) keepAlive() controlmsg.KeepAliveConfig {
	return controlmsg.KeepAliveConfig{
		Interval: 200 * time.Millisecond, DeadAfter: cmp.Or(p.SilenceLimit, time.Second),
	}
}

// controlTimeout bounds the steps of handshakes, on all sides.
const controlTimeout = 5 * time.Second

// leaseLength is how long a relay's answer lets it change volumes.
const leaseLength = time.Second

func virtualTime() int64 { return time.Now().UnixNano() }

func (w *world) startTarget(i int) {
	p := w.newProcess(fmt.Sprintf("target%d", i), targetAddress(i))
	p.restart = func() { w.startTarget(i) }
	w.targets[i] = p
	p.disk = w.disks[i].open()
	p.estates = nil
	for _, d := range w.ownedDisks() {
		if d.target == i {
			p.estates = append(p.estates, d.open())
		}
	}
	scratch := newDisk(fmt.Sprintf("scratch%d", i), 64, rand.New(rand.NewPCG(w.plan.Seed, 5)))
	scratch.inspect = func(int, []byte) {}
	scratch.target, w.scratch[i] = i, scratch
	p.run(func(ctx context.Context) error {
		volumes := map[string]target.Offer{
			volumeName: {Volume: p.disk}, scratchChannel: {Volume: scratch.open()},
		}
		for _, d := range p.estates {
			volumes[d.disk.name] = target.Offer{Volume: d, Exclusive: w.plan.Exclusive == ByTarget}
		}
		t, err := target.New(ctx, target.Config{
			RDMA: p.rdma(), Network: p.host, TLS: w.credentials, DataSecurity: w.dataSecurity(),
			Listen:     netip.AddrPortFrom(p.address, controlPort),
			RDMAListen: netip.AddrPortFrom(p.address, rdmaPort),
			Volumes:    volumes,
			CPUs:       p.unpinned(), Policy: p.policy(),
			ControlTimeout: controlTimeout, DrainTimeout: w.plan.drainTimeout(),
			KeepAlive: w.plan.keepAlive(), Lease: leaseLength, Clock: virtualTime, Logger: p.log(),
		})
		if err != nil {
			return err
		}
		w.mu.Lock()
		p.target = t
		w.mu.Unlock()
		if err := t.Run(ctx); err != nil {
			p.log().Error("run", zap.Error(err))
		}
		if err := t.Close(); err != nil {
			return err
		}
		w.mu.Lock()
		p.isEnding = true
		disks := append([]*openDisk{p.disk}, p.estates...)
		w.mu.Unlock()
		for _, d := range disks {
			err = errors.Join(err, d.Close(context.Background()))
		}
		return err
	})
}

// relaySettings returns the settings of relay k.
func (w *world) relaySettings(k int) relay.Settings {
	s := relay.Settings{DrainTimeout: w.plan.drainTimeout()}
	isolation := relay.Direct
	if w.plan.Staged {
		isolation = relay.Staged
	}
	for i := range w.plan.Targets + 1 + len(w.ownedDisks()) {
		name, address, volume := channelName(i), targetAddress(i), volumeName
		if i == w.plan.Targets {
			name, address, volume = scratchChannel, targetAddress(0), scratchChannel
		} else if i > w.plan.Targets {
			d := w.disks[i-1]
			name, address, volume = d.name, targetAddress(d.target), d.name
		}
		s.Channels = append(s.Channels, relay.ChannelConfig{
			ChannelID: relay.ChannelID{
				Device: device, Representor: representor, Name: through(k, name),
			},
			Targets: []netip.AddrPort{netip.AddrPortFrom(address, controlPort)}, Volume: volume,
			TLSServerName: serverName,
			Isolation:     isolation,
			QoS: relay.QoS{
				Channel: datapath.RateLimits{IOPS: 2 * w.plan.IOPS, Burst: 10 * time.Millisecond},
				Session: datapath.RateLimits{
					IOPS: w.plan.IOPS, Bandwidth: uint64(w.plan.IOPS) << 12,
				},
			},
			IOTimeout:      retry.Within(w.plan.RelayIOTimeout),
			ControlTimeout: controlTimeout, KeepAlive: w.plan.keepAlive(),
			Reconnect: retry.Policy{
				FirstPause: 50 * time.Millisecond, LongestPause: 500 * time.Millisecond,
				Random: noJitter,
			},
		})
		if w.gateway != nil && volume == w.gateway.disk.name {
			s.Channels[i].QoS = relay.QoS{Session: datapath.RateLimits{IOPS: w.plan.GatewayIOPS}}
		}
	}
	return s
}

func noJitter() float64 { return 0 }

// startRelay starts relay k.
func (w *world) startRelay(k int) {
	name := "relay"
	if k > 0 {
		name = fmt.Sprintf("relay%d", k+1)
	}
	p := w.newProcess(name, relayAddress(k))
	p.restart = func() { w.startRelay(k) }
	w.relays[k] = p
	p.run(func(ctx context.Context) error {
		r, err := relay.New(ctx, relay.Config{
			Comch: p.comch(), RDMA: p.rdma(),
			DMA: p.dma(), Network: p.host, CPUs: p.unpinned(),
			TLS: w.credentials, DataSecurity: w.dataSecurity(),
			Policy: p.policy(), Clock: virtualTime, Settings: w.relaySettings(k),
			Logger: p.log(),
		})
		if err != nil {
			return err
		}
		w.mu.Lock()
		p.relay = r
		w.mu.Unlock()
		if err := r.Run(ctx); err != nil {
			p.log().Error("run", zap.Error(err))
		}
		return r.Close()
	})
}

// startInitiator starts a program with an application that uses channel c.
func (w *world) startInitiator(c, requests int) {
	relay := w.applicationCount % len(w.relays)
	a := w.newApplication("initiator", relay, w.disks[c], channelName(c), requests)
	a.first = w.usedBlocks[c]
	w.usedBlocks[c] += len(a.blocks)
	a.process.run(a.run)
}

// newApplication returns an application that uses a volume through a relay. Its blocks are zeroes.
func (w *world) newApplication(
	name string, relay int, d *disk, channel string, requests int,
) *application {
	w.applicationCount++
	p := w.newProcess(fmt.Sprintf("%s%d", name, w.applicationCount), relayAddress(relay))
	a := &application{
		world: w, process: p, name: p.name, disk: d, channel: through(relay, channel),
		blocks: make([]block, 4*w.plan.Buffer), queues: w.plan.Queues,
		depth: w.plan.Depth, buffer: w.plan.Buffer, left: requests,
		operation: make(map[uint64]*operation), stamps: make(map[uint64]*operation),
		results: make([]client.Result, 4),
	}
	for i := range a.blocks {
		a.blocks[i].live, a.blocks[i].durable = []uint64{0}, []uint64{0}
	}
	w.applications = append(w.applications, a)
	return a
}

// run is the main function of an application.
func (a *application) run(ctx context.Context) error {
	a.open(ctx)
	if a.volume == nil {
		return a.failure
	}
	<-ctx.Done()
	if a.process.dead {
		a.volume.Abort()
		return nil
	}
	closing, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.world.mu.Lock()
	isLost := a.hasLost()
	a.world.mu.Unlock()
	err := a.volume.Close(closing)
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	a.checkClosed(err, isLost)
	return nil
}

func (a *application) config() client.Config {
	plan := a.world.plan
	c := client.Config{
		Provider: a.process.comch(), Device: representor, ChannelName: a.channel,
		Queues: plan.Queues, Depth: plan.Depth, BufferSize: uint32(plan.Buffer * blockSize),
		SyncDepth: -1, Policy: a.process.policy(),
		ControlTimeout: controlTimeout, IOTimeout: plan.ClientIOTimeout,
		Reconnect: &retry.Policy{
			FirstPause: 20 * time.Millisecond, LongestPause: 500 * time.Millisecond,
			Total: retry.Within(10 * time.Minute), Random: noJitter,
		},
		Logger: a.process.log(),
	}
	if a.ownership != nil {
		a.configure(&c, a.blocking)
	}
	return c
}

// terminate sends SIGTERM.
func (p *process) terminate() {
	if p.frozen {
		p.terminated = true
		return
	}
	p.stop()
}

// thaw lets a frozen process continue.
func (p *process) thaw() {
	p.frozen = false
	if p.terminated {
		p.stop()
	}
}

// kill ends a process as SIGKILL does.
func (w *world) kill(p *process) {
	p.dead, p.frozen = true, false
	w.killed = w.killed || !p.exited.Load()
	p.host.Kill()
	p.sockets.Kill()
	p.stop() // so that its goroutines end once the schedule is over
}

// bury removes a process that has exited or died from the world, and lets the kernel close what it
// has left open.
func (w *world) bury(p *process) {
	for i, other := range w.alive {
		if other == p {
			w.alive = append(w.alive[:i:i], w.alive[i+1:]...)
			w.buried = append(w.buried, p)
		}
	}
	if !p.dead {
		w.kill(p)
	}
	if p.disk == nil {
		return
	}
	p.crashDisks(false)
	for _, a := range w.applications {
		if a.disk.target == p.disk.disk.target {
			a.targetEnded()
		}
	}
}

// crashDisks ends a target's access to its disks.
func (p *process) crashDisks(powerLoss bool) {
	for _, d := range append(p.estates[:len(p.estates):len(p.estates)], p.disk) {
		d.crash(powerLoss)
	}
}
