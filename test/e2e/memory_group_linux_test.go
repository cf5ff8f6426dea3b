// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// memoryGroup is a cgroup that limits memory.
type memoryGroup struct {
	t       testing.TB
	path    string
	events  string // the file that counts kills
	highest string // the file with the most memory so far
}

// newMemoryGroup makes a group inside that of the test, or skips the test. Version 2 of cgroups has
// no groups with memory limits next to processes, so there the group may be further up.
func newMemoryGroup(t testing.TB, limit int) *memoryGroup {
	t.Helper()
	name := fmt.Sprintf("zc-relay-test-%d", os.Getpid())
	var errs []string
	for line := range strings.Lines(string(readFile(t, "/proc/self/cgroup"))) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		g := &memoryGroup{t: t}
		var limits string
		switch {
		case len(fields) != 3:
			continue
		case fields[1] == "memory":
			g.path = filepath.Join("/sys/fs/cgroup/memory", fields[2], name)
			limits, g.events = "memory.limit_in_bytes", "memory.oom_control"
			g.highest = "memory.max_usage_in_bytes"
		case fields[0] == "0":
			above, found := delegatesMemory("/sys/fs/cgroup", fields[2])
			if !found {
				errs = append(errs, "no group above has memory in cgroup.subtree_control")
				continue
			}
			g.path = filepath.Join(above, name)
			limits, g.events, g.highest = "memory.max", "memory.events", "memory.peak"
		default:
			continue
		}
		if err := os.Mkdir(g.path, 0o755); err != nil {
			errs = append(errs, err.Error())
			continue
		}
		t.Cleanup(func() { // runs after the processes have been killed
			testkit.Eventually(t, "the group is empty", func() bool { return os.Remove(g.path) == nil })
		})
		if err := os.WriteFile(filepath.Join(g.path, limits), []byte(strconv.Itoa(limit)),
			0); err != nil {
			t.Fatal(err)
		}
		return g
	}
	t.Skip("no memory cgroup can be made here: ", errs)
	panic("unreachable")
}

// delegatesMemory returns the closest group, from a group up to root, whose children have memory
// limits.
func delegatesMemory(root, group string) (string, bool) {
	path := filepath.Join(root, group)
	for ; strings.HasPrefix(path, root); path = filepath.Dir(path) {
		text, _ := os.ReadFile(filepath.Join(path, "cgroup.subtree_control"))
		if strings.Contains(string(text), "memory") {
			return path, true
		}
	}
	return "", false
}

// add moves a process, which must not have used much memory yet, into the group.
func (g *memoryGroup) add(p *testkit.Process) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.path, "cgroup.procs"),
		[]byte(strconv.Itoa(p.Cmd.Process.Pid)), 0); err != nil {
		g.t.Fatal(err)
	}
}

// kills returns how many processes the kernel has killed for want of memory.
func (g *memoryGroup) kills() string {
	g.t.Helper()
	for line := range strings.Lines(string(readFile(g.t, filepath.Join(g.path, g.events)))) {
		if count, found := strings.CutPrefix(line, "oom_kill "); found {
			return strings.TrimSpace(count)
		}
	}
	g.t.Fatalf("%s has no oom_kill", g.events)
	panic("unreachable")
}

func (g *memoryGroup) peak() string {
	text, _ := os.ReadFile(filepath.Join(g.path, g.highest)) // Linux has memory.peak since 5.19
	return strings.TrimSpace(string(text))
}

// TestARelayLivesInASmallMemoryGroup lets ordinary clients use a relay with the default limits in a
// group of 256 MiB, and a hostile one open all the rings that it can get.
func TestARelayLivesInASmallMemoryGroup(t *testing.T) {
	t.Parallel()
	group := newMemoryGroup(t, 256<<20)
	c := startObservedChain(t, "disk=memory:64MiB")
	group.add(c.relay)
	check := func(what string) {
		t.Helper()
		t.Logf("%s: the group has used at most %s bytes", what, group.peak())
		if kills := group.kills(); kills != "0" {
			t.Fatalf("%s: the kernel has killed %s processes", what, kills)
		}
		select {
		case <-c.relay.Ended():
			t.Fatalf("%s: the relay has exited", what)
		default:
		}
	}
	verify := func(more ...string) *testkit.Process {
		return c.initiator(append([]string{"verify", "--passes", "1"}, more...)...)
	}

	small := []string{"--queues", "1", "--length", "4MiB"}
	large := []string{"--queues", "2", "--queue-depth", "1024", "--max-io-size", "1MiB"}
	for _, flags := range [][]string{small, large} {
		if code := verify(flags...).Wait(); code != 0 {
			t.Fatalf("verify %v exited with %d", flags, code)
		}
		check(fmt.Sprint(flags))
	}
	const crowd = 4
	var clients []*testkit.Process
	for i := range crowd {
		clients = append(clients, verify("--overwrite", "--queues", "2", "--offset", fmt.Sprintf("%dMiB", 8*i),
			"--length", "8MiB"))
	}
	for _, client := range clients {
		if code := client.Wait(); code != 0 {
			t.Errorf("one of %d clients exited with %d", crowd, code)
		}
	}
	check("several clients")

	release := c.takeRings()
	check("all rings taken")
	if code := verify(small...).Wait(); code != 0 {
		t.Errorf("beside the hostile client, an honest one exited with %d", code)
	}
	check("an honest client beside the hostile one")
	release()
	if code := verify(large...).Wait(); code != 0 {
		t.Errorf("after the hostile client, an honest one exited with %d", code)
	}
	check("an honest client after it")
}

// takeRings opens consumers on one connection after the other, until the relay has no memory for
// another one, and returns what ends them.
func (c *chain) takeRings() (release func()) {
	c.t.Helper()
	ctx := testkit.Context(c.t)
	provider := c.clientConfig(1).Provider
	var connections []comch.Connection
	release = func() {
		for _, connection := range connections {
			connection.Abort()
		}
		connections = nil
	}
	c.t.Cleanup(func() { release() })
	const size = 1 << 20
	for taken := 0; taken < 2*relay.DefaultMaxRingMemory; {
		connection, err := provider.Connect(ctx, comch.ClientConfig{
			Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
		if err != nil {
			c.t.Fatal(err)
		}
		connections = append(connections, connection)
		before := taken
		for err == nil {
			if _, err = connection.NewConsumer(ctx,
				comch.ConsumerConfig{Receives: 64, MemorySize: size}); err == nil {
				taken += size
			}
		}
		c.t.Logf("%d MiB of rings: %v", taken>>20, err)
		if taken == before {
			if status.CodeOf(err) != status.NoMemory {
				c.t.Errorf("a client beyond the limit gets %v", err)
			}
			return release
		}
	}
	c.t.Fatal("the relay gives more memory for rings than its limit")
	return nil
}
