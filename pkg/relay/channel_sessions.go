// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"maps"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

func (c *channel) startSession(connection comch.Connection) {
	if err := c.relay.admit(); err != nil {
		c.rejected.Add(1)
		c.running.Go(func() { c.reject(connection, err) })
		return
	}
	s := newSession(&c.channelCommon, c.settings.Load(), connection)
	c.add(s)
	c.accepted.Add(1)
	c.running.Go(s.run)
}

// reject tells a client why it gets no session.
func (c *channel) reject(connection comch.Connection, reason error) {
	transport := c.relay.config.HookTransport(controlmsg.NewComchTransport(connection))
	controlmsg.NewResponder(transport,
		c.relay.endpointConfig(c.settings.Load().ControlTimeout, c.log)).Close(reason)
	connection.Abort()
}

// add adds a session with the rate limits of the current settings. From then on, reconfigure
// changes them.
func (c *channel) add(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[s.id] = s
	s.throttle.SetLimits(c.settings.Load().QoS.Session)
}

// limitSessions gives all sessions the rate limits of the current settings.
func (c *channel) limitSessions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	limits := c.settings.Load().QoS.Session
	for _, s := range c.sessions {
		s.throttle.SetLimits(limits)
	}
}

// remove removes a session that has been released, by its ID.
func (c *channel) remove(id uint64) {
	c.mu.Lock()
	delete(c.sessions, id)
	c.mu.Unlock()
	c.relay.sessionCount.Add(-1)
}

// openSessions returns the sessions currently open, including those that have ended and are not
// released.
func (c *channel) openSessions() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.sessions))
}
