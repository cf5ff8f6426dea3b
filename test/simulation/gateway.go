// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// nbdGateway is the program that lets NBD clients use a volume, with the clients. Each connection
// is a client by itself. When one ends, an heir of it begins: a new connection, or one that is
// already there.
type nbdGateway struct {
	world       *world
	disk        *disk
	history     *history
	process     *process // of the present run
	runs        int
	startsAgain time.Time // if the process is dead
	entrance    *entrance
	connections []*connection // of all runs, in the order in which they began
	firstTarget *process
	ends        []*Fault // EndConnection that wait for a change at the disk
	// quietFrom is when the consequences of the latest fault are over.
	quietFrom time.Time

	// What follows is guarded by world.mu.
	serving bool // the present run accepts connections
	failure error
	// noticed has the time, by the clock of the history, at which a run has seen the end of a
	// connection.
	noticed map[string]uint64
	// noticedAt is when it has seen the latest end.
	noticedAt time.Time
}

// Sizes of a gateway.
const (
	exportName    = "disk"
	gatewayBlocks = 48 // that the clients use
	gatewayBuffer = 8 * blockSize
	// bufferPerConnection is less than the clients could use.
	bufferPerConnection = 4 * gatewayBuffer
)

// orphanPatience is how long requests of connections that have ended may last before the gateway
// has its session reopened. After twice that it refuses new clients.
const orphanPatience = 3 * time.Second

// addGatewayDisk adds the disk of the plan's gateway.
func (w *world) addGatewayDisk() {
	if w.plan.Connections > 0 {
		d := w.addDisk("gateway", w.plan.Targets-1, 20)
		w.gateway = &nbdGateway{world: w, disk: d, noticed: make(map[string]uint64)}
		w.gateway.history = newHistory(w.gateway)
		d.inspect = w.gateway.history.inspect
	}
}

// addGateway starts the plan's gateway.
func (w *world) addGateway() {
	if g := w.gateway; g != nil {
		g.firstTarget = w.targets[g.disk.target]
		g.start()
	}
}

// start starts the program.
func (g *nbdGateway) start() {
	w := g.world
	g.runs++
	p := w.newProcess(fmt.Sprintf("gateway%d", g.runs), relayAddress(0))
	g.process, g.entrance, g.serving = p, newEntrance(), false
	w.trace("%s starts", p.name)
	entrance := g.entrance
	p.run(func(ctx context.Context) error { return g.run(ctx, p, entrance) })
	for range w.plan.Connections {
		g.connect(nil)
	}
}

// run is the main function.
func (g *nbdGateway) run(ctx context.Context, p *process, entrance *entrance) error {
	w, plan := g.world, g.world.plan
	log := p.log().WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewTee(core, endsJudge{gateway: g})
	}))
	config := (&application{world: w, process: p, channel: g.disk.name}).config()
	config.Queues, config.Depth = plan.GatewayQueues, plan.GatewayDepth
	config.BufferSize = gatewayBuffer
	sessions := plan.Connections + 1
	config.MemorySize = gateway.MemorySize(sessions, plan.GatewayQueues, bufferPerConnection)
	volume, err := open(ctx, config)
	if err != nil {
		g.fail(p, err)
		return err
	}
	server, err := nbd.NewServer(nbd.Config{
		Workers: plan.GatewayQueues, Policy: p.policy(), MaxConnections: sessions,
		BarrierTimeout: 2 * orphanPatience, Logger: log,
	})
	if err == nil {
		err = g.serve(server, volume, sessions, entrance)
	}
	if err != nil {
		g.fail(p, err)
		return err
	}
	w.mu.Lock()
	if p == g.process {
		g.serving = true
	}
	w.mu.Unlock()
	p.productive.Store(true)
	select {
	case <-ctx.Done():
	case <-volume.Done():
		g.fail(p, volume.Err())
		<-ctx.Done()
	}
	closing, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if p.dead {
		cancel()
		_ = server.Close(closing)
		volume.Abort() // frees the memory that the server uses
		return nil
	}
	err = server.Close(closing)
	if closeErr := volume.Close(closing); !errors.Is(closeErr, client.ErrWritesLost) {
		err = errors.Join(err, closeErr)
	}
	if err != nil && len(plan.Faults) == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.violate("%s: close: %v although there were no faults", p.name, err)
	}
	return nil
}

func (g *nbdGateway) serve(
	server *nbd.Server, volume *client.Volume, sessions int, entrance *entrance,
) error {
	queues := make([]gateway.Queue, g.world.plan.GatewayQueues)
	for i := range queues {
		queues[i] = volume.Queue(i)
	}
	export, err := gateway.New(gateway.Config{
		Volume: volume, Queues: queues, Sessions: sessions, Repeat: true,
		RepeatFor: retry.Forever(), OrphanPatience: orphanPatience,
	})
	if err != nil {
		return err
	}
	return errors.Join(server.AddExport(exportName, export), server.Serve(entrance))
}

func (g *nbdGateway) fail(p *process, err error) {
	g.world.mu.Lock()
	defer g.world.mu.Unlock()
	if !p.dead {
		g.failure = err
	}
}

// endsJudge is a log that notes when a gateway sees that a connection has ended.
type endsJudge struct {
	gateway *nbdGateway
	client  string // of all messages
}

func (endsJudge) Enabled(level zapcore.Level) bool { return level >= zapcore.InfoLevel }
func (endsJudge) Sync() error                      { return nil }

func (j endsJudge) With(fields []zapcore.Field) zapcore.Core {
	for _, f := range fields {
		if f.Key == "client" {
			j.client = f.String
		}
	}
	return j
}

func (j endsJudge) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == "NBD client disconnected" {
		return checked.AddCore(e, j)
	}
	return checked
}

func (j endsJudge) Write(zapcore.Entry, []zapcore.Field) error {
	g := j.gateway
	g.world.mu.Lock()
	defer g.world.mu.Unlock()
	g.noticed[j.client], g.noticedAt = g.history.clock, time.Now()
	g.world.trace("the gateway notices the end of %s", j.client)
	return nil
}

// living returns the connections that have not ended.
func (g *nbdGateway) living() []*connection {
	var all []*connection
	for _, c := range g.connections {
		if !c.isOver() {
			all = append(all, c)
		}
	}
	return all
}

// passOn starts the program again, and lets heirs begin. It reports whether it has done something.
func (g *nbdGateway) passOn() (changed bool) {
	w := g.world
	if g.process.dead {
		for _, c := range g.living() {
			c.hasHeir = true // those of the next run are its heirs
			c.vanish()
		}
		if w.ending || time.Now().Before(g.startsAgain) || w.bus.hasSent(g.process) {
			return false
		}
		g.start()
		return true
	}
	if w.ending {
		return false
	}
	if len(g.ends) > 0 && g.endWriter(g.ends[0]) {
		g.ends, changed = g.ends[1:], true
	}
	for _, c := range g.connections {
		if c.isOver() && !c.hasHeir {
			changed = g.inherit(c) || changed
		}
	}
	return changed
}

// inherit gives a connection that has ended its heir: one that is there, which begins when the
// gateway has seen the end, or else a new one, which begins at once.
func (g *nbdGateway) inherit(c *connection) bool {
	all := g.living()
	if !c.heirIsThere || len(all) == 0 {
		c.hasHeir = true
		g.connect(c)
		return true
	}
	if c.begun > 0 && g.noticed[c.name] == 0 {
		return false
	}
	c.hasHeir = true
	heir := all[c.number%len(all)]
	g.world.trace("%s is the heir of %s", heir.name, c.name)
	heir.takeOver()
	if len(all) < g.world.plan.Connections {
		g.connect(nil) // there are as many as before
	}
	return true
}

// endAs ends a connection as a fault says.
func (c *connection) endAs(f *Fault) {
	variant := f.Subject / 4
	c.heirIsThere = variant%2 == 1
	c.end(manners[variant/2%len(manners)])
}

// endWriter ends the connection of a change that the disk is about to carry out, and makes that
// take as long as the fault says. It reports whether there is one.
func (g *nbdGateway) endWriter(f *Fault) bool {
	if g.disk.opened == nil {
		return false
	}
	writer := func(r *volume.Request) *connection {
		if r.Operation != iomsg.OpWrite {
			return nil
		}
		stamp := binary.LittleEndian.Uint64(r.Buffer)
		if written := g.history.byStamp[stamp]; written != nil && !written.connection.isOver() {
			return written.connection
		}
		return nil
	}
	for _, p := range g.disk.opened.pending {
		c := writer(p.request)
		if c == nil || c.phase != transmitting {
			continue
		}
		until := time.Now().Add(f.For)
		g.disk.delay(func(r *volume.Request) bool { return writer(r) == c }, until)
		g.isQuietFrom(until)
		c.endAs(f)
		return true
	}
	return false
}

// endSessions makes an administrator of the relay or of the target end the session of the gateway.
func (g *nbdGateway) endSessions(atTarget bool) {
	w := g.world
	target, relay := w.targets[g.disk.target], w.relays[0]
	if t := target.target; atTarget && t != nil && !target.dead && !target.frozen {
		for _, s := range t.OpenSessions() {
			if s.Volume == g.disk.name {
				_ = t.EndSession(s.ID)
			}
		}
	}
	if r := relay.relay; !atTarget && r != nil && !relay.dead && !relay.frozen {
		for _, c := range r.Channels() {
			for _, s := range c.OpenSessions {
				if c.Name == g.disk.name {
					_ = r.EndSession(s.ID)
				}
			}
		}
	}
}

// kill ends the program, and with it its connections. It starts again later.
func (g *nbdGateway) kill(until time.Time) {
	if g.process.dead || g.process.exited.Load() {
		return
	}
	g.world.kill(g.process)
	g.startsAgain = until
}

// faultLingers is how long the consequences of a fault may last: a kernel gives a connection up,
// and the programs connect again.
const faultLingers = lossTimeout + 4*time.Second

// isQuietFrom notes when a fault ends.
func (g *nbdGateway) isQuietFrom(end time.Time) {
	if end = end.Add(faultLingers); end.After(g.quietFrom) {
		g.quietFrom = end
	}
}

// begin is called when a fault begins.
func (g *nbdGateway) begin(f *Fault, until time.Time) {
	if f.Kind != EndConnection {
		g.isQuietFrom(until)
	}
	switch f.Kind {
	case EndConnection:
		if f.For > 0 {
			g.ends = append(g.ends, f)
		} else if all := g.living(); len(all) > 0 {
			all[f.Subject%len(all)].endAs(f)
		}
	case EndGateway:
		g.endSessions(f.Subject/g.world.plan.Targets%2 == 1)
	case KillGateway:
		g.kill(until)
	case FreezeGateway:
		g.world.freeze(g.process, until)
	}
}

// expectsFaults reports whether faults are going to happen, which should meet requests.
func (g *nbdGateway) expectsFaults() bool {
	return g.world.faultsLeft || len(g.ends) > 0 && !g.world.calmed
}

// isFinished reports whether all clients have what they want.
func (g *nbdGateway) isFinished() bool {
	if g.process.dead || g.expectsFaults() {
		return false
	}
	return !slices.ContainsFunc(g.connections, func(c *connection) bool {
		if c.isOver() {
			return !c.hasHeir
		}
		return !c.isFinished()
	})
}

// handOverConnections ends all connections of the gateway at a time, with requests in flight, and
// lets an heir follow.
func (w *world) handOverConnections() {
	g := w.gateway
	if g == nil || w.violation != nil {
		return
	}
	for _, c := range g.living() {
		c.left = w.plan.InFlight
	}
	w.await("requests of NBD clients to be in flight", func() bool {
		return !slices.ContainsFunc(g.living(), func(c *connection) bool { return c.left > 0 })
	})
	for i, c := range g.living() {
		c.heirIsThere = false
		c.end(manners[i%len(manners)])
	}
	w.await("the last heirs of NBD clients to be served", w.allFinished)
}

// leave closes what the clients have open.
func (g *nbdGateway) leave() {
	for _, c := range g.living() {
		c.vanish()
	}
}

func (g *nbdGateway) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  %s: serving %v, %v", g.process.name, g.serving, g.failure)
	for _, c := range g.connections {
		if !c.isOver() || !c.hasHeir {
			fmt.Fprintf(&b, "\n  %s: %v, %d left, recovered %d, renewed %d, %d outstanding", c.name,
				c.phase, c.left, c.recovered, c.renewed, len(c.outstanding))
			for _, r := range c.outstanding {
				fmt.Fprintf(&b, "\n    %v", r)
			}
		}
	}
	return b.String()
}
