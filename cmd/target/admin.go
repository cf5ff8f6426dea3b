package main

import (
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// administered is a target as its admin listener needs it.
type administered struct{ *target.Target }

// AdminSessions lists the sessions of relays.
func (a administered) AdminSessions() []admin.Session {
	sessions := a.OpenSessions()
	all := make([]admin.Session, len(sessions))
	for i, s := range sessions {
		all[i] = admin.Session{ID: s.ID, Opened: s.Opened.UTC(), Peer: s.Relay, Volume: s.Volume,
			Queues: s.Queues}
	}
	return all
}
