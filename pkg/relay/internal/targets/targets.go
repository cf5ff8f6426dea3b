// SPDX-License-Identifier: Apache-2.0

// Package targets knows the targets of a relay's channel: which of them serves new sessions, and
// which can take over. It keeps a connection to each of them, and opens those of the sessions, of
// which it knows nothing else.
package targets

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Set holds the targets of a channel, and chooses among them. Each has a link, so that the relay
// knows before it needs one which of them can take over.
type Set struct {
	config   *Config
	settings atomic.Pointer[Settings]
	running  sync.WaitGroup // links

	mu      sync.Mutex      // guards what follows; it is locked before that of a link
	ctx     context.Context // of the links; nil until Run
	members []*member       // in the order of the configuration
	chosen  *member         // for new sessions; nil until one has been ready
	moves   uint64          // how often chosen has changed from one target to another
	next    chan struct{}   // closed when the status of a link changes
	// volume is what all targets have to offer, as volumeOf has shown; its UUID is zero until one
	// has.
	volume   identity
	volumeOf netip.AddrPort
}

// member is a target of a set. Set.mu guards it, except for its link.
type member struct {
	*Link
	// stop ends the link with a reason; nil until Run.
	stop context.CancelCauseFunc
	// process is the target's process, as of the latest connection; 0 if it is not known.
	process uint64
	// leases is how long the target's leases last, as of the latest connection; 0 if it asks no
	// questions or is not known.
	leases time.Duration
}

// identity is what stays the same when a volume moves from one target to another.
type identity struct {
	name string
	uuid [16]byte
}

// errTargetRemoved ends the link of a target that the channel does not have any more.
var errTargetRemoved = status.Errorf(status.Shutdown,
	"the target has been removed from the relay's channel")

// New returns the targets of a channel, to which nothing is connected before Run.
func New(config *Config, settings *Settings) *Set {
	t := &Set{config: config, next: make(chan struct{})}
	t.Configure(settings)
	return t
}

// newMember returns a target whose link has not been started.
func (t *Set) newMember(address netip.AddrPort) *member {
	m := &member{}
	m.Link = newLink(linkConfig{
		Config: t.config, settings: &t.settings, onChange: t.changed,
		onTakeOver: func() { t.tookOver(m) },
		accept:     func(c *Connection) error { return t.accept(m, c) },
		canIgnore:  func() bool { return t.canIgnore(m) },
	}, address)
	return m
}

// Recheck has the links look whether the relay still accepts their targets.
func (t *Set) Recheck() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members {
		signal(m.changed)
	}
}

// Configure gives the channel the targets that its settings name. Links that stay learn of the
// settings.
func (t *Set) Configure(settings *Settings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settings.Store(settings)
	former := t.members
	t.members = nil
	for _, address := range settings.Addresses {
		i := slices.IndexFunc(former, func(l *member) bool { return l.Address == address })
		if i >= 0 {
			t.members = append(t.members, former[i])
			signal(former[i].changed)
			continue
		}
		l := t.newMember(address)
		t.members = append(t.members, l)
		if t.ctx != nil {
			t.startLocked(l)
		}
	}
	isReady := false
	for _, l := range former {
		if !slices.Contains(t.members, l) {
			if l.stop != nil {
				l.stop(errTargetRemoved)
			}
		} else if l.snapshot().State == LinkReady {
			isReady = true
		}
	}
	if !slices.Contains(t.members, t.chosen) {
		t.chosen = nil
	}
	if !isReady || t.volume.name != settings.Volume {
		t.volume = identity{name: settings.Volume}
	}
	t.updateLocked(settings)
}

// Run keeps the targets connected until ctx ends.
func (t *Set) Run(ctx context.Context) {
	t.mu.Lock()
	t.ctx = ctx
	for _, l := range t.members {
		t.startLocked(l)
	}
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.ctx = nil // no link is started from now on
	t.mu.Unlock()
	t.running.Wait()
}

func (t *Set) startLocked(l *member) {
	ctx, stop := context.WithCancelCause(t.ctx)
	l.stop = stop
	t.running.Go(func() {
		defer stop(nil)
		l.run(ctx)
	})
}

// changed is called when the status of a link has changed.
func (t *Set) changed() {
	t.mu.Lock()
	t.updateLocked(t.settings.Load())
	t.mu.Unlock()
	t.config.OnChange()
}

// updateLocked chooses a target, and wakes the sessions that wait for one.
func (t *Set) updateLocked(settings *Settings) {
	t.chooseLocked(settings)
	close(t.next)
	t.next = make(chan struct{})
}

// chooseLocked chooses a target that is ready, unless the chosen one is. A less preferred target
// waits for the first outcome at those before it. A target that another one has taken over from is
// the last resort.
func (t *Set) chooseLocked(settings *Settings) {
	isReady := false
	if t.chosen != nil {
		s := t.chosen.snapshot()
		if isReady = s.State == LinkReady; isReady && s.role != doubtful {
			return
		}
	}
	order := t.members
	if settings.Order == AnyOrder {
		behind := slices.Index(t.members, t.chosen) + 1
		order = slices.Concat(t.members[behind:], t.members[:behind])
	}
	var lastResort *member
	for _, l := range order {
		s := l.snapshot()
		if s.State == LinkReady && s.role != doubtful {
			t.moveLocked(l)
			return
		}
		if s.State == LinkReady && lastResort == nil {
			lastResort = l
		}
		if settings.Order == PreferredOrder && !s.hasOutcome() {
			return
		}
	}
	if lastResort != nil && !isReady {
		t.moveLocked(lastResort)
	}
}

// moveLocked chooses another target. Sessions at the former one end, even if it is still connected.
func (t *Set) moveLocked(to *member) {
	if from := t.chosen; from != nil {
		t.moves++
		t.config.Logger.Warn("the channel moves to another target",
			zap.Stringer("from", from.Address), zap.Stringer("target", to.Address),
			zap.Error(from.snapshot().LastError))
		if from.snapshot().State == LinkReady {
			from.announceMove()
		}
	}
	t.chosen = to
}

// tookOver notes that a target that was a stand-by has taken the volume over. One target owns the
// volume at a time, so the others do not, even if they have not noticed: a target that is cut off
// from its cluster cannot know. It stays doubtful until it says that it is a stand-by.
func (t *Set) tookOver(by *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.members {
		if !l.leadsTo(by.process) && l != by {
			l.count(func(s *LinkStatus) {
				if s.State == LinkReady {
					s.role = nextRole[anotherTakesOver][s.role]
				}
			})
		}
	}
}

// AskForOwner lets the targets that are ready say who owns the volume, for the sessions that wait
// until a former owner's IO cannot take effect any more. A stand-by may have become the owner.
func (t *Set) AskForOwner() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.members {
		signal(l.asked)
		signal(l.wanted)
	}
}

// leadsTo reports whether the link is known to lead to a process. Set.mu is locked.
func (l *member) leadsTo(process uint64) bool { return process != 0 && l.process == process }

// isUnusedLoopback reports whether the link leads nowhere, for a channel whose link beside it leads
// to a target on the relay's own machine: nobody listens at another loopback address, or the
// machine does not have it, and the relay has never reached a target there. localhost has such an
// address if its target listens on one only, or without IPv6. A target that comes there later finds
// the process of the first one known, and is rejected. A refusal of another machine proves nothing,
// because a firewall may send it. Set.mu is locked.
func (l *member) isUnusedLoopback(beside *member) bool {
	if beside.process == 0 || l.process != 0 ||
		!beside.Address.Addr().IsLoopback() || !l.Address.Addr().IsLoopback() {
		return false
	}
	s := l.snapshot()
	return s.isVacant() && s.Connects == 0
}

// canIgnore reports whether the link leads nowhere, and another one of the channel is ready.
func (t *Set) canIgnore(l *member) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.members, func(other *member) bool {
		return l.isUnusedLoopback(other) && other.snapshot().State == LinkReady
	})
}

// accept returns an error unless the connection's target can serve the channel in place of the
// others.
func (t *Set) accept(m *member, c *Connection) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.process, m.leases = c.process, c.LeaseLength
	hasOthers := slices.ContainsFunc(t.members, func(l *member) bool {
		return l != m && !l.leadsTo(c.process) && !l.isUnusedLoopback(m)
	})
	offered := identity{c.name, c.Volume.UUID}
	switch {
	case !hasOthers || c.name != t.volume.name:
		return nil
	case !c.Volume.Fenced:
		return status.Errorf(status.BadConfig, "the channel has %d targets, but target %v does not "+
			"keep the others from writing to volume %q: use an image of Ceph RBD, give the "+
			"volume the option shared=fenced-by-operator, or, if all are addresses of one target, "+
			"name one that it listens on", len(t.members), c.Address, c.name)
	case t.volume.uuid == [16]byte{}:
		t.volume, t.volumeOf = offered, c.Address
	case t.volume != offered:
		return status.Errorf(status.BadConfig, "target %v offers another volume: its %q has the "+
			"UUID %x, that of target %v %x (reload the relay's configuration if it has been "+
			"replaced on purpose)", c.Address, c.name, c.Volume.UUID, t.volumeOf, t.volume.uuid)
	}
	return nil
}

// LongestLease returns how long after its end a session may have a lease: the longest of the
// targets', of which those that the relay has not met may have the usual one.
func (t *Set) LongestLease() time.Duration {
	if t.settings.Load().Dialect != dialects.None {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	longest := lease.Length
	for _, l := range t.members {
		longest = max(longest, l.leases)
	}
	return longest
}

// Await waits until a target is ready, at most for bound, and returns its link, and a channel that
// is closed when the status of a link changes. Otherwise it returns why none is.
func (t *Set) Await(
	ctx context.Context, bound retry.Bound,
) (*Link, <-chan struct{}, error) {
	limit, limited := bound.Duration()
	waiting, cancel := bound.Context(ctx)
	defer cancel()
	for {
		t.mu.Lock()
		links, chosen, changed := t.members, t.chosen, t.next
		t.mu.Unlock()
		if chosen != nil && chosen.snapshot().State == LinkReady {
			return chosen.Link, changed, nil
		}
		if limited && limit == 0 || allGivenUp(links) {
			return nil, nil, t.Unavailable()
		}
		for _, l := range links {
			signal(l.wanted)
		}
		select {
		case <-changed:
		case <-waiting.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, nil, context.Cause(ctx)
			}
			return nil, nil, t.Unavailable()
		}
	}
}

// ErrMoved ends an attempt to connect to a target that the channel has left meanwhile.
var ErrMoved = errors.New("the channel has left the target")

// Connect connects a session to a target, and opens the volume there. It does not wait for a target
// that cannot be reached any longer than the channel's own connection to it lasts. onSize is called
// with each size in bytes that the target announces later, and must not block.
func (t *Set) Connect(
	ctx context.Context, to *Link, settings *Settings, log *zap.Logger,
	onSize func(bytes uint64),
) (*Connection, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go t.cancelOnMove(ctx, cancel, to)
	connection, err := to.open(ctx, settings, log, onSize)
	if err != nil && errors.Is(context.Cause(ctx), ErrMoved) {
		return nil, ErrMoved
	}
	return connection, err
}

// cancelOnMove cancels an attempt to connect to a target that new sessions do not use any more.
func (t *Set) cancelOnMove(ctx context.Context, cancel context.CancelCauseFunc, to *Link) {
	for {
		serves, changed := t.serves(to)
		if !serves {
			cancel(ErrMoved)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// serves reports whether new sessions use a target, and returns a channel that is closed when the
// status of a link changes.
func (t *Set) serves(l *Link) (bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen != nil && t.chosen.Link == l && l.snapshot().State == LinkReady, t.next
}

func allGivenUp(links []*member) bool {
	return !slices.ContainsFunc(links,
		func(l *member) bool { return l.snapshot().State != LinkGivenUp })
}

// IsReady reports whether a target is ready.
func (t *Set) IsReady() bool {
	t.mu.Lock()
	links := t.members
	t.mu.Unlock()
	return slices.ContainsFunc(links,
		func(l *member) bool { return l.snapshot().State == LinkReady })
}

// Unavailable returns nil if a target is ready, otherwise an error that says of each why it is not.
func (t *Set) Unavailable() error {
	t.mu.Lock()
	links := t.members
	t.mu.Unlock()
	errs := make([]error, len(links))
	for i, l := range links {
		s := l.snapshot()
		if s.State == LinkReady {
			return nil
		}
		errs[i] = l.unavailable(&s)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return status.Errorf(status.NotConnected, "none of the channel's %d targets can serve: %s",
		len(errs), strings.Join(texts, "; "))
}

// Status is the state of one of a channel's targets at one moment.
type Status struct {
	Address netip.AddrPort `json:"address"`
	Link    LinkStatus     `json:"link"`
	// Deserted reports that nobody listens at this loopback address, and that another address leads
	// to a target on this machine: the name localhost has both.
	Deserted bool `json:"-"`
}

// Status returns the state of all targets, in the order of the configuration, and the index of the
// one that serves new sessions or was the last to do so, 0 if none has. moves counts how often the
// channel has moved from one target to another.
func (t *Set) Status() (all []Status, serving int, moves uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.members {
		link := l.snapshot()
		link.describe()
		all = append(all, Status{Address: l.Address, Link: link,
			Deserted: slices.ContainsFunc(t.members, l.isUnusedLoopback)})
	}
	return all, max(0, slices.Index(t.members, t.chosen)), t.moves
}
