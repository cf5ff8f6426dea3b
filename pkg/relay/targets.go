package relay

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TargetOrder says which of a channel's targets the relay chooses when several are ready. The
// chosen one keeps the channel for as long as it is ready.
type TargetOrder string

const (
	// PreferredOrder chooses the first of ChannelConfig.Targets that is ready.
	PreferredOrder TargetOrder = "preferred"
	// AnyOrder chooses the next one behind the target that was lost.
	AnyOrder TargetOrder = "any"
)

// HighestMaxTargets bounds ChannelConfig.Targets. Each has a connection of its own.
const HighestMaxTargets = 16

// targets are the targets of a channel, and the choice among them. Each has a link, so that the
// relay knows before it needs one which of them can take over.
type targets struct {
	channel *channel
	running sync.WaitGroup // links

	mu     sync.Mutex      // guards what follows; it is locked before that of a link
	ctx    context.Context // of the links; nil until run
	links  []*targetLink   // in the order of the configuration
	chosen *targetLink     // for new sessions; nil until one has been ready
	moves  uint64          // how often chosen has changed from one target to another
	next   chan struct{}   // closed when the status of a link changes
	// volume is what all targets have to offer, as volumeOf has shown; its UUID is zero until one
	// has.
	volume   identity
	volumeOf netip.AddrPort
}

// identity is what stays the same when a volume moves from one target to another.
type identity struct {
	name string
	uuid [16]byte
}

// errTargetRemoved ends the link of a target that the channel does not have any more.
var errTargetRemoved = status.Errorf(status.Shutdown,
	"the target has been removed from the relay's channel")

func newTargets(c *channel, settings *ChannelConfig) *targets {
	t := &targets{channel: c, next: make(chan struct{})}
	t.configure(settings)
	return t
}

// configure gives the channel the targets that its settings name. Links that stay learn of the
// settings.
func (t *targets) configure(settings *ChannelConfig) {
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.links
	t.links = nil
	for _, address := range settings.Targets {
		i := slices.IndexFunc(former, func(l *targetLink) bool { return l.address == address })
		if i >= 0 {
			t.links = append(t.links, former[i])
			signal(former[i].changed)
			continue
		}
		l := newTargetLink(t, address)
		t.links = append(t.links, l)
		if t.ctx != nil {
			t.startLocked(l)
		}
	}
	isReady := false
	for _, l := range former {
		if !slices.Contains(t.links, l) {
			if l.stop != nil {
				l.stop(errTargetRemoved)
			}
		} else if l.snapshot().State == LinkReady {
			isReady = true
		}
	}
	if !slices.Contains(t.links, t.chosen) {
		t.chosen = nil
	}
	if !isReady || t.volume.name != settings.Volume {
		t.volume = identity{name: settings.Volume}
	}
	t.updateLocked(settings)
}

// run keeps the targets connected until ctx ends.
func (t *targets) run(ctx context.Context) {
	t.mu.Lock()
	t.ctx = ctx
	for _, l := range t.links {
		t.startLocked(l)
	}
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.ctx = nil // no link is started from now on
	t.mu.Unlock()
	t.running.Wait()
}

func (t *targets) startLocked(l *targetLink) {
	ctx, stop := context.WithCancelCause(t.ctx)
	l.stop = stop
	t.running.Go(func() {
		defer stop(nil)
		l.run(ctx)
	})
}

// changed is called when the status of a link has changed.
func (t *targets) changed() {
	t.mu.Lock()
	t.updateLocked(t.channel.settings.Load())
	t.mu.Unlock()
	t.channel.relay.reportReadiness()
}

// updateLocked chooses a target, and wakes the sessions that wait for one.
func (t *targets) updateLocked(settings *ChannelConfig) {
	t.chooseLocked(settings)
	close(t.next)
	t.next = make(chan struct{})
}

// chooseLocked chooses a target that is ready, unless the chosen one is. A less preferred target
// waits for the first outcome at those before it. A target that another one has taken over from is
// the last resort.
func (t *targets) chooseLocked(settings *ChannelConfig) {
	isReady, isDoubtful := false, false
	if t.chosen != nil {
		s := t.chosen.snapshot()
		isReady, isDoubtful = s.State == LinkReady, s.doubtful
	}
	if isReady && !isDoubtful {
		return
	}
	order := t.links
	if settings.TargetOrder == AnyOrder {
		behind := slices.Index(t.links, t.chosen) + 1
		order = slices.Concat(t.links[behind:], t.links[:behind])
	}
	var lastResort *targetLink
	for _, l := range order {
		s := l.snapshot()
		if s.State == LinkReady && !s.doubtful {
			t.moveLocked(l)
			return
		}
		if s.State == LinkReady && lastResort == nil {
			lastResort = l
		}
		if settings.TargetOrder == PreferredOrder && !s.tried {
			return
		}
	}
	if lastResort != nil && !isReady {
		t.moveLocked(lastResort)
	}
}

// moveLocked chooses another target. Sessions at the former one end, even if it is still connected.
func (t *targets) moveLocked(to *targetLink) {
	if from := t.chosen; from != nil {
		t.moves++
		t.channel.log.Warn("the channel moves to another target",
			zap.Stringer("from", from.address), zap.Stringer("target", to.address),
			zap.Error(from.snapshot().LastError))
		if from.snapshot().State == LinkReady {
			from.endSessions()
		}
	}
	t.chosen = to
}

// tookOver notes that a target that was a stand-by has taken the volume over. One target owns the
// volume at a time, so the others do not, even if they have not noticed: a target that is cut off
// from its cluster cannot know. It stays in doubt until it says that it is a stand-by.
func (t *targets) tookOver(by *targetLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if !l.leadsTo(by.process) && l != by {
			l.count(func(s *LinkStatus) { s.doubtful = s.doubtful || s.State == LinkReady })
		}
	}
}

// askForOwner lets the targets that are ready say who owns the volume, for the sessions that wait
// until a former owner's IO cannot take effect any more. A stand-by may have become the owner.
func (t *targets) askForOwner() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		signal(l.asked)
		signal(l.wanted)
	}
}

// leadsTo reports whether the link is known to lead to a process. targets.mu is locked.
func (l *targetLink) leadsTo(process uint64) bool { return process != 0 && l.process == process }

// isDeserted reports whether the link leads nowhere, for a channel whose link beside it leads to a
// target on the relay's own machine: nobody listens at another loopback address, or the machine
// does not have it, and the relay has never reached a target there. localhost has such an address
// if its target listens on one only, or without IPv6. A target that comes there later finds the
// process of the first one known, and is rejected. A refusal of another machine proves nothing,
// because a firewall may send it. targets.mu is locked.
func (l *targetLink) isDeserted(beside *targetLink) bool {
	if beside.process == 0 || l.process != 0 ||
		!beside.address.Addr().IsLoopback() || !l.address.Addr().IsLoopback() {
		return false
	}
	s := l.snapshot()
	return s.vacant && s.Connects == 0
}

// canSpare reports whether the link leads nowhere, and another one of the channel is ready.
func (t *targets) canSpare(l *targetLink) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.links, func(other *targetLink) bool {
		return l.isDeserted(other) && other.snapshot().State == LinkReady
	})
}

// accept returns an error unless the connection's target can serve the channel in place of the
// others.
func (t *targets) accept(c *targetConnection) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.link.process, c.link.leases = c.process, c.leases
	hasOthers := slices.ContainsFunc(t.links, func(l *targetLink) bool {
		return l != c.link && !l.leadsTo(c.process) && !l.isDeserted(c.link)
	})
	offered := identity{c.name, c.volume.UUID}
	switch {
	case !hasOthers || c.name != t.volume.name:
		return nil
	case !c.volume.Fenced:
		return status.Errorf(status.BadConfig, "the channel has %d targets, but target %v does not "+
			"keep the others from writing to volume %q: use an image of Ceph RBD, give the "+
			"volume the option shared=fenced-by-operator, or, if all are addresses of one target, "+
			"name one that it listens on", len(t.links), c.address, c.name)
	case t.volume.uuid == [16]byte{}:
		t.volume, t.volumeOf = offered, c.address
	case t.volume != offered:
		return status.Errorf(status.BadConfig, "target %v offers another volume: its %q has the "+
			"UUID %x, that of target %v %x (reload the relay's configuration if it has been "+
			"replaced on purpose)", c.address, c.name, c.volume.UUID, t.volumeOf, t.volume.uuid)
	}
	return nil
}

// longestLease returns how long after its end a session may have a lease: the longest of the
// targets', of which those that the relay has not met may have the usual one.
func (t *targets) longestLease() time.Duration {
	if t.channel.settings.Load().TargetProtocol != ProtocolNative {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	longest := lease.Length
	for _, l := range t.links {
		longest = max(longest, l.leases)
	}
	return longest
}

// await waits until a target is ready, at most for bound, and returns its link, and a channel that
// is closed when the status of a link changes. Otherwise it returns why none is.
func (t *targets) await(
	ctx context.Context, bound retry.Bound,
) (*targetLink, <-chan struct{}, error) {
	limit, limited := bound.Duration()
	waiting, cancel := bound.Context(ctx)
	defer cancel()
	for {
		t.mu.Lock()
		links, chosen, changed := t.links, t.chosen, t.next
		t.mu.Unlock()
		if chosen != nil && chosen.snapshot().State == LinkReady {
			return chosen, changed, nil
		}
		if limited && limit == 0 || allGivenUp(links) {
			return nil, nil, t.unavailable()
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
			return nil, nil, t.unavailable()
		}
	}
}

// serves reports whether new sessions use a target, and returns a channel that is closed when the
// status of a link changes.
func (t *targets) serves(l *targetLink) (bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.chosen == l && l.snapshot().State == LinkReady, t.next
}

func allGivenUp(links []*targetLink) bool {
	return !slices.ContainsFunc(links,
		func(l *targetLink) bool { return l.snapshot().State != LinkGivenUp })
}

// isReady reports whether a target is ready.
func (t *targets) isReady() bool {
	t.mu.Lock()
	links := t.links
	t.mu.Unlock()
	return slices.ContainsFunc(links,
		func(l *targetLink) bool { return l.snapshot().State == LinkReady })
}

// unavailable returns nil if a target is ready, otherwise an error that says of each why it is not.
func (t *targets) unavailable() error {
	t.mu.Lock()
	links := t.links
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

// addStatus adds the targets to the status of their channel.
func (t *targets) addStatus(s *ChannelStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.TargetMoves = t.moves
	shown := t.chosen
	if shown == nil && len(t.links) > 0 {
		shown = t.links[0]
	}
	for _, l := range t.links {
		link := l.snapshot()
		s.Targets = append(s.Targets, TargetStatus{Address: l.address, Link: link,
			Deserted: slices.ContainsFunc(t.links, l.isDeserted)})
		if l == shown {
			s.Target, s.Link = l.address, link
		}
	}
}

// isStandBy reports whether a target has answered that it serves the volume only when the target
// that owns it is gone.
func isStandBy(err error) bool { return errors.Is(err, status.NoLock) }

// isPostponed reports whether a target has answered by a time to try again.
func isPostponed(err error) bool { return controlmsg.RetryAfter(err) > 0 }
