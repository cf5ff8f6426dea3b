package main

import (
	"github.com/zc-relay/zc-relay/cmd/internal/metrics"
	"github.com/zc-relay/zc-relay/cmd/internal/statusreport"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// observed is a relay as whoever collects metrics sees it.
type observed struct{ *relay.Relay }

// Channels implements metrics.RelaySource. A channel that was removed from the
// configuration and added again may be there twice, while sessions of the
// former go on: together they are one.
func (o observed) Channels() []metrics.Channel {
	var channels []metrics.Channel
	places := make(map[relay.ChannelID]int)
	for _, c := range o.Relay.Channels() {
		place, known := places[c.ChannelID]
		if !known {
			place = len(channels)
			places[c.ChannelID] = place
			channels = append(channels, channelOf(&c))
		}
		channel := &channels[place]
		channel.Sessions += c.Sessions
		channel.SessionsAccepted += c.SessionsAccepted
		channel.SessionsRefused += c.SessionsRefused
		channel.ExportedBytes += c.ExportedBytes
	}
	return channels
}

// channelOf describes a channel without what adds up.
func channelOf(c *relay.ChannelStatus) metrics.Channel {
	return metrics.Channel{
		Name: c.ChannelID.String(), Device: c.Device, Representor: c.Representor, Service: c.ChannelID.Name,
		Target: c.Target.String(), Volume: c.Volume, Counters: c.Counters,
		TargetReady: c.Link.State == relay.LinkReady, TargetAttempt: c.Link.Attempt,
		TargetConnects: c.Link.Connects, TargetLosses: c.Link.Losses, TargetFailures: c.Link.Failures,
	}
}

// describe adds what the relay serves to its status.
func describe(r *relay.Relay) func(*statusreport.Document) {
	return func(d *statusreport.Document) {
		d.Workers = statusreport.Workers(r.Workers())
		for _, c := range r.Channels() {
			d.Channels = append(d.Channels, statusreport.Channel{
				Name: c.ChannelID.String(), Device: c.Device, Representor: c.Representor, Service: c.ChannelID.Name,
				Address: c.Address, Target: c.Target.String(), Volume: c.Volume, Retiring: c.Retiring, Link: linkOf(&c.Link),
				SessionCount: statusreport.SessionCount{Open: c.Sessions, Total: c.SessionsAccepted}, Refused: c.SessionsRefused,
				Exported: c.ExportedBytes, Sessions: sessionsOf(c.OpenSessions), Queues: statusreport.Queues(c.Counters),
			})
		}
	}
}

func linkOf(l *relay.LinkStatus) statusreport.Link {
	link := statusreport.Link{
		State: l.State.String(), Since: l.Since.UTC(), Attempt: l.Attempt, Connects: l.Connects, Losses: l.Losses, Failures: l.Failures,
	}
	if l.LastError != nil {
		link.Reason = l.LastError.Error()
	}
	if n, limited := l.Attempts.Number(); limited {
		link.MaxAttempts = new(int(n))
	}
	if !l.NextTry.IsZero() {
		link.NextAttempt = new(l.NextTry.UTC())
	}
	return link
}

func sessionsOf(sessions []relay.SessionStatus) []statusreport.Session {
	all := make([]statusreport.Session, len(sessions))
	for i, s := range sessions {
		all[i] = statusreport.Session{
			ID: s.ID, ClientPID: s.Client.PID, ClientUID: s.Client.UID, Opened: s.Opened.UTC(), Queues: []statusreport.SessionQueue{},
		}
		for _, q := range s.Queues {
			all[i].Queues = append(all[i].Queues, statusreport.SessionQueue{Index: q.Index, Depth: q.Depth, InFlight: q.InFlight})
		}
	}
	return all
}
