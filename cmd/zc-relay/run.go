package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/metrics"
	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/internal/providers"
	"github.com/zc-relay/zc-relay/internal/service"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// runOptions are the flags of "zc-relay run".
type runOptions struct {
	service service.Flags

	device       string
	representor  string
	channelName  string
	target       string
	volume       string
	comch        string
	emulatedDir  string
	allowAnyUser bool
	serverName   string

	controlTimeout time.Duration
	ioTimeout      time.Duration
	drainTimeout   time.Duration
	maxClients     int
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve a channel until SIGTERM",
		Long: `run offers a channel to clients on the host and forwards their IO to a volume of
a storage server. It serves any number of clients, at once and one after
another. SIGTERM lets IO in flight run out and ends; a second signal ends at
once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.device, "device", "d", emulated.DefaultDevice, "Comch device, as the DPU sees it")
	f.StringVarP(&o.representor, "representor", "r", emulated.DefaultRepresentor, "representor of the host function to serve")
	f.StringVar(&o.channelName, "command-channel-name", client.DefaultChannelName, "name of the Comch service")
	f.StringVar(&o.target, "storage-server", "", "control address of the target, IP:PORT (required)")
	f.StringVar(&o.volume, "volume", "", "name of the volume at the target (required)")
	f.StringVar(&o.comch, "comch-provider", providers.DefaultComch, "Comch provider: emulated or doca")
	f.StringVar(&o.emulatedDir, "emulated-dir", "", `directory of the emulated Comch (default "`+emulated.DefaultDirectory()+`")`)
	f.BoolVar(&o.allowAnyUser, "allow-any-user", false, "let clients of every user connect, not only root and the relay's own")
	f.DurationVar(&o.controlTimeout, "control-timeout", relay.DefaultControlTimeout, "bound of each step of the handshake")
	f.DurationVar(&o.ioTimeout, "io-timeout", relay.DefaultIOTimeout, "how long the target may take for an IO before the session is ended; 0 is no bound")
	f.DurationVar(&o.drainTimeout, "drain-timeout", relay.DefaultDrainTimeout, "how long IO in flight may take to run out at shutdown; 0 is not at all")
	f.IntVar(&o.maxClients, "max-clients", relay.DefaultMaxSessions, "clients that may be connected at once")
	f.StringVar(&o.serverName, "tls-server-name", "", "name that the target's certificate must have (default: the address of --storage-server)")
	o.service.Add(f)
	for _, name := range []string{"storage-server", "volume"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	target, err := netip.ParseAddrPort(o.target)
	if err != nil || target.Port() == 0 {
		return program.Usagef("--storage-server %q is no address of the form IP:PORT", o.target)
	}
	return o.service.Run(ctx, "zc-relay", func(ctx context.Context, env *service.Environment) error {
		return o.serve(ctx, env, target)
	})
}

func (o *runOptions) serve(ctx context.Context, env *service.Environment, target netip.AddrPort) error {
	if err := env.CheckTLSFlag("--tls-server-name", o.serverName != ""); err != nil {
		return err
	}
	env.WarnOfPlainText(target.Addr())
	comch, err := providers.Comch(o.comch, o.emulatedDir, env.Log)
	if err != nil {
		return program.Usage(err)
	}
	r, err := relay.New(ctx, relay.Config{
		Comch: comch, RDMA: env.RDMA, CPUs: env.CPUs, Policy: env.Policy, TLS: env.TLS,
		Software: buildinfo.String("zc-relay"), Logger: env.Log, OnReady: env.SetReady,
		Settings: relay.Settings{
			DrainTimeout: service.ZeroIsNone(o.drainTimeout),
			Channels: []relay.ChannelConfig{{
				ChannelID: relay.ChannelID{Device: o.device, Representor: o.representor, Name: o.channelName},
				Target:    target, Volume: o.volume, RDMAAddress: env.RDMAAddress, TLSServerName: o.serverName,
				Limits: relay.Limits{MaxSessions: o.maxClients}, Access: relay.Access{AnyUser: o.allowAnyUser},
				ControlTimeout: o.controlTimeout, IOTimeout: service.ZeroIsNone(o.ioTimeout), KeepAlive: env.KeepAlive,
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := env.Register(metrics.NewRelayCollector(observed{r})); err != nil {
		return errors.Join(err, r.Close())
	}
	env.SetStatus(describe(r))
	if err := env.Started(r.Workers); err != nil {
		return errors.Join(err, r.Close())
	}
	return service.RunAndClose(ctx, r)
}
