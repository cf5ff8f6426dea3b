// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/ublk"
)

// defaultUblkMemory is the memory for the data of a queue: with the default depth, 64 KiB for each
// request.
const defaultUblkMemory = 8 * size.MiB

// ublkCommand is "initiator ublk".
type ublkCommand struct {
	connection *connectionFlags
	queue      queueFlags
	reconnect  reconnectFlags
	buffers    bufferFlags
	operations operationsFlags
	id         deviceNumber
	blockSize  size.Bytes

	readOnly     bool
	unprivileged bool
	printDevice  bool

	log *zap.Logger
}

// deviceNumber is a device's number as a flag: a number, or "auto".
type deviceNumber int

func (d *deviceNumber) String() string {
	if *d == ublk.AnyID {
		return "auto"
	}
	return strconv.Itoa(int(*d))
}

func (d *deviceNumber) Set(text string) error {
	if text == "auto" {
		*d = ublk.AnyID
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 20)
	if err != nil {
		return fmt.Errorf(`%q is neither "auto" nor a number from 0 to %d`, text, 1<<20-1)
	}
	*d = deviceNumber(n)
	return nil
}

func (d *deviceNumber) Type() string { return "number" }

func newUblkCommand(connection *connectionFlags) *cobra.Command {
	c := &ublkCommand{connection: connection, id: ublk.AnyID}
	cmd := &cobra.Command{
		Use:   "ublk",
		Short: "Make the volume a block device of this machine's kernel, without an NBD client",
		Long: `ublk makes the volume the block device /dev/ublkbN, for file systems, LVM, and LUKS.
It needs the kernel's driver ublk_drv (Linux 6.12 or newer) and, unless --unprivileged
is given, root. When relay or target restart, users of the device only notice a pause.

It serves until a signal ends it, and then removes the device, unless something uses it
exclusively, such as a mounted file system. Such a device stays, as it does when the
gateway is killed: its users wait, and the next gateway with the same --id goes on
without an error. "ublk remove" removes a device that no gateway is to take over.

Exit codes: 3 if the volume could not be reopened in time, 1 if the relay now offers
another volume or the device was removed, 4 if another client has taken the volume
with --preempt.

  initiator ublk --id 0
  initiator ublk --id 0 --queues 4 --queue-depth 256 --read-only
  initiator ublk remove --id 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.execute(cmd) },
	}
	c.addFlags(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("queues", "cpu")
	cmd.AddCommand(newUblkRemoveCommand())
	return cmd
}

func (c *ublkCommand) addFlags(f *pflag.FlagSet) {
	f.Var(&c.id, "id", `number N of /dev/ublkbN; a gateway with a number takes over that device if `+
		`its gateway has gone, and "auto" takes a free number`)
	f.Var(&c.blockSize, "block-size",
		"logical block size, a power of two from 512B to 4KiB (default: that of the volume)")
	f.BoolVar(&c.readOnly, "read-only", false, "make the device read-only")
	f.BoolVar(&c.unprivileged, "unprivileged", false, "work without root, if udev gives this user "+
		"/dev/ublk-control and the device's file: the device ends with the gateway, and the kernel "+
		"ends a gateway that leaves a request unanswered for 30 s")
	f.BoolVar(&c.printDevice, "print-device", false,
		"print the path of the device when it is ready")
	c.buffers.add(f, defaultUblkMemory, "memory for the data of each queue",
		"longest request to the device and to the volume, a power of two")
	c.queue.add(f, ublk.DefaultDepth)
	c.reconnect.add(f)
	c.reconnect.enabled = true
	f.Lookup("reconnect").DefValue = "true"
	c.connection.addPreempt(f)
	c.operations.add(f)
}

func (c *ublkCommand) check() error {
	if err := c.operations.check(); err != nil {
		return err
	}
	if c.blockSize != 0 && (c.blockSize < 512 || c.blockSize > 4*size.KiB ||
		c.blockSize&(c.blockSize-1) != 0) {
		return program.Usagef("--block-size %v is not a power of two from 512B to 4KiB", c.blockSize)
	}
	return c.buffers.check()
}

// execute serves until something ends it.
func (c *ublkCommand) execute(cmd *cobra.Command) error {
	program.OutliveReaders()
	if err := c.check(); err != nil {
		return err
	}
	var err error
	if c.log, _, err = logging.New("initiator", c.connection.logging); err != nil {
		return program.Usage(err)
	}
	policy, err := c.queue.policy()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	identity, queues, err := c.identify(ctx)
	if err != nil {
		return err
	}
	v, err := c.open(ctx, identity, queues)
	if err != nil {
		return err
	}
	device, err := c.start(ctx, v, identity, policy)
	if err != nil {
		return closeVolume(ctx, v, err)
	}
	served := &servedDevice{ublkCommand: c, device: device, volume: v,
		notifier: systemd.NewNotifier(c.log)}
	return closeVolume(ctx, v, served.serve(ctx, cmd))
}

// identify returns the identity of the gateway, and the number of queues: those of the device if
// there is one, or else new ones.
func (c *ublkCommand) identify(ctx context.Context) (*deviceIdentity, int, error) {
	if _, err := ublk.Probe(ctx); err != nil {
		return nil, 0, program.Rejected(err)
	}
	if c.id != ublk.AnyID {
		existing, err := ublk.Find(ctx, int(c.id))
		switch {
		case err == nil && existing.IsServed:
			return nil, 0, program.Rejected(status.Errorf(status.InUse,
				"process %d serves %s: choose another --id, or end that process", existing.Process,
				ublk.Path(existing.ID)))
		case err == nil:
			c.log.Info("taking over a device", zap.String("device", ublk.Path(existing.ID)),
				zap.Int("former_process", existing.Process))
			identity, err := deviceIdentityOf(existing.Cookie)
			return identity, existing.Queues, err
		case !errors.Is(err, status.NotFound):
			return nil, 0, program.Rejected(err)
		}
	}
	queues, _, err := c.queue.resolve()
	if err != nil {
		return nil, 0, err
	}
	identity, err := newDeviceIdentity()
	return identity, queues, err
}

// heirPatience is how long the gateway of an existing device waits for the volume: what its former
// gateway had in progress may still have to end.
const heirPatience = 30 * time.Second

// open opens the volume.
func (c *ublkCommand) open(ctx context.Context, identity *deviceIdentity,
	queues int) (volume, error) {
	policy, err := c.reconnect.policy()
	if err != nil {
		return nil, err
	}
	config := client.Config{
		Queues: queues, Depth: c.queue.depth, BufferSize: uint32(c.buffers.size), SyncDepth: -1,
		MemorySize: gateway.MemorySize(queues, queues, uint64(c.buffers.memory)),
		Reconnect:  policy, ReadOnly: c.readOnly,
		Owner: identity.owner, Instance: identity.instance,
	}
	for begun := time.Now(); ; {
		v, err := c.connection.openVolume(ctx, config)
		if err == nil {
			info := v.Info()
			c.log.Info("opened volume", zap.String("volume", info.Name),
				zap.Bool("exclusive", info.Exclusive), zap.String("holder", info.OwnHolderID))
			return v, nil
		}
		isTemporary := errors.Is(err, status.InUse) || errors.Is(err, status.Again)
		if !identity.isInherited || !isTemporary || time.Since(begun) > heirPatience {
			return nil, err
		}
		if !retry.Sleep(ctx, heirPatience/100) {
			return nil, err
		}
	}
}

// start makes the device, or takes it over.
func (c *ublkCommand) start(ctx context.Context, v volume, identity *deviceIdentity,
	policy progress.Policy) (*ublk.Device, error) {
	info := v.Info()
	if !identity.fits(info) {
		return nil, fmt.Errorf("%s belongs to another volume than %q (%v), which the relay offers now: "+
			"serve that one, or give the device up with \"ublk remove --id %v\"",
			ublk.Path(int(c.id)), info.Name, info.UUID, &c.id)
	}
	export, err := gateway.New(gateway.Config{
		Volume: v, Queues: queuesOf[gateway.Queue](v, info.Queues), Sessions: info.Queues,
		ReadOnly: c.readOnly, Repeat: c.reconnect.enabled, RepeatFor: c.reconnect.timeout,
	})
	if err != nil {
		return nil, program.Usage(err)
	}
	device, err := ublk.Start(ctx, ublk.Config{ID: int(c.id), Queues: info.Queues,
		Depth: c.queue.depth, BlockSize: uint32(c.blockSize), ReadOnly: c.readOnly,
		Unprivileged: c.unprivileged, Cookie: identity.cookie(info), Policy: policy,
		Logger: c.log}, export)
	if errors.Is(err, status.InUse) || errors.Is(err, status.InvalidValue) ||
		errors.Is(err, status.BadConfig) || errors.Is(err, status.NotSupported) {
		err = program.Rejected(err)
	}
	return device, err
}

// servedDevice is a device that is served, with its volume.
type servedDevice struct {
	*ublkCommand
	device   *ublk.Device
	volume   volume
	notifier *systemd.Notifier
}

// serve serves the device until ctx ends, the device does, or its volume is lost for good.
func (s *servedDevice) serve(ctx context.Context, cmd *cobra.Command) (err error) {
	operations, err := s.operations.listen(func() any { return s.status() }, s.collector(), s.log)
	if err != nil {
		return errors.Join(err, s.end(ctx, false))
	}
	if operations != nil {
		operations.SetReady(nil, "")
		defer func() { err = errors.Join(err, operations.Shutdown(context.WithoutCancel(ctx))) }()
	}
	path := ublk.Path(s.device.ID())
	if s.printDevice {
		fmt.Fprintln(cmd.OutOrStdout(), path)
	}
	s.notifier.Ready()
	s.notifier.Status("serving " + path)
	select {
	case <-ctx.Done():
		return s.end(ctx, false)
	case <-s.device.Done():
		return errors.Join(s.device.Err(), s.device.Leave(context.WithoutCancel(ctx)))
	case <-s.volume.Done():
	}
	reason := s.volume.Err()
	switch {
	case isTaken(reason):
		s.log.Error("the volume has been taken away, and may be in use by another client: removing the device",
			zap.Error(reason))
		return errors.Join(program.WithExitCode(program.ExitTaken, reason), s.end(ctx, true))
	case errors.Is(reason, client.ErrAnotherVolume):
		s.log.Error("the relay offers another volume: removing the device", zap.Error(reason))
		return errors.Join(reason, s.end(ctx, true))
	}
	s.log.Error("the volume is lost: the device waits for the next gateway", zap.Error(reason))
	return errors.Join(program.CannotConnect(reason), s.leave(ctx))
}

// end removes the device. Without force, a device that is in exclusive use stays.
func (s *servedDevice) end(ctx context.Context, force bool) error {
	stopping, end := context.WithCancel(context.Background())
	defer end()
	go s.notifier.Stopping(stopping, stopExtension)
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	err := s.device.Remove(removing, force)
	if err == nil {
		return nil
	}
	leaving := s.leave(ctx)
	if errors.Is(leaving, status.ErrClosed) {
		return err // the device has ended, and the kernel has not told that it is gone
	}
	s.log.Warn("the device stays: its users wait until a gateway takes it over", zap.Error(err))
	return leaving
}

func (s *servedDevice) leave(ctx context.Context) error {
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	return s.device.Leave(draining)
}

func newUblkRemoveCommand() *cobra.Command {
	id, force := deviceNumber(ublk.AnyID), false
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove a device whose gateway has gone, with everything that it was to write",
		Long: `remove removes a block device that no gateway serves any more, and that none is to take
over. Requests that wait for a gateway fail with EIO. A device that something is known
to use is only removed with --force.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if id == ublk.AnyID {
				return program.Usagef("--id is missing: the number N of /dev/ublkbN")
			}
			return program.Rejected(ublk.Remove(cmd.Context(), int(id), force))
		},
	}
	cmd.Flags().Var(&id, "id", "number N of /dev/ublkbN")
	cmd.Flags().BoolVar(&force, "force", false, "remove a device that is in use, too")
	return cmd
}
