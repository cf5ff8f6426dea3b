// SPDX-License-Identifier: Apache-2.0

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

	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
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
// nothing that is in use. A volume that is reopened switches to new memory.
//
// Memory of the application (Config.Memory) cannot be replaced. A volume with such memory is
// reopened when the relay has released it.

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

// memories is the data memory of a volume: that of its next session, and that of earlier ones which
// silent relays have not released.
type memories struct {
	terms      *terms
	background *background
	// onEvidence is called when the evidence of a session has changed.
	onEvidence func()

	current atomic.Pointer[dataMemory] // of the next session
	mu      sync.Mutex                 // guards the fields below, and changes of quarantine
	former  []*dataMemory              // of earlier sessions, in quarantine
	lent    []*memory.Loan             // of Config.Memory, that relays may not have returned
	unclaim func()                     // of Config.Memory; nil if that is not claimed
}

// dataMemory is the memory that sessions export: the buffers of the application's requests,
// followed by those of the blocking methods.
type dataMemory struct {
	*memory.Region
	generation uint64 // counts the volume's memories, from 1
	// users counts the queues and the slots of the blocking methods whose requests refer to the
	// memory, and the pairs of sessions with it, whose queues may yet switch to it.
	users      atomic.Int32
	quarantine *memory.Loan // nil unless in quarantine; memories.mu guards changes
	// isApplications is set for Config.Memory, which the client neither replaces nor frees.
	isApplications bool
}

// ensure returns the memory of the next session, which it allocates for the first one.
func (m *memories) ensure(ctx context.Context) (*dataMemory, error) {
	if current := m.current.Load(); current != nil {
		return current, nil
	}
	first, err := m.first(ctx)
	if err != nil {
		return nil, err
	}
	m.current.Store(first)
	return first, nil
}

// first returns the memory of the first session.
func (m *memories) first(ctx context.Context) (*dataMemory, error) {
	if region := m.terms.config.Memory; region != nil {
		if err := region.PrefaultUntil(ctx); err != nil {
			return nil, fmt.Errorf("Config.Memory: %w", err)
		}
		return &dataMemory{Region: region, generation: 1, isApplications: true}, nil
	}
	return m.allocate(ctx, 1)
}

// allocate allocates data memory. It touches every page, so that the memory is charged to this
// process and not to the relay, which would otherwise be the first to touch it.
func (m *memories) allocate(ctx context.Context, generation uint64) (*dataMemory, error) {
	region, err := allocateRegion(ctx, m.terms.config.MemorySize+m.terms.stagingSize())
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("allocate data memory: %w", err)
	case err != nil:
		return nil, fmt.Errorf("allocate data memory: %w (use fewer or smaller buffers, or give "+
			"this process more memory)", err)
	}
	return &dataMemory{Region: region, generation: generation}, nil
}

func allocateRegion(ctx context.Context, size uint64) (*memory.Region, error) {
	if err := memory.CheckAvailable(size); err != nil {
		return nil, err
	}
	region, err := memory.Alloc("zc-relay data", size)
	if err != nil {
		return nil, err
	}
	if err := region.PrefaultUntil(ctx); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	return region, nil
}

// claim counts one more user of the memory that current returns, which is not freed meanwhile.
func (m *memories) claim(current func() *dataMemory) *dataMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	claimed := current()
	claimed.users.Add(1)
	return claimed
}

// lending is data memory that one session lends to its relay.
type lending struct {
	*dataMemory
	loan *memory.Loan
	// leases is how long the relay may change volumes after this side has ended the session.
	leases   time.Duration
	evidence atomic.Uint32
}

// The evidence that a session's memory is safe to use, and that its changes have no effect any
// more.
const (
	onLoan      uint32 = iota // none: the relay may use the memory
	returned                  // the relay does not use the memory, but changes may be on their way
	harmless                  // the relay has released it, and nothing is on its way
	quarantined               // none in time: the relay keeps it
)

// loanChecks says when a loan that is about to end is checked, and quarantinePoll is the pause
// between checks of memory in quarantine.
var loanChecks = retry.Policy{FirstPause: time.Millisecond, LongestPause: 20 * time.Millisecond,
	Random: func() float64 { return 0 }}

const quarantinePoll = 500 * time.Millisecond

// untilHarmless returns how long after its end a session can still change the volume, whatever
// becomes of the relay: as long as the targets' leases last, and the time that a connection may
// take to say goodbye. The relay answers a question of a target only when it has looked whether
// this side has ended the connection, so no lease counts from a question that was asked later; and
// the kernel, which the relay asks, knows of the end even if the relay has been stopped. 0 means
// that the targets ask no questions.
func (l *lending) untilHarmless() time.Duration {
	if l.leases == 0 {
		return 0
	}
	return lease.WithDrift(l.leases) + time.Second
}

// settle waits until the relay has released the memory of a session that has ended, but not for
// longer than ReleaseTimeout, and lets the queues report their outstanding requests. This side has
// closed the connection: see untilHarmless. saidWhy means that the relay has said why it has ended
// the session, which it does when it has completed all that was in flight.
func (m *memories) settle(ended *lending, saidWhy bool) {
	begun := time.Now()
	checks := loanChecks
	checks.Total = retry.Within(max(m.terms.config.ReleaseTimeout, ended.untilHarmless()))
	evidence := harmless
	for schedule := checks.Begin(begun); !m.isReturned(ended.loan); {
		err := schedule.Wait(m.background.ctx)
		if errors.Is(err, status.TimeOut) {
			evidence = quarantined
			break
		}
		if err != nil {
			return // nobody polls a volume that is being closed
		}
	}
	if evidence == quarantined {
		m.mu.Lock()
		ended.quarantine = ended.loan
		m.mu.Unlock()
		m.terms.logger().Warn("the relay has not released the data memory of a lost session",
			zap.Uint64("bytes", ended.Len()))
	}
	rest := ended.untilHarmless() - time.Since(begun)
	if evidence == harmless && rest > 0 && !saidWhy {
		evidence = returned
		m.background.run("await the last lease", func() {
			if m.background.sleep(rest) {
				m.forgetChanges(ended)
			}
		})
	}
	ended.evidence.Store(evidence)
	m.onEvidence()
}

// forgetChanges lets the queues report the changes of a session whose memory was returned: the last
// lease of its relay is over, or the target has ended it before it has begun the next one.
func (m *memories) forgetChanges(ended *lending) {
	if ended.evidence.CompareAndSwap(returned, harmless) {
		m.onEvidence()
	}
}

// isReturned reports whether a loan has ended. One that cannot be checked has not.
func (m *memories) isReturned(loan *memory.Loan) bool {
	returned, err := loan.Returned()
	if err != nil {
		m.terms.logger().Warn("cannot tell whether the relay has released the data memory",
			zap.Error(err))
	}
	return returned
}

// leaveQuarantine replaces the next session's memory if that is in quarantine. It fails as long as
// relays hold too much.
func (m *memories) leaveQuarantine() error {
	former := m.current.Load()
	if former.isApplications {
		return m.regain(former)
	}
	if former.quarantine == nil {
		return nil
	}
	if held := m.quarantined(); held > m.terms.config.MaxQuarantined {
		return fmt.Errorf("%w (%d bytes, the limit is %d)", ErrQuarantineFull, held,
			m.terms.config.MaxQuarantined)
	}
	next, err := m.allocate(context.Background(), former.generation+1)
	if err != nil {
		return err
	}
	m.current.Store(next)
	m.mu.Lock()
	m.former = append(m.former, former)
	watched := len(m.former) > 1
	m.mu.Unlock()
	if !watched {
		m.background.run("free former memory", m.freeFormer)
	}
	return nil
}

// lend lends memory to the relay of a session.
func (m *memories) lend(d *dataMemory) (*memory.Loan, error) {
	loan, err := d.Lend()
	if err == nil && d.isApplications {
		m.mu.Lock()
		m.lent = append(m.lent, loan)
		m.mu.Unlock()
	}
	return loan, err
}

// regain ends the quarantine of the application's memory. It fails as long as a relay has it.
func (m *memories) regain(d *dataMemory) error {
	if !m.hasRegained() {
		return fmt.Errorf("%w (Config.Memory, which nothing can replace)", ErrQuarantineFull)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d.quarantine = nil
	return nil
}

// hasRegained reports whether no relay can touch the application's memory any more.
func (m *memories) hasRegained() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lent = slices.DeleteFunc(m.lent, m.isReturned)
	return len(m.lent) == 0
}

// awaitRegained waits until no relay can touch the application's memory any more, for the longest
// time or until ctx ends, and then ends its claim. There is no session any more.
func (m *memories) awaitRegained(ctx context.Context, longest retry.Bound) error {
	checks := loanChecks
	checks.Total = longest
	for schedule := checks.Begin(time.Now()); !m.hasRegained(); {
		if err := schedule.Wait(ctx); err != nil {
			return fmt.Errorf("wait for the release of Config.Memory: %w (%w)", ErrQuarantined, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unclaim != nil {
		m.unclaim()
		m.unclaim = nil
	}
	return nil
}

// claimApplications makes the volume a user of the application's memory, if there is one.
func (m *memories) claimApplications() error {
	config := &m.terms.config
	if config.Memory == nil {
		return nil
	}
	unclaim, err := config.Memory.Claim(config.SyncDepth > 0)
	if err != nil {
		return fmt.Errorf("Config.Memory: %w (volumes can share it if SyncDepth is negative)", err)
	}
	m.unclaim = unclaim
	return nil
}

// quarantined returns how much memory, in bytes, silent relays hold.
func (m *memories) quarantined() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.former
	if current := m.current.Load(); current != nil && current.quarantine != nil {
		all = append(all[:len(all):len(all)], current)
	}
	var held uint64
	for _, d := range all {
		if !m.isReturned(d.quarantine) {
			held += d.Len()
		}
	}
	return held
}

// freeFormer frees memory in quarantine once it is unused. It returns when there is none left, or
// the volume is closed.
func (m *memories) freeFormer() {
	for m.background.sleep(quarantinePoll) {
		if m.freeUnused() == 0 {
			return
		}
	}
}

// freeUnused frees memory in quarantine that is unused, and returns how many others are left.
func (m *memories) freeUnused() (left int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.former = slices.DeleteFunc(m.former, func(d *dataMemory) bool {
		if !m.isUnused(d) {
			return false
		}
		m.terms.logger().Info("the relay has released the data memory of a lost session",
			zap.Uint64("bytes", d.Len()))
		if err := d.Close(); err != nil {
			m.terms.logger().Warn("free data memory", zap.Error(err))
		}
		return true
	})
	return len(m.former)
}

// isUnused reports whether the relay has released memory in quarantine, and neither a queue nor a
// blocking method uses it, or will.
func (m *memories) isUnused(d *dataMemory) bool {
	return d.users.Load() == 0 && m.isReturned(d.quarantine)
}

// close frees all memory when there is no session.
func (m *memories) close() error {
	m.mu.Lock()
	all := append(m.former, m.current.Swap(nil))
	m.former = nil
	m.mu.Unlock()
	var err error
	for _, d := range all {
		if d != nil && !d.isApplications {
			err = errors.Join(err, d.Close())
		}
	}
	return err
}
