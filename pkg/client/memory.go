package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The relay reads and writes the client's memory, and the client cannot take that away from it. So
// a request that has failed goes back to the application only when one of these is certain:
//
//	the relay …                 evidence                        requests outstanding
//	completes the request       the response: it revokes the    complete as the response says
//	                            target's access first
//	ends the session            it has said so, and the loan    complete when the loan has ended
//	                            of the memory ends
//	has died                    the kernel ends the loan        complete when the loan has ended;
//	                                                            changes later: see untilHarmless
//	is silent: stopped, stuck   none within ReleaseTimeout      complete as quarantined
//
// ReleaseTimeout is never less than a silent relay can still change the volume: see untilHarmless.
//
// Quarantined requests leave their memory to the relay: neither the client nor the application
// writes to it any more, so a relay that continues finds the data of the old requests and spoils
// nothing that is in use. A volume that is reopened goes over to new memory.

// ErrQuarantined is the error of a request whose session has ended while the relay was silent. The
// relay may still read and write the request's buffer: do not write to the buffer, and do not rely
// on its content if the request was a read. It matches status.NotConnected.
var ErrQuarantined = status.Errorf(status.NotConnected,
	"the relay has not released the buffer and may still use it (is its process stopped?)")

// ErrMemoryReplaced is returned by Queue.Submit for reads and writes after the volume was reopened
// with new memory, until the queue's thread has called Queue.SwitchMemory. It matches
// status.BadState.
var ErrMemoryReplaced = status.Errorf(status.BadState,
	"the data memory was replaced: call Queue.SwitchMemory")

// ErrQuarantineFull means that a volume was not reopened in time because too much memory is in
// quarantine: see Config.MaxQuarantined. It matches status.NoMemory.
var ErrQuarantineFull = status.Errorf(status.NoMemory,
	"too much memory is held by relays that are silent: continue or end their processes")

// dataMemory is the memory that sessions export: the buffers of the application's requests,
// followed by those of the blocking methods.
type dataMemory struct {
	*memory.Region
	generation uint64 // counts the volume's memories, from 1
	// users counts the queues and the slots of the blocking methods whose requests refer to the
	// memory, and the pairs of sessions with it, whose queues may yet switch to it.
	users      atomic.Int32
	quarantine *memory.Loan // nil unless in quarantine; Volume.mu guards changes
}

// newMemory allocates data memory. It touches every page, so that the memory is charged to this
// process and not to the relay, which would otherwise be the first to touch it.
func (v *Volume) newMemory(generation uint64) (*dataMemory, error) {
	region, err := allocate(v.config.MemorySize + v.stagingSize())
	if err != nil {
		return nil, fmt.Errorf("allocate data memory: %w (use fewer or smaller buffers, or give "+
			"this process more memory)", err)
	}
	return &dataMemory{Region: region, generation: generation}, nil
}

func allocate(size uint64) (*memory.Region, error) {
	if err := memory.CheckAvailable(size); err != nil {
		return nil, err
	}
	region, err := memory.Alloc("zc-relay data", size)
	if err != nil {
		return nil, err
	}
	if err := region.Prefault(); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return region, nil
}

// stagingSize is the size in bytes of the memory of the blocking methods.
func (v *Volume) stagingSize() uint64 {
	return uint64(max(v.config.SyncDepth, 0)+v.spareSlots) * uint64(v.config.BufferSize)
}

// The evidence that a session's memory is safe to use, and that its changes have no effect any
// more.
const (
	onLoan      uint32 = iota // none: the relay may use the memory
	abandoned                 // the relay does not use the memory, but changes may be on their way
	released                  // the relay has released it, and nothing is on its way
	quarantined               // none in time: the relay keeps it
)

// loanPoll bounds the pauses between checks of a loan that is about to end, and quarantinePoll is
// the pause between those of memory in quarantine.
const (
	loanPoll       = 20 * time.Millisecond
	quarantinePoll = 500 * time.Millisecond
)

// untilHarmless returns how long after its end a session can still change the volume, whatever
// becomes of the relay: as long as the targets' leases last, and the time that a connection may
// take to say goodbye. The relay answers a question of a target only when it has looked whether
// this side has ended the connection, so no lease counts from a question that was asked later; and
// the kernel, which the relay asks, knows of the end even if the relay has been stopped. 0 means
// that the targets ask no questions.
func (s *session) untilHarmless() time.Duration {
	if s.leases == 0 {
		return 0
	}
	return lease.WithDrift(s.leases) + time.Second
}

// settle waits until the relay has released the memory of a session that has ended, but not for
// longer than ReleaseTimeout, and lets the queues report their outstanding requests. This side has
// closed the connection: see untilHarmless.
func (v *Volume) settle(ended *session) {
	evidence := quarantined
	begun := time.Now()
	bound := begun.Add(max(v.config.ReleaseTimeout, ended.untilHarmless()))
	for pause := time.Millisecond; ; pause = min(2*pause, loanPoll) {
		if v.isReturned(ended.loan) {
			evidence = released
			break
		}
		if time.Now().After(bound) {
			break
		}
		if !v.sleep(pause) {
			return // nobody polls a volume that is being closed
		}
	}
	if evidence == quarantined {
		v.mu.Lock()
		ended.memory.quarantine = ended.loan
		v.mu.Unlock()
		v.config.Logger.Warn("the relay has not released the data memory of a lost session",
			zap.String("volume", v.info.Name), zap.Uint64("bytes", ended.memory.Len()))
	}
	rest := ended.untilHarmless() - time.Since(begun)
	if evidence == released && rest > 0 && ended.farewell() == nil {
		evidence = abandoned
		v.background.Go(func() {
			if v.sleep(rest) {
				v.forgetChanges(ended)
			}
		})
	}
	ended.evidence.Store(evidence)
	v.wakeQueues()
}

// forgetChanges lets the queues report the changes of a session that was abandoned: the last lease
// of its relay is over, or the target has ended it before it has begun the next one.
func (v *Volume) forgetChanges(ended *session) {
	if ended.evidence.CompareAndSwap(abandoned, released) {
		v.wakeQueues()
	}
}

func (v *Volume) wakeQueues() {
	for _, q := range v.queues {
		q.wake()
	}
}

// isReturned reports whether a loan has ended. One that cannot be checked has not.
func (v *Volume) isReturned(loan *memory.Loan) bool {
	returned, err := loan.Returned()
	if err != nil {
		v.config.Logger.Warn("cannot tell whether the relay has released the data memory",
			zap.String("volume", v.info.Name), zap.Error(err))
	}
	return returned
}

// leaveQuarantine replaces the volume's memory if that is in quarantine. It fails as long as relays
// hold too much.
func (v *Volume) leaveQuarantine() error {
	former := v.memory.Load()
	if former.quarantine == nil {
		return nil
	}
	if held := v.Quarantined(); held > v.config.MaxQuarantined {
		return fmt.Errorf("%w (%d bytes, the limit is %d)", ErrQuarantineFull, held,
			v.config.MaxQuarantined)
	}
	next, err := v.newMemory(former.generation + 1)
	if err != nil {
		return err
	}
	v.memory.Store(next)
	v.mu.Lock()
	v.formerMemory = append(v.formerMemory, former)
	watched := len(v.formerMemory) > 1
	v.mu.Unlock()
	if !watched {
		v.background.Go(v.freeFormerMemory)
	}
	return nil
}

// Quarantined returns how much memory, in bytes, silent relays hold from earlier sessions: see
// Result.Quarantined. Any goroutine may call it.
func (v *Volume) Quarantined() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.formerMemory
	if m := v.memory.Load(); m != nil && m.quarantine != nil {
		all = append(all[:len(all):len(all)], m)
	}
	var held uint64
	for _, m := range all {
		if !v.isReturned(m.quarantine) {
			held += m.Len()
		}
	}
	return held
}

// isUnused reports whether the relay has released memory in quarantine, and neither a queue nor a
// blocking method uses it, or will.
func (v *Volume) isUnused(m *dataMemory) bool {
	return m.users.Load() == 0 && v.isReturned(m.quarantine)
}

// freeFormerMemory frees memory in quarantine once it is unused. It returns when there is none
// left, or the volume is closed.
func (v *Volume) freeFormerMemory() {
	for v.sleep(quarantinePoll) {
		if v.freeUnusedMemory() == 0 {
			return
		}
	}
}

// freeUnusedMemory frees memory in quarantine that is unused, and returns how many others are left.
func (v *Volume) freeUnusedMemory() (left int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.formerMemory = slices.DeleteFunc(v.formerMemory, func(m *dataMemory) bool {
		if !v.isUnused(m) {
			return false
		}
		v.config.Logger.Info("the relay has released the data memory of a lost session",
			zap.String("volume", v.info.Name), zap.Uint64("bytes", m.Len()))
		v.closeMemory(m)
		return true
	})
	return len(v.formerMemory)
}

func (v *Volume) closeMemory(m *dataMemory) {
	if err := m.Close(); err != nil {
		v.config.Logger.Warn("free data memory", zap.String("volume", v.info.Name), zap.Error(err))
	}
}

// export lends the session's memory to the relay and returns the descriptor for it.
func (s *session) export(ctx context.Context, access memory.Access) ([]byte, error) {
	var err error
	if s.loan, err = s.memory.Lend(); err != nil {
		return nil, err
	}
	export := s.connection.ExportMemory
	if protocol := s.volume.config.Protocol; protocol != dialects.None {
		exporter, ok := s.connection.(comch.PlainExporter)
		if !ok {
			return nil, errors.Join(status.Errorf(status.NotSupported,
				"protocol %v needs a Comch provider that exports memory as libdoca does: doca, or "+
					"emulated for a relay on the emulated libdoca", protocol), s.loan.Region().Close())
		}
		s.foreign = dialects.NewTargetTranslator(protocol, s.loan.Region().Base())
		export = exporter.ExportPlain
	}
	descriptor, err := export(ctx, s.loan.Region(), access)
	if errors.Is(err, status.TooBig) {
		err = fmt.Errorf("%w (limits.export of the relay's channel)", err)
	}
	return descriptor, errors.Join(err, s.loan.Region().Close())
}

// Memory returns the data memory that requests of this queue refer to. It has Config.MemorySize
// bytes, which all queues share. While a request is outstanding, the transport owns its part of the
// memory: do not change the data of a write, and do not use the data of a read. Only the queue's
// thread may call Memory.
func (q *Queue) Memory() []byte { return q.volume.buffers(q.memory) }

// SwitchMemory makes the queue's requests refer to the memory of its current session, and returns
// that memory. Call it when Submit fails with ErrMemoryReplaced.
//
// The memory that the queue has used so far keeps its content until the next Submit of this queue:
// before that, copy what is still needed, for instance the data of writes to repeat. Do not use it
// afterwards. It is freed when all queues have switched and the relay has released it. Only the
// queue's thread may call SwitchMemory.
func (q *Queue) SwitchMemory() []byte {
	if next := q.pair.session.memory; next != q.memory {
		q.dropFormerMemory()
		q.memory, q.former = next, q.memory
		next.users.Add(1)
	}
	return q.Memory()
}

// dropFormerMemory ends the queue's use of the memory that it has switched from, if any.
func (q *Queue) dropFormerMemory() {
	if q.former != nil {
		q.former.users.Add(-1)
		q.former = nil
	}
}

// checkMemory is called by Submit after the session's memory has changed, until a request has used
// the new memory.
func (q *Queue) checkMemory(r *Request) error {
	if q.memory != q.pair.session.memory {
		if r.Type.MovesData() {
			return ErrMemoryReplaced
		}
		return nil
	}
	q.dropFormerMemory()
	q.memoryChanged = false
	return nil
}
