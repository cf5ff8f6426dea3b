// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// loadFile reads a configuration file for a command that needs only a part of it.
func loadFile(file string) (*config.Relay, error) {
	return config.LoadRelay(config.Sources{File: file, Environ: os.Environ(), Partial: true})
}

// chooseVolume completes the command line of the DOCA application, whose storage has one volume
// without a name.
func chooseVolume(from *config.Source[*config.Relay]) error {
	f := from.Flags
	if from.File != "" || f.Changed("volume") || !f.Changed("storage-server") &&
		!f.Changed("storage-servers") {
		return nil
	}
	return f.Set("volume", argp.VolumeName)
}

func newRunCommand() *cobra.Command {
	from := config.RelaySource()
	var faults service.Faults
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve channels until SIGTERM",
		Long: `run offers channels to clients on the host and forwards their IO to volumes on
storage servers. It serves any number of clients, concurrently and one after
another. Flags alone can describe a single channel:

  zc-relay run --storage-server 10.0.0.5:7470 --volume disk

Targets that take over from one another are given together:

  zc-relay run --storage-servers 10.0.0.5:7470,10.0.0.6:7470 --volume disk

Several channels need a file: see "zc-relay config". Environment variables override it,
and flags override both: ZC_RELAY__LOG__LEVEL is log.level. SIGHUP rereads the file and
logs which changes need a restart. SIGTERM completes the IO in flight and exits; another one a
second later, or SIGINT twice, exits at once.

The command line of the DOCA application works without "run". The volume is then
called ` + argp.VolumeName + `:

  zc-relay -d 03:00.0 -r b1:00.0 --storage-server 10.0.0.5:7470 --cpu 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if argp.Implied(cmd) {
				if err := chooseVolume(from); err != nil {
					return err
				}
			}
			return service.Run(cmd.Context(), "zc-relay", "zc-relay", from, faults,
				func(ctx context.Context, env *service.Environment, c *config.Relay) error {
					return serve(ctx, env, c, from)
				})
		},
	}
	from.AddFlags(cmd.Flags())
	faults.AddFlags(cmd.Flags(), fault.RDMA, fault.Comch, fault.Control)
	return cmd
}

func serve(ctx context.Context, env *service.Environment, c *config.Relay,
	from *config.Source[*config.Relay]) (err error) {
	if err := providers.CheckDirectory(c.Comch.Provider, c.Comch.Directory); err != nil {
		return fmt.Errorf("comch.directory (--emulated-dir): %w", err)
	}
	options := c.Comch.Options()
	options.RingMemory, options.Logger = c.Limits.RingMemory, env.Log
	comch, err := providers.Comch(c.Comch.Provider, options)
	if err != nil {
		return service.StartFailure(err)
	}
	dma, err := providers.StagingDMA(c.Comch.Provider, options.NeverWait)
	if err != nil {
		return service.StartFailure(err)
	}
	kept, err := openKept(c)
	if err != nil {
		return err
	}
	live := &liveConfig{env: env, from: from, kept: kept, ctx: ctx, running: c, applied: c,
		names: newLookups(env.Log, env.WarnOfPlainText), turn: make(chan struct{}, 1)}
	defer func() { err = errors.Join(err, live.close()) }()
	all, err := live.withKept(c)
	if err != nil {
		return program.Usage(err)
	}
	r, err := relay.New(ctx, relay.Config{
		Comch: env.HookComch(comch), RDMA: env.RDMA, DMA: dma, CPUs: sharedWorkers(all, env.CPUs),
		Policy: env.Policy, TLS: env.TLS,
		DataSecurity: c.Security.Wanted(), Fabric: c.Security.DeclaredFabric(),
		HookTransport: env.HookTransport, Tracer: env.Tracer, CountedClients: c.Metrics.PerSession,
		Software: buildinfo.String("zc-relay"), Logger: env.Log,
		OnReady: func(now relay.Readiness) {
			missing := ""
			if now.Serving < now.Channels {
				missing = now.String()
			}
			env.SetReady(now.Err, missing)
		},
		Settings: relaySettings(all, live.names),
	})
	if err != nil {
		return service.StartFailure(fmt.Errorf("start: %w", err))
	}
	if err := env.Register(metrics.NewRelayCollector(r,
		metrics.Options{Queues: c.Metrics.Queues})); err != nil {
		return errors.Join(err, r.Close())
	}
	env.SetStatus(describe(r))
	env.SetTrace("zc-relay", "the target")
	env.SetDrainer(adminView{r})
	env.SetSessions(adminView{r})
	env.BoundTeardown(r)
	live.relay = r
	live.logKept()
	env.SetChannels(live)
	env.OnReload(live.read)
	if err := env.Started(r.Workers); err != nil {
		return errors.Join(err, r.Close())
	}
	return service.RunAndClose(ctx, r)
}

// sharedWorkers returns the cores of the workers that channels share, none if every channel has its
// own, and no others can be added by command.
func sharedWorkers(c *config.Relay, cpus []int) []int {
	if c.State.Path() != "" {
		return cpus
	}
	for i := range c.Channels {
		if len(c.Channels[i].CPUs) == 0 {
			return cpus
		}
	}
	return nil
}

// describe returns a function that adds the relay's channels and workers to its status.
func describe(r *relay.Relay) func(*adminserver.Document) {
	return func(d *adminserver.Document) {
		d.Workers = datapath.WorkerStatuses(r.Workers())
		d.Channels = r.Channels()
		for i := range d.Channels {
			c := &d.Channels[i]
			c.ReadCounters()
			if len(c.Targets) == 1 {
				c.Targets = nil // Link says it all
			}
		}
	}
}
