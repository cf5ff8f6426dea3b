// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// AddChannel adds a channel to a running relay. It fails with status.AlreadyExist if the relay has
// the channel, and, without adding it, if its configuration cannot work with this build and these
// devices. A channel that cannot be opened yet is added, and tries again, as after New. AddChannel
// waits for Run and for other changes, or the end of ctx.
func (r *Relay) AddChannel(ctx context.Context, config ChannelConfig) error {
	settings, errs := Settings{Channels: []ChannelConfig{config}}.complete()
	if errs[0] != nil {
		return errs[0]
	}
	if err := r.beginChange(ctx); err != nil {
		return err
	}
	defer r.endChange()
	if id := settings.Channels[0].ChannelID; len(r.channelsOf(id, false)) > 0 {
		return status.Errorf(status.AlreadyExist, "channel %v is served already", id)
	}
	// The channels that stay need no configuration here.
	channels := append(r.configured(), nil)
	configs, errs := make([]ChannelConfig, len(channels)), make([]error, len(channels))
	last := len(channels) - 1
	configs[last] = settings.Channels[0]
	r.addChannels(ctx, channels, configs, errs)
	return errs[last]
}

// ChangeChannel changes the settings of one channel, as Reconfigure does for all. It fails with
// status.NotFound if the relay does not have the channel.
func (r *Relay) ChangeChannel(ctx context.Context, config ChannelConfig) error {
	settings, errs := Settings{Channels: []ChannelConfig{config}}.complete()
	if errs[0] != nil {
		return errs[0]
	}
	if err := r.beginChange(ctx); err != nil {
		return err
	}
	defer r.endChange()
	id := settings.Channels[0].ChannelID
	channels := r.channelsOf(id, false)
	if len(channels) == 0 {
		return status.Errorf(status.NotFound, "there is no channel %v", id)
	}
	return channels[0].reconfigure(ctx, &settings.Channels[0])
}

// RemoveChannel stops offering a channel. Its sessions continue until they end; EndRemoved ends
// them. It fails with status.NotFound if the relay does not have the channel.
func (r *Relay) RemoveChannel(ctx context.Context, id ChannelID) error {
	if err := r.beginChange(ctx); err != nil {
		return err
	}
	defer r.endChange()
	channels := r.channelsOf(id.normalized(), false)
	if len(channels) == 0 {
		return status.Errorf(status.NotFound, "there is no channel %v", id)
	}
	stay := slices.DeleteFunc(r.configured(), func(c *channel) bool { return c == channels[0] })
	return r.publish(stay)
}

// EndRemoved ends the sessions of channels with an id that have been removed: it completes the IOs
// in flight for as long as drain allows, the relay's DrainTimeout if it is unset, and waits until
// the channels are released. It fails with the cause of ctx if that ends before.
func (r *Relay) EndRemoved(ctx context.Context, id ChannelID, drain retry.Bound) error {
	removed := r.channelsOf(id.normalized(), true)
	var sessions []*session
	for _, c := range removed {
		sessions = append(sessions, c.openSessions()...)
	}
	r.endAfterDrain(ctx, sessions, drain,
		status.Errorf(status.Shutdown, "an administrator has removed the channel"))
	for _, c := range removed {
		select {
		case <-c.released:
		case <-ctx.Done():
			return fmt.Errorf("channel %v has sessions: %w", c.id, context.Cause(ctx))
		}
	}
	return nil
}

// LeaveFormerTargets ends the sessions of a channel at targets that its settings no longer name,
// after a drain as that of EndRemoved. Clients may open others, at the present targets.
func (r *Relay) LeaveFormerTargets(ctx context.Context, id ChannelID, drain retry.Bound) {
	for _, c := range r.channelsOf(id.normalized(), false) {
		settings := c.settings.Load()
		leaving := slices.DeleteFunc(c.openSessions(), func(s *session) bool {
			target := s.reached.Load()
			if target == nil {
				return s.settings == settings // others may have chosen a former target
			}
			return slices.Contains(settings.Targets, target.Address)
		})
		r.endAfterDrain(ctx, leaving, drain, status.Errorf(status.NotConnected,
			"an administrator has moved the channel to another target"))
	}
}

// endAfterDrain drains sessions concurrently, and starts to end each of them with a reason.
func (r *Relay) endAfterDrain(ctx context.Context, sessions []*session, drain retry.Bound,
	reason error) {
	draining, cancel := drain.Or(r.DrainTimeout()).Context(ctx)
	defer cancel()
	var ending sync.WaitGroup
	for _, s := range sessions {
		ending.Go(func() {
			s.drain(draining)
			s.cancel(reason)
		})
	}
	ending.Wait()
}

// beginChange waits for Run, and for other changes of the channels. endChange ends the change.
func (r *Relay) beginChange(ctx context.Context) error {
	select {
	case <-r.running:
	case <-ctx.Done():
		return status.ContextError(ctx)
	}
	select {
	case r.reconfiguring <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.ContextError(ctx)
	}
}

func (r *Relay) endChange() {
	r.reportReadiness()
	<-r.reconfiguring
}

// configured returns the channels that have not been removed.
func (r *Relay) configured() []*channel {
	return slices.DeleteFunc(r.snapshot(), (*channel).isRemoved)
}
