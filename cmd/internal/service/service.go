// Package service is what the daemons have in common: their workers,
// logging, the operations listener and the run until a signal.
package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/ops"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// Config is the part of a configuration that both daemons have.
type Config struct {
	Log        config.Log
	Operations config.Operations
	Workers    config.Workers
	RDMA       config.RDMA
	TLS        config.TLS
}

// Environment is what a daemon runs in.
type Environment struct {
	Log      *zap.Logger
	LogLevel zap.AtomicLevel // of Log
	RDMA     rdma.Provider
	CPUs     []int // for each worker its core, or -1
	Policy   progress.Policy
	TLS      *mutualtls.Credentials // nil for plain text

	ops       *ops.Server // nil if nobody listens
	admin     *ops.Admin  // the same
	status    *statusSource
	lifecycle *lifecycle
}

// Register adds metrics.
func (e *Environment) Register(collector prometheus.Collector) error {
	if e.ops == nil {
		return nil
	}
	if err := e.ops.Register(collector); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// SetReady tells /readyz and the service manager whether the daemon can serve, and if not why.
func (e *Environment) SetReady(err error) {
	e.status.setReady(err)
	if err == nil {
		e.lifecycle.notifier.Status("ready")
	} else {
		e.lifecycle.notifier.Status("not ready: " + err.Error())
	}
	if e.ops != nil {
		e.ops.SetReady(err)
	}
}

// Run makes the environment that the configuration describes and calls body
// in it.
func Run(ctx context.Context, name string, c Config, body func(context.Context, *Environment) error) (err error) {
	env, err := newEnvironment(name, c)
	if err != nil {
		return program.Usage(err)
	}
	defer func() { _ = env.Log.Sync() }() // standard error cannot be synced everywhere
	program.ReserveProcessors(len(env.CPUs))
	listeners, err := listen(c.Operations, env)
	defer func() { err = errors.Join(err, endListeners(listeners)) }()
	if err != nil {
		return err
	}
	env.Log.Info("starting", zap.String("version", buildinfo.Version()), zap.Ints("cpus", env.CPUs), zap.String("poll", c.Workers.Poll))
	err = env.lifecycle.call(ctx, func() error { return body(ctx, env) })
	if cause := context.Cause(ctx); cause != nil && err == nil {
		env.Log.Info("ended", zap.NamedError("reason", cause))
	}
	return err
}

func newEnvironment(name string, c Config) (*Environment, error) {
	log, level, err := logging.New(name, logging.Options{Level: c.Log.Level, Format: c.Log.Format, Sampling: c.Log.Sampling})
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
	provider, err := openRDMA(c.RDMA, log)
	if err != nil {
		return nil, err
	}
	credentials, err := loadTLS(c.TLS, log)
	if err != nil {
		return nil, err
	}
	env := &Environment{
		lifecycle: newLifecycle(log), status: newStatusSource(name), Log: log, LogLevel: level, RDMA: provider, CPUs: cpus, TLS: credentials,
		Policy: progress.Policy{Mode: mode, SpinTime: c.Workers.SpinTime},
	}
	if credentials != nil {
		env.OnReload(credentials.Reload)
	}
	return env, nil
}

// defaultWorkers is how many workers there are unless told otherwise, if the
// process may use as many cores.
const defaultWorkers = 2

// workerCPUs has an element for each worker: its core, or "any".
func workerCPUs(c config.Workers) ([]int, error) {
	if len(c.CPUs) > 0 {
		return c.CPUs, nil
	}
	count := c.Count
	if count == 0 {
		allowed, err := affinity.Allowed()
		if err != nil {
			return nil, err
		}
		count = min(defaultWorkers, len(allowed))
	}
	return slices.Repeat([]int{affinity.AnyCPU}, count), nil
}

// runner is a service that New has made.
type runner interface {
	Run(ctx context.Context) error
	Close() error
}

// RunAndClose runs a service until ctx ends and releases it.
func RunAndClose(ctx context.Context, service runner) error {
	return errors.Join(service.Run(ctx), service.Close())
}

// Bound turns a duration of a configuration file, where 0 is what it says,
// into one of a package, where 0 means the default, less than 0 none, and
// there is no end of time.
func Bound(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// openRDMA returns the RDMA provider that is configured.
func openRDMA(c config.RDMA, log *zap.Logger) (rdma.Provider, error) {
	options := providers.RDMAOptions{CRC: c.CRC, Logger: log, Verbs: verbs.Options{
		Device: c.Device, PathMTU: c.PathMTU, TypeOfService: c.TypeOfService, RetryCount: c.RetryCount,
	}}
	if c.GIDIndex != config.AutoGID {
		options.Verbs.GIDIndex = &c.GIDIndex
	}
	p, err := providers.RDMA(c.Provider, options)
	if err != nil {
		return nil, fmt.Errorf("rdma.provider (--rdma-provider): %w", err)
	}
	return p, nil
}

// loadTLS returns nil if there is no TLS.
func loadTLS(c config.TLS, log *zap.Logger) (*mutualtls.Credentials, error) {
	if !c.Enabled() {
		return nil, nil
	}
	return mutualtls.Load(mutualtls.Files{Certificate: c.Certificate, Key: c.Key, CA: c.CA}, log)
}

// CertificateExpiryMetric is the name of the metric for alerts before the
// certificate expires.
const CertificateExpiryMetric = "zc_tls_certificate_expiry_timestamp_seconds"

// certificateExpiry reads the end of the certificate that is in use.
func certificateExpiry(credentials *mutualtls.Credentials) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: CertificateExpiryMetric, Help: "When the TLS certificate of this daemon expires, in seconds since 1970. Only with TLS.",
	}, func() float64 { return float64(credentials.NotAfter().Unix()) })
}

// WarnOfPlainText complains about control connections that others can read
// and change: those at an address that is not of the loopback interface,
// without TLS.
func (e *Environment) WarnOfPlainText(address netip.Addr) {
	if e.TLS == nil && !address.IsLoopback() {
		e.Log.Warn("control connections are neither encrypted nor authenticated: give --tls-cert, --tls-key and --tls-ca, or use a network that you trust",
			zap.Stringer("address", address))
	}
}
