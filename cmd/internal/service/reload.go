// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/audit"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ReadFunc reads files again and returns a function that applies what they hold; a nil function has
// nothing to apply. Reading may block for ever, on a file system that does not respond. It must not
// change anything that the daemon's end depends on.
type ReadFunc func() (apply func() error, err error)

// reloadPatience is how long a reload may take before it counts as blocked.
const reloadPatience = 10 * time.Second

// reloader reloads at SIGHUP, and when an administrator requests it. It reads on a goroutine of its
// own, one reload at a time, and applies on the goroutine of run. So a read that blocks delays
// neither the daemon nor its end, and nothing is applied after the end.
type reloader struct {
	log      *zap.Logger
	notifier *systemd.Notifier
	audit    *audit.Log
	hangups  chan os.Signal
	requests chan struct{} // has an element when an administrator wants a reload
	patience time.Duration
	file     string // with the configuration, "" for none

	mu     sync.Mutex // guards what follows
	reads  []ReadFunc
	latest *admin.Reload // nil before the first
	begun  uint64        // reloads
	// made describes what the current reload has done so far.
	made admin.Reload
	// pending holds the keys of the settings that take effect with the next start.
	pending []string
	// readiness is what the manager knows about the service, "" before it does.
	readiness string
}

// listenForHangups makes SIGHUP a request to reload, and no longer one to end. A daemon calls it
// first. It reloads when it has started, even if SIGHUP came before, and ignores SIGHUP while it
// ends.
func listenForHangups() chan os.Signal {
	hangups := make(chan os.Signal, 1)
	signal.Ignore(syscall.SIGHUP) // undoes the notification of package program
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups
}

func newReloader(log *zap.Logger, notifier *systemd.Notifier,
	hangups chan os.Signal) *reloader {
	return &reloader{log: log, notifier: notifier, audit: audit.New(log), hangups: hangups,
		requests: make(chan struct{}, 1), patience: reloadPatience}
}

// run reloads at every SIGHUP and every request until ctx ends. It abandons a read that is blocked
// then. One reload serves a signal and a request that wait for it together.
func (r *reloader) run(ctx context.Context) {
	for {
		isSignalled := false
		select {
		case <-ctx.Done():
			return
		case <-r.hangups:
			isSignalled = true
		case <-r.requests:
		}
		select {
		case <-r.hangups:
			isSignalled = true
		default:
		}
		r.notifier.Reloading()
		r.begin()
		apply, err := r.await(ctx)
		if ctx.Err() != nil {
			return
		}
		err = errors.Join(err, apply())
		if err != nil && ctx.Err() != nil {
			r.log.Info("reload abandoned, the daemon is ending", zap.Error(err))
			return
		}
		err = r.finish(err)
		if isSignalled {
			r.recordSignal(err)
		}
		r.notifier.Ready()
	}
}

// recordSignal logs that a signal asked for a reload, which ended with err. Requests of
// administrators are logged by the admin listener.
func (r *reloader) recordSignal(err error) {
	r.audit.Record(audit.Entry{Operation: adminserver.OperationReload,
		Object: adminserver.DaemonObject,
		By:     audit.Signal(syscall.SIGHUP), Err: err})
}

// outcome is what a read has found.
type outcome struct {
	applies []func() error
	err     error
}

// await reads, and returns a function that applies what was read. It reports a read that takes
// longer than expected. SIGHUP during the read causes another one.
func (r *reloader) await(ctx context.Context) (apply func() error, err error) {
	r.mu.Lock()
	reads := r.reads
	r.mu.Unlock()
	read := make(chan outcome, 1)
	go func() { read <- readAll(reads) }()
	late := time.NewTimer(r.patience)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case o := <-read:
			return func() error { return applyAll(o.applies) }, o.err
		case <-late.C:
			r.reportBlocked()
		}
	}
}

// readAll calls all functions. One that fails does not prevent the others.
func readAll(reads []ReadFunc) outcome {
	var o outcome
	for _, read := range reads {
		apply, err := read()
		o.err = errors.Join(o.err, err)
		if apply != nil && err == nil {
			o.applies = append(o.applies, apply)
		}
	}
	return o
}

func applyAll(applies []func() error) error {
	var errs []error
	for _, apply := range applies {
		errs = append(errs, apply())
	}
	return errors.Join(errs...)
}

const blockedReload = "reading the configuration or the certificates has not ended: the daemon works with the former ones until it does; check the file systems they are on (stat FILE), or SIGTERM ends the daemon as usual"

// reportBlocked says that a reload is blocked, and releases those who wait for it, such as
// "systemctl reload".
func (r *reloader) reportBlocked() {
	r.log.Error("reload is blocked: "+blockedReload, zap.Duration("after", r.patience))
	r.mu.Lock()
	started := r.latest.Started
	r.mu.Unlock()
	r.report(&admin.Reload{Started: started, ConfigFile: r.file, Error: blockedReload,
		Code: status.InProgress.String()})
	r.notifier.Ready()
}

const noFile = "the daemon has no configuration file, so that no setting can change: its settings are its flags and variables; start it with --config FILE"

// finish reports how the reload ended, and returns its error for those who asked for it. Whatever
// failed has changed nothing, so the daemon continues.
func (r *reloader) finish(err error) error {
	r.mu.Lock()
	done, pending := r.made, r.pending
	r.made = admin.Reload{}
	done.Started, done.Ended, done.ConfigFile = r.latest.Started, new(time.Now().UTC()), r.file
	r.mu.Unlock()
	switch {
	case err != nil:
		done.Error, done.Code = err.Error(), status.BadConfig.String()
		r.log.Error("reload failed, the affected settings are unchanged", zap.Error(err))
	case r.file == "" && !done.Certificates:
		done.Error, done.Code = noFile, status.NotSupported.String()
		r.log.Warn("reloaded nothing: " + noFile)
	default:
		r.log.Info("reloaded", zap.Int("applied", len(done.Applied)),
			zap.Strings("restart_pending", pending))
	}
	r.report(&done)
	return done.Err()
}

// begin reports a reload that has done nothing yet.
func (r *reloader) begin() {
	r.mu.Lock()
	r.begun++
	r.latest = &admin.Reload{Started: time.Now().UTC()}
	r.mu.Unlock()
	r.notify()
}

func (r *reloader) report(state *admin.Reload) {
	r.mu.Lock()
	r.latest = state
	r.mu.Unlock()
	r.notify()
}

// setReadiness reports to the manager whether the service is ready.
func (r *reloader) setReadiness(text string) {
	r.mu.Lock()
	r.readiness = text
	r.mu.Unlock()
	r.notify()
}

// notify sends the status line: whether the service is ready, and what is wrong with its
// configuration.
func (r *reloader) notify() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readiness == "" {
		return
	}
	text := r.readiness
	if r.latest != nil && r.latest.Error != "" {
		text += "; reload: " + printable.Line(r.latest.Error, maxStatusLength)
	}
	if len(r.pending) > 0 {
		text += "; restart pending: " + printable.Line(strings.Join(r.pending, ", "),
			maxStatusLength)
	}
	r.notifier.Status(text)
}

// requestPause is the interval at which request looks for the outcome.
const requestPause = 20 * time.Millisecond

// request starts a reload, as SIGHUP does, and waits for its outcome until ctx ends.
func (r *reloader) request(ctx context.Context) admin.Reload {
	asked := time.Now().UTC()
	r.mu.Lock()
	before := r.begun
	r.mu.Unlock()
	select {
	case r.requests <- struct{}{}:
	default: // a reload that has not begun yet serves this request, too
	}
	for {
		r.mu.Lock()
		latest, isLater := r.latest, r.begun > before
		r.mu.Unlock()
		if isLater && (latest.Ended != nil || latest.Error != "") {
			outcome := *latest
			outcome.RestartPending = r.restartPending()
			return outcome
		}
		if !retry.Sleep(ctx, requestPause) {
			return admin.Reload{Started: asked}
		}
	}
}

// state returns the latest reload for the status, nil if there was none.
func (r *reloader) state() *admin.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

// note records what the current reload has done.
func (r *reloader) note(applied, failed []admin.Change, pending []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made.Applied, r.made.Failed, r.pending = applied, failed, pending
}

// noteCertificates records that the current reload has read the TLS files.
func (r *reloader) noteCertificates() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made.Certificates = true
}

// restartPending returns the keys of the settings that take effect with the next start.
func (r *reloader) restartPending() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// RestartPending counts the settings that take effect with the next start (metrics.DaemonSource).
func (r *reloader) RestartPending() int { return len(r.restartPending()) }

// ReloadFailed reports whether the latest reload has failed or is blocked (metrics.DaemonSource). A
// daemon without a configuration file has nothing to reload, so that is no failure.
func (r *reloader) ReloadFailed() bool {
	latest := r.state()
	return latest != nil && latest.Error != "" && latest.Code != status.NotSupported.String()
}

// OnReload registers read to be called at every SIGHUP.
func (e *Environment) OnReload(read ReadFunc) {
	r := e.lifecycle.reloader
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, read)
}

// Changes are the differences between a configuration that was read again and others.
type Changes struct {
	// Applied compares what is in effect now to what was in effect before, and Failed what was read
	// to what is in effect now. Settings that need a restart do not count.
	Applied, Failed []config.Change
	// SinceStart compares what was read to what the process has started with. Only settings that
	// need a restart count.
	SinceStart []config.Change
}

// Reloaded reports the changes in a configuration that was read again, and applies the log level.
func (e *Environment) Reloaded(c Changes, log config.Log) {
	applied, failed := withoutRestart(c.Applied), withoutRestart(c.Failed)
	for _, change := range applied {
		e.Log.Info("changed", zap.Stringer("key", change), zap.String("effect", change.Effect))
	}
	for _, change := range failed {
		e.Log.Warn("not changed", zap.Stringer("key", change))
	}
	var pending []string
	for _, change := range c.SinceStart {
		if change.Reload == config.Restart {
			e.Log.Warn("needs a restart", zap.Stringer("key", change))
			pending = append(pending, change.Key)
		}
	}
	e.lifecycle.reloader.note(applied, failed, pending)
	if level, err := logging.ParseLevel(log.Level); err == nil {
		e.LogLevel.SetLevel(level)
	}
}

// withoutRestart returns the changes that a reload can make.
func withoutRestart(changes []config.Change) []admin.Change {
	var all []admin.Change
	for _, c := range changes {
		if c.Reload != config.Restart {
			all = append(all, admin.Change{Key: c.Key, Former: c.Former, Now: c.Now,
				Element: c.Element, Effect: c.Reload.String()})
		}
	}
	return all
}

// load calls f, which may block, and returns its result, or the reason why ctx ended before.
func load[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	loaded := make(chan result, 1)
	go func() {
		value, err := f()
		loaded <- result{value, err}
	}()
	select {
	case r := <-loaded:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
