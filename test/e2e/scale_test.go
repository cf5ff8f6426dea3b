// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// use is what a process occupies.
type use struct {
	residentBytes int
	descriptors   int
	threads       int
	cpu           time.Duration
}

func useOf(b *testing.B, p *testkit.Process) use {
	b.Helper()
	process := filepath.Join("/proc", strconv.Itoa(p.Cmd.Process.Pid))
	text := string(readFile(b, filepath.Join(process, "statm")))
	pages, err := strconv.Atoi(strings.Fields(text)[1])
	if err != nil {
		b.Fatal(err)
	}
	threads, err := os.ReadDir(filepath.Join(process, "task"))
	if err != nil {
		b.Fatal(err)
	}
	return use{residentBytes: pages * os.Getpagesize(), descriptors: p.Descriptors(),
		threads: len(threads), cpu: cpuTime(b, p)}
}

// idleTime is how long n sessions are kept to measure what they cost while they do nothing.
func idleTime(n int) time.Duration {
	return min(10*time.Second, time.Duration(n)*10*time.Millisecond)
}

// BenchmarkSessionsOfATarget measures what sessions cost a target: b.N relays connect at the same
// time and open the volume, as standing connections do, keep the connections for a while, and then
// configure a queue of depth 32. The last step makes no RDMA connections.
func BenchmarkSessionsOfATarget(b *testing.B) {
	c := &chain{t: b, dir: b.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(b)}
	b.Run("plain", func(b *testing.B) { benchmarkSessionsOfATarget(b, c, nil, nil) })
	authority := mutualtlstest.NewAuthority(b)
	files := authority.Write(filepath.Join(c.dir, "target"), []string{c.address.Addr().String()})
	credentials, err := mutualtls.Load(
		authority.Write(filepath.Join(c.dir, "relay"), []string{"relay.test"}), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("TLS", func(b *testing.B) {
		// Only root could otherwise count the descriptors.
		benchmarkSessionsOfATarget(b, c, credentials, append(tlsFlagsOf(files), "--core-dumps"))
	})
}

func benchmarkSessionsOfATarget(
	b *testing.B, c *chain, credentials *mutualtls.Credentials, flags []string,
) {
	c.startTarget(append(flags, "--max-sessions", "16384", "--staging-limit", "64GiB",
		"--max-session-rate", "1000000", "--log-level", "error")...)
	defer c.target.Terminate()
	relays := make([]*controlmsg.Requester, b.N)
	before := useOf(b, c.target)
	b.ResetTimer()
	started := time.Now()
	inParallel(b, b.N, func(i int) error {
		var err error
		relays[i], err = openStanding(b, c.address, credentials)
		return err
	})
	elapsed := time.Since(started)
	b.StopTimer()
	opened := useOf(b, c.target)
	idle := idleTime(b.N)
	time.Sleep(idle)
	kept := useOf(b, c.target)
	inParallel(b, b.N, func(i int) error { return configureQueue(b, relays[i]) })
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

// BenchmarkSessionsOfARelay measures what sessions cost a relay and its target, as on two
// machines: b.N clients open the volume with a queue of depth 32, keep it for a while without IO,
// and b.N others do so with four queues.
func BenchmarkSessionsOfARelay(b *testing.B) {
	c := &chain{t: b, dir: b.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(b)}
	most := fmt.Sprint(4 * b.N)
	c.startTarget("--max-sessions", most, "--max-session-rate", "1000000", "--log-level", "error",
		"--rdma-provider", "iwarp")
	c.relay = c.startRelay("comch", "--max-clients", most, "--rdma-provider", "iwarp")
	volumes := make([]*client.Volume, 2*b.N)
	open := func(i, queues int) error {
		config := c.clientConfig(32)
		config.Queues, config.BufferSize = queues, 64<<10
		var err error
		volumes[i], err = client.Open(testkit.Context(b), config)
		return err
	}
	daemons := []*testkit.Process{c.relay, c.target}
	look := func() (all [2]use) {
		for i, p := range daemons {
			all[i] = useOf(b, p)
		}
		return all
	}
	before := look()
	b.ResetTimer()
	started := time.Now()
	inParallel(b, b.N, func(i int) error { return open(i, 1) })
	elapsed := time.Since(started)
	b.StopTimer()
	opened := look()
	idle := idleTime(b.N)
	time.Sleep(idle)
	kept := look()
	inParallel(b, b.N, func(i int) error { return open(b.N+i, 4) })
	wide := look()
	for _, v := range volumes {
		v.Abort()
	}
	n := float64(b.N)
	b.ReportMetric(n/elapsed.Seconds(), "opened/s")
	for i, p := range daemons {
		memory := float64(kept[i].residentBytes-before[i].residentBytes) / n / 1024
		files := float64(kept[i].descriptors-before[i].descriptors) / n
		queueMemory := (float64(wide[i].residentBytes-kept[i].residentBytes)/n/1024 - memory) / 3
		queueFiles := (float64(wide[i].descriptors-kept[i].descriptors)/n - files) / 3
		for unit, value := range map[string]float64{
			"µs-CPU/opening":      float64((opened[i].cpu - before[i].cpu).Microseconds()) / n,
			"µs-CPU/session/s":    float64((kept[i].cpu - opened[i].cpu).Microseconds()) / n / idle.Seconds(),
			"KiB/session":         memory - queueMemory,
			"KiB/queue":           queueMemory,
			"descriptors/session": files - queueFiles,
			"descriptors/queue":   queueFiles,
		} {
			b.ReportMetric(value, p.Name+"-"+unit)
		}
	}
}

// inParallel calls do n times, 32 at a time.
func inParallel(b *testing.B, n int, do func(int) error) {
	b.Helper()
	var running sync.WaitGroup
	places := make(chan struct{}, 32)
	for i := range n {
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
func openStanding(
	b *testing.B, address netip.AddrPort, credentials *mutualtls.Credentials,
) (*controlmsg.Requester, error) {
	stream, err := network.Kernel{}.Dial(b.Context(), netip.Addr{}, address)
	if err != nil {
		return nil, err
	}
	var transport controlmsg.Transport
	if credentials == nil {
		transport = controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{})
	} else if transport, err = controlmsg.NewTLSClient(b.Context(), stream,
		credentials.Client(address.Addr().String()), controlmsg.TCPConfig{}); err != nil {
		return nil, err
	}
	r := controlmsg.NewRequester(transport,
		controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: testkit.Patience,
			KeepAlive: controlmsg.KeepAliveConfig{Interval: time.Second,
				DeadAfter: testkit.Patience}})
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
