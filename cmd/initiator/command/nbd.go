// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Defaults of the gateway. The depth suffices for several connections with the 128 requests that
// Linux keeps outstanding.
const (
	defaultNBDDepth  = 256
	defaultNBDMemory = 4 * size.MiB
)

// maxNBDClients bounds the series of a gateway.
const maxNBDClients = 10_000

// drainTimeout bounds the wait for requests in progress at the end, and stopExtension is the time
// without a report after which the service manager may kill a gateway that ends.
const (
	drainTimeout  = 10 * time.Second
	stopExtension = 30 * time.Second
)

// nbdCommand is "initiator nbd".
type nbdCommand struct {
	connection *connectionFlags
	queue      queueFlags
	reconnect  reconnectFlags
	listen     nbdListenFlags
	run        nbdRunFlags

	exports     []string
	readOnly    bool
	connections int
	buffers     bufferFlags
	operations  operationsFlags
	perClient   int
	coreDumps   bool

	log *zap.Logger
}

// servedExport is an export with its volume.
type servedExport struct {
	name    string
	channel string
	volume  volume
}

func newNBDCommand(connection *connectionFlags) *cobra.Command {
	c := &nbdCommand{connection: connection}
	cmd := &cobra.Command{
		Use:   "nbd",
		Short: "Serve the volume to NBD clients: Linux, qemu, libnbd and others",
		Long: `nbd makes the volume a disk for everything that speaks the Network Block Device
protocol: the Linux kernel, qemu, fio, nbdcopy, libguestfs. Requests may have any
offset and length. When relay or target restart, clients only notice a pause.

It serves until a signal ends it, the command of --run has ended, or the volume is
lost for good: exit code 3 if it could not be reopened in time, 1 if the relay now
offers another volume, 4 if another client has taken the volume with --preempt.

  initiator nbd --socket /run/disk.sock
  initiator nbd --run 'qemu-img info "$uri"'
  initiator nbd --listen 0.0.0.0:10809 --tls-cert c.pem --tls-key k.pem --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.execute(cmd) },
	}
	f := cmd.Flags()
	c.addFlags(f)
	cmd.MarkFlagsMutuallyExclusive("queues", "cpu")
	cmd.MarkFlagsRequiredTogether("tls-cert", "tls-key", "tls-ca")
	program.ExplainFlag(cmd, "connect", "nbd-client connects a device: serve with --socket PATH, "+
		"and run nbd-client -unix PATH /dev/nbd0")
	return cmd
}

func (c *nbdCommand) addFlags(f *pflag.FlagSet) {
	c.listen.add(f)
	f.StringArrayVar(&c.exports, "export", nil,
		"`name` of the export, as NAME for the channel of --command-channel-name or NAME=CHANNEL; "+
			"repeatable; without the empty name among them, the first is the default (default: the "+
			"empty name)")
	f.BoolVar(&c.readOnly, "read-only", false, "reject everything that changes the volume")
	f.IntVar(&c.connections, "connections", nbd.DefaultMaxConnections,
		"connections to each export at a time; they share its memory equally")
	program.Limit(f, "connections", program.Range{Least: 1, Most: 1024, Example: "32"})
	c.buffers.add(f, defaultNBDMemory, "memory for the data of each connection",
		"longest request to the volume, a power of two; longer ones of clients are split")
	c.queue.add(f, defaultNBDDepth)
	c.reconnect.add(f)
	c.reconnect.enabled = true
	f.Lookup("reconnect").DefValue = "true"
	c.run.add(f)
	c.connection.addPreempt(f)
	c.operations.add(f)
	f.BoolVar(&c.coreDumps, "core-dumps", false,
		"allow core dumps of a gateway with a private key or passwords, and debuggers of its user, who can then read them; for tests")
	f.IntVar(&c.perClient, "metrics-per-client", 0,
		"number of clients whose requests are counted by the client's name, all others together; 0 counts none")
}

// execute serves until something ends it.
func (c *nbdCommand) execute(cmd *cobra.Command) (err error) {
	program.OutliveReaders()
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	if err := c.check(cmd.Flags()); err != nil {
		return err
	}
	if c.log, _, err = logging.New("initiator", c.connection.logging); err != nil {
		return program.Usage(err)
	}
	if !c.coreDumps && (c.listen.hasTLS() || c.operations.webConfig != "") { // before the first secret is read
		if err := program.HideMemory(); err != nil {
			return err
		}
	}
	notifier := systemd.NewNotifier(c.log)
	if err := c.run.watchParent(stop); err != nil {
		return err
	}
	admit, err := c.listen.admission()
	if err != nil {
		return err
	}
	credentials, err := c.listen.credentials(c.log)
	if err != nil {
		return err
	}
	queues, _, err := c.queue.resolve()
	if err != nil {
		return err
	}
	policy, err := c.queue.policy()
	if err != nil {
		return err
	}
	exports, err := c.openExports(ctx, queues)
	defer func() { err = c.closeExports(ctx, exports, err) }()
	if err != nil {
		return err
	}
	server, err := nbd.NewServer(nbd.Config{
		Workers: queues, Policy: policy, TLS: credentials, Admit: admit,
		MaxConnections: c.connections, Logger: c.log,
		CountedClients: c.perClient, NameClient: nameNBDClient,
	})
	if err != nil {
		return err
	}
	defer func() {
		stopping, end := context.WithCancel(context.Background())
		defer end()
		go notifier.Stopping(stopping, stopExtension)
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		err = errors.Join(err, server.Close(draining))
	}()
	return c.serve(ctx, cmd, server, exports, notifier, stop)
}

// serve serves the exports until ctx ends, the command of --run does, or all exports have.
func (c *nbdCommand) serve(ctx context.Context, cmd *cobra.Command, server *nbd.Server,
	exports []servedExport, notifier *systemd.Notifier, stop context.CancelCauseFunc) (err error) {
	for _, e := range exports {
		if err := c.addExport(server, e); err != nil {
			return err
		}
	}
	operations, err := c.operations.listen(func() any { return nbdStatusOf(server, exports) },
		newNBDCollector(server, exports), c.log)
	if err != nil {
		return err
	}
	if operations != nil {
		defer func() { err = errors.Join(err, operations.Shutdown(context.WithoutCancel(ctx))) }()
	}
	places, err := c.listen.open(c.run.command != "")
	if err != nil {
		return err
	}
	defer places.cleanUp()
	for _, listener := range places.listeners {
		if err := server.Serve(listener); err != nil {
			return err
		}
	}
	uris := places.uris(exports, c.listen.hasTLS())
	c.log.Info("serving NBD clients",
		zap.Strings("uri", places.allURIs(exports, c.listen.hasTLS())))
	if c.run.printURI {
		fmt.Fprintln(cmd.OutOrStdout(), strings.Join(uris, "\n"))
	}
	if operations != nil {
		operations.SetReady(nil, "")
	}
	notifier.Ready()
	notifier.Status(fmt.Sprintf("serving %s", strings.Join(uris, " ")))
	ended := c.watchExports(ctx, server, exports)
	command := c.run.start(ctx, cmd, places.environment(exports, uris))
	select {
	case err = <-ended:
	case err = <-command.ended:
	case <-ctx.Done():
	}
	stop(err) // ends the command, and the watch on the exports
	command.wait()
	if err == nil {
		select {
		case err = <-command.ended: // perhaps interrupted halfway
		default:
		}
	}
	return err
}

func (c *nbdCommand) check(set *pflag.FlagSet) error {
	if c.perClient < 0 || c.perClient > maxNBDClients {
		return program.Usagef("--metrics-per-client %d is not between 0 and %d", c.perClient,
			maxNBDClients)
	}
	if set.Changed("metrics-per-client") && c.operations.address == "" {
		return program.Usagef("--metrics-per-client has no effect without --metrics-listen")
	}
	if err := c.operations.check(); err != nil {
		return err
	}
	if err := c.buffers.check(); err != nil {
		return err
	}
	if len(c.exports) == 0 {
		c.exports = []string{""}
	}
	if c.connection.preempt != "" && len(c.exports) > 1 {
		return program.Usagef("--preempt names the holder of one volume: serve one export")
	}
	seen := make(map[string]bool)
	for _, text := range c.exports {
		name, _, _ := strings.Cut(text, "=")
		if seen[name] {
			return program.Usagef("--export %q is given twice", name)
		}
		if _, channel, found := strings.Cut(text, "="); found && channel == "" {
			return program.Usagef("--export %q names no channel after \"=\": write NAME, or NAME=CHANNEL",
				text)
		}
		seen[name] = true
	}
	return c.listen.check(set, c.run.command != "")
}

// openExports opens the volumes. Even with an error, those it returns are open.
func (c *nbdCommand) openExports(ctx context.Context, queues int) ([]servedExport, error) {
	policy, err := c.reconnect.policy()
	if err != nil {
		return nil, err
	}
	var exports []servedExport
	for _, text := range c.exports {
		name, channel, found := strings.Cut(text, "=")
		if !found {
			channel = c.connection.channelName
		}
		v, err := c.openChannel(ctx, channel, queues, policy)
		if err != nil {
			if found && errors.Is(err, status.NotFound) {
				err = fmt.Errorf("%w (in --export %s, the channel is %q: a name of an export cannot "+
					"contain \"=\")", err, text, channel)
			}
			return exports, fmt.Errorf("export %q: %w", name, err)
		}
		info := v.Info()
		c.log.Info("opened volume", zap.String("export", name), zap.String("volume", info.Name),
			zap.Bool("exclusive", info.Exclusive), zap.String("holder", info.OwnHolderID))
		exports = append(exports, servedExport{name: name, channel: channel, volume: v})
	}
	return exports, nil
}

func (c *nbdCommand) openChannel(ctx context.Context, channel string, queues int,
	policy *retry.Policy) (volume, error) {
	connection := *c.connection
	connection.channelName = channel
	return connection.openVolume(ctx, client.Config{
		Queues: queues, Depth: c.queue.depth, BufferSize: uint32(c.buffers.size), SyncDepth: -1,
		MemorySize: gateway.MemorySize(c.connections, queues, uint64(c.buffers.memory)),
		Reconnect:  policy, ReadOnly: c.readOnly,
	})
}

func (c *nbdCommand) addExport(server *nbd.Server, e servedExport) error {
	info := e.volume.Info()
	export, err := gateway.New(gateway.Config{
		Volume: e.volume, Queues: queuesOf[gateway.Queue](e.volume, info.Queues),
		Sessions: c.connections, ReadOnly: c.readOnly,
		Repeat: c.reconnect.enabled, RepeatFor: c.reconnect.timeout,
	})
	if err != nil {
		return program.Usage(err)
	}
	return server.AddExport(e.name, export)
}

// watchExports ends each export whose volume is lost for good. It returns a channel that gets the
// reason of the last.
func (c *nbdCommand) watchExports(ctx context.Context, server *nbd.Server,
	exports []servedExport) <-chan error {
	reasons := make(chan error, len(exports))
	for _, e := range exports {
		go func() {
			select {
			case <-ctx.Done():
			case <-e.volume.Done():
				reason, message := e.volume.Err(), "export ended"
				if isTaken(reason) {
					message = "export ended: its volume has been taken away, and may be in use by another client"
				}
				c.log.Error(message, zap.String("export", e.name), zap.Error(reason))
				server.EndExport(e.name)
				reasons <- reason
			}
		}()
	}
	ended := make(chan error, 1)
	go func() {
		var last error
		for range exports {
			select {
			case <-ctx.Done():
				return
			case last = <-reasons:
			}
		}
		switch {
		case isTaken(last):
			last = program.WithExitCode(program.ExitTaken, last)
		case !errors.Is(last, client.ErrAnotherVolume):
			last = program.CannotConnect(last)
		}
		ended <- last
	}()
	return ended
}

// closeExports closes the volumes. It returns failure, if any, in preference to errors from
// closing.
func (c *nbdCommand) closeExports(ctx context.Context, exports []servedExport,
	failure error) error {
	var closing error
	for _, e := range exports {
		lost := e.volume.Err() != nil
		if err := e.volume.Close(context.WithoutCancel(ctx)); err != nil && !lost {
			closing = errors.Join(closing, fmt.Errorf("export %q: %w", e.name, err))
		}
	}
	if failure != nil {
		return failure
	}
	return closing
}
