package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// source is where the configuration comes from.
type source struct {
	file  string
	flags *pflag.FlagSet
}

// add adds the flags of the configuration to a command.
func (s *source) add(f *pflag.FlagSet) {
	f.StringVarP(&s.file, "config", "c", "", "YAML file with the configuration; flags override it")
	config.AddTargetFlags(f)
	s.flags = f
}

func (s *source) load() (*config.Target, error) {
	c, err := config.LoadTarget(config.Sources{File: s.file, Environ: os.Environ(), Flags: s.flags})
	return c, program.Usage(err)
}

func newCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Serve volumes to relays until SIGTERM",
		Long: `target owns volumes and moves their data by one-sided RDMA to and from the memory
that relays export to it.

  target --listen-address 10.0.0.5 --volume scratch=memory:1GiB
  target --listen-address 10.0.0.5 --volume disk=file:/dev/nvme0n1
  target --config /etc/zc-relay/target.yaml

SIGHUP reads the file again and says what changes need a restart.`,
		Version: buildinfo.Version(),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), &from) },
	}
	cmd.SetVersionTemplate(buildinfo.String("target") + "\n")
	from.add(cmd.Flags())
	cmd.AddCommand(newConfigCommand())
	return cmd
}

func run(ctx context.Context, from *source) error {
	c, err := from.load()
	if err != nil {
		return err
	}
	return service.Run(ctx, "target", service.Config{
		Log: c.Log, Operations: c.Operations, Workers: c.Workers, RDMA: c.RDMA, TLS: c.TLS,
	}, func(ctx context.Context, env *service.Environment) error { return serve(ctx, env, c, from) })
}

// volumeCloseTimeout bounds making everything durable at the end.
const volumeCloseTimeout = time.Minute

func serve(ctx context.Context, env *service.Environment, c *config.Target, from *source) (err error) {
	env.WarnOfPlainText(c.Listen.Address)
	volumes, err := openVolumes(c.Volumes, env.Log)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.Background(), volumeCloseTimeout)
		defer cancel()
		err = errors.Join(err, closeVolumes(ending, volumes))
	}()
	control, rdma := listenAddresses(&c.Listen)
	t, err := target.New(ctx, target.Config{
		RDMA: env.RDMA, Listen: control, RDMAListen: rdma, Volumes: volumes, CPUs: env.CPUs, Policy: env.Policy,
		ControlTimeout: c.Control.Timeout, DrainTimeout: service.Bound(c.Shutdown.DrainTimeout),
		KeepAlive: controlmsg.KeepAliveConfig{Interval: c.Control.KeepAliveInterval, DeadAfter: c.Control.KeepAliveDeadAfter},
		TLS:       env.TLS, TLSAllowedNames: c.Listen.TLSAllowedNames, MaxSessions: c.Limits.Sessions,
		StagingLimit: c.Limits.Staging, Software: buildinfo.String("target"), Logger: env.Log,
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	env.SetStatus(describe(t, volumes))
	env.BoundTeardown(t.DrainTimeout)
	reloader := &reloader{env: env, from: from, started: c, applied: c}
	env.OnReload(reloader.reload)
	if err := announce(ctx, env, t, c.Listen.AddressFile); err != nil {
		return errors.Join(err, t.Close())
	}
	return service.RunAndClose(ctx, t)
}

// listenAddresses are where control and RDMA connections arrive.
func listenAddresses(c *config.Listen) (control, rdma netip.AddrPort) {
	address := c.Address
	if c.RDMAAddress.IsValid() {
		address = c.RDMAAddress
	}
	return netip.AddrPortFrom(c.Address, c.Port), netip.AddrPortFrom(address, c.RDMAPort)
}

// announce tells everybody that relays can connect.
func announce(ctx context.Context, env *service.Environment, t *target.Target, addressFile string) error {
	if err := env.Register(metrics.NewTargetCollector(t)); err != nil {
		return err
	}
	env.Log.Info("listening for relays", zap.Stringer("control", t.Address()), zap.Stringer("rdma", t.RDMAAddress()))
	env.SetReady(nil)
	context.AfterFunc(ctx, func() { env.SetReady(context.Cause(ctx)) })
	if addressFile != "" {
		if err := writeAtomically(addressFile, t.Address().String()+"\n"); err != nil {
			return err
		}
	}
	return env.Started(t.Workers)
}

// writeAtomically makes a file appear with all of its content.
func writeAtomically(path, content string) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		return fmt.Errorf("write address file: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write address file: %w", err)
	}
	return nil
}
