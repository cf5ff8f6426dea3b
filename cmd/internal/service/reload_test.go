// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
)

// startReloader runs a reloader with the given reads. The returned function ends it.
func startReloader(t *testing.T, reads ...ReadFunc) (*reloader, *observer.ObservedLogs, func()) {
	t.Helper()
	t.Setenv("NOTIFY_SOCKET", "")
	core, logs := observer.New(zap.InfoLevel)
	log := zap.New(core)
	r := newReloader(log, systemd.NewNotifier(log), make(chan os.Signal, 1))
	r.reads, r.file = reads, "/f"
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

func TestTheOutcomeOfAReloadTellsWhatItHasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		change := config.Change{Key: "log.level", Former: "info", Now: "debug",
			Reload: config.AtOnce}
		restart := config.Change{Key: "workers.cpus", Now: "1", Reload: config.Restart}
		element := config.Change{Key: "volumes[a]", Now: "added", Element: true,
			Reload: config.AtOnce}
		made, fails := Changes{}, error(nil)
		env := &Environment{LogLevel: zap.NewAtomicLevel()}
		r, logs, end := startReloader(t, func() (func() error, error) {
			return func() error {
				env.Reloaded(made, config.Log{Level: "debug"})
				return fails
			}, nil
		})
		defer end()
		env.Log, env.lifecycle = r.log, &lifecycle{reloader: r}
		for _, c := range []struct {
			made    Changes
			fails   error
			want    string
			pending int
			failed  bool // as the metric says
		}{
			{made: Changes{Applied: []config.Change{change, restart}},
				want: `[log.level: "info" is now "debug"] []  []`},
			{made: Changes{SinceStart: []config.Change{change, restart}},
				want: `[] []  [workers.cpus]`, pending: 1},
			{made: Changes{Failed: []config.Change{element, restart},
				SinceStart: []config.Change{restart}}, fails: errors.New("no"),
				want: `[] [volumes[a] added] BAD_CONFIG [workers.cpus]`, pending: 1, failed: true},
			{want: `[] []  []`},
		} {
			made, fails = c.made, c.fails
			o := r.request(t.Context())
			if got := fmt.Sprintf("%v %v %s %v", o.Applied, o.Failed, o.Code,
				o.RestartPending); got != c.want {
				t.Errorf("the outcome is %s, want %s", got, c.want)
			}
			if o.ConfigFile != "/f" || r.RestartPending() != c.pending ||
				r.ReloadFailed() != c.failed {
				t.Errorf("%d settings wait for a restart, failed: %v", r.RestartPending(),
					r.ReloadFailed())
			}
		}
		if n := logs.FilterMessage("reloaded").Len(); n != 3 {
			t.Errorf("the log has %d successes: %v", n, logs.All())
		}
	})
}

func TestADaemonWithoutAFileHasNothingToReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *reloader
		hasCertificates := false
		r, logs, end := startReloader(t, func() (func() error, error) {
			return func() error {
				if hasCertificates {
					r.noteCertificates()
				}
				return nil
			}, nil
		})
		defer end()
		r.file = ""
		if o := r.request(t.Context()); o.Code != "NOT_SUPPORTED" ||
			!strings.Contains(o.Error, "no configuration file") || r.ReloadFailed() ||
			logs.FilterMessageSnippet("reloaded nothing: ").Len() != 1 {
			t.Errorf("the outcome is %+v, log %v", o, logs.All())
		}
		hasCertificates = true
		if o := r.request(t.Context()); o.Err() != nil || !o.Certificates {
			t.Errorf("with certificates, the outcome is %+v", o)
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
