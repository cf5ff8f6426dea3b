// SPDX-License-Identifier: Apache-2.0

//go:build fleet

// Package fleet runs a fleet of daemons on one machine, with a real Prometheus that has the shipped
// rules and scrape configuration, and causes one event after another. Each event has to raise its
// alerts and no others, and nobody but the clients whom it concerns may notice it.
package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// The size of the fleet.
const (
	targetCount  = 3
	relayCount   = 5
	channelCount = 20 // of each relay
	clientCount  = 10 // of each relay, on its first channels
	redundant    = 9  // number of the channel of each relay that has two targets
)

// deadline bounds the whole test.
const deadline = 10 * time.Minute

// fleet is what runs.
type fleet struct {
	t          *testing.T
	ctx        context.Context // ends at the deadline
	dir        string
	authority  *mutualtlstest.Authority
	targets    []*target
	relays     []*relay
	clients    []*client
	small      *channel // whose volume is on a file system that events fill
	prometheus *prometheus
}

func TestAnEventRaisesItsAlertsAndNoOthers(t *testing.T) {
	testkit.RequireTools(t, "prometheus")
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	f := &fleet{t: t, ctx: ctx, dir: t.TempDir(), authority: mutualtlstest.NewAuthority(t)}
	began := time.Now()
	f.start()
	f.startPrometheus()
	f.settle()
	t.Logf("%d targets, %d relays with %d channels each, and %d clients serve after %v",
		len(f.targets), len(f.relays), channelCount, len(f.clients), seconds(time.Since(began)))
	f.logUsage()
	for _, e := range f.events() {
		f.play(e)
	}
	f.logUsage()
	f.endClients()
	for _, r := range f.relays {
		r.Terminate()
	}
	f.logWideRelay()
	for _, g := range f.targets {
		g.Terminate()
	}
}

// start starts all daemons and clients.
func (f *fleet) start() {
	f.t.Helper()
	volumes, small := filepath.Join(f.dir, "volumes"), filepath.Join(f.dir, "small")
	mountMemory(f.t, volumes, "256m")
	mountMemory(f.t, small, "2m")
	for i := range targetCount {
		f.targets = append(f.targets, f.newTarget(fmt.Sprintf("target-%d", i)))
	}
	for i := range relayCount {
		r := f.newRelay(fmt.Sprintf("relay-%d", i))
		f.relays = append(f.relays, r)
		for j := range channelCount {
			c := &channel{relay: r, name: fmt.Sprintf("channel-%02d", j),
				target: f.targets[(i+j)%targetCount], volume: fmt.Sprintf("volume-%d-%02d", i, j),
				representor: representors[j%len(representors)]}
			volume := c.volume + "=" + filepath.Join(volumes, c.volume)
			if j == redundant {
				c.target, c.standby = f.targets[0], f.targets[targetCount-1]
				volume += ",shared=fenced-by-operator"
				c.standby.volumes = append(c.standby.volumes, volume)
			}
			c.target.volumes = append(c.target.volumes, volume)
			r.channels = append(r.channels, c)
		}
	}
	f.small = f.relays[0].channels[0]
	f.small.target.volumes[0] = f.small.volume + "=" + filepath.Join(small, f.small.volume)
	for _, g := range f.targets {
		g.certify(f.authority)
		g.configure()
		g.start()
		g.AwaitLog("listening for relays") // the first target gets the volumes of both
	}
	for _, r := range f.relays {
		r.declare(representors...)
		r.configure()
		r.start()
	}
	for _, r := range f.relays {
		f.awaitReady(r, len(r.channels))
	}
	for _, r := range f.relays {
		for _, c := range r.channels[:clientCount] {
			f.clients = append(f.clients, f.startClient(c))
		}
	}
}

// awaitReady waits until targets serve a number of channels of a relay.
func (f *fleet) awaitReady(r *relay, channels int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d channels of %s are ready", channels, r.name), func() bool {
		if r.HasEnded() {
			f.t.Fatalf("%s has exited", r.name)
		}
		now, err := f.scrape(r)
		return err == nil && now.total("zc_relay_target_ready") == float64(channels)
	})
}

func (c counts) total(name string) (sum float64) {
	for key, value := range c {
		if key[0] == name {
			sum += value
		}
	}
	return sum
}

// settle waits until all channels are ready, all clients make progress, and no alert is active.
func (f *fleet) settle() {
	f.t.Helper()
	for _, r := range f.relays {
		f.awaitReady(r, len(r.channels))
		f.awaitProgress(r)
	}
	var active []labels
	f.awaitOr("no alert is active", func() bool {
		active = f.prometheus.active()
		return len(active) == 0
	}, func() string { return fmt.Sprint(active) })
}

// awaitProgress waits until IO of all clients of a relay has completed since the call.
func (f *fleet) awaitProgress(r *relay) {
	f.t.Helper()
	var before counts
	waiting := slices.DeleteFunc(slices.Clone(f.clients), func(c *client) bool {
		return c.channel.relay != r
	})
	f.awaitOr("clients of "+r.name+" make progress", func() bool {
		now, err := f.scrape(r)
		if err != nil {
			return false
		}
		if before == nil {
			before = now
		}
		waiting = slices.DeleteFunc(waiting, func(c *client) bool {
			if c.HasEnded() {
				f.t.Fatalf("%s has ended", c.Name)
			}
			key := [2]string{"zc_relay_io_bytes_total", c.channel.label()}
			return now[key] > before[key]
		})
		return len(waiting) == 0
	}, func() string {
		var names []string
		for _, c := range waiting {
			names = append(names, c.channel.name)
		}
		return strings.Join(names, ", ")
	})
}

// await waits until a condition holds, or fails at the deadline. what completes "waiting until".
func (f *fleet) await(what string, condition func() bool) {
	f.t.Helper()
	f.awaitOr(what, condition, func() string { return "" })
}

// awaitOr is await with a description of what there is instead.
func (f *fleet) awaitOr(what string, condition func() bool, instead func() string) {
	f.t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-f.ctx.Done():
			f.t.Fatalf("the deadline has passed while waiting until %s: %s", what, instead())
		}
	}
}

// receive waits until a channel is closed.
func (f *fleet) receive(what string, closed <-chan struct{}) {
	f.t.Helper()
	select {
	case <-closed:
	case <-f.ctx.Done():
		f.t.Fatalf("the deadline has passed while waiting until %s", what)
	}
}

func seconds(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// channelsOf returns the channels that a function selects.
func (f *fleet) channelsOf(selects func(*channel) bool) (selected []*channel) {
	for _, r := range f.relays {
		for _, c := range r.channels {
			if selects(c) {
				selected = append(selected, c)
			}
		}
	}
	return selected
}
