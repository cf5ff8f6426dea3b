// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// event is what happens to the fleet.
type event struct {
	name     string
	concerns func(*channel) bool // whose sessions may end, and whose IO may fail
	cause    func()
	fires    []labels // each of them has to
	mayFire  []labels // what the load of the moment decides
	mend     func()   // after all alerts have fired
}

// nobody is concerned.
func nobody(*channel) bool { return false }

// events returns all events in their order. A daemon that is started again is another process, so
// each event looks its process up.
func (f *fleet) events() []event {
	a, b, c := f.targets[0], f.targets[1], f.targets[2]
	usesTarget := func(g *target) func(*channel) bool {
		return func(c *channel) bool { return c.target == g }
	}
	usesRelay := func(r *relay) func(*channel) bool {
		return func(c *channel) bool { return c.relay == r }
	}
	frozen, rebooted := f.relays[1], f.relays[2]
	var filler string
	return []event{
		{name: "target killed and started again", concerns: usesTarget(a),
			cause:   func() { a.Kill() },
			fires:   append(f.downWith(a), labels{"alertname": "ZcRelayGone", "instance": a.instance()}),
			mayFire: f.failuresOf(usesTarget(a)),
			mend:    a.start},
		{name: "target stopped and continued", concerns: usesTarget(b),
			cause:   func() { b.Stop() },
			fires:   append(f.downWith(b), labels{"alertname": "ZcRelayGone", "instance": b.instance()}),
			mayFire: f.failuresOf(usesTarget(b)),
			mend:    func() { b.Continue() }},
		{name: "volume full", concerns: func(c *channel) bool { return c == f.small },
			cause: func() {
				filler = fill(f.t, filepath.Join(f.dir, "small"))
				f.verifyNewBlocks(false)
			},
			fires: []labels{
				{"alertname": "ZcTargetVolumeFailures", "instance": f.small.target.instance(),
					"volume": f.small.volume, "cause": "ENOSPC"},
				{"alertname": "ZcTargetIOErrors", "instance": f.small.target.instance(),
					"volume": f.small.volume, "code": "IO_FAILED"},
				{"alertname": "ZcRelayIOErrors", "instance": f.small.relay.instance(),
					"channel": f.small.label(), "code": "IO_FAILED"},
			},
			mend: func() {
				if err := os.Remove(filler); err != nil {
					f.t.Fatal(err)
				}
				f.verifyNewBlocks(true)
			}},
		{name: "certificate about to expire, and renewed", concerns: nobody,
			cause: func() {
				c.certify(f.authority, mutualtlstest.Until(time.Now().Add(72*time.Hour)))
				c.reload()
			},
			fires: []labels{{"alertname": "ZcTLSCertificateExpires", "instance": c.instance()}},
			mend:  func() { f.renew(c) }},
		{name: "certificate that cannot be used, and renewed", concerns: nobody,
			cause: func() {
				c.write("certificate.pem", "not a certificate\n")
				c.reload()
			},
			fires: []labels{{"alertname": "ZcReloadFailed", "instance": c.instance()}},
			mend:  func() { f.renew(c) }},
		{name: "relay frozen and continued", concerns: usesRelay(frozen),
			cause:   func() { frozen.Stop() },
			fires:   []labels{{"alertname": "ZcRelayGone", "instance": frozen.instance()}},
			mayFire: f.failuresOf(usesRelay(frozen)),
			mend:    func() { frozen.Continue() }},
		{name: "representor gone at the start, and back", concerns: usesRelay(rebooted),
			cause: func() {
				rebooted.declare(representors[0])
				rebooted.Terminate()
				rebooted.start()
			},
			fires: f.notOpen(rebooted, representors[1]),
			mend:  func() { rebooted.declare(representors...) }},
		{name: "rolling upgrade with drain",
			concerns: func(*channel) bool { return true },
			cause:    f.upgrade},
	}
}

// downWith returns the alerts of the channels that lose their target.
func (f *fleet) downWith(g *target) (alerts []labels) {
	for _, c := range f.channelsOf(func(c *channel) bool { return c.target == g }) {
		name := "ZcRelayTargetDown"
		if c.standby != nil {
			name = "ZcRelayRedundancyLost"
		}
		alerts = append(alerts, labels{"alertname": name, "instance": c.relay.instance(),
			"channel": c.label(), "target": g.control()})
	}
	return alerts
}

// failuresOf returns the alerts of channels whose IO fails. They have the address of the target,
// or of the one that has taken over.
func (f *fleet) failuresOf(selects func(*channel) bool) (alerts []labels) {
	for _, c := range f.channelsOf(selects) {
		for _, g := range []*target{c.target, c.standby} {
			if g != nil {
				alerts = append(alerts, labels{"alertname": "ZcRelayIOErrors",
					"instance": c.relay.instance(), "channel": c.label(), "target": g.control()})
			}
		}
	}
	return alerts
}

// notOpen returns the alerts of the channels of a relay that lack their representor.
func (f *fleet) notOpen(r *relay, representor string) (alerts []labels) {
	for _, c := range r.channels {
		if c.representor == representor {
			alerts = append(alerts, labels{"alertname": "ZcRelayChannelNotOpen",
				"instance": r.instance(), "channel": c.label()})
		}
	}
	return alerts
}

// verifyNewBlocks lets another client of the small volume write where nobody has written.
func (f *fleet) verifyNewBlocks(succeeds bool) {
	f.t.Helper()
	p := f.verify(f.small, "--offset", "512KiB", "--length", "64KiB", "--passes", "1")
	f.receive(p.Name+" ends", p.Ended())
	r := f.reportOf(p).Result
	if succeeds && (p.Wait() != 0 || r.PassesCompleted != 1) ||
		!succeeds && (p.Wait() == 0 || r.ErrorsByCause["ENOSPC"] == 0) || r.FindingCount != 0 {
		f.t.Errorf("%s: %+v", p.Name, r)
	}
}

// renew gives a target and a relay new certificates, and lets a new client use both.
func (f *fleet) renew(g *target) {
	f.t.Helper()
	r := f.relays[0]
	g.certify(f.authority)
	f.authority.Write(r.dir, []string{r.name + ".example"})
	g.reload()
	r.reload()
	unused := r.channels[clientCount:]
	i := slices.IndexFunc(unused, func(c *channel) bool { return c.target == g })
	p := f.verify(unused[i], "--length", "64KiB", "--passes", "1")
	f.receive(p.Name+" ends", p.Ended())
	if report := f.reportOf(p).Result; p.Wait() != 0 || report.PassesCompleted != 1 {
		f.t.Errorf("%s: %+v", p.Name, report)
	}
}

// upgrade drains and restarts each relay, one after another.
func (f *fleet) upgrade() {
	f.t.Helper()
	for _, r := range f.relays {
		// The clients stay until the relay ends, so the command reports that sessions are open.
		output, err := r.command("drain", "--timeout", "0")
		if err == nil || !strings.Contains(output, "open") {
			f.t.Errorf("drain %s: %v\n%s", r.name, err, output)
		}
		r.Signal(syscall.SIGTERM)
		f.receive(r.name+" ends", r.Ended())
		if code := r.Wait(); code != 0 {
			f.t.Errorf("%s exited with %d after SIGTERM", r.name, code)
		}
		r.start()
		f.awaitReady(r, len(r.channels))
		f.await("all clients of "+r.name+" are back", func() bool {
			now, err := f.scrape(r)
			return err == nil && now.total("zc_relay_sessions") == clientCount
		})
	}
}

// play causes an event, waits for its alerts, mends, and waits until all is well again.
func (f *fleet) play(e event) {
	f.t.Helper()
	before := f.untouched(e)
	start := time.Now()
	e.cause()
	var missing []labels
	f.awaitOr("all alerts of the event fire: "+e.name, func() bool {
		active := f.prometheus.active()
		missing = slices.DeleteFunc(slices.Clone(e.fires), func(pattern labels) bool {
			return slices.ContainsFunc(active, func(l labels) bool {
				return l["alertstate"] == "firing" && l.matches(pattern)
			})
		})
		return len(missing) == 0
	}, func() string { return fmt.Sprintf("missing %v", missing) })
	raised := time.Since(start)
	if e.mend != nil {
		e.mend()
	}
	f.settle()
	over := time.Since(start)
	fired := map[string]int{}
	for _, l := range f.prometheus.firedSince(start) {
		fired[l["alertname"]]++
		if l["alertname"] != ofTheMachine &&
			!slices.ContainsFunc(slices.Concat(e.fires, e.mayFire), l.matches) {
			f.t.Errorf("%s: unexpected alert %v", e.name, l)
		}
	}
	if after := f.untouched(e); !maps.Equal(before, after) {
		for key, value := range after {
			if before[key] != value {
				f.t.Errorf("%s: %v of a channel that it does not concern was %v and is %v", e.name, key,
					before[key], value)
			}
		}
	}
	f.t.Logf("%-45s alerts after %v, over after %v: %v", e.name, seconds(raised), seconds(over), fired)
}

// untouched returns the sessions and failures of all channels with clients that an event does not
// concern.
func (f *fleet) untouched(e event) counts {
	f.t.Helper()
	sums := counts{}
	for _, r := range f.relays {
		var now counts
		for _, c := range r.channels[:clientCount] {
			if e.concerns(c) {
				continue
			}
			if now == nil {
				var err error
				if now, err = f.scrape(r); err != nil {
					f.t.Fatal(err)
				}
			}
			for _, name := range []string{"zc_relay_sessions_total", "zc_relay_io_failures_total"} {
				sums[[2]string{name, r.name + " " + c.name}] = now[[2]string{name, c.label()}]
			}
		}
	}
	return sums
}
