package service

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/audit"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
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

	mu     sync.Mutex // guards what follows
	reads  []ReadFunc
	latest *admin.Reload // nil before the first
	// pending holds the keys of the settings that take effect with the next start.
	pending []string
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
		r.report(&admin.Reload{Started: time.Now().UTC()})
		apply, err := r.await(ctx)
		if ctx.Err() != nil {
			return
		}
		err = errors.Join(err, apply())
		if err != nil && ctx.Err() != nil {
			r.log.Info("reload abandoned, the daemon is ending", zap.Error(err))
			return
		}
		r.finish(err)
		if isSignalled {
			r.recordSignal(err)
		}
		r.notifier.Ready()
	}
}

// recordSignal logs that a signal asked for a reload, which ended with err. Requests of
// administrators are logged by the admin listener.
func (r *reloader) recordSignal(err error) {
	if err != nil {
		err = status.Errorf(status.BadConfig, "%w", err)
	}
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
	r.report(&admin.Reload{Started: started, Error: blockedReload})
	r.notifier.Ready()
}

// finish reports how the reload ended. Whatever failed has changed nothing, so the daemon
// continues.
func (r *reloader) finish(err error) {
	r.mu.Lock()
	done := admin.Reload{Started: r.latest.Started, Ended: new(time.Now().UTC())}
	r.mu.Unlock()
	if err != nil {
		done.Error = err.Error()
		r.log.Error("reload failed, the affected settings are unchanged", zap.Error(err))
	} else {
		r.log.Info("reloaded")
	}
	r.report(&done)
}

func (r *reloader) report(state *admin.Reload) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = state
}

// requestPause is the interval at which request looks for the outcome.
const requestPause = 20 * time.Millisecond

// request starts a reload, as SIGHUP does, and waits for its outcome until ctx ends.
func (r *reloader) request(ctx context.Context) admin.Reload {
	asked := time.Now().UTC()
	select {
	case r.requests <- struct{}{}:
	default: // a reload that has not begun yet serves this request, too
	}
	for {
		latest := r.state()
		if latest != nil && !latest.Started.Before(asked) &&
			(latest.Ended != nil || latest.Error != "") {
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

func (r *reloader) setPending(keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = keys
}

// restartPending returns the keys of the settings that take effect with the next start.
func (r *reloader) restartPending() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// RestartPending counts the settings that take effect with the next start (metrics.DaemonSource).
func (r *reloader) RestartPending() int { return len(r.restartPending()) }

// ReloadFailed reports whether the latest reload has failed or is blocked (metrics.DaemonSource).
func (r *reloader) ReloadFailed() bool {
	latest := r.state()
	return latest != nil && latest.Error != ""
}

// OnReload registers read to be called at every SIGHUP.
func (e *Environment) OnReload(read ReadFunc) {
	r := e.lifecycle.reloader
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, read)
}

// Reloaded logs the changes in a configuration that was read again, and applies the log level.
// sinceApplied compares it to the configuration in effect, sinceStart to the configuration at the
// start of the process.
func (e *Environment) Reloaded(sinceApplied, sinceStart []config.Change, log config.Log) {
	for _, change := range sinceApplied {
		if change.Reload != config.Restart {
			e.Log.Info("changed", zap.Stringer("key", change), zap.Stringer("effect",
				change.Reload))
		}
	}
	var pending []string
	for _, change := range sinceStart {
		if change.Reload == config.Restart {
			e.Log.Warn("needs a restart", zap.Stringer("key", change))
			pending = append(pending, change.Key)
		}
	}
	e.lifecycle.reloader.setPending(pending)
	if level, err := logging.ParseLevel(log.Level); err == nil {
		e.LogLevel.SetLevel(level)
	}
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
