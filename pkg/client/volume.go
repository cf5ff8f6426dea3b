package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// clockTick is the resolution of the coarse clock that checks IOTimeout.
const clockTick = 100 * time.Millisecond

// Volume is an opened remote volume. Its methods may be called by any goroutine unless documented
// otherwise.
type Volume struct {
	config  Config
	info    Info                       // as negotiated by Open
	size    atomic.Uint64              // of the volume in bytes; 0 until info is valid
	memory  atomic.Pointer[dataMemory] // of the next session
	queues  []*Queue                   // the application's, then that of the blocking methods
	session atomic.Pointer[session]
	sync    atomic.Pointer[syncIO]
	writes  acknowledgedWrites
	// everybody is the user of Flush.
	everybody Flusher
	// spareSlots are those of the blocking methods beyond SyncDepth.
	spareSlots int

	clock atomic.Int64 // nanoseconds since Open, updated every clockTick

	ctx        context.Context // canceled when the volume is closed
	cancel     context.CancelFunc
	background sync.WaitGroup
	done       chan struct{} // closed once there will be no further session

	callers  sync.RWMutex // read-locked while a blocking method runs
	released atomic.Bool  // Close or Abort has been called

	mu      sync.Mutex    // guards the fields below
	failure error         // why there will be no further session
	changed chan struct{} // closed and replaced when session or failure changes
	history history
	// formerMemory is the memory of earlier sessions, in quarantine.
	formerMemory []*dataMemory
}

// Info describes the volume as its current session negotiated it, with its current size: while the
// volume is open, it may grow, but not shrink.
func (v *Volume) Info() Info {
	info := v.session.Load().info
	info.Size = v.size.Load()
	return info
}

// keptAlive takes what a keep-alive of the relay says.
func (v *Volume) keptAlive(m *controlmsg.KeepAlive) error {
	v.grow(m.VolumeSize)
	return nil
}

// grow adopts a size in bytes that the relay has announced. It ignores what cannot be the size of
// the volume, and a relay that announces before the volume is open.
func (v *Volume) grow(size uint64) {
	for now := v.size.Load(); now > 0 && size > now &&
		size%uint64(v.info.BlockSize) == 0; now = v.size.Load() {
		if v.size.CompareAndSwap(now, size) {
			v.config.Logger.Info("volume has grown", zap.String("volume", v.info.Name),
				zap.Uint64("size_bytes", size))
			return
		}
	}
}

// Queue returns queue i, where i is below Config.Queues.
func (v *Volume) Queue(i int) *Queue { return v.queues[:v.config.Queues][i] }

// Memory returns the data memory of the volume: see Queue.Memory. After the memory was replaced it
// returns the new memory, but each queue uses the former until Queue.SwitchMemory.
func (v *Volume) Memory() []byte { return v.buffers(v.memory.Load()) }

// buffers returns the application's part of m.
func (v *Volume) buffers(m *dataMemory) []byte { return m.Bytes()[:v.config.MemorySize] }

// ensureMemory allocates the memory of the first session.
func (v *Volume) ensureMemory() error {
	if v.memory.Load() != nil {
		return nil
	}
	first, err := v.newMemory(1)
	if err != nil {
		return err
	}
	v.memory.Store(first)
	return nil
}

// Done returns a channel that is closed once there will be no further session: the session has
// ended and Config.Reconnect does not replace it, or the volume is closed. All outstanding requests
// then fail.
func (v *Volume) Done() <-chan struct{} { return v.done }

// Err returns why the volume can no longer be used. It returns nil while the volume works or is
// being reopened.
func (v *Volume) Err() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil || v.canReconnect() {
		return failure
	}
	return v.session.Load().Err()
}

// canReconnect reports whether the volume is reopened after the loss of a session.
func (v *Volume) canReconnect() bool { return v.config.Reconnect != nil }

// connectInterval is the pause between Open's attempts to connect while no relay offers the
// channel.
const connectInterval = 50 * time.Millisecond

// Open connects to a relay and opens its volume. While no relay offers the channel, Open keeps
// trying until ControlTimeout has passed or ctx ends.
func Open(ctx context.Context, config Config) (*Volume, error) {
	config.setDefaults()
	if err := config.checkProtocolLimits(); err != nil {
		return nil, err
	}
	if err := config.checkProtocol(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(config.ControlTimeout)
	opening, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	connection, err := connectWithRetry(opening, &config)
	if err != nil {
		return nil, err
	}
	v := &Volume{config: config, done: make(chan struct{}), changed: make(chan struct{})}
	v.everybody = Flusher{volume: v, isEverybody: true}
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := v.open(ctx, deadline, connection); err != nil {
		err = fmt.Errorf("open channel %q on device %q: %w", config.ChannelName, config.Device, err)
		return nil, errors.Join(err, v.release())
	}
	return v, nil
}

// Describe returns what a relay says of its volume, without opening it: it works while another
// client has the volume open exclusively. Only the fields of config that concern the connection
// matter. The Info has no negotiated values. Describe is bounded by ControlTimeout and ctx.
func Describe(ctx context.Context, config Config) (Info, error) {
	config.setDefaults()
	if config.Protocol != dialects.None {
		return Info{}, status.Errorf(status.NotSupported, "a relay that speaks %v serves one "+
			"client and ends, so its volume cannot be described without using it", config.Protocol)
	}
	ctx, cancel := context.WithTimeout(ctx, config.ControlTimeout)
	defer cancel()
	connection, err := connectWithRetry(ctx, &config)
	if err != nil {
		return Info{}, err
	}
	s := newSession(&Volume{config: config}, connection, 1)
	if _, err = s.describe(ctx); err == nil {
		_, err = s.requester.Call(ctx, &controlmsg.DestroyObjects{})
	}
	s.close(err)
	if err != nil {
		return Info{}, fmt.Errorf("describe the volume of channel %q on device %q: %w",
			config.ChannelName, config.Device, err)
	}
	return s.info, nil
}

// connectWithRetry connects, waiting until a relay offers the channel.
func connectWithRetry(ctx context.Context, config *Config) (comch.Connection, error) {
	var missing error
	for {
		connection, err := connect(ctx, config)
		if missing != nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, missing // the time was up within an attempt
		}
		if err == nil || !errors.Is(err, status.NotFound) {
			return connection, err
		}
		missing = err
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectInterval):
		}
	}
}

func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	connection, err := config.Provider.Connect(ctx,
		comch.ClientConfig{Device: config.Device, Name: config.ChannelName})
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", config.ChannelName,
			config.Device, err)
	}
	return connection, nil
}

// open opens the first session, which determines the queues, and starts the background goroutines.
func (v *Volume) open(
	ctx context.Context, deadline time.Time, connection comch.Connection,
) error {
	first, err := v.openSession(ctx, deadline, connection, 1)
	if err != nil {
		return err
	}
	v.session.Store(first)
	if least := first.untilHarmless(); v.config.ReleaseTimeout < least {
		v.config.Logger.Info("buffers stay in the relay's hands for longer than configured if it is "+
			"silent: its targets' leases last longer", zap.String("volume", v.info.Name),
			zap.Duration("release_timeout", v.config.ReleaseTimeout), zap.Duration("at_least", least))
	}
	for i, pair := range first.pairs {
		v.queues = append(v.queues, newQueue(v, i, pair))
	}
	v.writes.durable = make([]uint64, len(v.queues))
	v.writes.onLoss = func(writes uint64) {
		v.config.Logger.Warn("writes may be lost: they had completed, and were not flushed when the "+
			"target restarted", zap.String("volume", v.info.Name), zap.Uint64("writes", writes))
	}
	v.background.Go(v.runClock)
	v.background.Go(v.keepOpen)
	if v.config.SyncDepth > 0 {
		if err := v.startSync(); err != nil {
			v.Abort()
			return err
		}
	}
	return nil
}

// runClock advances the coarse clock until the volume is closed.
func (v *Volume) runClock() {
	start := time.Now()
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-ticker.C:
			v.clock.Store(int64(time.Since(start)))
		}
	}
}

// Close stops every queue, waits until nothing is in flight, ends the session, and releases the
// data memory. No queue may be in use. Close is bounded by ControlTimeout and ctx. It returns an
// error if a step fails, but releases the volume in any case.
//
// Close does not flush. It fails with ErrWritesLost if writes may have been lost and no flush has
// reported it. After Close or Abort it does nothing.
func (v *Volume) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.config.ControlTimeout)
	defer cancel()
	if v.released.Swap(true) {
		return nil
	}
	v.stopBackground()
	reason := v.sessionError()
	if reason == nil {
		reason = v.stop(ctx)
	}
	if reason != nil {
		v.abort(reason)
		return fmt.Errorf("close volume %q: %w", v.info.Name, reason)
	}
	v.session.Load().close(nil)
	if err := errors.Join(v.release(), v.writes.unreported()); err != nil {
		return fmt.Errorf("close volume %q: %w", v.info.Name, err)
	}
	return nil
}

// stopBackground stops all background goroutines. The current session stays the last one.
func (v *Volume) stopBackground() {
	v.cancel()
	v.stopSync()
	v.background.Wait()
}

// sessionError returns why there is no working session, or nil if there is one.
func (v *Volume) sessionError() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil {
		return failure
	}
	return v.session.Load().Err()
}

// stop shuts the session down in the order that Comch requires.
func (v *Volume) stop(ctx context.Context) error {
	for i, queue := range slices.Backward(v.queues) { // in 2.10 the first one stops all
		if err := queue.stop(ctx); err != nil {
			return fmt.Errorf("stop queue %d: %w", i, err)
		}
	}
	requester := v.session.Load().requester
	if _, err := requester.Call(ctx, &controlmsg.Stop{}); err != nil {
		return err
	}
	if err := v.closeQueues(); err != nil {
		return err
	}
	_, err := requester.Call(ctx, &controlmsg.DestroyObjects{})
	return err
}

func (v *Volume) closeQueues() error {
	var errs []error
	for i, queue := range v.queues {
		if err := queue.close(); err != nil {
			errs = append(errs, fmt.Errorf("close queue %d: %w", i, err))
		}
	}
	v.queues = v.queues[:0]
	return errors.Join(errs...)
}

// Abort ends the session at once without stopping the queues: outstanding requests may have been
// carried out or not. No queue may be in use.
func (v *Volume) Abort() {
	if v.released.Swap(true) {
		return
	}
	v.stopBackground()
	v.abort(status.Errorf(status.ConnectionAborted, "the client aborted the volume"))
}

// abort ends the session at once and sends the relay the reason if the connection still works.
func (v *Volume) abort(reason error) {
	v.session.Load().close(reason)
	if err := errors.Join(v.closeQueues(), v.release()); err != nil {
		v.config.Logger.Sugar().Warnf("release volume %q: %v", v.info.Name, err)
	}
}

// release frees what is left when there is no session.
func (v *Volume) release() error {
	v.cancel()
	v.background.Wait()
	v.mu.Lock()
	all := append(v.formerMemory, v.memory.Swap(nil))
	v.formerMemory = nil
	v.mu.Unlock()
	var err error
	for _, m := range all {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}
