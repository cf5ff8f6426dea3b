// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ChannelError is why Reconfigure has not applied the configuration of a channel. The channel keeps
// its former settings; a new one is not added.
type ChannelError struct {
	// Index is the place of the channel in Settings.Channels.
	Index int
	Err   error
}

// Error returns the text of Err, which names the channel.
func (e *ChannelError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ChannelError) Unwrap() error { return e.Err }

// Reconfigure changes the settings of a running relay. Open sessions keep the limits and timeouts
// that they started with, except rate limits (QoS), and the sessions of a removed channel continue
// until they end. The CPUs of a channel cannot change. Reconfigure joins a ChannelError for each
// channel whose configuration cannot work, with this build and these devices; that does not prevent
// the other changes, nor do devices that take long. A channel that cannot be opened yet, because of
// a device that is missing for instance, gets its settings, and tries again, as after New. Any
// other error means that nothing has changed. Reconfigure waits for Run and for other calls, or the
// end of ctx.
func (r *Relay) Reconfigure(ctx context.Context, settings Settings) error {
	settings, errs := settings.complete()
	if err := r.beginChange(ctx); err != nil {
		return err
	}
	defer r.endChange()
	configured := make([]*channel, len(settings.Channels))
	for i := range settings.Channels {
		open := r.channelsOf(settings.Channels[i].ChannelID, false)
		if len(open) > 0 && !slices.Contains(configured, open[0]) {
			configured[i] = open[0]
		}
	}
	if err := r.publish(configured); err != nil {
		return err
	}
	r.applyLimits(&settings)
	var changing sync.WaitGroup
	for i, c := range configured {
		if c != nil && errs[i] == nil {
			changing.Go(func() { errs[i] = c.reconfigure(ctx, &settings.Channels[i]) })
		}
	}
	changing.Wait()
	r.recheckTargets()
	r.addChannels(ctx, configured, settings.Channels, errs)
	var failed []error
	for i, err := range errs {
		if err != nil {
			failed = append(failed, &ChannelError{i, err})
		}
	}
	return errors.Join(failed...)
}

// recheckTargets ends the sessions at targets that the relay no longer accepts, because their
// certificates have been revoked, or lack an authority, since. Links look for themselves.
func (r *Relay) recheckTargets() {
	for _, c := range r.snapshot() {
		c.targets.Recheck()
		for _, s := range c.openSessions() {
			if t := s.reached.Load(); t != nil {
				if err := t.CheckPeer(); err != nil {
					s.cancel(err)
				}
			}
		}
	}
}

// addChannels creates the channels that configured does not have yet, and begins to serve each of
// them when the first attempt to open it has ended. It skips those with an error, and sets the
// errors of those that it cannot add.
func (r *Relay) addChannels(
	ctx context.Context, configured []*channel, configs []ChannelConfig, errs []error,
) {
	type outcome struct {
		place int
		added *channel
		err   error
	}
	outcomes, adding := make(chan outcome), 0
	for i, c := range configured {
		if c != nil || errs[i] != nil {
			continue
		}
		config := &configs[i]
		c := r.newChannel(config, r.channelsOf(config.ChannelID, true))
		adding++
		go func() { outcomes <- outcome{i, c, c.openFirst(ctx)} }()
	}
	for range adding {
		o := <-outcomes
		if o.err == nil {
			configured[o.place] = o.added
			if o.err = r.publish(configured); o.err != nil {
				configured[o.place] = nil
			}
		}
		if o.err != nil {
			errs[o.place] = errors.Join(o.err, o.added.close(ctx))
		}
	}
}

// channelsOf returns the channels with an id that have been removed, or have not.
func (r *Relay) channelsOf(id ChannelID, removed bool) []*channel {
	return slices.DeleteFunc(r.snapshot(),
		func(c *channel) bool { return c.id != id || c.isRemoved() != removed })
}

// publish makes the configured channels, of which nil ones are not open yet, those of the relay. It
// begins to serve new ones, and removes the others. It fails if the relay is not running any more.
func (r *Relay) publish(configured []*channel) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving.Err() != nil {
		return status.Errorf(status.BadState, "reconfigure: the relay is not running")
	}
	former := r.channels
	r.channels = nil
	for _, c := range configured {
		if c == nil {
			continue
		}
		r.channels = append(r.channels, c)
		if c.stop == nil {
			r.serveChannel(c)
		}
	}
	for _, c := range former {
		if slices.Contains(configured, c) {
			continue
		}
		r.channels = append(r.channels, c)
		if !c.isRemoved() {
			r.removeChannel(c)
		}
	}
	return nil
}

// reconfigure changes the settings, unless they cannot work, or what they name cannot be looked up.
// With devices that are missing, the channel waits for them.
func (c *channel) reconfigure(ctx context.Context, config *ChannelConfig) error {
	former := c.settings.Load()
	config.CPUs = former.CPUs
	known, missing := c.checkChange(ctx, former, config)
	isRefused := IsMisconfigured(missing) || known == nil && former.LookUp == nil
	if missing != nil && (isRefused || ctx.Err() != nil) {
		return fmt.Errorf("channel %v: %w", c.id, missing)
	}
	if known != nil {
		config = known
	}
	for !c.apply(former, config) {
		former = c.settings.Load() // which has looked up the former settings
	}
	if missing != nil {
		c.interrupt(missing)
	}
	signal(c.changed)
	c.throttle.SetLimits(config.QoS.Channel)
	c.limitSessions()
	for _, s := range c.openSessions() {
		for _, lane := range s.openLanes() {
			lane.Wake()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil // the next server gets the new settings
	}
	if err := c.server.SetAdmission(c.admission(config)); err != nil {
		return fmt.Errorf("channel %v: %w", c.id, err)
	}
	return nil
}

// checkChange looks up what other settings name, and checks their devices as an attempt to open the
// channel does, unless they are the same. known is nil if nothing is known of what they name.
func (c *channel) checkChange(ctx context.Context, from, to *ChannelConfig) (known *ChannelConfig,
	missing error) {
	if to.LookUp == nil && from.hasSameDevices(to) {
		return to, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if c.checking.IsUnderWay() { // for former settings
		err := c.checking.Await(ctx)
		if c.checking.IsUnderWay() {
			return nil, err
		}
	}
	found := make(chan *ChannelConfig, 1)
	err := c.checking.Take(ctx, "check the devices", func() error {
		known, err := to.lookedUp(ctx)
		if err != nil {
			return err
		}
		found <- known
		if !from.hasSameDevices(known) {
			_, err = c.findDevices(ctx, known)
		}
		return err
	})
	select {
	case known = <-found:
	default:
	}
	return known, err
}

// hasSameDevices reports whether two configurations of a channel use the same devices.
func (c *ChannelConfig) hasSameDevices(other *ChannelConfig) bool {
	return c.RDMAAddress == other.RDMAAddress && c.Isolation == other.Isolation &&
		c.ImportDevice == other.ImportDevice && c.TargetProtocol == other.TargetProtocol &&
		slices.Equal(c.Targets, other.Targets)
}

// removeChannel stops accepting clients and releases the channel when its last session has ended.
// The caller holds r.mu.
func (r *Relay) removeChannel(c *channel) {
	c.mu.Lock()
	c.removed = true
	c.listening = ListenStatus{State: ChannelRetiring, Since: time.Now().UTC()}
	c.mu.Unlock()
	c.log.Info("channel removed; open sessions continue")
	c.stop()
	serving := r.serving
	r.serve.Go(func() { r.releaseRemoved(serving, c) })
}

// releaseRemoved releases a removed channel when its last session has ended, unless the relay ends
// before.
func (r *Relay) releaseRemoved(serving context.Context, c *channel) {
	defer close(c.released)
	c.log.Debug("waiting for the sessions of the removed channel")
	defer c.log.Debug("no longer waiting for the sessions of the removed channel")
	ended := make(chan struct{})
	go func() {
		<-c.served
		c.running.Wait()
		c.late.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-serving.Done():
		return
	}
	r.mu.Lock()
	r.channels = slices.DeleteFunc(r.channels, func(other *channel) bool { return other == c })
	r.mu.Unlock()
	if err := c.close(serving); err != nil {
		c.log.Error("cannot release the removed channel", zap.Error(err))
		return
	}
	c.log.Info("removed channel is released")
}
