// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager acts as the service manager of this process.
type manager struct {
	t      *testing.T
	socket *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{t, socket}
}

// next returns the next message, or "" if there is none within bound.
func (m *manager) next(bound time.Duration) string {
	m.t.Helper()
	if err := m.socket.SetReadDeadline(time.Now().Add(bound)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.socket.Read(b)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return ""
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b[:n])
}

func TestTheManagerHearsHowTheDaemonIs(t *testing.T) {
	m := newManager(t)
	n := NewNotifier(zap.NewNop())
	n.Ready()
	n.Status("two\nlines")
	n.Status("two\nlines")
	n.Reloading()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Stopping(ctx, 15*time.Second)
	for _, want := range []string{
		`READY=1`, `STATUS=two; lines`, `RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+`,
		`STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000`,
	} {
		if got := m.next(testkit.Patience); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("the manager hears %q, want %q", got, want)
		}
	}
}

func TestAnEndThatTakesLongKeepsAskingForTime(t *testing.T) {
	m := newManager(t)
	ctx, cancel := context.WithCancel(t.Context())
	var stopping sync.WaitGroup
	stopping.Go(func() { NewNotifier(zap.NewNop()).Stopping(ctx, 30*time.Millisecond) })
	for i, want := range []string{"STOPPING=1\nEXTEND_TIMEOUT_USEC=30000",
		"EXTEND_TIMEOUT_USEC=30000", "EXTEND_TIMEOUT_USEC=30000"} {
		if got := m.next(testkit.Patience); got != want {
			t.Errorf("report %d is %q, want %q", i, got, want)
		}
	}
	cancel()
	stopping.Wait()
}

func TestWithoutAManagerNothingIsSentAndNothingFails(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	core, logged := observer.New(zapcore.DebugLevel)
	NewNotifier(zap.New(core)).Ready()
	if logged.Len() != 0 {
		t.Errorf("logged %v", logged.All())
	}
}

func TestAManagerThatDoesNotListenIsOnlyLogged(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	core, logged := observer.New(zapcore.DebugLevel)
	NewNotifier(zap.New(core)).Ready()
	if logged.FilterMessage("notify service manager").Len() != 1 {
		t.Errorf("logged %v", logged.All())
	}
}

// fakeWorker is alive unless it is stuck.
type fakeWorker struct {
	mu    sync.Mutex
	stuck bool
}

func (w *fakeWorker) setStuck(stuck bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck = stuck
}

func (w *fakeWorker) CheckAlive(ctx context.Context) error {
	w.mu.Lock()
	stuck := w.stuck
	w.mu.Unlock()
	if !stuck {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestTheWatchdogIsFedOnlyWhileEveryWorkerIsAlive(t *testing.T) {
	m := newManager(t)
	const timeout = 90 * time.Millisecond
	core, logged := observer.New(zapcore.ErrorLevel)
	worker := &fakeWorker{}
	ctx, cancel := context.WithCancel(t.Context())
	var feeding sync.WaitGroup
	workers := func() []Worker { return []Worker{&fakeWorker{}, worker} }
	feeding.Go(func() { NewNotifier(zap.New(core)).FeedWatchdog(ctx, timeout, workers) })
	defer feeding.Wait()
	defer cancel()

	for range 3 {
		if got := m.next(testkit.Patience); got != "WATCHDOG=1" {
			t.Fatalf("the manager hears %q of living workers", got)
		}
	}
	worker.setStuck(true)
	// Only a check that began after the worker got stuck is logged.
	testkit.Eventually(t, "a stuck worker is logged", func() bool { return logged.Len() > 0 })
	for m.next(time.Millisecond) != "" { // of the checks before
	}
	if got := m.next(3 * timeout); got != "" {
		t.Errorf("the manager hears %q while a worker is stuck", got)
	}
	if text := logged.All()[0].ContextMap()["error"]; text != "worker 1: context deadline exceeded" {
		t.Errorf("logged %v", text)
	}
	worker.setStuck(false)
	if got := m.next(testkit.Patience); got != "WATCHDOG=1" {
		t.Errorf("the manager hears %q when the worker goes on", got)
	}
}

func TestTheTimeoutOfTheWatchdogComesFromTheManager(t *testing.T) {
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "30000000")
	if timeout, err := WatchdogTimeout(); err != nil || timeout != 30*time.Second {
		t.Errorf("WatchdogTimeout = %v, %v", timeout, err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := WatchdogTimeout(); err == nil {
		t.Error("no error for a time-out that is no number")
	}
}
