// Package service is what the daemons have in common: their flags, workers,
// logging, the operations listener and the run until a signal.
package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/logging"
	"github.com/zc-relay/zc-relay/internal/ops"
	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Flags are the flags that both daemons take.
type Flags struct {
	cpus          []string
	poll          string
	metricsListen string
	adminListen   string
	rdma          rdmaFlags
	tls           tlsFlags
	keepAlive     controlmsg.KeepAliveConfig
	logging       logging.Options
}

// Add adds the flags to f.
func (o *Flags) Add(f *pflag.FlagSet) {
	f.StringArrayVar(&o.cpus, "cpu", nil, "pin a worker to this core; repeatable, and takes lists like 0-3 (default: two workers that are not pinned)")
	f.StringVar(&o.poll, "poll", progress.Adaptive.String(), "what an idle worker does: adaptive, busy or event")
	f.StringVar(&o.metricsListen, "metrics-listen", "", "address of the status page, /status, /metrics, /healthz and /readyz (default: none)")
	f.StringVar(&o.adminListen, "admin-listen", "", "address for administration: unix:PATH, or a loopback address, which every user of the machine can reach (default: none)")
	o.rdma.add(f)
	o.tls.add(f)
	keepAlive := controlmsg.DefaultKeepAlive()
	f.DurationVar(&o.keepAlive.Interval, "keep-alive-interval", keepAlive.Interval, "pause between signs of life on control connections")
	f.DurationVar(&o.keepAlive.DeadAfter, "keep-alive-dead-after", keepAlive.DeadAfter, "silence after which the peer of a control connection counts as dead")
	o.logging.AddFlags(f)
}

// Environment is what a daemon runs in.
type Environment struct {
	Log         *zap.Logger
	RDMA        rdma.Provider
	RDMAAddress netip.Addr // local address of RDMA connections; the zero Addr if the user left the choice
	CPUs        []int      // for each worker its core, or -1
	Policy      progress.Policy
	KeepAlive   controlmsg.KeepAliveConfig
	TLS         *mutualtls.Credentials // nil for plain text

	ops       *ops.Server // nil if nobody listens
	level     zap.AtomicLevel
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

// Run makes the environment of the flags and calls body in it.
func (o *Flags) Run(ctx context.Context, name string, body func(context.Context, *Environment) error) (err error) {
	env, err := o.environment(name)
	if err != nil {
		return program.Usage(err)
	}
	defer func() { _ = env.Log.Sync() }() // standard error cannot be synced everywhere
	program.ReserveProcessors(len(env.CPUs))
	listeners, err := o.listen(env)
	defer func() { err = errors.Join(err, endListeners(listeners)) }()
	if err != nil {
		return err
	}
	env.Log.Info("starting", zap.String("version", buildinfo.Version()), zap.Ints("cpus", env.CPUs), zap.String("poll", o.poll))
	err = env.lifecycle.call(ctx, func() error { return body(ctx, env) })
	if cause := context.Cause(ctx); cause != nil && err == nil {
		env.Log.Info("ended", zap.NamedError("reason", cause))
	}
	return err
}

func (o *Flags) environment(name string) (*Environment, error) {
	log, level, err := o.logging.New(name)
	if err != nil {
		return nil, err
	}
	mode, err := progress.ParseMode(o.poll)
	if err != nil {
		return nil, fmt.Errorf("--poll: %w", err)
	}
	cpus, err := o.workerCPUs()
	if err != nil {
		return nil, err
	}
	address, err := o.rdma.localAddress()
	if err != nil {
		return nil, err
	}
	provider, err := o.rdma.open(log)
	if err != nil {
		return nil, err
	}
	credentials, err := o.tls.load(log)
	if err != nil {
		return nil, err
	}
	env := &Environment{
		lifecycle: newLifecycle(log), status: newStatusSource(name), level: level,
		Log: log, RDMA: provider, RDMAAddress: address, CPUs: cpus,
		Policy: progress.Policy{Mode: mode}, KeepAlive: o.keepAlive, TLS: credentials,
	}
	if credentials != nil {
		env.OnReload(credentials.Reload)
	}
	return env, nil
}

// defaultWorkers is how many workers there are unless told otherwise, if the
// process may use as many cores.
const defaultWorkers = 2

// workerCPUs lists the cores of --cpu, or as many times "any" as there are
// workers by default.
func (o *Flags) workerCPUs() ([]int, error) {
	allowed, err := affinity.Allowed()
	if err != nil {
		return nil, err
	}
	var cpus []int
	for _, list := range o.cpus {
		parsed, err := affinity.ParseList(list)
		if err != nil {
			return nil, fmt.Errorf("--cpu: %w", err)
		}
		cpus = append(cpus, parsed...)
	}
	if len(o.cpus) > 0 {
		return cpus, nil
	}
	for range min(defaultWorkers, len(allowed)) {
		cpus = append(cpus, program.AnyCPU)
	}
	return cpus, nil
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

// ZeroIsNone turns a duration of a flag, where 0 is what it says, into one of
// a configuration, where 0 means the default and less than 0 none.
func ZeroIsNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
