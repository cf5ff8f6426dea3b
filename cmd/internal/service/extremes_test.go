// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// event happens to a daemon while a session is open.
type event string

const (
	terminated event = "TERM"
	hungUp     event = "HUP"
	peerLost   event = "lost peer"
	diskFull   event = "full disk"
)

var events = []event{terminated, hungUp, peerLost, diskFull}

// pair is an extreme of a setting of one daemon, and what happens to that daemon.
type pair struct {
	name  string // "target" or "relay"
	key   config.Key
	value string
	event event
}

func (p pair) String() string {
	return fmt.Sprintf("%s %s=%s %s", p.name, p.key.Path, p.value, p.event)
}

var prefixes = map[string]string{"relay": config.RelayPrefix, "target": config.TargetPrefix}

// allPairs generates every pair from the descriptions of the settings.
func allPairs() []pair {
	var all []pair
	for name, keys := range map[string][]config.Key{"relay": config.RelayKeys(),
		"target": config.TargetKeys()} {
		for _, key := range keys {
			for _, value := range key.Extremes {
				for _, e := range events {
					all = append(all, pair{name, key, value, e})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b pair) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// sampledPairs is how many pairs run besides those of the drain; negative for all.
var sampledPairs = 12

// sample returns the pairs to run.
func sample(t *testing.T) []pair {
	t.Helper()
	all := allPairs()
	if len(all) < 400 {
		t.Fatalf("there are only %d pairs", len(all))
	}
	if sampledPairs < 0 {
		return all
	}
	t.Logf("%d of %d pairs", sampledPairs, len(all))
	var chosen []pair
	for _, p := range all {
		if p.key.Path == "shutdown.drain_timeout" && p.value == "infinite" && p.event == terminated {
			chosen = append(chosen, p)
		}
	}
	for _, i := range seedtest.Random(t, 0).Perm(len(all))[:sampledPairs] {
		chosen = append(chosen, all[i])
	}
	return chosen
}

func TestEveryExtremeSurvivesEveryEvent(t *testing.T) {
	for _, p := range sample(t) {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			run := &pairRun{pair: p, site: newSite(t), blockSize: 4096, written: map[uint64]byte{}}
			run.run()
		})
	}
}

// neighbours holds, for keys that another key restricts, a value of the other that fits all.
var neighbours = map[string][2]string{
	"control.keep_alive_dead_after":      {"control.keep_alive_interval", "1ms"},
	"channels.0.reconnect.first_pause":   {"channels.0.reconnect.longest_pause", "8760h"},
	"channels.0.reconnect.longest_pause": {"channels.0.reconnect.first_pause", "1ms"},
}

// missing holds settings for which this build or this machine has nothing to offer.
var missing = map[string]bool{"rdma.provider=verbs": true, "rdma.provider=doca": true,
	"comch.provider=doca": true}

// restrictive holds settings with which the daemon may reject or end any session.
var restrictive = map[string]bool{
	"control.timeout=10ms":                  true,
	"control.keep_alive_dead_after=1ms":     true,
	"channels.0.io_timeout=1ms":             true,
	"channels.0.io_timeout=1.000001ms":      true,
	"channels.0.limits.buffer_size=512":     true,
	"channels.0.limits.export=4KiB":         true,
	"channels.0.reconnect.attempts=0":       true,
	"channels.0.reconnect.give_up_after=0s": true, "channels.0.reconnect.give_up_after=1ns": true,
	"channels.0.reconnect.session_wait=0s": true, "channels.0.reconnect.session_wait=1ns": true,
}

func (p pair) setting() string { return p.key.Path + "=" + p.value }

func (p pair) isRestrictive() bool {
	// A relay needs one of the target's sessions for itself. The clients and targets of
	// the pairs speak the native protocol only.
	return restrictive[p.setting()] || p.name == "target" && p.setting() == "limits.sessions=1" ||
		strings.HasPrefix(p.setting(), "channels.0.protocol=doca-")
}

func (p pair) environ() []string {
	environ := []string{p.key.Variable(prefixes[p.name]) + "=" + p.value}
	if n, ok := neighbours[p.key.Path]; ok {
		environ = append(environ, config.Key{Path: n[0]}.Variable(prefixes[p.name])+"="+n[1])
	}
	if p.key.Path == "rdma.provider" { // which the other daemon must have, too
		for _, prefix := range prefixes {
			environ = append(environ, p.key.Variable(prefix)+"="+p.value)
		}
	}
	return environ
}

// pairRun runs one pair.
type pairRun struct {
	pair
	*site
	blockSize uint32
	written   map[uint64]byte // the content of each block whose write succeeded
}

func (r *pairRun) run() {
	r.t.Helper()
	if r.setting() == "volumes.0.block_size=1MiB" {
		r.blockSize = 1 << 20
	}
	if r.event == diskFull {
		r.faults = []string{"--allow-faults", "--fault", "volume:write:after=2:error=IO_FAILED"}
	}
	ended := r.start(r.environ()...)
	if invalid := r.loads(r.name, r.environ()); invalid != nil || missing[r.setting()] {
		code := 1 // what is missing may be there at the next start
		if invalid != nil {
			code = 2
		}
		if ended == nil || ended.Cmd.ProcessState.ExitCode() != code || !ended.HasLogged(r.value) {
			r.t.Errorf("%s, which cannot be used, is not rejected as such (%v)", r.setting(), invalid)
		}
		return
	}
	if ended != nil {
		r.t.Fatalf("%s exited with %d at its start", ended.Name,
			ended.Cmd.ProcessState.ExitCode())
	}
	tested, other := r.relay, r.target
	if r.name == "target" {
		tested, other = other, tested
	}
	idle := tested.Descriptors()
	v := r.open()
	r.workload(v)
	switch r.event {
	case hungUp:
		r.configure("debug")
		tested.Signal(syscall.SIGHUP)
		if !tested.AwaitLogOrEnd("reloaded") {
			r.t.Error("the daemon ended at a reload")
		}
		r.write(v, 3)
		if v != nil && !r.isRestrictive() {
			v = r.replace(v)
			r.checkDescriptors(tested, idle)
		}
	case peerLost:
		other.Signal(syscall.SIGKILL)
		other.Wait()
		r.awaitLoss(v)
	case diskFull:
		if code := r.write(v, 2); code != status.IOFailed && !r.isRestrictive() {
			r.t.Errorf("a write to a full disk completed with %v", code)
		}
	}
	r.end(v, tested, other)
}

// end ends the daemons, the tested one with a write in flight, and checks what is left.
func (r *pairRun) end(v *client.Volume, tested, other *testkit.Process) {
	r.t.Helper()
	inFlight := v != nil && r.event == terminated && r.submit(v, 3)
	terminate(r.t, tested)
	if inFlight {
		r.complete(v, 3)
	}
	r.awaitLoss(v)
	if v != nil {
		v.Abort()
	}
	if !other.HasEnded() {
		terminate(r.t, other)
	}
	if r.target.Cmd.ProcessState.ExitCode() == 0 &&
		!r.target.HasLogged("flushed and closed volume") {
		r.t.Error("the target ended without a last flush")
	}
	content, err := os.ReadFile(r.path("disk.img"))
	if err != nil {
		r.t.Fatal(err)
	}
	for block, fill := range r.written {
		at := block * uint64(r.blockSize)
		if want := bytes.Repeat([]byte{fill}, int(r.blockSize)); !bytes.Equal(
			content[at:at+uint64(r.blockSize)], want) {
			r.t.Errorf("block %d, whose write completed, is not in the volume", block)
		}
	}
	r.checkLeftovers()
}

// sessions is how many sessions must not leave a descriptor each.
const sessions = 24

// replace closes the volume and opens it again, many times.
func (r *pairRun) replace(v *client.Volume) *client.Volume {
	r.t.Helper()
	for range sessions {
		if err := v.Close(r.t.Context()); err != nil {
			r.t.Fatalf("the volume cannot be closed: %v", err)
		}
		v = r.open()
	}
	return v
}

// checkDescriptors fails if the sessions before the open one have left descriptors in a daemon.
func (r *pairRun) checkDescriptors(d *testkit.Process, idle int) {
	r.t.Helper()
	if r.setting() == "workers.count=256" {
		return // each opens some for its first session
	}
	// One session, and what two workers and the link to the target keep open.
	most := idle + sessions - 2
	last := 0
	testkit.Eventually(r.t, fmt.Sprintf("%s has at most %d descriptors", d.Name, most), func() bool {
		last = d.Descriptors()
		return last <= most
	})
}

// open opens the volume. It returns nil if the setting does not allow that.
func (r *pairRun) open() *client.Volume {
	r.t.Helper()
	bound := testkit.Patience
	if r.isRestrictive() {
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), bound)
	defer cancel()
	c := client.Config{
		Provider: emulated.New(emulated.Options{Directory: r.path("comch")}),
		Device:   emulated.DefaultHostDevice, Queues: 1, Depth: 1, BufferSize: r.blockSize,
		SyncDepth: -1, ControlTimeout: bound, IOTimeout: testkit.Patience,
	}
	v, err := client.Open(ctx, c)
	// The relay may not have released the session before.
	for ; errors.Is(err, status.Full) && ctx.Err() == nil; v, err = client.Open(ctx, c) {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		if !r.isRestrictive() {
			r.t.Fatalf("the volume cannot be opened: %v", err)
		}
		return nil
	}
	r.t.Cleanup(v.Abort)
	return v
}

// workload writes two blocks and flushes.
func (r *pairRun) workload(v *client.Volume) {
	r.t.Helper()
	if v == nil {
		return
	}
	for block := range uint64(2) {
		if code := r.write(v, block); code != status.Success && !r.isRestrictive() {
			r.t.Errorf("a write completed with %v", code)
		}
	}
	if v.Queue(0).Submit(&client.Request{Type: client.Flush}) == nil {
		v.Queue(0).Ring()
		if code := r.poll(v); code != status.Success && !r.isRestrictive() {
			r.t.Errorf("a flush completed with %v", code)
		}
	}
}

// write writes a block, and returns how the write completed.
func (r *pairRun) write(v *client.Volume, block uint64) status.Code {
	r.t.Helper()
	if v == nil || !r.submit(v, block) {
		return status.Shutdown
	}
	return r.complete(v, block)
}

// submit submits a write. It returns false if the session has ended.
func (r *pairRun) submit(v *client.Volume, block uint64) bool {
	fill := byte(0xa0 + block)
	copy(v.Memory(), bytes.Repeat([]byte{fill}, int(r.blockSize)))
	err := v.Queue(0).Submit(&client.Request{Type: client.Write, Length: r.blockSize,
		Offset: block * uint64(r.blockSize), Tag: block})
	v.Queue(0).Ring()
	return err == nil
}

func (r *pairRun) complete(v *client.Volume, block uint64) status.Code {
	r.t.Helper()
	code := r.poll(v)
	if code == status.Success {
		r.written[block] = byte(0xa0 + block)
	}
	return code
}

// poll waits for the only request in flight.
func (r *pairRun) poll(v *client.Volume) status.Code {
	r.t.Helper()
	results := make([]client.Result, 1)
	testkit.Eventually(r.t, "the request completes", func() bool { return v.Queue(0).Poll(results) == 1 })
	return results[0].Code
}

// awaitLoss waits until the session has ended.
func (r *pairRun) awaitLoss(v *client.Volume) {
	r.t.Helper()
	if v == nil {
		return
	}
	testkit.Eventually(r.t, "the client notices the loss", func() bool {
		select {
		case <-v.Done():
			return true
		default:
			return false
		}
	})
}

func TestThePairsCoverEverySettingWithExtremes(t *testing.T) {
	seen := make(map[string]int)
	for _, p := range allPairs() {
		seen[p.name+" "+p.key.Path]++
	}
	for setting, n := range seen {
		if n < 2*len(events) {
			t.Errorf("%s has only %d pairs", setting, n)
		}
	}
	if len(seen) < 40 {
		t.Errorf("pairs for %d settings: %q", len(seen), slices.Sorted(maps.Keys(seen)))
	}
}
