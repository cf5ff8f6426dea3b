// SPDX-License-Identifier: Apache-2.0

// Package service holds what both daemons share: workers, logging, TLS, the listeners for
// operators, reload, and an orderly end.
package service

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// Environment gives a daemon its log, providers, and workers, and connects it to operators and the
// service manager.
type Environment struct {
	Log      *zap.Logger
	LogLevel zap.AtomicLevel // of Log
	RDMA     rdma.Provider
	CPUs     []int // core of each worker, or affinity.AnyCPU
	Policy   progress.Policy
	TLS      *mutualtls.Credentials // nil for plain text

	// Tracer records traced IOs while an administrator wants it.
	Tracer *trace.Tracer

	server    *adminserver.Server // nil without this listener
	admin     *adminserver.Admin  // nil without this listener
	status    *statusSource
	lifecycle *lifecycle
	faults    *faults
}

// Register adds metrics. It does nothing without a listener for metrics.
func (e *Environment) Register(collector prometheus.Collector) error {
	if e.server == nil {
		return nil
	}
	if err := e.server.Register(collector); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// SetReady reports to /readyz, the status, and the service manager whether the daemon can serve.
// err is the reason why not. If only a part of the configuration is served, missing says how much,
// and why the rest is not.
func (e *Environment) SetReady(err error, missing string) {
	e.status.setReady(err)
	text := "ready"
	if err != nil {
		text = "not ready: " + err.Error()
	} else if missing != "" {
		text += ", " + printable.Line(missing, maxStatusLength)
	}
	e.lifecycle.reloader.setReadiness(text)
	if e.server != nil {
		e.server.SetReady(err, missing)
	}
}

// maxStatusLength keeps the status for the service manager readable.
const maxStatusLength = 1024

// Run is a daemon: it creates the environment that the configuration describes, and calls body in
// it. unit is the daemon's systemd unit, for messages.
func Run[C config.Configuration](ctx context.Context, name, unit string, from *config.Source[C],
	faults Faults, body func(context.Context, *Environment, C) error) (err error) {
	program.OutliveReaders()
	hangups := listenForHangups()
	c, err := load(ctx, from.Load)
	if err != nil {
		return outcomeOf(ctx, err)
	}
	common := c.Common()
	if common.HidesMemory() { // before the first secret is read
		if err := program.HideMemory(); err != nil {
			return err
		}
	}
	env, err := newEnvironment(ctx, name, common, faults, hangups)
	if err != nil {
		return StartFailure(outcomeOf(ctx, err))
	}
	if common.ExposesMemory() {
		env.Log.Warn("core dumps, and debuggers of the daemon's user, can read its private keys and " +
			"tokens, because of operations.core_dumps (--core-dumps)")
	}
	env.lifecycle.reloader.file = from.File
	defer func() { _ = env.Log.Sync() }() // standard error cannot be synced everywhere
	program.ReserveProcessors(len(env.CPUs))
	reserveDescriptors(env, unit, c)
	listeners, err := listen(common.Operations, env)
	defer func() { err = errors.Join(err, endListeners(listeners)) }()
	if err != nil {
		return err
	}
	env.Log.Info("starting", zap.String("version", buildinfo.Version()), zap.Ints("cpus", env.CPUs),
		zap.String("poll", common.Workers.Poll))
	env.startFaults()
	err = outcomeOf(ctx, env.lifecycle.call(ctx, func() error { return body(ctx, env, c) }))
	if cause := context.Cause(ctx); cause != nil && err == nil {
		env.Log.Info("ended", zap.NamedError("reason", cause))
	}
	return err
}

// StartFailure gives the error of a daemon that cannot start its exit code: program.ExitUsage if a
// value in its command line or configuration is the cause, so that no restart helps. What the
// machine lacks at present (a device, a library, a certificate, a user, an address) may be there at
// the next start.
func StartFailure(err error) error {
	if status.CodeOf(err) == status.InvalidValue {
		return program.Usage(err)
	}
	return err
}

// outcomeOf returns the error of a daemon whose start or service has returned err. It is nil if err
// only says that ctx has ended: a daemon that is told to end while it starts ends without an error.
func outcomeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil && isOnlyCanceled(err) {
		return nil
	}
	return err
}

// isOnlyCanceled reports whether err, and everything that is joined in it, is context.Canceled.
func isOnlyCanceled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(),
			func(err error) bool { return !isOnlyCanceled(err) })
	}
	if inner := errors.Unwrap(err); inner != nil {
		return isOnlyCanceled(inner)
	}
	return errors.Is(err, context.Canceled)
}

func newEnvironment(ctx context.Context, name string, c *config.Daemon, injected Faults,
	hangups chan os.Signal) (*Environment, error) {
	log, level, err := logging.New(name, logging.Options{Level: c.Log.Level, Format: c.Log.Format,
		Sampling: c.Log.Sampling})
	if err != nil {
		return nil, err
	}
	mode, err := progress.ParseMode(c.Workers.Poll)
	if err != nil {
		return nil, err
	}
	cpus, err := workerCPUs(c.Workers)
	if err != nil {
		return nil, err
	}
	if err := affinity.Check(c.Workers.CPUs); err != nil {
		return nil, program.Usage(fmt.Errorf("workers.cpus (--cpu): %w, which taskset, cgroups, and "+
			"the unit's CPUAffinity= decide: use cores of this set, or widen it", err))
	}
	provider, err := openRDMA(c.RDMA, log)
	if err != nil {
		return nil, err
	}
	credentials, err := load(ctx, func() (*mutualtls.Credentials, error) {
		return LoadTLS(c.TLS, usageOf(name), log)
	})
	if err != nil {
		return nil, err
	}
	faults, err := newFaults(injected)
	if err != nil {
		return nil, err
	}
	lifecycle := newLifecycle(log, hangups)
	env := &Environment{
		faults: faults, lifecycle: lifecycle,
		status: newStatusSource(name, securityOf(c), lifecycle.reloader, faults.injector),
		Log:    log, LogLevel: level,
		RDMA: provider, CPUs: cpus, TLS: credentials, Tracer: &trace.Tracer{},
		Policy: progress.Policy{Mode: mode, SpinTime: c.Workers.SpinTime},
	}
	env.hookRDMA()
	if credentials != nil {
		env.OnReload(func() (func() error, error) {
			return env.noteCertificates, credentials.Reload()
		})
	}
	return env, nil
}

// workerCPUs returns the core of each worker, or affinity.AnyCPU.
func workerCPUs(c config.Workers) ([]int, error) {
	if len(c.CPUs) > 0 {
		return c.CPUs, nil
	}
	count := c.Count
	if count == 0 {
		var err error
		if count, err = affinity.PollingThreads(); err != nil {
			return nil, err
		}
	}
	return slices.Repeat([]int{affinity.AnyCPU}, count), nil
}

// runner is a daemon's service, ready to run.
type runner interface {
	Run(ctx context.Context) error
	Close() error
}

// RunAndClose runs a service until ctx ends, and closes it.
func RunAndClose(ctx context.Context, service runner) error {
	return errors.Join(service.Run(ctx), service.Close())
}

// usageOf returns what the certificate of a daemon is used for, by its name or that of its unit.
func usageOf(name string) x509.ExtKeyUsage {
	if strings.Contains(name, "target") {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// LoadTLS loads the credentials, nil without TLS.
func LoadTLS(
	c config.TLS, usage x509.ExtKeyUsage, log *zap.Logger,
) (*mutualtls.Credentials, error) {
	if !c.Enabled() {
		return nil, nil
	}
	return mutualtls.Load(mutualtls.Files{Certificate: c.Certificate, Key: c.Key, CA: c.CA,
		Revoked: c.Revoked, Usage: usage}, log)
}

// securityOf describes what protects the daemon's connections.
func securityOf(c *config.Daemon) adminserver.Security {
	s := adminserver.Security{Control: controlmsg.DataSecurityOff.String(), Data: c.Security.Data,
		Fabric: c.Security.Fabric}
	if c.TLS.Enabled() {
		s.Control = controlmsg.DataSecurityTLS.String()
	}
	return s
}

// SecurityMetric is the name of the metric whose labels say what protects the daemon's connections.
const SecurityMetric = "zc_security_info"

// securityInfo reports s.
func securityInfo(s adminserver.Security) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        SecurityMetric,
		Help:        "Always 1; the labels say what protects the connections between relay and target.",
		ConstLabels: prometheus.Labels{"control": s.Control, "data": s.Data, "fabric": s.Fabric},
	})
	g.Set(1)
	return g
}

// CertificateExpiryMetric is the name of the metric for alerts before the certificate expires.
const CertificateExpiryMetric = "zc_tls_certificate_expiry_timestamp_seconds"

// certificateExpiry reports the expiry of the certificate in use.
func certificateExpiry(credentials *mutualtls.Credentials) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: CertificateExpiryMetric,
		Help: "When the TLS certificate of this daemon expires, in seconds since 1970. Only with TLS.",
	}, func() float64 { return float64(credentials.NotAfter().Unix()) })
}

// WarnOfPlainText logs a warning if control connections at this address can be read and changed by
// others: without TLS, except on the loopback interface.
func (e *Environment) WarnOfPlainText(address netip.Addr) {
	if e.TLS == nil && !address.IsLoopback() {
		e.Log.Warn("control connections are neither encrypted nor authenticated: use --tls-cert, --tls-key and --tls-ca, or a trusted network",
			zap.Stringer("address", address))
	}
}
