// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Volume is an opened remote volume. Its methods may be called by any goroutine unless documented
// otherwise.
type Volume struct {
	blocking
	sessions   sessionKeeper
	background *background
	queues     []*Queue      // the application's, then that of the blocking methods
	closed     chan struct{} // closed when Close or Abort has released everything
	closeErr   error         // what Close returns, once closed is closed
}

var _ interface {
	io.ReaderAt
	io.WriterAt
} = (*Volume)(nil)

// Open connects to a relay and opens its volume. While no relay offers the channel, Open keeps
// trying until ControlTimeout has passed or ctx ends.
func Open(ctx context.Context, config Config) (*Volume, error) {
	if err := config.check(ctx); err != nil {
		return nil, fmt.Errorf("open a volume: %w", err)
	}
	v := newVolume(context.WithoutCancel(ctx), config)
	if err := v.openFirst(ctx); err != nil {
		err = errors.Join(err, v.release(), v.awaitMemory(context.WithoutCancel(ctx)))
		return nil, orEnded(ctx, err)
	}
	return v, nil
}

// orEnded makes an error match the reason why ctx has ended, if it has.
func orEnded(ctx context.Context, err error) error {
	if end := ctx.Err(); err != nil && end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w (%w)", err, status.ContextError(ctx))
	}
	return err
}

// openFirst connects, and opens the first session.
func (v *Volume) openFirst(ctx context.Context) error {
	config := &v.terms.config
	deadline := time.Now().Add(config.ControlTimeout)
	opening, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := config.Instance.claim(v, v.life.canEvict); err != nil {
		return openError(config, err)
	}
	if err := v.memories.claimApplications(); err != nil {
		return openError(config, err)
	}
	connection, err := connectWithRetry(opening, config)
	if err != nil {
		return err
	}
	if err := v.open(ctx, deadline, connection); err != nil {
		return openError(config, err)
	}
	return nil
}

func openError(config *Config, err error) error {
	return fmt.Errorf("open channel %q on device %q: %w", config.ChannelName, config.Device, err)
}

func newVolume(ctx context.Context, config Config) *Volume {
	v := &Volume{background: newBackground(ctx, config.Logger), closed: make(chan struct{})}
	v.common = common{
		terms: &terms{config: config}, life: newLife(v.background, config.canReconnect()),
		writes: &acknowledgedWrites{}, clock: &clock{},
	}
	v.memories = &memories{terms: v.terms, background: v.background, onEvidence: v.wakeQueues}
	v.sessions = sessionKeeper{terms: v.terms, life: v.life, memories: v.memories,
		background: v.background, handOver: v.handOver, onFailure: v.wakeQueues}
	v.everybody = Flusher{carryOut: v.flush, isEverybody: true, writes: v.writes}
	v.writes.onLoss = func(writes uint64) {
		v.terms.logger().Warn("writes may be lost: they had completed, and were not flushed when "+
			"the target restarted", zap.Uint64("writes", writes))
	}
	return v
}

// open opens the first session, which determines the queues, and starts the background goroutines.
func (v *Volume) open(
	ctx context.Context, deadline time.Time, connection comch.Connection,
) error {
	if err := v.sessions.open(ctx, deadline, connection); err != nil {
		return err
	}
	v.background.run("clock", func() { v.clock.run(v.background.ctx, v.remindQueues) })
	v.background.run("keep open", v.sessions.keepOpen)
	if v.terms.config.SyncDepth > 0 {
		s, err := startSyncIO(v.queues[v.terms.config.Queues])
		if err != nil {
			v.Abort()
			return err
		}
		v.sync.Store(s)
	}
	return nil
}

// handOver gives a session to the queues, which the first one creates. Each queue switches to it on
// its own thread.
func (v *Volume) handOver(next *session) {
	if len(v.queues) == 0 {
		for i := range next.pairs {
			v.queues = append(v.queues, newQueue(v.common, i, next))
		}
		return
	}
	for _, q := range v.queues {
		q.setNext(next)
	}
	if s := v.sync.Load(); s != nil {
		s.switchMemory()
	}
}

// remindQueues makes the queues look at their deadlines.
func (v *Volume) remindQueues(now int64) {
	for _, q := range v.queues {
		q.remind(now)
	}
}

func (v *Volume) wakeQueues() {
	for _, q := range v.queues {
		q.wake()
	}
}

// Describe returns what a relay says of its volume, without opening it: it works while another
// client has the volume open exclusively. Only the fields of config that concern the connection
// matter. The Info has no negotiated values. Describe is bounded by ControlTimeout and ctx.
func Describe(ctx context.Context, config Config) (Info, error) {
	if err := config.checkConnection(ctx); err != nil {
		return Info{}, fmt.Errorf("describe a volume: %w", err)
	}
	info, err := describe(ctx, config)
	return info, orEnded(ctx, err)
}

func describe(ctx context.Context, config Config) (Info, error) {
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
	s := newSession(&terms{config: config}, connection, 1)
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

// Info describes the volume as its current session negotiated it, with its current size: while the
// volume is open, it may grow, but not shrink.
func (v *Volume) Info() Info {
	info := v.life.session.Load().info
	info.Size = v.terms.size.Load()
	return info
}

// Queue returns queue i. It panics unless i is 0 or more and below Config.Queues.
func (v *Volume) Queue(i int) *Queue {
	if i < 0 || i >= v.terms.config.Queues {
		panic(fmt.Sprintf("client: there is no queue %d: Config.Queues is %d", i,
			v.terms.config.Queues))
	}
	return v.queues[i]
}

// Memory returns the data memory of the volume: see Queue.Memory. After the memory was replaced it
// returns the new memory, but each queue uses the former until Queue.SwitchMemory.
//
// Close and Abort unmap the memory: then Memory returns nil, and a program that touches what it has
// kept of an earlier result, or a slice of that, is killed by a fault that it cannot recover from.
func (v *Volume) Memory() []byte {
	current := v.memories.current.Load()
	if current == nil {
		return nil
	}
	return current.Bytes()[:v.terms.config.MemorySize]
}

// Size returns the current size in bytes, which is that of Info, for functions of package io such
// as io.NewSectionReader.
func (v *Volume) Size() int64 { return int64(v.terms.size.Load()) }

// Resized returns a channel that is closed the next time that Size grows, which it does without a
// new session as well. A program that calls Resized before Size misses no change.
func (v *Volume) Resized() <-chan struct{} { return v.terms.grown.wait() }

// Quarantined returns how much memory, in bytes, silent relays hold from earlier sessions: see
// Result.Quarantined. Any goroutine may call it.
func (v *Volume) Quarantined() uint64 { return v.memories.quarantined() }

// NewFlusher returns a user who knows of all losses so far: one who begins to write now.
func (v *Volume) NewFlusher() *Flusher {
	f := &Flusher{carryOut: v.flush, writes: v.writes}
	v.writes.join(f, &v.life.session.Load().id)
	return f
}

// Done returns a channel that is closed once there will be no further session: the session has
// ended and Config.Reconnect does not replace it, or the volume is closed. All outstanding requests
// then fail.
func (v *Volume) Done() <-chan struct{} { return v.life.done }

// Err returns why the volume can no longer be used: ErrClosed after Close or Abort, together with
// the reason of an earlier failure, if there was one. It returns nil while the volume works or is
// being reopened. When Done is closed, Err is not nil.
func (v *Volume) Err() error { return v.life.err() }

// Reconnections returns how often the volume was reopened and how long it was unavailable. It
// includes an outage that is still in progress.
func (v *Volume) Reconnections() Reconnections {
	r := v.life.reconnections()
	r.LostWrites = v.writes.lostCount()
	return r
}

// Reopen ends the current session as if it had been lost for this reason, so that Config.Reconnect
// replaces it. Each request that is outstanding fails, and has no effect any more once the next
// session has begun. While the volume is being reopened, Reopen does nothing. It fails without
// Config.Reconnect.
func (v *Volume) Reopen(reason error) error {
	if !v.life.canReconnect {
		return status.Errorf(status.NotSupported,
			"volume %q is not reopened after the end of a session", v.terms.info.Name)
	}
	if v.life.isClosed() {
		return fmt.Errorf("reopen volume %q: %w", v.terms.info.Name, ErrClosed)
	}
	if reason == nil {
		reason = status.Errorf(status.ConnectionReset, "the program has asked to reopen it")
	}
	v.life.session.Load().fail(reason)
	return nil
}

// Close stops every queue, waits until nothing is in flight, ends the session, and releases the
// data memory. No queue may be in use, or attached to an engine. Close is bounded by ControlTimeout
// and ctx. It returns an error if a step fails, but releases the volume in any case.
//
// If the application has made the data memory (Config.Memory), Close also waits until no relay can
// touch that any more, for up to Config.ReleaseTimeout. It fails with ErrQuarantined if a relay
// still can: then keep the memory as it is until AwaitMemory returns nil.
//
// Close does not flush. It fails with ErrWritesLost if writes may have been lost and no flush has
// reported it. Calls that are in progress, and later ones, fail with ErrClosed.
//
// Any goroutine may call Close again, at any time: it waits for the first Close, or for Abort, for
// as long as its own ctx allows, and returns the same result, which is nil after Abort.
func (v *Volume) Close(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if !v.life.close() {
		return v.awaitClosed(ctx)
	}
	defer close(v.closed)
	v.closeErr = errors.Join(v.close(ctx), v.awaitMemory(ctx))
	return v.closeErr
}

// Closer returns the volume for functions that close an io.Closer: with Close, which
// Config.ControlTimeout bounds.
func (v *Volume) Closer() io.Closer { return closer{v} }

type closer struct{ volume *Volume }

func (c closer) Close() error { return c.volume.Close(context.Background()) }

// awaitClosed waits for the first Close or Abort, and returns its result.
func (v *Volume) awaitClosed(ctx context.Context) error {
	select {
	case <-v.closed:
		return v.closeErr
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "close volume %q: wait for another Close: %w",
			v.terms.info.Name, status.ContextError(ctx))
	}
}

// close is the first Close.
func (v *Volume) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.terms.config.ControlTimeout)
	defer cancel()
	v.stopBackground()
	reason := v.life.sessionErr()
	if reason == nil {
		reason = v.stop(ctx)
	} else {
		v.life.session.Load().awaitEnd(ctx) // the relay's own reason says more
		reason = v.life.sessionErr()
	}
	if reason != nil {
		v.abort(reason)
		return fmt.Errorf("close volume %q: %w", v.terms.info.Name, reason)
	}
	v.life.session.Load().close(nil)
	if err := errors.Join(v.release(), v.writes.unreported()); err != nil {
		return fmt.Errorf("close volume %q: %w", v.terms.info.Name, err)
	}
	return nil
}

// AwaitMemory waits until no relay can touch Config.Memory any more, after Close has failed, or
// after Abort, which does not wait for that. It fails with ErrQuarantined when ctx ends before, and
// with status.BadState as long as the volume is open. Without Config.Memory, it returns
// nil then.
func (v *Volume) AwaitMemory(ctx context.Context) error {
	select {
	case <-v.closed:
	default:
		return status.Errorf(status.BadState, "volume %q is open, so its relay uses the memory",
			v.terms.info.Name)
	}
	if ctx == nil {
		return errNilContext
	}
	return v.memories.awaitRegained(ctx, retry.Forever())
}

// awaitMemory is AwaitMemory when the volume is over, bounded by ReleaseTimeout.
func (v *Volume) awaitMemory(ctx context.Context) error {
	err := v.memories.awaitRegained(ctx, retry.Within(v.terms.config.ReleaseTimeout))
	if err != nil {
		return fmt.Errorf("close volume %q: %w", v.terms.info.Name, err)
	}
	return nil
}

// stopBackground stops all background goroutines. The current session stays the last one.
func (v *Volume) stopBackground() {
	v.stopSync()
	v.background.stop()
}

// stop shuts the session down in the order that Comch requires.
func (v *Volume) stop(ctx context.Context) error {
	for i, queue := range slices.Backward(v.queues) { // in 2.10 the first one stops all
		if err := queue.stop(ctx); err != nil {
			return fmt.Errorf("stop queue %d: %w", i, err)
		}
	}
	requester := v.life.session.Load().requester
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
	return errors.Join(errs...)
}

// Abort ends the session at once without stopping the queues: outstanding requests may have been
// carried out or not, and the relay may still touch Config.Memory: see AwaitMemory. No queue may be
// in use. After Close or Abort, it waits until that has returned, and does nothing else.
func (v *Volume) Abort() {
	if !v.life.close() {
		<-v.closed
		return
	}
	defer close(v.closed)
	v.stopBackground()
	v.abort(status.Errorf(status.ConnectionAborted, "the client aborted the volume"))
}

// abort ends the session at once and sends the relay the reason if the connection still works.
func (v *Volume) abort(reason error) {
	v.life.session.Load().close(reason)
	if err := errors.Join(v.closeQueues(), v.release()); err != nil {
		v.terms.config.Logger.Sugar().Warnf("release volume %q: %v", v.terms.info.Name, err)
	}
}

// release frees what is left when there is no session.
func (v *Volume) release() error {
	v.life.close()
	v.background.stop()
	v.terms.config.Instance.release(v)
	return v.memories.close()
}
