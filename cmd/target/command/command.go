// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of target, without what decides where libdoca comes from.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/admincommands"
	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/explain"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Main runs the program. libdoca replaces the DOCA libraries of this machine, unless it is nil.
func Main(libdoca providers.Libdoca) {
	providers.Use(libdoca)
	program.Main(newCommand())
}

// newSource returns the source of a command's configuration, with the flags of the DOCA
// application.
func newSource() (*config.Source[*config.Target], *docaFlags) {
	from, flags := config.TargetSource(), &docaFlags{}
	from.Translator = flags
	return from, flags
}

func newCommand() *cobra.Command {
	from, doca := newSource()
	var faults service.Faults
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Serve volumes to relays until SIGTERM",
		Long: `target owns volumes. It moves their data by one-sided RDMA to and from the memory that
relays export to it.

  target --listen-address 10.0.0.5 --volume scratch=memory:1GiB
  target --listen-address 10.0.0.5 --volume disk=file:/dev/nvme0n1
  target --config /etc/zc-relay/target.yaml

The command line of the DOCA application works as it is. It serves one volume in
memory, called ` + argp.VolumeName + `, on all IPv4 addresses:

  target -d 03:00.0 --listen-port 12345 --binary-content disk.sbc --cpu 0

With the RDMA provider doca and one volume it also serves relays of the DOCA applications:

  target --rdma-provider doca --rdma-device 03:00.0 --volume d=memory:1GiB

SIGHUP rereads the file: volumes come and go, and the log says what needs a restart.
Environment variables override the file, and flags override both:
ZC_TARGET__LOG__LEVEL is log.level.`,
		Version: buildinfo.Version(),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return service.Run(cmd.Context(), "target", "zc-relay-target", from, faults,
				func(ctx context.Context, env *service.Environment, c *config.Target) error {
					return serve(ctx, env, c, from, doca)
				})
		},
	}
	cmd.SetVersionTemplate(buildinfo.String("target") + "\n")
	from.AddFlags(cmd.Flags())
	faults.AddFlags(cmd.Flags(), fault.Volume, fault.RDMA, fault.Control)
	configured, _ := newSource()
	cmd.AddCommand(config.NewCommand("the target", configured), newDoctorCommand(), newAccessCommand(),
		explain.NewCommand(), program.NewVersionCommand("target"))
	cmd.AddCommand(admincommands.NewCommands(daemon)...)
	cmd.AddCommand(admincommands.NewVolumeCommand(daemon))
	argp.Adopt(cmd, cmd)
	program.RunsAlone(cmd, "flags alone run the target")
	return cmd
}

func serve(ctx context.Context, env *service.Environment, c *config.Target,
	from *config.Source[*config.Target], doca *docaFlags) (err error) {
	env.WarnOfPlainText(c.Listen.Address)
	if address := c.Listen.Address; env.TLS == nil && address.IsLoopback() {
		env.Log.Info("without TLS, every user of this machine can open the volumes, and read and write them: use --tls-cert, --tls-key and --tls-ca if there are users who may not",
			zap.Stringer("address", address))
	}
	control, rdma := listenAddresses(&c.Listen)
	if err := checkAddresses(control, rdma, c.RDMA.HasTCPPorts()); err != nil {
		return service.StartFailure(fmt.Errorf("start: %w", err))
	}
	volumes, err := openVolumes(c, env.Log, env.HookVolume)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, volumes.close()) }()
	if s := volumes.find(argp.VolumeName); s != nil {
		if err := doca.fill(ctx, s.Volume); err != nil {
			return err
		}
	}
	t, err := target.New(ctx, target.Config{
		RDMA: env.RDMA, Listen: control, RDMAListen: rdma, Volumes: volumes.offers(),
		CPUs: env.CPUs, Policy: env.Policy,
		ControlTimeout: c.Control.Timeout, DrainTimeout: c.Shutdown.DrainTimeout,
		KeepAlive: controlmsg.KeepAliveConfig{Interval: c.Control.KeepAliveInterval,
			DeadAfter: c.Control.KeepAliveDeadAfter},
		TLS: env.TLS, TLSAllowedNames: c.Listen.AllowedNames(),
		DataSecurity: c.Security.Wanted(), Fabric: c.Security.DeclaredFabric(),
		HookTransport:  env.HookTransport,
		Protocol:       c.Listen.Version(),
		DetectProtocol: c.Listen.DetectsProtocol(),
		Tracer:         env.Tracer,
		CountedClients: c.Metrics.PerSession,
		MaxSessions:    c.Limits.Sessions,
		SessionRate:    c.Limits.SessionsPerSecond,
		StagingLimit:   c.Limits.Staging, Software: buildinfo.String("target"), Logger: env.Log,
	})
	if err != nil {
		return service.StartFailure(fmt.Errorf("start: %w", err))
	}
	view := &adminView{Target: t, volumes: volumes, ctx: ctx, tls: env.TLS != nil,
		additions: additions{Additions: c.Additions, state: c.State.Path()}}
	env.SetStatus(describe(view))
	env.SetTrace("target", "the volume")
	env.SetSessions(view)
	env.SetVolumes(view)
	env.BoundTeardown(t)
	live := &liveConfig{env: env, from: from, target: t, volumes: volumes, started: c, applied: c}
	env.OnReload(func() (func() error, error) { return live.read(ctx) })
	if err := announce(ctx, env, view, c); err != nil {
		return errors.Join(err, t.Close())
	}
	watched, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stopWatching()
	watching.Go(func() { watchReadiness(watched, env.SetReady, view.Volumes) })
	return service.RunAndClose(ctx, t)
}

// listenAddresses returns the addresses for control and RDMA connections.
func listenAddresses(c *config.Listen) (control, rdma netip.AddrPort) {
	address := c.Address
	if c.RDMAAddress.IsValid() {
		address = c.RDMAAddress
	}
	return netip.AddrPortFrom(c.Address, c.Port), netip.AddrPortFrom(address, c.RDMAPort)
}

// checkAddresses returns why the target could not listen, as the start of the target does: before
// volumes create files, which would stay.
func checkAddresses(control, rdma netip.AddrPort, hasTCPPorts bool) error {
	if !hasTCPPorts { // those of RDMA are others
		rdma = netip.AddrPortFrom(rdma.Addr(), 0)
	}
	if err := network.CheckFree(rdma); err != nil {
		return fmt.Errorf("listen for RDMA connections on %v: %w", rdma, err)
	}
	if err := network.CheckFree(control); err != nil {
		return fmt.Errorf("listen for control connections on %v: %w", control, err)
	}
	return nil
}

// announce makes metrics, log, readiness, address file, and service manager report that relays can
// connect.
func announce(ctx context.Context, env *service.Environment, t *adminView,
	c *config.Target) error {
	options := metrics.Options{Queues: c.Metrics.Queues}
	if err := env.Register(metrics.NewTargetCollector(t, options)); err != nil {
		return err
	}
	env.Log.Info("listening for relays", zap.Stringer("control", t.Address()),
		zap.Stringer("rdma", t.RDMAAddress()))
	env.SetReady(readiness(t.Volumes()))
	if c.Listen.AddressFile != "" {
		if err := writeAddress(c.Listen.AddressFile, t.Address().String()+"\n"); err != nil {
			return err
		}
	}
	return env.Started(t.Workers)
}

// readinessInterval is the time between two looks at the volumes.
const readinessInterval = time.Second

// watchReadiness reports whether the target is of use to relays, until ctx ends. What was reported
// before may already be wrong at the first look.
func watchReadiness(ctx context.Context, setReady func(reason error, missing string),
	volumes func() []target.VolumeStatus) {
	ticker := time.NewTicker(readinessInterval)
	defer ticker.Stop()
	for former, isFirst := "", true; ; isFirst = false {
		select {
		case <-ctx.Done():
			setReady(context.Cause(ctx), "")
			return
		case <-ticker.C:
		}
		reason, missing := readiness(volumes())
		now := missing
		if reason != nil {
			now = reason.Error()
		}
		if isFirst || now != former {
			former = now
			setReady(reason, missing)
		}
	}
}

// maxReasonLength keeps the reason of one volume from hiding the others.
const maxReasonLength = 256

// readiness returns why a target with these volumes is of no use, or which of them are not, and
// why. One volume that has failed does not keep the others from being served, and the next one can
// be added at any time.
func readiness(volumes []target.VolumeStatus) (reason error, missing string) {
	var unusable []string
	for i := range volumes {
		v := &volumes[i]
		if volume.States.Of(v.State).IsUsable {
			continue
		}
		text := fmt.Sprintf("volume %q is %s", v.Name, v.State)
		if v.Reason != "" {
			text += ": " + printable.Line(v.Reason, maxReasonLength)
		}
		unusable = append(unusable, text)
	}
	slices.Sort(unusable) // by name
	list := strings.Join(unusable, "; ")
	switch {
	case len(unusable) == 0:
		return nil, ""
	case len(unusable) == len(volumes):
		return status.Errorf(status.BadState, "%s", list), ""
	}
	return nil, fmt.Sprintf("serving %d of %d volumes: %s", len(volumes)-len(unusable), len(volumes),
		list)
}

// writeAddress makes a file appear with its whole content.
func writeAddress(path, content string) error {
	file, err := output.Create(path)
	if err == nil {
		_, err = io.WriteString(file.Sink(), content)
		err = file.Finish(err)
	}
	if err != nil {
		return fmt.Errorf("write address file: %w", err)
	}
	return nil
}

// liveConfig is the configuration of the running daemon. It is read again for each reload, which
// applies the changes that do not need a restart.
type liveConfig struct {
	env     *service.Environment
	from    *config.Source[*config.Target]
	target  *target.Target
	volumes *volumes
	// started is the configuration that the process started with, applied the one currently in
	// effect, as far as it can be changed.
	started, applied *config.Target
}

// read reads the configuration again. The returned function applies it.
func (l *liveConfig) read(ctx context.Context) (apply func() error, err error) {
	c, err := l.from.Load()
	if err != nil {
		return nil, fmt.Errorf("the configuration is unchanged: %w", err)
	}
	serve, err := l.volumes.prepare(ctx, l.target, c.Volumes, c.Startup.Strict)
	if err != nil {
		failure := fmt.Errorf("the configuration is unchanged: %w", err)
		return func() error {
			l.report(l.applied, c)
			return failure
		}, nil
	}
	return func() error {
		l.target.SetAllowedNames(c.Listen.AllowedNames())
		failed, err := serve()
		l.report(c.KeepVolumes(failed, l.applied), c)
		return err
	}, nil
}

// report reports that now is in effect after a reload of c.
func (l *liveConfig) report(now, c *config.Target) {
	l.env.Reloaded(service.Changes{Applied: config.TargetChanges(l.applied, now),
		Failed: config.TargetChanges(now, c), SinceStart: config.TargetChanges(l.started, c)},
		now.Log)
	l.applied = now
	l.volumes.setConfigured(now.Volumes)
}

// describe returns a function that adds a target's volumes, sessions and workers to its status.
func describe(t *adminView) func(*adminserver.Document) {
	return func(d *adminserver.Document) {
		d.Workers = datapath.WorkerStatuses(t.Workers())
		d.Sessions = &adminserver.SessionCount{Open: t.Sessions(), Total: t.SessionsTotal()}
		d.OpenSessions = t.AdminSessions()
		d.Volumes = t.Volumes()
		uses := t.Uses()
		for i := range d.Volumes {
			v := &d.Volumes[i]
			v.SetUse(uses[v.Name])
			v.ReadCounters()
		}
	}
}
