// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// longestRange is the most bytes of a discard or a write of zeroes.
const longestRange = 1 << 30

// closeTimeout bounds each step of the end of a device that the kernel carries out.
const closeTimeout = 10 * time.Second

// Device is a block device that this process serves. Any goroutine may call its methods.
type Device struct {
	config     Config
	driver     driver
	server     server
	info       deviceInfo
	parameters parameters
	recovered  bool
	since      time.Time
	queues     []*servedQueue

	ending sync.Mutex // held while the device ends
	ended  bool
	once   sync.Once
	done   chan struct{}
	reason error // set before done is closed
}

// servedQueue is a queue with its thread.
type servedQueue struct {
	*queue
	thread  *progress.Thread
	drained chan struct{}
}

// Start makes a device that the kernel serves from the export, or takes over an existing one of the
// same ID whose server has left. The export needs a queue for each of the device's (Existing.Queues
// for one that is taken over), and has to stay open until Leave or Remove has returned.
//
// Start fails with status.InUse if another server has the device, and with status.BadConfig if
// the device does not fit the disk, for instance because the disk has become smaller.
func Start(ctx context.Context, config Config, export blockio.Export) (*Device, error) {
	d, err := openDriver()
	if err != nil {
		return nil, fmt.Errorf("start a ublk device: %w", err)
	}
	return startWith(ctx, d, config, export)
}

func startWith(ctx context.Context, driver driver, config Config,
	export blockio.Export) (*Device, error) {
	if export == nil {
		return nil, errors.Join(status.Errorf(status.InvalidValue,
			"start a ublk device: the export is nil"), driver.close())
	}
	d := &Device{config: config, driver: driver, since: time.Now(), done: make(chan struct{})}
	if err := d.start(ctx, export); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", d.name(), err), driver.close())
	}
	return d, nil
}

// name returns the device's path, as far as it is known.
func (d *Device) name() string {
	if d.config.ID == AnyID {
		return "a ublk device"
	}
	return Path(d.config.ID)
}

func (d *Device) start(ctx context.Context, export blockio.Export) error {
	info := export.Info()
	d.config.setDefaults(&info)
	if err := d.config.check(&info); err != nil {
		return err
	}
	if err := export.Barrier(ctx); err != nil {
		return err
	}
	exists, err := d.findExisting(ctx)
	if err != nil {
		return err
	}
	if exists {
		err = d.recover(ctx, export, &info)
	} else {
		err = d.add(ctx, export, &info)
	}
	if err != nil {
		return err
	}
	d.config.Logger.Info("serving a block device", zap.String("device", Path(d.ID())),
		zap.Bool("recovered", d.recovered), zap.Int("queues", len(d.queues)),
		zap.Uint64("bytes", d.size()))
	return nil
}

// findExisting looks for a device with the ID.
func (d *Device) findExisting(ctx context.Context) (bool, error) {
	if d.config.ID == AnyID {
		return false, nil
	}
	info, err := find(ctx, d.driver, d.config.ID)
	if errors.Is(err, status.NotFound) {
		return false, nil
	}
	d.info = info
	return err == nil, err
}

// add makes a new device, which the kernel removes again if it cannot be started.
func (d *Device) add(ctx context.Context, export blockio.Export, info *blockio.Info) error {
	wanted := required
	if d.config.Unprivileged {
		wanted |= featureUnprivileged
	} else {
		wanted |= featureRecovery | featureReissue
	}
	largest := info.LargestAligned
	if d.config.BlockSize < info.BlockSize {
		largest = info.LargestAny
	}
	asked := deviceInfo{queues: uint16(d.config.Queues), depth: uint16(d.config.Depth),
		id: uint32(int32(d.config.ID)), maxBytes: largest &^ (maxBlockSize - 1), features: wanted,
		cookie: d.config.Cookie}
	buffer := asked.encode()
	err := d.driver.control(ctx, addDevice, control{id: d.config.ID, buffer: buffer})
	if err != nil {
		return d.explainAdd(err)
	}
	d.info = decodeInfo(buffer)
	d.config.ID = int(d.info.id)
	if err := d.begin(ctx, export, info, wanted); err != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(err, d.delete(ending, false))
	}
	return nil
}

// begin starts what add has made.
func (d *Device) begin(ctx context.Context, export blockio.Export, info *blockio.Info,
	wanted feature) error {
	// The driver drops what it does not know without an error.
	if missing := wanted &^ d.info.features; missing != 0 {
		return status.Errorf(status.NotSupported, "the kernel lacks the features %#x of ublk: it needs "+
			"Linux 6.12 or newer", uint64(missing))
	}
	d.setParameters(info)
	if err := d.waitForAccess(ctx); err != nil {
		return err
	}
	if err := d.command(ctx, setParameters, 0, d.parameters.encode()); err != nil {
		return err
	}
	if err := d.serve(export, info); err != nil {
		return err
	}
	if err := d.command(ctx, startDevice, uint64(os.Getpid()), nil); err != nil {
		return errors.Join(err, d.closeQueues())
	}
	return nil
}

// setParameters describes the disk to the kernel.
func (d *Device) setParameters(info *blockio.Info) {
	shift := func(n uint32) uint8 { return uint8(bits.Len32(n) - 1) }
	physical := max(min(info.PreferredBlock, maxBlockSize), d.config.BlockSize)
	d.parameters = parameters{attributes: attributeCache | attributeFUA,
		blockShift: shift(d.config.BlockSize), physicalShift: shift(physical),
		leastShift: shift(physical), optimalShift: shift(d.info.maxBytes),
		maxSectors: d.info.maxBytes / sectorSize,
		sectors:    info.Size &^ uint64(d.config.BlockSize-1) / sectorSize}
	if d.config.ReadOnly || info.ReadOnly {
		d.parameters.attributes |= attributeReadOnly
		return
	}
	d.parameters.canDiscard = info.CanTrim || info.CanWriteZeroes
	d.parameters.discardGranularity = max(info.BlockSize, d.config.BlockSize)
	if info.CanTrim {
		d.parameters.maxDiscardSectors = longestRange / sectorSize
	}
	if info.CanWriteZeroes {
		d.parameters.maxWriteZeroesSector = longestRange / sectorSize
	}
}

// accessTimeout bounds the wait for udev to give a user access to a new device.
const accessTimeout = 5 * time.Second

// waitForAccess waits until this process may use the file of a device without privileges, which
// belongs to root until udev has changed that.
func (d *Device) waitForAccess(ctx context.Context) error {
	if !d.config.Unprivileged {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, accessTimeout)
	defer cancel()
	for {
		_, err := find(ctx, d.driver, d.ID())
		if err == nil || !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EPERM) {
			return err
		}
		if !retry.Sleep(ctx, accessTimeout/100) {
			return fmt.Errorf("%w (no rule of udev gives this user access to %s)", err,
				serverPath(d.ID()))
		}
	}
}

// recover takes over a device whose server has left.
func (d *Device) recover(ctx context.Context, export blockio.Export, info *blockio.Info) error {
	if err := d.checkExisting(ctx, info); err != nil {
		return err
	}
	if err := d.startRecovery(ctx); err != nil {
		return err
	}
	if err := d.serve(export, info); err != nil {
		return err
	}
	if err := d.command(ctx, endRecovery, uint64(os.Getpid()), nil); err != nil {
		return errors.Join(err, d.closeQueues())
	}
	d.recovered = true
	d.grow(ctx, info)
	return nil
}

// checkExisting checks whether an existing device fits the disk.
func (d *Device) checkExisting(ctx context.Context, info *blockio.Info) error {
	const recoverable = required | featureRecovery | featureReissue
	if missing := recoverable &^ d.info.features; missing != 0 {
		return status.Errorf(status.AlreadyExist, "there is a device of that number, which another "+
			"program has made (features %#x): choose another number", uint64(d.info.features))
	}
	buffer := (&parameters{}).encode()
	if err := d.command(ctx, getParameters, 0, buffer); err != nil {
		return err
	}
	d.parameters = decodeParameters(buffer)
	largest := info.LargestAligned
	if uint32(1)<<d.parameters.blockShift < info.BlockSize {
		largest = info.LargestAny
	}
	isReadOnly := d.parameters.attributes&attributeReadOnly != 0
	switch {
	case d.size() > info.Size:
		return status.Errorf(status.BadConfig, "the device has %d bytes, and the disk only %d",
			d.size(), info.Size)
	case d.info.maxBytes > largest:
		return status.Errorf(status.BadConfig, "the device has requests of up to %d bytes, and the "+
			"disk takes only %d: keep the buffer size", d.info.maxBytes, largest)
	case !isReadOnly && (info.ReadOnly || d.config.ReadOnly):
		return status.Errorf(status.BadConfig, "the device is writable, and the disk read-only")
	}
	return nil
}

// releaseTimeout bounds the wait for the kernel to end the server that a killed process was.
const releaseTimeout = 20 * time.Second

// startRecovery makes the kernel accept a new server, as soon as it has ended the former one.
func (d *Device) startRecovery(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		err := d.command(waiting, startRecovery, 0, nil)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINVAL):
			// The driver wants a server to have been ready since the last recovery.
			return fmt.Errorf("%w (a server has ended while it recovered the device, and the kernel "+
				"lets no other one: remove the device)", err)
		case !errors.Is(err, syscall.EBUSY):
			return err
		}
		if info, err := find(waiting, d.driver, d.ID()); err == nil && isServed(d.driver, &info) {
			return status.Errorf(status.InUse, "process %d serves the device", info.process)
		}
		if !retry.Sleep(waiting, releaseTimeout/400) {
			return status.Errorf(status.InUse, "another server has the device: %w", err)
		}
	}
}

// grow gives the device the size of a disk that has grown, if the kernel can.
func (d *Device) grow(ctx context.Context, info *blockio.Info) {
	size := info.Size &^ (uint64(1)<<d.parameters.blockShift - 1)
	if size == d.size() {
		return
	}
	log := d.config.Logger.With(zap.String("device", Path(d.ID())), zap.Uint64("bytes", d.size()),
		zap.Uint64("disk_bytes", size))
	if d.info.features&featureUpdateSize == 0 {
		log.Warn("the disk has grown, but this kernel keeps the size of a device until it is made anew " +
			"(Linux 6.16 can change it)")
		return
	}
	if err := d.command(ctx, updateSize, size/sectorSize, nil); err != nil {
		log.Warn("cannot change the size of the device", zap.Error(err))
		return
	}
	for _, q := range d.queues {
		_ = q.thread.Run(func() error {
			q.config.size = size
			return nil
		})
	}
	d.parameters.sectors = size / sectorSize
}

// serve opens the device and starts its queues. If it fails, nothing of them is left.
func (d *Device) serve(export blockio.Export, info *blockio.Info) error {
	var err error
	if d.server, err = d.driver.open(d.ID()); err != nil {
		return err
	}
	for i := range int(d.info.queues) {
		q, err := d.startQueue(i, export, info)
		if err != nil {
			return errors.Join(fmt.Errorf("queue %d: %w", i, err), d.closeQueues())
		}
		d.queues = append(d.queues, q)
	}
	return nil
}

// startQueue starts the thread of a queue, which offers all tags to the kernel.
func (d *Device) startQueue(i int, export blockio.Export,
	info *blockio.Info) (*servedQueue, error) {
	thread, err := progress.StartThread(d.config.Policy)
	if err != nil {
		return nil, err
	}
	drained := make(chan struct{})
	config := &queueConfig{size: d.size(), blockSize: uint64(1) << d.parameters.blockShift,
		maxBytes:   uint64(d.info.maxBytes),
		isReadOnly: d.parameters.attributes&attributeReadOnly != 0,
		canDiscard: info.CanTrim, canZero: info.CanWriteZeroes,
		report: d.queueEnded, drained: sync.OnceFunc(func() { close(drained) })}
	q := &servedQueue{thread: thread, drained: drained,
		queue: &queue{config: config, engine: thread.Engine(),
			requests: make([]request, d.info.depth)}}
	if err := thread.Run(func() error { return d.openQueue(q.queue, i, export) }); err != nil {
		return nil, errors.Join(err, thread.Stop())
	}
	return q, nil
}

// openQueue opens what a queue uses, on its thread.
func (d *Device) openQueue(q *queue, i int, export blockio.Export) error {
	var err error
	if q.disk, err = export.Attach(i, q.engine); err != nil {
		return err
	}
	if q.session, err = q.disk.Open(q); err != nil {
		return errors.Join(err, q.disk.Close())
	}
	if q.ring, err = d.server.queue(i, int(d.info.depth), int(d.info.maxBytes)); err != nil {
		q.session.Close()
		return errors.Join(err, q.disk.Close())
	}
	// The disk before the queue: a turn answers what has completed in it.
	if err := errors.Join(q.engine.Add(q.disk), q.engine.Add(q), q.start()); err != nil {
		return errors.Join(err, q.close())
	}
	return nil
}

// queueEnded is called on a queue's thread when it has ended without being asked to.
func (d *Device) queueEnded(reason error) {
	if reason == nil {
		reason = status.Errorf(status.Shutdown, "%s was removed", Path(d.ID()))
	} else {
		reason = fmt.Errorf("serve %s: %w", Path(d.ID()), reason)
	}
	d.once.Do(func() {
		d.reason = reason
		close(d.done)
	})
}

// command carries out a control command on the device.
func (d *Device) command(ctx context.Context, o operation, data uint64, buffer []byte) error {
	return d.driver.control(ctx, o, control{id: d.ID(), data: data, buffer: buffer,
		withPath: d.info.features&featureUnprivileged != 0})
}

func (d *Device) explainAdd(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w (a device that outlives its server needs the capability CAP_SYS_ADMIN, "+
			"and one without privileges has to be asked for)", err)
	case errors.Is(err, syscall.EEXIST):
		return status.Errorf(status.InUse, "the kernel still has a device of that number, perhaps one "+
			"that was removed by force and is mounted: %w", err)
	}
	return err
}

// ID returns the device's number.
func (d *Device) ID() int { return d.config.ID }

func (d *Device) size() uint64 { return d.parameters.sectors * sectorSize }

// Done is closed when the device has ended without Leave or Remove: somebody has removed it, or it
// has failed.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err returns why Done is closed.
func (d *Device) Err() error {
	select {
	case <-d.done:
		return d.reason
	default:
		return nil
	}
}

// Status returns the state of the device.
func (d *Device) Status() Status {
	var counts blockio.Counts
	for _, q := range d.queues {
		counts.Add(&q.counters)
	}
	return Status{ID: d.ID(), Path: Path(d.ID()), Size: d.size(),
		BlockSize: uint32(1) << d.parameters.blockShift,
		ReadOnly:  d.parameters.attributes&attributeReadOnly != 0,
		Queues:    int(d.info.queues), Depth: int(d.info.depth),
		CanRecover: d.info.features&featureRecovery != 0, Recovered: d.recovered, Since: d.since,
		IOStatus: counts.Status()}
}

// Leave ends the server after the requests that it has, or when ctx ends. The kernel keeps the
// device, and everything that was not answered, for the next server. A device without privileges
// ends.
func (d *Device) Leave(ctx context.Context) error {
	d.ending.Lock()
	defer d.ending.Unlock()
	if d.ended {
		return errEnded()
	}
	for _, q := range d.queues {
		_ = q.thread.Run(func() error {
			q.drain()
			return nil
		})
	}
	for _, q := range d.queues {
		select {
		case <-q.drained:
		case <-ctx.Done():
		}
	}
	return d.end(nil)
}

// Remove removes the device from the kernel, with an error for each request that begins meanwhile.
// Without force, it fails with status.InUse, and changes nothing, if the device is in exclusive
// use: a mounted file system, a volume group, swap space.
func (d *Device) Remove(ctx context.Context, force bool) error {
	d.ending.Lock()
	defer d.ending.Unlock()
	if d.ended {
		return errEnded()
	}
	release := func() {}
	if !force {
		var err error
		if release, err = d.hold(ctx); err != nil {
			return fmt.Errorf("remove %s: %w", Path(d.ID()), err)
		}
	}
	// The queues still run: the kernel waits for their answers.
	err := d.command(ctx, stopDevice, 0, nil)
	release() // the kernel keeps the number of a device that is open
	if err != nil {
		return fmt.Errorf("remove %s: %w", Path(d.ID()), err)
	}
	return d.end(func() error { return d.delete(ctx, force) })
}

// hold holds the device, which takes as long as writing back what the kernel has cached.
func (d *Device) hold(ctx context.Context) (release func(), err error) {
	type outcome struct {
		release func()
		err     error
	}
	held := make(chan outcome, 1)
	go func() {
		release, err := d.driver.hold(d.ID())
		held <- outcome{release, err}
	}()
	select {
	case o := <-held:
		return o.release, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("write back what the kernel has cached: %w", status.ContextError(ctx))
	}
}

func errEnded() error { return fmt.Errorf("ublk device: %w", status.ErrClosed) }

// end ends what serves the device, and then does what is left.
func (d *Device) end(last func() error) error {
	d.ended = true
	err := d.closeQueues()
	if last != nil {
		err = errors.Join(err, last())
	}
	return errors.Join(err, d.driver.close())
}

// delete removes the device, which this process does not have open. It waits until the number is
// free, except by force: what is mounted keeps it.
func (d *Device) delete(ctx context.Context, force bool) error {
	return d.command(ctx, deletion(&d.info, force), 0, nil)
}

// deletion returns the command that removes a device. The driver lets nobody delete a device
// without privileges later.
func deletion(info *deviceInfo, force bool) operation {
	if force && info.features&featureUnprivileged == 0 {
		return deleteLater
	}
	return deleteDevice
}

// closeQueues ends all threads.
func (d *Device) closeQueues() error {
	var errs []error
	for _, q := range d.queues {
		errs = append(errs, q.thread.Run(q.close), q.thread.Stop())
	}
	d.queues = nil
	return errors.Join(append(errs, d.server.close())...)
}
