// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// logUsage logs the memory and the processor time of each daemon since its start.
func (f *fleet) logUsage() {
	f.t.Helper()
	for _, g := range f.targets {
		f.t.Logf("%-10s %s", g.name, usageOf(g.Process))
	}
	for _, r := range f.relays {
		f.t.Logf("%-10s %s", r.name, usageOf(r.Process))
	}
}

func usageOf(p *testkit.Process) string {
	directory := fmt.Sprintf("/proc/%d/", p.Cmd.Process.Pid)
	text, _ := os.ReadFile(directory + "status")
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	text, _ = os.ReadFile(directory + "stat")
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
	var ticks, started int64
	for _, field := range fields[11:13] { // utime and stime
		var n int64
		_, _ = fmt.Sscan(field, &n)
		ticks += n
	}
	_, _ = fmt.Sscan(fields[19], &started)
	text, _ = os.ReadFile("/proc/uptime")
	var up float64
	_, _ = fmt.Sscan(string(text), &up)
	const perSecond = 100 // USER_HZ, the same on every Linux
	lived := up - float64(started)/perSecond
	return fmt.Sprintf("%s resident, %.1f s of processor in %.0f s (%.1f %%)",
		strings.TrimSpace(line), float64(ticks)/perSecond, lived, float64(ticks)/lived)
}

// logWideRelay logs how long a scrape of a relay with as many channels as all others together
// takes.
func (f *fleet) logWideRelay() {
	f.t.Helper()
	wide := f.newRelay("wide")
	for _, r := range f.relays {
		for _, c := range r.channels {
			wide.channels = append(wide.channels, &channel{relay: wide, target: c.target,
				standby: c.standby, volume: c.volume, name: r.name + "-" + c.name,
				representor: c.representor})
		}
	}
	wide.declare(representors...)
	wide.configure()
	wide.start()
	f.awaitReady(wide, len(wide.channels))
	const scrapes = 20
	var took []time.Duration
	var size int
	for range scrapes {
		began := time.Now()
		text, err := f.fetch("http://" + wide.instance() + "/metrics")
		if err != nil {
			f.t.Fatal(err)
		}
		took = append(took, time.Since(began))
		size = len(text)
	}
	slices.Sort(took)
	f.t.Logf("a scrape of %d channels takes %v to %v, %v in the middle, and has %d bytes",
		len(wide.channels), took[0], took[scrapes-1], took[scrapes/2], size)
	f.t.Logf("%-10s %s", wide.name, usageOf(wide.Process))
	wide.Terminate()
}
