package main

import (
	"github.com/zc-relay/zc-relay/internal/metrics"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// observed is a relay as whoever collects metrics sees it.
type observed struct{ *relay.Relay }

// Channels implements metrics.RelaySource.
func (o observed) Channels() []metrics.Channel {
	var channels []metrics.Channel
	for _, c := range o.Relay.Channels() {
		channels = append(channels, metrics.Channel{
			Name: c.ChannelID.String(), Counters: c.Counters, Sessions: c.Sessions, SessionsTotal: c.SessionsAccepted,
		})
	}
	return channels
}
