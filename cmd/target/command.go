package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/metrics"
	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/internal/service"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// options are the flags of the target.
type options struct {
	service service.Flags

	listenAddress  string
	listenPort     uint16
	rdmaPort       uint16
	addressFile    string
	volumes        []string
	blockSize      size.Bytes
	stagingLimit   size.Bytes
	controlTimeout time.Duration
	drainTimeout   time.Duration
	maxSessions    int
	allowedNames   []string
}

// defaultBlockSize is that of most disks and file systems.
const defaultBlockSize = 4096

func newCommand() *cobra.Command {
	o := options{blockSize: defaultBlockSize, stagingLimit: target.DefaultStagingLimit}
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Serve volumes to relays until SIGTERM",
		Long: `target owns volumes and moves their data by one-sided RDMA to and from the memory
that relays export to it.

  target --listen-address 10.0.0.5 --listen-port 7470 --volume scratch=memory:1GiB
  target --listen-address 10.0.0.5 --listen-port 7470 --volume disk=file:/dev/nvme0n1`,
		Version: buildinfo.Version(),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.SetVersionTemplate(buildinfo.String("target") + "\n")
	f := cmd.Flags()
	f.StringVar(&o.listenAddress, "listen-address", "127.0.0.1", "IP address for control connections of relays")
	f.Uint16Var(&o.listenPort, "listen-port", 0, "port for control connections; 0 picks one (required)")
	f.Uint16Var(&o.rdmaPort, "rdma-port", 0, "port for RDMA connections; 0 picks one, relays are told")
	f.StringVar(&o.addressFile, "address-file", "", "write the control address to this file when it is listened on")
	f.StringArrayVar(&o.volumes, "volume", nil, "volume to serve, NAME=memory:SIZE or NAME=file:PATH[,size=SIZE][,readonly][,direct]; repeatable (required)")
	f.Var(&o.blockSize, "block-size", "block size of the volumes")
	f.Var(&o.stagingLimit, "staging-limit", "memory that all sessions together may use for data on its way")
	f.DurationVar(&o.controlTimeout, "control-timeout", target.DefaultControlTimeout, "bound of each step of a handshake")
	f.DurationVar(&o.drainTimeout, "drain-timeout", target.DefaultDrainTimeout, "how long requests in flight may take to run out at shutdown; 0 is not at all")
	f.IntVar(&o.maxSessions, "max-sessions", target.DefaultMaxSessions, "control connections at once")
	f.StringArrayVar(&o.allowedNames, "tls-allowed-name", nil, "name that a relay's certificate must have, one of them if repeated (default: every certificate of --tls-ca is good)")
	o.service.Add(f)
	for _, name := range []string{"listen-port", "volume"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

func (o *options) run(ctx context.Context) error {
	address, err := netip.ParseAddr(o.listenAddress)
	if err != nil {
		return program.Usage(fmt.Errorf("--listen-address: %w", err))
	}
	control := netip.AddrPortFrom(address, o.listenPort)
	return o.service.Run(ctx, "target", func(ctx context.Context, env *service.Environment) error {
		return o.serve(ctx, env, control)
	})
}

// volumeCloseTimeout bounds making everything durable at the end.
const volumeCloseTimeout = time.Minute

func (o *options) serve(ctx context.Context, env *service.Environment, control netip.AddrPort) (err error) {
	if err := env.CheckTLSFlag("--tls-allowed-name", len(o.allowedNames) > 0); err != nil {
		return err
	}
	env.WarnOfPlainText(control.Addr())
	volumes, err := openVolumes(o.volumes, uint32(o.blockSize), env.Log)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.Background(), volumeCloseTimeout)
		defer cancel()
		err = errors.Join(err, closeVolumes(ending, volumes))
	}()
	rdma := netip.AddrPortFrom(control.Addr(), o.rdmaPort)
	if env.RDMAAddress.IsValid() {
		rdma = netip.AddrPortFrom(env.RDMAAddress, o.rdmaPort)
	}
	t, err := target.New(ctx, target.Config{
		RDMA: env.RDMA, Listen: control, RDMAListen: rdma, Volumes: volumes, CPUs: env.CPUs, Policy: env.Policy,
		ControlTimeout: o.controlTimeout, DrainTimeout: service.ZeroIsNone(o.drainTimeout), KeepAlive: env.KeepAlive,
		TLS: env.TLS, TLSAllowedNames: o.allowedNames, MaxSessions: o.maxSessions,
		StagingLimit: uint64(o.stagingLimit), Software: buildinfo.String("target"), Logger: env.Log,
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	env.SetStatus(describe(t, volumes))
	if err := o.announce(ctx, env, t); err != nil {
		return errors.Join(err, t.Close())
	}
	return service.RunAndClose(ctx, t)
}

// announce tells everybody that relays can connect.
func (o *options) announce(ctx context.Context, env *service.Environment, t *target.Target) error {
	if err := env.Register(metrics.NewTargetCollector(t)); err != nil {
		return err
	}
	env.Log.Info("listening for relays", zap.Stringer("control", t.Address()), zap.Stringer("rdma", t.RDMAAddress()))
	env.SetReady(nil)
	context.AfterFunc(ctx, func() { env.SetReady(context.Cause(ctx)) })
	if o.addressFile != "" {
		if err := writeAtomically(o.addressFile, t.Address().String()+"\n"); err != nil {
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
