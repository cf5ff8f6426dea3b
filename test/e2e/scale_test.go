package e2e

import (
	"crypto/rand"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// use is what a process occupies.
type use struct {
	residentBytes int
	descriptors   int
	cpu           time.Duration
}

func useOf(b *testing.B, p *process) use {
	b.Helper()
	text := string(readFile(b, filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "statm")))
	pages, err := strconv.Atoi(strings.Fields(text)[1])
	if err != nil {
		b.Fatal(err)
	}
	return use{residentBytes: pages * os.Getpagesize(), descriptors: descriptors(b, p),
		cpu: cpuTime(b, p)}
}

// BenchmarkSessionsOfATarget measures what sessions cost a target: b.N relays connect at the same
// time and open the volume, as standing connections do, keep the connections for a while, and then
// configure a queue of depth 32. The last step makes no RDMA connections.
func BenchmarkSessionsOfATarget(b *testing.B) {
	c := &chain{t: b, dir: b.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress()}
	c.startTarget("--max-sessions", "16384", "--staging-limit", "64GiB",
		"--max-session-rate", "1000000", "--log-level", "error")
	relays := make([]*controlmsg.Requester, b.N)
	before := useOf(b, c.target)
	b.ResetTimer()
	started := time.Now()
	inParallel(b, relays, func(i int) error {
		var err error
		relays[i], err = openStanding(b, c.address)
		return err
	})
	elapsed := time.Since(started)
	b.StopTimer()
	opened := useOf(b, c.target)
	idle := min(10*time.Second, time.Duration(b.N)*10*time.Millisecond)
	time.Sleep(idle)
	kept := useOf(b, c.target)
	inParallel(b, relays, func(i int) error { return configureQueue(b, relays[i]) })
	configured := useOf(b, c.target)
	for _, r := range relays {
		r.Close(nil)
	}
	n := float64(b.N)
	b.ReportMetric(n/elapsed.Seconds(), "opened/s")
	b.ReportMetric(float64((opened.cpu-before.cpu).Microseconds())/n, "µs-CPU/opening")
	b.ReportMetric(float64(kept.residentBytes-before.residentBytes)/n/1024, "KiB/session")
	b.ReportMetric(float64(kept.descriptors-before.descriptors)/n, "descriptors/session")
	b.ReportMetric(float64((kept.cpu-opened.cpu).Microseconds())/n/idle.Seconds(),
		"µs-CPU/session/s")
	b.ReportMetric(float64(configured.residentBytes-kept.residentBytes)/n/1024, "KiB/queue")
	b.ReportMetric(float64(configured.descriptors-kept.descriptors)/n, "descriptors/queue")
}

// inParallel calls do for each relay, 32 at a time.
func inParallel(b *testing.B, relays []*controlmsg.Requester, do func(int) error) {
	b.Helper()
	var running sync.WaitGroup
	places := make(chan struct{}, 32)
	for i := range relays {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			if err := do(i); err != nil {
				b.Error(err)
			}
		})
	}
	running.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// openStanding connects to a target and opens its volume, as a relay does for a channel.
func openStanding(b *testing.B, address netip.AddrPort) (*controlmsg.Requester, error) {
	stream, err := network.Kernel{}.Dial(b.Context(), netip.Addr{}, address)
	if err != nil {
		return nil, err
	}
	r := controlmsg.NewRequester(controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{}),
		controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: testTimeout,
			KeepAlive: controlmsg.KeepAliveConfig{Interval: time.Second, DeadAfter: testTimeout}})
	if _, err = r.Greet(b.Context()); err == nil {
		_, err = r.Call(b.Context(), &controlmsg.OpenVolume{Volume: "disk"})
	}
	if err != nil {
		r.Close(err)
	}
	return r, err
}

// configureQueue makes the target create a queue. It exports memory that does not exist.
func configureQueue(b *testing.B, r *controlmsg.Requester) error {
	m := &controlmsg.ConfigureDataPath{QueueCount: 1, Depth: 32, BufferSize: 64 << 10, Epoch: 1,
		Export: controlmsg.Export{Access: memory.RemoteRead | memory.RemoteWrite, Length: 1 << 20,
			RDMA: &controlmsg.RDMAExport{Transport: "iwarp"}}}
	_, _ = rand.Read(m.ClientInstance[:]) // never fails
	_, err := r.Call(b.Context(), m)
	return err
}
