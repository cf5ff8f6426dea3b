// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// usage is what a daemon uses.
type usage struct {
	descriptors int
	sockets     int // TCP, in all states of the process
	mappings    int
	shared      int // mappings of shared memory
	resident    int // KiB
	goroutines  int
	heap        int            // KiB
	kinds       map[string]int // of descriptors
}

// String returns everything but the kinds of descriptors.
func (u usage) String() string {
	return fmt.Sprintf("%d descriptors, %d TCP sockets, %d mappings (%d shared), %d goroutines, "+
		"%d KiB resident, %d KiB of heap", u.descriptors, u.sockets, u.mappings, u.shared,
		u.goroutines, u.resident, u.heap)
}

// The limits of a channel between bursts, and of the target.
const (
	channelQueues      = 8
	channelOutstanding = 1024
	channelExport      = 256 << 20
	channelRings       = 32 << 20
	stagingLimit       = 256 << 20
)

// Slack of what is not returned exactly: the Go runtime maps memory for its heap, keeps what it has
// freed, and never ends a thread.
const (
	mappingSlack = 64
	heapSlack    = 4 << 10 // KiB
)

var residentSlack = 96 << 10 // KiB

// ringKind is the kind of descriptors of the memory of Comch consumers.
const ringKind = "/memfd:zc-relay-comch-ring (deleted)"

// measure reads /proc. The result has no goroutines and no heap.
func (d *daemon) measure() (usage, error) {
	var u usage
	proc := fmt.Sprintf("/proc/%d", d.Cmd.Process.Pid)
	sockets, err := tcpSockets(proc)
	if err != nil {
		return u, err
	}
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return u, err
	}
	u.descriptors, u.kinds = len(entries), make(map[string]int)
	for _, entry := range entries {
		link, err := os.Readlink(filepath.Join(proc, "fd", entry.Name()))
		u.kinds[strings.TrimRight(link, "0123456789]")]++
		if inode, isSocket := strings.CutPrefix(link, "socket:["); err == nil && isSocket &&
			sockets[strings.TrimSuffix(inode, "]")] {
			u.sockets++
		}
	}
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return u, err
	}
	u.mappings = bytes.Count(maps, []byte("\n"))
	u.shared = bytes.Count(maps, []byte("/memfd:"))
	state, err := os.ReadFile(proc + "/status")
	if err != nil {
		return u, err
	}
	_, resident, _ := strings.Cut(string(state), "VmRSS:")
	_, err = fmt.Sscan(resident, &u.resident)
	return u, err
}

// tcpSockets returns the inodes of all TCP sockets that a process sees.
func tcpSockets(proc string) (map[string]bool, error) {
	inodes := make(map[string]bool)
	for _, file := range []string{"/net/tcp", "/net/tcp6"} {
		text, err := os.ReadFile(proc + file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 9 {
				inodes[fields[9]] = true
			}
		}
	}
	return inodes, nil
}

// timeWait returns how many connections of this test wait in the kernel for stray segments.
func (c *chain) timeWait() (count int) {
	address := c.loopback.As4()
	own := fmt.Sprintf("%02X%02X%02X%02X:", address[3], address[2], address[1], address[0])
	const stateTimeWait = "06"
	text, _ := os.ReadFile("/proc/self/net/tcp")
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == stateTimeWait &&
			(strings.HasPrefix(fields[1], own) || strings.HasPrefix(fields[2], own)) {
			count++
		}
	}
	return count
}

// scrape returns the sums of all series, by metric.
func (d *daemon) scrape() (map[string]float64, error) {
	text, err := fetch(d.scraper, http.MethodGet, "http://"+d.metrics+"/metrics", "")
	if err != nil {
		return nil, err
	}
	sums := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		series, value, found := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(series, "{")
		if v, err := strconv.ParseFloat(value, 64); found && err == nil {
			sums[name] += v
		}
	}
	if sums["go_goroutines"] == 0 {
		return nil, fmt.Errorf("%s: the metrics are incomplete:\n%s", d.Name, text)
	}
	return sums, nil
}

// measureFully is measure with goroutines and heap, after a garbage collection, and the metrics.
func (d *daemon) measureFully() (usage, map[string]float64, error) {
	collect := "http://daemon/debug/pprof/heap?gc=1"
	if _, err := fetch(unixClient(d.admin), http.MethodGet, collect, ""); err != nil {
		return usage{}, nil, err
	}
	metrics, err := d.scrape()
	if err != nil {
		return usage{}, nil, err
	}
	u, err := d.measure()
	u.goroutines = int(metrics["go_goroutines"])
	u.heap = int(metrics["go_memstats_heap_alloc_bytes"]) >> 10
	return u, metrics, err
}

// atRest has the metrics that have a known value when no session is open. The standing connections
// of the relay's channels count as sessions of the targets.
var atRest = map[string]float64{
	"zc_relay_sessions": 0, "zc_relay_sessions_unreleased": 0, "zc_relay_exported_bytes": 0,
	"zc_relay_io_in_flight": 0, "zc_relay_worker_queues": 0, "zc_relay_target_ready": 2,
	"zc_relay_channel_info": 2, "zc_relay_late_wakeups_total": 0,
	"zc_target_sessions": 1, "zc_target_io_in_flight": 0, "zc_target_worker_queues": 0,
	"zc_target_late_wakeups_total": 0,
}

// isAtRest returns an error while the daemon serves anyone.
func (c *chain) isAtRest(metrics map[string]float64) error {
	var errs []error
	for name, want := range atRest {
		if want == 2 && c.tls != (mutualtls.Files{}) {
			want = 1 // without the channel of the fake target
		}
		if got, found := metrics[name]; found && got != want {
			errs = append(errs, fmt.Errorf("%s is %v, want %v", name, got, want))
		}
	}
	return errors.Join(errs...)
}

// measureBaseline measures the daemons at rest until two measurements agree.
func (c *chain) measureBaseline() {
	c.t.Helper()
	for _, d := range []*daemon{c.target, c.relay} {
		c.eventually(d.Name+" is at rest", func() error {
			u, metrics, err := d.measureFully()
			if err := errors.Join(err, c.isAtRest(metrics)); err != nil {
				return err
			}
			if rings := u.kinds[ringKind]; rings > 0 {
				return fmt.Errorf("it has %d rings of clients", rings)
			}
			before := d.baseline
			d.baseline = u
			if u.descriptors != before.descriptors || u.goroutines != before.goroutines {
				return fmt.Errorf("it uses %v, and used %v before", u, before)
			}
			return nil
		})
		c.t.Logf("%s at rest: %v", d.Name, d.baseline)
	}
}

// awaitBaseline waits until the daemons use no more than before the first burst. The relay keeps
// the rings of a client that has gone for a grace period; only with exactly, awaitBaseline waits
// for their end.
func (c *chain) awaitBaseline(exactly bool) {
	c.t.Helper()
	for _, d := range []*daemon{c.target, c.relay} {
		var last error // what was left shortly before
		started := time.Now()
		c.eventually(d.Name+" uses what it did before the bursts", func() error {
			u, metrics, err := d.measureFully()
			if err = errors.Join(err, c.isAtRest(metrics)); err == nil {
				allowed, rings := d.baseline, u.kinds[ringKind]
				if !exactly { // a ring has a descriptor, a mapping, and a goroutine that frees it
					allowed.descriptors += rings
					allowed.shared += rings
					allowed.goroutines += rings
				}
				err = u.exceeds(&allowed)
			}
			if err != nil {
				last = fmt.Errorf("%w; descriptors now: %v, at rest: %v", err, u.kinds,
					d.baseline.kinds)
				return last
			}
			return nil
		})
		took := time.Since(started)
		c.totals.returning = max(c.totals.returning, took)
		if took > time.Second {
			c.t.Logf("%s has returned everything after %v; shortly before: %v", d.Name, took, last)
		}
	}
}

// exceeds returns an error that names what u uses beyond a baseline.
func (u *usage) exceeds(base *usage) error {
	var errs []error
	for _, r := range []struct {
		name       string
		now, bound int
	}{
		{"descriptors", u.descriptors, base.descriptors},
		{"TCP sockets", u.sockets, base.sockets},
		{"shared mappings", u.shared, base.shared},
		{"mappings", u.mappings, base.mappings + mappingSlack},
		{"goroutines", u.goroutines, base.goroutines},
		{"KiB resident", u.resident, base.resident + residentSlack},
		{"KiB of heap", u.heap, base.heap + heapSlack},
	} {
		if r.now > r.bound {
			errs = append(errs, fmt.Errorf("%d %s, at most %d expected", r.now, r.name, r.bound))
		}
	}
	return errors.Join(errs...)
}

// mostOf returns the larger of each value of two measurements.
func mostOf(a, b usage) usage {
	return usage{
		descriptors: max(a.descriptors, b.descriptors), sockets: max(a.sockets, b.sockets),
		mappings: max(a.mappings, b.mappings), shared: max(a.shared, b.shared),
		resident: max(a.resident, b.resident), heap: max(a.heap, b.heap),
		goroutines: max(a.goroutines, b.goroutines),
	}
}

// watch measures the peaks of the daemons until stop is called.
func (c *chain) watch() (stop func()) {
	ending := make(chan struct{})
	var watching sync.WaitGroup
	for _, d := range []*daemon{c.target, c.relay} {
		d.peak = usage{}
		watching.Go(func() {
			for n := 0; ; n++ {
				if u, err := d.measure(); err == nil {
					if n%8 == 0 { // a scrape costs the daemon as much as an attack
						if metrics, err := d.scrape(); err == nil {
							u.goroutines = int(metrics["go_goroutines"])
							u.heap = int(metrics["go_memstats_heap_alloc_bytes"]) >> 10
						}
					}
					d.peak = mostOf(d.peak, u)
				}
				select {
				case <-ending:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	return func() {
		close(ending)
		watching.Wait()
	}
}

// What the documentation allows a daemon per session, per queue, and per outstanding request; see
// "Memory and descriptors" in docs/guides/resources.md. The first two are the relay's, which needs more.
const (
	sessionDescriptors = 6
	queueDescriptors   = 10
	queueMemory        = 512 // KiB
	requestMemory      = 7   // KiB
)

// mostTimeWait is about half of the ports that lead from one address to another.
const mostTimeWait = 14_000

// checkPeaks compares what the daemons have used in a burst with what they may use for as many
// peers. A peer has one session at a time, and its former one may still be ending. What an
// initiator opens beside its queues costs the relay as much as a queue.
func (c *chain) checkPeaks() {
	c.t.Helper()
	sessions := 2 * c.crowd
	queues := sessions * mostConsumers
	descriptors := sessions*sessionDescriptors + queues*queueDescriptors
	resident := queues*queueMemory + sessions*channelOutstanding*requestMemory +
		(channelExport+stagingLimit)>>10
	for _, d := range []*daemon{c.target, c.relay} {
		d.most = mostOf(d.most, d.peak)
		descriptors := d.baseline.descriptors + descriptors
		resident := (d.baseline.resident + resident) * 5 / 4 // a quarter for garbage collection
		if d.peak.descriptors > descriptors || d.peak.resident > resident {
			c.fatalf("%s has used %v for %d peers, at most %d descriptors and %d KiB expected",
				d.Name, d.peak, c.crowd, descriptors, resident)
		}
	}
	waiting := c.timeWait()
	if c.totals.timeWait = max(c.totals.timeWait, waiting); waiting > mostTimeWait {
		c.fatalf("%d connections of the daemons are in TIME_WAIT", waiting)
	}
}
