package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// source is where the configuration comes from.
type source struct {
	file  string
	flags *pflag.FlagSet
}

// add adds the flags of the configuration to a command.
func (s *source) add(f *pflag.FlagSet) {
	f.StringVarP(&s.file, "config", "c", "", "YAML file with the configuration; flags override it")
	config.AddRelayFlags(f)
	s.flags = f
}

func (s *source) load() (*config.Relay, error) {
	c, err := config.LoadRelay(config.Sources{File: s.file, Environ: os.Environ(), Flags: s.flags})
	return c, program.Usage(err)
}

func newRunCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve channels until SIGTERM",
		Long: `run offers channels to clients on the host and forwards their IO to volumes of
storage servers. It serves any number of clients, at once and one after
another. A single channel can be described by flags alone:

  zc-relay run --storage-server 10.0.0.5:7470 --volume disk

Many channels are described in a file: see "zc-relay config". SIGHUP reads it
again and says what changes need a restart. SIGTERM lets IO in flight run out
and ends; a second signal ends at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), &from) },
	}
	from.add(cmd.Flags())
	return cmd
}

func run(ctx context.Context, from *source) error {
	c, err := from.load()
	if err != nil {
		return err
	}
	return service.Run(ctx, "zc-relay", service.Config{
		Log: c.Log, Operations: c.Operations, Workers: c.Workers, RDMA: c.RDMA, TLS: c.TLS,
	}, func(ctx context.Context, env *service.Environment) error { return serve(ctx, env, c, from) })
}

func serve(ctx context.Context, env *service.Environment, c *config.Relay, from *source) error {
	for i := range c.Channels {
		env.WarnOfPlainText(c.Channels[i].Target.Addr())
	}
	comch, err := providers.Comch(c.Comch.Provider, c.Comch.Directory, env.Log)
	if err != nil {
		return program.Usage(err)
	}
	settings, err := relaySettings(c)
	if err != nil {
		return program.Usage(err)
	}
	r, err := relay.New(ctx, relay.Config{
		Comch: comch, RDMA: env.RDMA, CPUs: sharedWorkers(c, env.CPUs), Policy: env.Policy, TLS: env.TLS,
		Software: buildinfo.String("zc-relay"), Logger: env.Log, OnReady: env.SetReady, Settings: settings,
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := env.Register(metrics.NewRelayCollector(observed{r})); err != nil {
		return errors.Join(err, r.Close())
	}
	env.SetStatus(describe(r))
	env.SetDrainer(drainer{r})
	env.BoundTeardown(r.DrainTimeout)
	reloader := &reloader{env: env, relay: r, from: from, started: c, applied: c}
	env.OnReload(func() error { return reloader.reload(ctx) })
	if err := env.Started(r.Workers); err != nil {
		return errors.Join(err, r.Close())
	}
	return service.RunAndClose(ctx, r)
}
