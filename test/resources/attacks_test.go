// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// honestWithin is for quiet machines: a busy one may need longer.
var honestWithin = flag.Duration("honest-within", 0,
	"fail if an attack makes an honest client wait longer")

// attacker is what an attack holds until it ends.
type attacker struct {
	*chain
	ctx context.Context

	mu   sync.Mutex
	held []func()
}

// hold keeps something until the attack ends.
func (a *attacker) hold(release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = append(a.held, release)
}

func (a *attacker) releaseAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, release := range a.held {
		release()
	}
	a.held = nil
}

// attacks do as much as they can, and return. The honest client is then served while they still
// hold what they have got.
var attacks = []struct {
	name string
	run  func(*attacker)
	tls  bool // also with TLS between relay and target
}{
	{name: "silent connections on every port", run: (*attacker).beSilent, tls: true},
	{name: "garbage on every port", run: (*attacker).sendGarbage, tls: true},
	{name: "reloads that remove and add a channel", run: (*attacker).reloadQuickly, tls: true},
	{name: "bare hellos", run: (*attacker).greetOnly, tls: true},
	{name: "descriptors hoarded behind a stuck one", run: (*attacker).hoard},
	{name: "tiny rings in a loop", run: (*attacker).churnRings},
	{name: "failing configurations of new instances", run: (*attacker).failConfigurations},
	{name: "volumes opened in a loop", run: (*attacker).openForever},
	{name: "a target that leaves behind its open_volume_reply", run: (*attacker).leaveAfterOpening},
}

func TestAttacksHarmNobody(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain text": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startChainWith(t, secure)
			c.seed = warmUpSeed
			if !secure {
				burst(c, warmUpSeed)
			}
			c.serveHonestClient(warmUpSeed)
			c.measureBaseline()
			seed := seedtest.Of(t)
			for i, attack := range attacks {
				if secure && !attack.tls {
					continue
				}
				t.Run(attack.name, func(t *testing.T) { c.undergo(t, seed+uint64(i), attack.run) })
			}
			c.awaitBaseline(true)
		})
	}
}

// undergo checks the daemons during and after an attack.
func (c *chain) undergo(t *testing.T, seed uint64, attack func(*attacker)) {
	ctx, cancel := context.WithTimeout(context.Background(), burstTimeout)
	defer cancel()
	parent := c.t
	c.t, c.seed = t, seed
	defer func() { c.t = parent }()
	a := &attacker{chain: c, ctx: ctx}
	defer a.releaseAll()
	for _, d := range []*daemon{c.target, c.relay} {
		d.peak = usage{}
	}
	stop := c.watch()
	started := time.Now()
	attack(a)
	took := time.Since(started)
	c.serveHonestClient(seed)
	waited := c.honest[len(c.honest)-1]
	stop()
	t.Logf("the attack took %v; an honest client was served within %v; at most: target %v, relay %v",
		took, waited, c.target.peak, c.relay.peak)
	if *honestWithin > 0 && waited > *honestWithin {
		t.Errorf("the honest client was served after %v", waited)
	}
	a.releaseAll()
	c.serveHonestClient(seed)
	c.awaitBaseline(false)
	c.checkLogs()
}

// silentConnections is how many connections of an attack stay silent on each port: more than any of
// the daemons keeps. silentRelays is the same for the target's control port.
const (
	silentConnections = 300
	silentRelays      = 1200
)

func (a *attacker) beSilent() {
	p := &peer{chain: a.chain, random: rand.New(rand.NewPCG(a.seed, 0)), ctx: a.ctx}
	dialer := net.Dialer{Timeout: callTimeout}
	for _, door := range p.doors() {
		count := silentConnections
		if door[1] == a.targetAddress.String() {
			count = silentRelays
		}
		for range count {
			connection, err := dialer.DialContext(a.ctx, door[0], door[1])
			if err != nil {
				break // the daemon accepts no more
			}
			a.hold(func() { _ = connection.Close() })
			_ = connection.SetDeadline(time.Now().Add(callTimeout))
			_, _ = connection.Write([]byte(pick(p.random, beginnings...)))
		}
	}
}

// sendGarbage sends what no protocol allows, at once or after the beginning of a message. Half of
// the connections then stay open, some of them half-closed.
func (a *attacker) sendGarbage() {
	const connections, most = 200, 32 << 10
	p := &peer{chain: a.chain, random: rand.New(rand.NewPCG(a.seed, 0)), ctx: a.ctx}
	garbage := make([]byte, 2*most)
	for i := range garbage {
		garbage[i] = byte(p.random.Uint32())
	}
	dialer := net.Dialer{Timeout: callTimeout}
	for _, door := range p.doors() {
		for i := range connections {
			connection, err := dialer.DialContext(a.ctx, door[0], door[1])
			if err != nil {
				break // the daemon accepts no more
			}
			text := []byte(pick(p.random, beginnings...))
			from := p.random.IntN(most)
			text = append(text, garbage[from:from+1+p.random.IntN(most)]...)
			// A daemon that has had enough closes the connection or does not read.
			_ = connection.SetDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = connection.Write(text)
			if i%2 == 0 {
				_ = connection.Close()
				continue
			}
			if half, ok := connection.(interface{ CloseWrite() error }); ok && i%4 == 1 {
				_ = half.CloseWrite()
			}
			a.hold(func() { _ = connection.Close() })
		}
	}
}

// reloadQuickly removes the channels from the relay's configuration and adds them again, without
// waiting for the relay. The last reload brings back the initial configuration.
func (a *attacker) reloadQuickly() {
	const reloads = 200
	full := a.relayConfiguration(nil)
	empty, _, _ := strings.Cut(full, "channels:\n")
	random := rand.New(rand.NewPCG(a.seed, 0))
	for range reloads {
		for _, text := range []string{empty, full} {
			a.replaceConfiguration(text)
			a.relay.Signal(syscall.SIGHUP)
			time.Sleep(time.Duration(random.ExpFloat64() * float64(2*time.Millisecond)))
		}
	}
}

// greetOnly opens control connections to the target that send no more than a hello.
func (a *attacker) greetOnly() {
	const hellos = 400
	var greeting sync.WaitGroup
	for range hellos {
		stream, err := network.Kernel{}.Dial(a.ctx, a.loopback, a.targetAddress)
		if err != nil {
			a.t.Error(err)
			break
		}
		r := controlmsg.NewRequester(controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{}),
			controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: controlTimeout})
		a.hold(func() { r.Close(nil) })
		greeting.Go(func() { _, _ = r.Greet(a.ctx) })
	}
	greeting.Wait()
}

// connect connects to the relay's channel until it has room.
func (a *attacker) connect() (comch.Connection, error) {
	return a.comch.Connect(a.ctx,
		comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: "disk"})
}

// churnRings opens and closes the smallest consumers, as fast as it can.
func (a *attacker) churnRings() {
	const connections, rings = 8, 300
	var churning sync.WaitGroup
	for range connections {
		churning.Go(func() {
			connection, err := a.connect()
			if err != nil {
				a.t.Error(err)
				return
			}
			a.hold(connection.Abort)
			for range rings {
				consumer, err := connection.NewConsumer(a.ctx,
					comch.ConsumerConfig{Receives: 1, MemorySize: 1})
				if err != nil {
					return // the relay has had enough
				}
				if err := consumer.Close(); err != nil {
					a.t.Error(err)
				}
			}
		})
	}
	churning.Wait()
}

// request makes requests of sessions with the relay until it has made count of them. Each session
// ends when the relay ends it.
func (a *attacker) request(count int, next func(comch.Connection) controlmsg.Message) {
	for made := 0; made < count && a.ctx.Err() == nil; {
		connection, err := a.connect()
		if err != nil {
			a.t.Error(err)
			return
		}
		r := controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
			controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator, Timeout: callTimeout})
		end := func() {
			r.Close(nil)
			connection.Abort()
		}
		_, err = r.Greet(a.ctx)
		for isOpen := err == nil; isOpen && made < count; made++ {
			_, _ = r.Call(a.ctx, next(connection))
			select {
			case <-r.Done():
				isOpen = false
			default:
			}
		}
		if made == count {
			a.hold(end)
			return
		}
		end()
	}
}

func (a *attacker) openForever() {
	a.request(500, func(comch.Connection) controlmsg.Message {
		return &controlmsg.OpenVolume{Volume: "disk"}
	})
}

// failConfigurations configures data paths whose memory the relay cannot import, each time as a new
// client instance.
func (a *attacker) failConfigurations() {
	random, opened := rand.New(rand.NewPCG(a.seed, 0)), comch.Connection(nil)
	a.request(500, func(connection comch.Connection) controlmsg.Message {
		if connection != opened {
			opened = connection
			return &controlmsg.OpenVolume{Volume: "disk"}
		}
		m := &controlmsg.ConfigureDataPath{QueueCount: 1, Depth: 1, BufferSize: blockSize,
			Epoch: a.epochs.Add(1), Export: controlmsg.Export{Descriptor: []byte("none"),
				Length: blockSize, Access: memory.PCIRead | memory.PCIWrite}}
		for i := range m.ClientInstance {
			m.ClientInstance[i] = byte(random.Uint32())
		}
		return m
	})
}

// leaveAfterOpening makes the target of the relay's other channel reset each connection once it has
// described its volume.
func (a *attacker) leaveAfterOpening() {
	a.fake.leaves.Store(true)
	a.hold(func() { a.fake.leaves.Store(false) })
	a.fake.endSessions()
	before, started := a.fake.connections(), time.Now()
	const least = 5
	a.eventually("the relay comes again and again", func() error {
		if n := a.fake.connections() - before; n < least {
			return fmt.Errorf("it has come %d times", n)
		}
		return nil
	})
	// The first attempts follow upon each other faster than the others.
	const free, perSecond = 20, 50
	n, took := a.fake.connections()-before, time.Since(started)
	if n > free+uint64(perSecond*took.Seconds()) {
		a.t.Errorf("the relay has come %d times in %v", n, took)
	}
}
