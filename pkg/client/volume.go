package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// clockTick is the resolution of the coarse clock that deadlines use.
const clockTick = 100 * time.Millisecond

// Volume is an opened remote volume.
type Volume struct {
	config  Config
	info    Info // as agreed when the volume was opened
	region  *memory.Region
	queues  []*Queue // the application's, then the one behind ReadAt
	session atomic.Pointer[session]
	sync    atomic.Pointer[syncIO]
	writes  acknowledgedWrites

	clock atomic.Int64 // nanoseconds since Open, advanced every clockTick

	ctx        context.Context // ends when the volume is closed
	cancel     context.CancelFunc
	background sync.WaitGroup
	done       chan struct{} // closed when there is no session any more

	callers  sync.RWMutex // held for reading by synchronous requests
	released atomic.Bool  // by Close or Abort

	mu      sync.Mutex    // guards what follows
	failure error         // why there is no session any more
	changed chan struct{} // closed, and replaced, when session or failure changes
	history history
}

// Info describes the volume, by its current session.
func (v *Volume) Info() Info { return v.session.Load().info }

// Queue returns queue i of Config.Queues.
func (v *Volume) Queue(i int) *Queue { return v.queues[:v.config.Queues][i] }

// Memory is the data memory that the requests of all queues refer to, of
// Config.MemorySize bytes. While a request is outstanding its part of the
// memory belongs to the transport: a write's must not be changed, a read's
// not be looked at.
func (v *Volume) Memory() []byte { return v.region.Bytes()[:v.config.MemorySize] }

// Done is closed when the volume cannot be used any more: when the connection
// to the relay has ended and Config.Reconnect does not bring it back. All
// outstanding requests then fail.
func (v *Volume) Done() <-chan struct{} { return v.done }

// Err says why the volume can no longer be used, nil while it can, or is
// being reopened.
func (v *Volume) Err() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil || v.reconnects() {
		return failure
	}
	return v.session.Load().Err()
}

// reconnects reports whether the volume comes back after the loss of a session.
func (v *Volume) reconnects() bool { return v.config.Reconnect != nil }

// connectInterval is how often Open tries again while no relay offers the
// channel.
const connectInterval = 50 * time.Millisecond

// Open connects to a relay and opens its volume. While no relay offers the
// channel it keeps trying, up to ControlTimeout or the end of ctx.
func Open(ctx context.Context, config Config) (*Volume, error) {
	config.setDefaults()
	opening, cancel := context.WithTimeout(ctx, config.ControlTimeout)
	defer cancel()
	connection, err := connectWithRetry(opening, &config)
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", config.ChannelName, config.Device, err)
	}
	v := &Volume{config: config, done: make(chan struct{}), changed: make(chan struct{})}
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := v.open(opening, connection); err != nil {
		return nil, errors.Join(fmt.Errorf("open channel %q on device %q: %w", config.ChannelName, config.Device, err), v.release())
	}
	return v, nil
}

// connectWithRetry connects, and waits for a relay that offers the channel.
func connectWithRetry(ctx context.Context, config *Config) (comch.Connection, error) {
	for {
		connection, err := connect(ctx, config)
		if err == nil || !errors.Is(err, status.NotFound) {
			return connection, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectInterval):
		}
	}
}

func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	return config.Provider.Connect(ctx, comch.ClientConfig{Device: config.Device, Name: config.ChannelName})
}

func (v *Volume) open(ctx context.Context, connection comch.Connection) error {
	first, err := v.openSession(ctx, connection, 1)
	if err != nil {
		return err
	}
	v.session.Store(first)
	for i, pair := range first.pairs {
		v.queues = append(v.queues, newQueue(v, i, pair))
	}
	v.writes.durable = make([]uint64, len(v.queues))
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

// Close stops every queue, waits until nothing is under way any more, ends
// the session and releases the data memory. No queue may be in use. It is
// bounded by ControlTimeout and ctx; what could not be done in order is
// reported, and the volume is released all the same. Close does not flush,
// but fails with ErrWritesLost if no flush has told of lost writes before.
// After Close or Abort it does nothing.
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

// stopBackground ends everything that goes on by itself. No session follows
// the current one any more.
func (v *Volume) stopBackground() {
	v.cancel()
	v.stopSync()
	v.background.Wait()
}

// sessionError is why there is no session, nil if there is one.
func (v *Volume) sessionError() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil {
		return failure
	}
	return v.session.Load().Err()
}

// stop takes the session down in the order that Comch demands.
func (v *Volume) stop(ctx context.Context) error {
	for i, queue := range v.queues {
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

// Abort ends the session at once, without stopping the queues: requests that
// are outstanding may or may not have been carried out. No queue may be in
// use.
func (v *Volume) Abort() {
	if v.released.Swap(true) {
		return
	}
	v.stopBackground()
	v.abort(status.Errorf(status.ConnectionAborted, "the client has given the volume up"))
}

// abort ends the session at once and tells the relay why, if it listens.
func (v *Volume) abort(reason error) {
	v.session.Load().close(reason)
	if err := errors.Join(v.closeQueues(), v.release()); err != nil {
		v.config.Logger.Sugar().Warnf("release volume %q: %v", v.info.Name, err)
	}
}

// release gives back what is left when there is no session any more.
func (v *Volume) release() error {
	v.cancel()
	region := v.region
	if region == nil {
		return nil
	}
	v.region = nil
	return region.Close()
}
