package main

import (
	"github.com/zc-relay/zc-relay/internal/metrics"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// observed is a relay as whoever collects metrics sees it.
type observed struct {
	*relay.Relay
	channel string
}

// Channels implements metrics.RelaySource.
func (o observed) Channels() []metrics.Channel {
	return []metrics.Channel{{
		Name: o.channel, Counters: o.Counters(), Sessions: o.Sessions(), SessionsTotal: o.SessionsTotal(),
	}}
}
