// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// lookups finds what the configuration gives by name: the hosts of targets, and users.
type lookups struct {
	log *zap.Logger
	// host looks a host up.
	host func(context.Context, config.Host) ([]netip.AddrPort, error)
	// found is called with each address that was not known before.
	found func(netip.Addr)

	mu    sync.Mutex
	known map[config.Host][]netip.AddrPort // as of the last look-up that succeeded
}

func newLookups(log *zap.Logger, found func(netip.Addr)) *lookups {
	return &lookups{log: log, host: config.LookUp, found: found,
		known: make(map[config.Host][]netip.AddrPort)}
}

// of returns the addresses of a host. One that cannot be looked up at present keeps those that it
// had.
func (l *lookups) of(ctx context.Context, h config.Host) ([]netip.AddrPort, error) {
	found, err := l.host(ctx, h)
	l.mu.Lock()
	defer l.mu.Unlock()
	former, isKnown := l.known[h]
	switch {
	case err != nil && isKnown:
		l.log.Warn("the host of a target keeps its former addresses: it cannot be looked up",
			zap.Stringer("target", h), zap.Stringers("addresses", former), zap.Error(err))
		return former, nil
	case err != nil:
		return nil, err
	case isKnown && !slices.Equal(former, found):
		l.log.Info("the host of a target has other addresses now", zap.Stringer("target", h),
			zap.Stringers("former", former), zap.Stringers("addresses", found))
	}
	for _, a := range found {
		if !slices.Contains(former, a) {
			l.found(a.Addr())
		}
	}
	l.known[h] = found
	return found, nil
}

// relaySettings returns the settings of the channels in the configuration. Channels look their
// names up when they are opened.
func relaySettings(c *config.Relay, l *lookups) relay.Settings {
	settings := relay.Settings{MaxSessions: c.Limits.Sessions,
		MaxBounceMemory: c.Limits.BounceMemory, DrainTimeout: c.Shutdown.DrainTimeout}
	for i := range c.Channels {
		settings.Channels = append(settings.Channels,
			channelSettings(&c.Channels[i], &c.Control, l))
	}
	return settings
}

// channelSettings returns the settings of a channel.
func channelSettings(c *config.Channel, control *config.Control, l *lookups) relay.ChannelConfig {
	s := c.Settings(control)
	s.LookUp = func(ctx context.Context, s *relay.ChannelConfig) error {
		return l.complete(ctx, c, s)
	}
	if !hasNames(c) && s.LookUp(context.Background(), &s) == nil {
		s.LookUp = nil
	}
	return s
}

// hasNames reports whether a channel has targets or users by name.
func hasNames(c *config.Channel) bool {
	return slices.ContainsFunc(c.Hosts(), func(h config.Host) bool { return h.Name != "" }) ||
		slices.ContainsFunc(c.Access.Users, func(user string) bool {
			_, err := strconv.ParseUint(user, 10, 32)
			return err != nil
		})
}

// complete sets the targets and the users of a channel.
func (l *lookups) complete(ctx context.Context, c *config.Channel, s *relay.ChannelConfig) error {
	targets, err := c.LookUp(func(h config.Host) ([]netip.AddrPort, error) { return l.of(ctx, h) })
	if err != nil {
		err = fmt.Errorf("target: %w", err)
	}
	users, userErr := unixsocket.UserIDs(c.Access.Users)
	if userErr != nil {
		userErr = fmt.Errorf("access.users: %w", userErr)
	}
	s.Targets, s.Access.Users = targets, users
	return errors.Join(err, userErr)
}
