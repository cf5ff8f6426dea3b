// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// liveConfig is what the running daemon serves: the configuration, which is read again for each
// reload, and the channels that administrators have added by command. Changes of either wait for
// one another.
type liveConfig struct {
	env   *service.Environment
	relay *relay.Relay
	from  *config.Source[*config.Relay]
	names *lookups
	kept  *config.KeptChannels // nil without a directory for them
	// ctx is the daemon's: changes go on when their requests have ended, but not when the daemon
	// has.
	ctx context.Context
	// turn has an element while a reload or an administrator changes the channels.
	turn chan struct{}

	mu sync.Mutex // guards what follows
	// running is what the process has started with, as far as only a restart changes it, applied
	// the configuration currently in effect, as far as a reload can change it.
	running, applied *config.Relay
	closed           bool // no more changes
	// changes are those that are under way. One is added only while closed is false.
	changes sync.WaitGroup
}

// openKept reads the channels that administrators have added by command. It returns nil without a
// directory for them.
func openKept(c *config.Relay) (*config.KeptChannels, error) {
	directory := c.State.Path()
	if directory == "" {
		return nil, nil
	}
	kept, err := config.OpenKeptChannels(directory)
	if errors.Is(err, status.BadConfig) {
		return nil, program.Usage(err)
	}
	return kept, err
}

// keptChannels returns the channels that administrators have added.
func (l *liveConfig) keptChannels() []config.Channel {
	if l.kept == nil {
		return nil
	}
	return l.kept.Channels()
}

// withKept returns the configuration together with the channels that administrators have added.
func (l *liveConfig) withKept(c *config.Relay) (*config.Relay, error) {
	if l.kept == nil {
		return c, nil
	}
	return c.WithKept(l.kept.Channels(), l.kept.Path())
}

// current returns the configuration in effect.
func (l *liveConfig) current() *config.Relay {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.applied
}

// begin waits for the turn to change the channels. finish ends the turn.
func (l *liveConfig) begin(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.Errorf(status.InUse, "another change of the channels is under way: %w",
			context.Cause(ctx))
	}
}

func (l *liveConfig) finish() { <-l.turn }

// change carries out a change of the channels, after those that are under way. What carryOut
// returns is done when others may change the channels again; it may be nil. If ctx ends before, the
// change goes on.
func (l *liveConfig) change(ctx context.Context, carryOut func() (after func() error, err error),
) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	ended := make(chan error, 1)
	if err := l.start(func() {
		after, err := l.takeTurn(carryOut)
		if err == nil && after != nil {
			err = after()
		}
		ended <- err
	}); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return status.Errorf(status.InProgress,
			"the change is still under way and goes on: the list of channels shows its end")
	}
}

// takeTurn calls f, and ends the turn.
func (l *liveConfig) takeTurn(f func() (func() error, error)) (func() error, error) {
	defer l.finish()
	return f()
}

// start carries out a change in the background. It fails, and ends the turn, if the relay ends.
func (l *liveConfig) start(carryOut func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.finish()
		return status.Errorf(status.Shutdown, "the relay ends")
	}
	l.changes.Go(carryOut)
	return nil
}

// close waits for changes, which the end of the daemon's context speeds up.
func (l *liveConfig) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.changes.Wait()
	if l.kept == nil {
		return nil
	}
	return l.kept.Close()
}

// AdminChannels lists the channels: those of the configuration, those that administrators have
// added, and those that were removed and wait for their sessions.
func (l *liveConfig) AdminChannels() []admin.Channel {
	var all []admin.Channel
	configured, kept := byFullName(l.current().Channels), byFullName(l.keptChannels())
	channels := l.relay.Channels()
	for i := range channels {
		s := &channels[i]
		switch own, added := configured[s.FullName], kept[s.FullName]; {
		case s.Retiring || own == nil && added == nil:
			all = append(all, described(s, nil, "", ""))
		case own != nil:
			all = append(all, described(s, own, admin.OriginConfiguration, own.Origin()))
		default:
			all = append(all, described(s, added, admin.OriginAdministrator, l.kept.Path()))
		}
	}
	return all
}

func byFullName(channels []config.Channel) map[string]*config.Channel {
	named := make(map[string]*config.Channel, len(channels))
	for i := range channels {
		named[channels[i].FullName()] = &channels[i]
	}
	return named
}

// described returns a channel as administrators see it. Without a configuration, only what the
// relay knows is set.
func described(s *relay.ChannelStatus, c *config.Channel, origin, source string) admin.Channel {
	d := admin.Channel{FullName: s.FullName, Origin: origin, Source: source,
		NewChannel: admin.NewChannel{Name: s.Name, Device: s.Device, Representor: s.Representor,
			Volume: s.Volume},
		State: string(s.State), Since: s.Since.UTC(), Reason: s.Reason, Link: string(s.Link.State),
		Sessions: s.Sessions}
	if err := s.Link.LastError; err != nil && s.Link.State != relay.LinkReady {
		d.LinkReason = printable.Line(err.Error(), maxReasonLength)
	}
	if c != nil {
		d.NewChannel = c.Document()
	}
	if s.Target.IsValid() {
		d.Serving = s.Target.String()
	}
	return d
}

// maxReasonLength keeps the reason why a target cannot be used readable.
const maxReasonLength = 1024

// describe returns a channel that administrators have added, as they see it.
func (l *liveConfig) describe(c *config.Channel) (admin.Channel, error) {
	all := l.AdminChannels()
	i := slices.IndexFunc(all, func(d admin.Channel) bool {
		return d.FullName == c.FullName() && d.Origin != ""
	})
	if i < 0 {
		return admin.Channel{}, status.Errorf(status.Shutdown, "the relay ends")
	}
	return all[i], nil
}

// find returns the place among the kept channels of the one that a name means: that of its service,
// or all that identifies it.
func (l *liveConfig) find(name string) (place int, err error) {
	means := func(c *config.Channel) bool { return c.Name == name || c.IsCalled(name) }
	var found []string
	configured, kept := l.current().Channels, l.keptChannels()
	defined := -1
	for i := range kept {
		if means(&kept[i]) {
			place = i
			found = append(found, kept[i].FullName())
		}
	}
	for i := range configured {
		if means(&configured[i]) {
			defined = i
			found = append(found, configured[i].FullName())
		}
	}
	switch {
	case len(found) == 0:
		return 0, status.Errorf(status.NotFound, "there is no channel %q", name)
	case len(found) > 1:
		return 0, status.Errorf(status.InvalidValue, "%d channels are called %q: name one of %s",
			len(found), name, strings.Join(found, ", "))
	case defined >= 0:
		return 0, definedIn(status.BadState, found[0], configured[defined].Origin())
	}
	return place, nil
}

// definedIn returns the error for a channel that is not for commands to change.
func definedIn(code status.Code, fullName, origin string) error {
	if !strings.Contains(origin, ":") { // FILE:LINE
		return status.Errorf(code, "channel %s is defined by %s: start the relay with others, or "+
			"define the channel in a file (--config), which it can reload", fullName, origin)
	}
	return status.Errorf(code, "channel %s is defined in %s: change it there, and reload "+
		"(zc-relay reload)", fullName, origin)
}

// settings returns the relay's settings of a channel.
func (l *liveConfig) settings(c *config.Channel) relay.ChannelConfig {
	return channelSettings(c, &l.current().Control, l.names)
}

func channelID(c *config.Channel) relay.ChannelID {
	return relay.ChannelID{Device: c.Device, Representor: c.Representor, Name: c.Name}
}

var errNotKept = status.Errorf(status.NotSupported, "the relay has no directory in which it could "+
	"keep channels: start it with --state-directory DIRECTORY (state.directory)")

// AddChannel keeps a channel, and serves it. It is kept first, so that no client uses a channel
// that a restart forgets.
func (l *liveConfig) AddChannel(ctx context.Context, n admin.NewChannel) (admin.Channel, error) {
	c, err := config.ChannelFrom(&n)
	if err != nil {
		return admin.Channel{}, err
	}
	if l.kept == nil {
		return admin.Channel{}, errNotKept
	}
	var added admin.Channel
	err = l.change(ctx, func() (func() error, error) {
		kept := l.kept.Channels()
		if origin, is := l.current().Defines(&c); is {
			return nil, definedIn(status.AlreadyExist, c.FullName(), origin)
		}
		if slices.ContainsFunc(kept, func(k config.Channel) bool {
			return k.FullName() == c.FullName()
		}) {
			return nil, status.Errorf(status.AlreadyExist, "channel %s was added already: remove "+
				"it first, or give another name, device, or representor", c.FullName())
		}
		now := append(kept, c)
		if _, err := l.current().WithKept(now, ""); err != nil {
			return nil, status.Errorf(status.InvalidValue, "%w", problemsOf(err, len(now)-1))
		}
		if err := l.kept.Store(now); err != nil {
			return nil, err
		}
		if err := l.relay.AddChannel(l.ctx, l.settings(&c)); err != nil {
			return nil, errors.Join(err, l.kept.Store(kept))
		}
		var err error
		added, err = l.describe(&c)
		return nil, err
	})
	if err != nil {
		return admin.Channel{}, err // added may be set later
	}
	return added, nil
}

// problemsOf returns the problems of the last kept channel, without its place in the file.
func problemsOf(err error, place int) error {
	problems, is := errors.AsType[config.Problems](err)
	if !is {
		return err
	}
	prefix := fmt.Sprintf("channels.%d.", place)
	for i := range problems {
		problems[i].Key = strings.TrimPrefix(problems[i].Key, prefix)
	}
	return problems
}

// replace keeps and applies another configuration of the channel that a name means. If applying it
// fails, the former one stays.
func (l *liveConfig) replace(name string, modify func(*config.Channel) error) (*config.Channel,
	error) {
	place, err := l.find(name)
	if err != nil {
		return nil, err
	}
	kept := l.kept.Channels()
	now := slices.Clone(kept)
	c := &now[place]
	if err := modify(c); err != nil {
		return nil, err
	}
	if _, err := l.current().WithKept(now, ""); err != nil {
		return nil, status.Errorf(status.InvalidValue, "%w", problemsOf(err, place))
	}
	if err := l.kept.Store(now); err != nil {
		return nil, err
	}
	if err := l.relay.ChangeChannel(l.ctx, l.settings(c)); err != nil {
		return nil, errors.Join(err, l.kept.Store(kept))
	}
	return c, nil
}

// MoveChannel gives a channel other targets, and ends its sessions at the former ones.
func (l *liveConfig) MoveChannel(ctx context.Context, name string, to admin.ChannelTargets,
	force bool) (admin.Channel, error) {
	var moved admin.Channel
	err := l.change(ctx, func() (func() error, error) {
		c, err := l.replace(name, func(c *config.Channel) error { return c.SetTargets(&to) })
		if err != nil {
			return nil, err
		}
		return func() error {
			l.relay.LeaveFormerTargets(l.ctx, channelID(c), drainTime(force))
			var err error
			moved, err = l.describe(c)
			return err
		}, nil
	})
	if err != nil {
		return admin.Channel{}, err // moved may be set later
	}
	return moved, nil
}

// LimitChannel changes the rate limits of a channel, also for open sessions.
func (l *liveConfig) LimitChannel(ctx context.Context, name string, limits admin.ChannelQoS) (
	admin.Channel, error) {
	var limited admin.Channel
	// A wrong value is wrong for any channel, also for one that cannot be changed here.
	unchanged := config.DefaultChannel()
	if err := unchanged.SetQoS(&limits); err != nil {
		return admin.Channel{}, err
	}
	err := l.change(ctx, func() (func() error, error) {
		c, err := l.replace(name, func(c *config.Channel) error { return c.SetQoS(&limits) })
		if err == nil {
			limited, err = l.describe(c)
		}
		return nil, err
	})
	if err != nil {
		return admin.Channel{}, err
	}
	return limited, nil
}

// RemoveChannel forgets a channel, stops offering it, and ends its sessions, after a drain unless
// force is set.
func (l *liveConfig) RemoveChannel(ctx context.Context, name string, force bool) error {
	return l.change(ctx, func() (func() error, error) {
		place, err := l.find(name)
		if err != nil {
			return nil, err
		}
		kept := l.kept.Channels()
		id := channelID(&kept[place])
		if err := l.kept.Store(slices.Delete(slices.Clone(kept), place, place+1)); err != nil {
			return nil, err
		}
		err = l.relay.RemoveChannel(l.ctx, id)
		if err != nil && !errors.Is(err, status.NotFound) {
			return nil, errors.Join(err, l.kept.Store(kept))
		}
		return func() error { return l.relay.EndRemoved(l.ctx, id, drainTime(force)) }, nil
	})
}

// drainTime returns how long requests in flight may take before sessions are ended: the relay's
// time, or none.
func drainTime(force bool) retry.Bound {
	if force {
		return retry.Within(0)
	}
	return retry.Bound{}
}

// read reads the configuration again. The returned function applies it, without affecting open
// sessions.
func (l *liveConfig) read() (apply func() error, err error) {
	c, err := l.from.Load()
	if err != nil {
		return nil, unchanged(err)
	}
	return func() error {
		if err := l.begin(l.ctx); err != nil {
			return err
		}
		defer l.finish()
		return l.apply(c)
	}, nil
}

func unchanged(err error) error { return fmt.Errorf("the configuration is unchanged: %w", err) }

// apply changes the relay to a configuration, as far as a reload can. The caller has the turn.
func (l *liveConfig) apply(c *config.Relay) error {
	all, err := l.withKept(c)
	if err != nil {
		return unchanged(err)
	}
	err = l.relay.Reconfigure(l.ctx, relaySettings(all, l.names))
	former := l.current()
	now := inEffect(c, former, err)
	if now == nil {
		return err
	}
	l.mu.Lock()
	l.running = l.running.RunningChannels(now)
	running := l.running
	l.applied = now
	l.mu.Unlock()
	l.env.Reloaded(service.Changes{Applied: config.RelayChanges(former, now),
		Failed: config.RelayChanges(now, c), SinceStart: config.RelayChanges(running, c)}, now.Log)
	return err
}

// inEffect returns the configuration that is in effect after a reload from former to c, which has
// returned err; nil if nothing has changed. Channels that administrators have added follow those of
// c, and are not part of it.
func inEffect(c, former *config.Relay, err error) *config.Relay {
	var failed []int
	if err != nil {
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok {
			return nil
		}
		for _, err := range joined.Unwrap() {
			channel, ok := errors.AsType[*relay.ChannelError](err)
			if !ok {
				return nil
			}
			failed = append(failed, channel.Index)
		}
	}
	return c.KeepChannels(failed, former)
}

// logKept logs the channels that the daemon serves besides those of its configuration.
func (l *liveConfig) logKept() {
	for _, c := range l.keptChannels() {
		l.env.Log.Info("serving a channel that was added by command",
			zap.String("channel", c.FullName()), zap.String("file", l.kept.Path()))
	}
}
