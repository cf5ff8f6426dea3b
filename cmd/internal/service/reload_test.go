package service

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
)

// startReloader runs a reloader with the given reads. The returned function ends it.
func startReloader(t *testing.T, reads ...ReadFunc) (*reloader, *observer.ObservedLogs, func()) {
	t.Helper()
	t.Setenv("NOTIFY_SOCKET", "")
	core, logs := observer.New(zap.InfoLevel)
	log := zap.New(core)
	r := newReloader(log, systemd.NewNotifier(log), make(chan os.Signal, 1))
	r.reads = reads
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	return r, logs, func() {
		cancel()
		running.Wait()
	}
}

func TestABlockedReadIsReportedAndDoesNotDelayTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		reads, applied := 0, 0
		r, logs, end := startReloader(t, func() (func() error, error) {
			reads++
			<-release
			return func() error { applied++; return nil }, nil
		})
		r.hangups <- syscall.SIGHUP
		synctest.Wait()
		if s := r.state(); s == nil || s.Ended != nil || s.Error != "" {
			t.Errorf("during the read the status has %+v", s)
		}
		r.hangups <- syscall.SIGHUP // must not start a second read
		time.Sleep(reloadPatience + time.Second)
		if s := r.state(); s.Ended != nil || !strings.Contains(s.Error, "has not ended") ||
			logs.FilterMessageSnippet("reload is blocked").Len() != 1 || reads != 1 {
			t.Errorf("a blocked read: status %+v, %d reads, log %v", s, reads, logs.All())
		}
		end() // returns although the read is blocked
		close(release)
		synctest.Wait()
		if applied != 0 {
			t.Error("a read that ended after the daemon was applied")
		}
	})
}

func TestAReadThatEndsLateIsAppliedAndFollowedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{}, 2)
		applied := 0
		r, logs, end := startReloader(t, func() (func() error, error) {
			<-release
			return func() error { applied++; return nil }, nil
		})
		defer end()
		for range 2 {
			r.hangups <- syscall.SIGHUP
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		for i := range 2 {
			release <- struct{}{}
			synctest.Wait()
			if applied != i+1 {
				t.Errorf("after %d reads %d were applied", i+1, applied)
			}
		}
		if s := r.state(); s.Ended == nil || s.Error != "" ||
			logs.FilterMessage("reloaded").Len() != 2 {
			t.Errorf("the status has %+v, the log %v", s, logs.All())
		}
	})
}

func TestAReadThatFailsDoesNotPreventTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applied := 0
		apply := func() error { applied++; return errors.New("cannot be applied") }
		r, logs, end := startReloader(t,
			func() (func() error, error) { return apply, errors.New("cannot be read") },
			func() (func() error, error) { return nil, nil },
			func() (func() error, error) { return apply, nil })
		defer end()
		r.hangups <- syscall.SIGHUP
		synctest.Wait()
		if s := r.state(); applied != 1 || s.Ended == nil ||
			s.Error != "cannot be read\ncannot be applied" ||
			logs.FilterMessageSnippet("reload failed").Len() != 1 {
			t.Errorf("%d applied, status %+v, log %v", applied, s, logs.All())
		}
	})
}

func TestLoadingAtTheStartEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("stopped by a signal")
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		defer close(release)
		time.AfterFunc(time.Second, func() { cancel(reason) })
		_, err := load(ctx, func() (int, error) { <-release; return 1, nil })
		if !errors.Is(err, reason) {
			t.Errorf("a blocked load ended with %v", err)
		}
		n, err := load(t.Context(), func() (int, error) { return 2, nil })
		if n != 2 || err != nil {
			t.Errorf("loaded %d, %v", n, err)
		}
	})
}

func TestTheOutcomeOfAReloadNamesWhatNeedsARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *reloader
		r, _, end := startReloader(t, func() (func() error, error) {
			return func() error { r.setPending([]string{"workers.cpus"}); return nil }, nil
		})
		defer end()
		if got := r.request(t.Context()).RestartPending; !slices.Equal(got,
			[]string{"workers.cpus"}) {
			t.Errorf("the outcome names %q", got)
		}
	})
}

// The admin listener logs its own requests, with their users; a signal does not tell its sender.
func TestTheAuditLogSaysThatASignalAskedForAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := errors.New("line 3: no")
		var err error
		r, logs, end := startReloader(t, func() (func() error, error) { return nil, err })
		defer end()
		lines := func() int { return logs.FilterMessage("administration").Len() }
		if outcome := r.request(t.Context()); outcome.Ended == nil || lines() != 0 {
			t.Errorf("a request ends with %+v, and leaves %d lines", outcome, lines())
		}
		for i, c := range []struct {
			err     error
			outcome string
		}{{nil, "done"}, {fail, "BAD_CONFIG"}} {
			err = c.err
			r.hangups <- syscall.SIGHUP
			synctest.Wait()
			if lines() != i+1 {
				t.Fatalf("there are %d lines after %d signals", lines(), i+1)
			}
			line := logs.FilterMessage("administration").All()[i].ContextMap()
			if line["operation"] != "reload" || line["via"] != "signal" ||
				line["signal"] != "hangup" || line["outcome"] != c.outcome {
				t.Errorf("the line is %v", line)
			}
		}
	})
}
