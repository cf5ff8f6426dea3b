// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// lookedUp returns the configuration together with what LookUp finds. Whatever that lacks may come
// right without another configuration, so the error is never one of a wrong configuration.
func (c *ChannelConfig) lookedUp(ctx context.Context) (*ChannelConfig, error) {
	if c.LookUp == nil {
		return c, nil
	}
	known := *c
	known.LookUp = nil
	err := c.LookUp(ctx, &known)
	if err == nil {
		err = known.Validate()
	}
	if IsMisconfigured(err) {
		err = status.Errorf(status.NotFound, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return &known, nil
}

// lookUp returns the channel's settings when everything in them is known.
func (c *channel) lookUp(ctx context.Context) (*ChannelConfig, error) {
	for {
		settings := c.settings.Load()
		known, err := settings.lookedUp(ctx)
		if err != nil || known == settings {
			return known, err
		}
		if c.apply(settings, known) {
			return known, nil
		}
	}
}

// apply replaces the settings, unless others have replaced the former ones.
func (c *channel) apply(former, now *ChannelConfig) bool {
	c.applying.Lock()
	defer c.applying.Unlock()
	if !c.settings.CompareAndSwap(former, now) {
		return false
	}
	c.targets.Configure(c.targetSettings(now))
	return true
}

// IsMisconfigured reports whether a channel cannot be opened because of its settings or this build.
// Everything else may come right: devices and representors appear after the relay has started, with
// their permissions, a firmware that starts fails with any code, and another program ends.
func IsMisconfigured(err error) bool {
	switch status.CodeOf(err) {
	case status.InvalidValue, status.NotSupported, status.BadConfig, status.TooBig:
		return true
	}
	return false
}

// targetSettings returns the part of the settings that concerns targets.
func (c *channel) targetSettings(config *ChannelConfig) *targets.Settings {
	settings := config.targetSettings()
	settings.CheckDevice = func(device rdma.Device) error {
		_, err := c.memoryPaths(config, device)
		return err
	}
	return settings
}
