// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// neighbours are two channels with a target each. Everything the victim needs runs on core 1,
// everything the disturber needs on core 0, so that they share nothing but the relay. The channels
// "…-shared" share a worker on core 1 as well.
type neighbours struct {
	*chain
	targets map[string]*testkit.Process
	address map[string]string
	listen  netip.Addr // of all targets
}

const (
	disturberCore = 0
	victimCore    = 1
)

func startNeighbours(b *testing.B) *neighbours {
	b.Helper()
	if runtime.NumCPU() <= victimCore {
		b.Skip("needs two cores")
	}
	n := &neighbours{chain: &chain{t: b, dir: b.TempDir()}, targets: map[string]*testkit.Process{},
		address: map[string]string{}, listen: listenAddress(b).Addr()}
	n.startNeighbour("victim", victimCore)
	n.startNeighbour("disturber", disturberCore)
	var channels strings.Builder
	for _, kind := range []string{"", "-shared"} {
		for name, core := range map[string]int{"victim": victimCore, "disturber": disturberCore} {
			fmt.Fprintf(&channels, "  - {name: %s%s, target: %q, volume: disk", name, kind,
				n.address[name])
			if kind == "" {
				fmt.Fprintf(&channels, ", cpus: %d", core)
			}
			channels.WriteString("}\n")
		}
	}
	file := filepath.Join(n.dir, "relay.yaml")
	text := fmt.Sprintf("comch: {directory: %q}\nworkers: {cpus: %d}\nchannels:\n%s",
		n.dir+"/comch", victimCore, channels.String())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	n.relay = spawn(b, "zc-relay", "run", "--config", file)
	testkit.Eventually(b, "all channels are ready",
		func() bool { return strings.Count(n.relay.Stderr.String(), "target is ready") == 4 })
	return n
}

// startNeighbour starts a target, at its former address if it had one.
func (n *neighbours) startNeighbour(name string, core int) {
	n.t.Helper()
	file := filepath.Join(n.dir, name+".address")
	_ = os.Remove(file)
	port := n.address[name][strings.LastIndexByte(n.address[name], ':')+1:]
	if port == "" {
		port = "0"
	}
	n.targets[name] = spawnOn(n.t, core, "target",
		"--listen-address", n.listen.String(), "--listen-port", port,
		"--address-file", file, "--volume", "disk=memory:64MiB", "--cpu", fmt.Sprint(core))
	testkit.Eventually(n.t, name+" listens", func() bool {
		text, err := os.ReadFile(file)
		n.address[name] = strings.TrimSpace(string(text))
		return err == nil
	})
}

func spawnOn(t testing.TB, core int, name string, args ...string) *testkit.Process {
	t.Helper()
	return spawnCommand(t, name, append([]string{"taskset", "-c", fmt.Sprint(core),
		program(t, name)}, args...)...)
}

// read starts random reads of 4 KiB on a channel.
func (n *neighbours) read(core int, channel string, depth int, runtime string) *testkit.Process {
	n.t.Helper()
	return spawnOn(n.t, core, "initiator", "bench", "--command-channel-name", channel,
		"--emulated-dir", filepath.Join(n.dir, "comch"),
		"--rw", "randread", "--block-size", "4KiB", "--queue-depth", fmt.Sprint(depth),
		"--warmup", "300ms", "--runtime", runtime, "--output", "json")
}

// measure returns the latency of the victim's reads in nanoseconds.
func (n *neighbours) measure(channel string) (p50, p99 float64) {
	n.t.Helper()
	p := n.read(victimCore, channel, 1, "2s")
	if code := p.Wait(); code != 0 {
		n.t.Fatalf("the victim's run exited with %d", code)
	}
	var document struct {
		Result struct {
			Latency struct {
				P50 float64 `json:"p50"`
				P99 float64 `json:"p99"`
			} `json:"latency_ns"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(p.Stdout.String()), &document); err != nil {
		n.t.Fatal(err)
	}
	l := document.Result.Latency
	return l.P50, l.P99
}

// flood keeps 256 reads outstanding until stop is called.
func (n *neighbours) flood(channel string) (stop func()) {
	p := n.read(disturberCore, channel, 256, "120s")
	return func() {
		p.Signal(syscall.SIGKILL)
		p.Wait()
	}
}

// killTargets kills and restarts the disturber's target under load until stop is called.
func (n *neighbours) killTargets(channel string) (stop func()) {
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ending:
				return
			default:
			}
			end := n.flood(channel)
			n.targets["disturber"].Signal(syscall.SIGKILL)
			end()
			n.startNeighbour("disturber", disturberCore)
		}
	}()
	return func() {
		close(ending)
		<-ended
	}
}

// BenchmarkLatencyBesideAnotherChannel measures how another channel's flood, or the death of its
// target, affects the latency of a channel.
func BenchmarkLatencyBesideAnotherChannel(b *testing.B) {
	n := startNeighbours(b)
	nothing := func(string) func() { return func() {} }
	for _, kind := range []string{"", "-shared"} {
		for _, disturbance := range []struct {
			name  string
			begin func(channel string) (stop func())
		}{{"alone", nothing}, {"flood", n.flood}, {"dying-target", n.killTargets}} {
			b.Run(disturbance.name+kind, func(b *testing.B) {
				stop := disturbance.begin("disturber" + kind)
				defer stop()
				var p50s, p99s float64
				for range b.N {
					p50, p99 := n.measure("victim" + kind)
					p50s, p99s = p50s+p50, p99s+p99
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(p50s/float64(b.N)/1e3, "µs-p50")
				b.ReportMetric(p99s/float64(b.N)/1e3, "µs-p99")
			})
		}
	}
}
