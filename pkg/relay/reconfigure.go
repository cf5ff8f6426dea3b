package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Reconfigure changes the settings of a relay that runs. Sessions that are
// open keep the limits and timeouts that they began with, and those of a
// channel that is removed go on until they end. The CPUs of a channel cannot
// be changed. A channel that cannot be added does not keep the rest from
// being applied.
func (r *Relay) Reconfigure(ctx context.Context, settings Settings) error {
	settings, err := settings.complete()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving == nil || r.serving.Err() != nil {
		return status.Errorf(status.BadState, "reconfigure: the relay does not serve")
	}
	r.applyLimits(&settings)
	var errs []error
	former := r.channels
	r.channels = nil
	for i := range settings.Channels {
		config := &settings.Channels[i]
		c := takeChannel(&former, config.ChannelID)
		if c == nil {
			if c, err = r.newChannel(ctx, config); err != nil {
				errs = append(errs, err)
				continue
			}
			r.serveChannel(c)
		} else if err := c.reconfigure(config); err != nil {
			errs = append(errs, fmt.Errorf("channel %v: %w", config.ChannelID, err))
		}
		r.channels = append(r.channels, c)
	}
	for _, c := range former {
		r.retireChannel(c)
	}
	return errors.Join(errs...)
}

// takeChannel removes the serving channel of that name from a list.
func takeChannel(channels *[]*channel, id ChannelID) *channel {
	i := slices.IndexFunc(*channels, func(c *channel) bool { return c.id == id && !c.isRetiring() })
	if i < 0 {
		return nil
	}
	c := (*channels)[i]
	*channels = slices.Delete(*channels, i, i+1)
	return c
}

// reconfigure replaces the channel's settings.
func (c *channel) reconfigure(config *ChannelConfig) error {
	config.CPUs = c.settings.Load().CPUs
	c.settings.Store(config)
	signal(c.link.changed)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil // it gets them when it listens again
	}
	return c.server.SetAdmission(config.admission())
}

func (c *channel) isRetiring() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retiring
}

// retireChannel makes a channel take no more clients and releases it when its
// sessions have ended. The relay must be locked.
func (r *Relay) retireChannel(c *channel) {
	r.channels = append(r.channels, c)
	if c.isRetiring() {
		return
	}
	c.mu.Lock()
	c.retiring = true
	c.mu.Unlock()
	c.log.Info("channel is removed; its sessions may go on")
	c.retire()
	r.serve.Go(func() {
		if c.awaitSessions(r.serving) {
			r.forget(c)
		}
	})
}

// awaitSessions waits until the channel, which takes no more clients, has no
// more sessions; false means that ctx ended before.
func (c *channel) awaitSessions(ctx context.Context) bool {
	ended := make(chan struct{})
	go func() {
		<-c.served
		c.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// forget releases a channel that has no more sessions.
func (r *Relay) forget(c *channel) {
	r.mu.Lock()
	r.channels = slices.DeleteFunc(r.channels, func(other *channel) bool { return other == c })
	r.mu.Unlock()
	if err := c.close(); err != nil {
		c.log.Error("release the removed channel", zap.Error(err))
		return
	}
	c.log.Info("removed channel is released")
}
