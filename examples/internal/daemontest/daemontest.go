// SPDX-License-Identifier: Apache-2.0

// Package daemontest runs a target and relays as processes, for tests of the samples, and makes
// them fail while a sample runs.
package daemontest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Size is the size of each volume, in bytes.
const Size = 16 << 20

// Chain is a target, and a relay for each of its volumes, which are files.
type Chain struct {
	t       *testing.T
	dir     string
	volumes []string
	address netip.AddrPort // of the target
	target  *testkit.Process
	relays  []*testkit.Process
}

// Start starts the daemons.
func Start(t *testing.T, volumes ...string) *Chain {
	t.Helper()
	c := &Chain{t: t, dir: t.TempDir(), volumes: volumes, address: testkit.Endpoint(t),
		relays: make([]*testkit.Process, len(volumes))}
	c.startTarget()
	for i := range volumes {
		c.startRelay(i)
	}
	return c
}

// patience is the timeout of everything that a test does not provoke.
var patience = (2 * testkit.Patience).String()

func (c *Chain) startTarget() {
	c.t.Helper()
	file := filepath.Join(c.dir, "target.address")
	_ = os.Remove(file)
	arguments := []string{"--listen-address", c.address.Addr().String(), "--listen-port",
		fmt.Sprint(c.address.Port()), "--address-file", file, "--keep-alive-dead-after", patience}
	for _, name := range c.volumes {
		arguments = append(arguments, "--volume",
			fmt.Sprintf("%s=file:%s,size=%d", name, filepath.Join(c.dir, name), Size))
	}
	c.target = testkit.Start(c.t,
		exec.Command(testkit.Plain.Program(c.t, "target"), arguments...))
	testkit.Eventually(c.t, "the target listens", func() bool {
		text, err := os.ReadFile(file)
		if c.target.HasEnded() {
			c.t.Fatal("the target exited at its start")
		}
		if err != nil {
			return false
		}
		c.address, err = netip.ParseAddrPort(strings.TrimSpace(string(text)))
		return err == nil
	})
}

func (c *Chain) startRelay(i int) {
	c.t.Helper()
	c.relays[i] = testkit.Start(c.t, exec.Command(testkit.Plain.Program(c.t, "zc-relay"), "run",
		"--storage-server", c.address.String(), "--volume", c.volumes[i],
		"--emulated-dir", c.directory(i), "--keep-alive-dead-after", patience,
		"--io-timeout", patience, "--session-wait", patience))
	c.relays[i].AwaitLog("listening for clients")
}

func (c *Chain) directory(i int) string { return filepath.Join(c.dir, fmt.Sprint("comch", i)) }

// Config returns the configuration of a client that uses volume i, and that notices soon when
// something is silent.
func (c *Chain) Config(i int) client.Config {
	return client.Config{
		Provider: emulated.New(emulated.Options{Directory: c.directory(i)}),
		Device:   emulated.DefaultHostDevice, Software: "sample",
		ControlTimeout: testkit.Patience, IOTimeout: time.Second,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience),
			FirstPause: 10 * time.Millisecond, LongestPause: 100 * time.Millisecond},
	}
}

// Fail makes the target and the first relay fail in all ways, one after the other. awaitProgress
// waits until the sample, which uses the volumes, has done something after the call.
func (c *Chain) Fail(awaitProgress func(), volumes ...*client.Volume) {
	c.t.Helper()
	outage := func() (sum time.Duration) {
		for _, v := range volumes {
			sum += v.Reconnections().Outage
		}
		return sum
	}
	awaitProgress()
	for range 2 {
		c.target.Signal(syscall.SIGKILL)
		c.target.Wait()
		c.startTarget()
		awaitProgress()

		c.relays[0].Signal(syscall.SIGKILL)
		c.relays[0].Wait()
		c.startRelay(0)
		awaitProgress()
	}
	for _, silent := range []*testkit.Process{c.relays[0], c.target} {
		before := outage()
		silent.Stop()
		testkit.Eventually(c.t, "the client has given a session up",
			func() bool { return outage() > before })
		silent.Continue()
		awaitProgress()
	}
}
