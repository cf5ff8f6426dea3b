// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// effect is what a signal does to a program.
type effect int

const (
	none effect = iota
	reload
	ends  // in order
	dumps // ends at once, with all stacks in the log
)

// signalEffects is the table in docs/reference/signals.md: the effects on a daemon, on the gateway,
// and on other commands.
var signalEffects = map[syscall.Signal][3]effect{
	syscall.SIGINT:  {ends, ends, ends},
	syscall.SIGTERM: {ends, ends, ends},
	syscall.SIGHUP:  {reload, ends, ends},
	syscall.SIGQUIT: {dumps, dumps, dumps},
	syscall.SIGUSR1: {none, none, none},
	syscall.SIGUSR2: {none, none, none},
	syscall.SIGPIPE: {none, none, none},
	syscall.SIGALRM: {none, none, none},
}

// The columns of signalEffects.
const (
	daemon = iota
	gateway
	command
)

// exitDumped is the exit code of a Go program that aborts itself after it has printed all stacks.
const exitDumped = -1

func TestEverySignalHasItsDocumentedEffectOnEveryProgram(t *testing.T) {
	t.Parallel()
	// A process inherits that nohup ignores SIGHUP, but not that this one handles it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	c := startObservedChain(t, "disk=memory:16MiB")
	dir := t.TempDir()
	// transferring starts an initiator and waits until it transfers data.
	transferring := func(arguments ...string) *testkit.Process {
		testkit.Eventually(t, "former sessions have ended", c.hasNoSession)
		before := c.ioTotal()
		p := c.initiator(arguments...)
		testkit.Eventually(t, "IO is in progress", func() bool { return c.ioTotal() > before+100 })
		return p
	}
	programs := []struct {
		name  string
		kind  int
		start func() *testkit.Process // returns when the program works
		ended int                     // exit code after an orderly end
	}{
		{"target", daemon, func() *testkit.Process {
			p := spawn(t, "target", "--volume", "d=memory:1MiB", "--listen-address",
				listenAddress(t).Addr().String(), "--listen-port", "0")
			p.AwaitLog("listening for relays")
			return p
		}, 0},
		{"zc-relay run", daemon, func() *testkit.Process { return c.startRelay("other") }, 0},
		{"initiator nbd", gateway, func() *testkit.Process {
			p := c.initiator("nbd", "--socket", filepath.Join(dir, "socket"))
			p.AwaitLog("serving NBD clients")
			return p
		}, 0},
		{"initiator bench", command, func() *testkit.Process { return transferring(bench(1)...) }, 0},
		{"initiator verify", command, func() *testkit.Process {
			return transferring("verify", "--overwrite", "--runtime", patience)
		}, 1},
		{"dma-copy", command, func() *testkit.Process {
			p := spawn(t, "dma-copy", "-p", "03:00.0", "-r", "b1:00.0", "-f",
				filepath.Join(dir, "file"), "--emulated-dir", filepath.Join(dir, "comch"),
				"--connect-timeout", patience)
			p.AwaitLog("waiting for the host")
			return p
		}, 3},
	}
	for _, program := range programs {
		for s, effects := range signalEffects {
			t.Run(fmt.Sprintf("%s, signal %d", program.name, s), func(t *testing.T) {
				p := program.start()
				p.Signal(s)
				switch effects[program.kind] {
				case none:
					// The kernel delivers signals in the order of their numbers.
					p.Signal(syscall.SIGTERM)
				case reload:
					p.AwaitLog("reloaded")
					p.Signal(syscall.SIGTERM)
				case dumps:
					if code := p.Wait(); code != exitDumped ||
						!strings.Contains(p.Stderr.String(), "\ngoroutine ") {
						t.Errorf("exit code %d, log %s", code, tail(p.Stderr.String()))
					}
					return
				}
				if code := p.Wait(); code != program.ended {
					t.Errorf("exit code %d, want %d; log %s", code, program.ended,
						tail(p.Stderr.String()))
				}
			})
		}
	}
}

// TestADrainIsForcedByRepetition lets each daemon drain for ever. SIGINT once and SIGHUP change
// nothing. Signals are repeated until they have an effect: SIGTERM has none for a second, and the
// kernel merges those that are pending.
func TestADrainIsForcedByRepetition(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for _, daemon := range []string{"relay", "target"} {
			t.Run(fmt.Sprintf("signal %d to the %s", s, daemon), func(t *testing.T) {
				c := startFaultyChain(t, "volume:any:freeze")
				p := c.relay
				if daemon == "target" {
					p = c.target
				}
				c.openBusy(client.Write, 4, p, func() {})
				p.Signal(syscall.SIGTERM)
				p.AwaitLog("ending")
				p.Signal(syscall.SIGHUP)
				p.Signal(syscall.SIGINT)
				if code, body := get(t, p, "/readyz"); code != http.StatusServiceUnavailable {
					t.Errorf("while it drains, the %s says %d %s", daemon, code, body)
				}
				testkit.Eventually(t, "the signal forces the end", func() bool {
					p.Signal(s)
					return p.HasEnded()
				})
				if code := p.Wait(); code != -1 {
					t.Errorf("the %s exited with %d and not by the signal", daemon, code)
				}
			})
		}
	}
}
