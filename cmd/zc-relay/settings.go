package main

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// relaySettings is what the configuration says of channels. It fails if there
// is no user of a name.
func relaySettings(c *config.Relay) (relay.Settings, error) {
	settings := relay.Settings{MaxSessions: c.Limits.Sessions, DrainTimeout: service.Bound(c.Shutdown.DrainTimeout)}
	var errs []error
	for i := range c.Channels {
		channel := channelConfig(&c.Channels[i], &c.Control)
		users, err := userIDs(c.Channels[i].Access.Users)
		if err != nil {
			errs = append(errs, fmt.Errorf("channels.%d.access.users: %w", i, err))
		}
		channel.Access.Users = users
		settings.Channels = append(settings.Channels, channel)
	}
	return settings, errors.Join(errs...)
}

func channelConfig(c *config.Channel, control *config.Control) relay.ChannelConfig {
	return relay.ChannelConfig{
		ChannelID: relay.ChannelID{Device: c.Device, Representor: c.Representor, Name: c.Name},
		Target:    c.Target, Volume: c.Volume, TLSServerName: c.TLSServerName, RDMAAddress: c.RDMAAddress, CPUs: c.CPUs,
		Limits: relay.Limits{
			MaxSessions: c.Limits.Sessions, MaxQueues: c.Limits.Queues, MaxDepth: c.Limits.Depth, MaxOutstanding: c.Limits.Outstanding,
			MaxBufferSize: c.Limits.BufferSize, MaxExport: c.Limits.Export,
		},
		Access: relay.Access{AnyUser: c.Access.AnyUser},
		Reconnect: retry.Policy{
			Attempts: c.Reconnect.Attempts, Total: c.Reconnect.GiveUpAfter,
			FirstPause: c.Reconnect.FirstPause, LongestPause: c.Reconnect.LongestPause,
		},
		SessionWait: c.Reconnect.SessionWait,
		IOTimeout:   ioTimeout(c), ControlTimeout: control.Timeout,
		KeepAlive: controlmsg.KeepAliveConfig{Interval: control.KeepAliveInterval, DeadAfter: control.KeepAliveDeadAfter},
	}
}

// noTimeout is an IO timeout without end.
const noTimeout = -1

func ioTimeout(c *config.Channel) time.Duration {
	if c.IOTimeout == config.Infinite {
		return noTimeout
	}
	return c.IOTimeout
}

// userIDs are the numbers of users that are given by number or name.
func userIDs(names []string) ([]uint32, error) {
	var ids []uint32
	for _, name := range names {
		text := name
		if u, err := user.Lookup(name); err == nil {
			text = u.Uid
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("there is no user %q on this machine", name)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}

// sharedWorkers are the cores of the workers that channels share, none if
// every channel has its own.
func sharedWorkers(c *config.Relay, cpus []int) []int {
	for i := range c.Channels {
		if len(c.Channels[i].CPUs) == 0 {
			return cpus
		}
	}
	return nil
}
