// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/states"
)

// ChannelState is whether clients can connect to a channel. Whether a target serves them is another
// matter: see LinkState.
type ChannelState string

// The states of a channel; ChannelStates says what they mean.
const (
	ChannelOpening   ChannelState = "opening"
	ChannelListening ChannelState = "listening"
	ChannelWaiting   ChannelState = "waiting"
	ChannelRetiring  ChannelState = "retiring"
)

// ChannelStates holds all states. A channel is usable if clients can connect to it.
var ChannelStates = states.Table[ChannelState]{
	{State: ChannelOpening, Text: "the relay opens its devices and its Comch service for the " +
		"first time"},
	{State: ChannelListening, Text: "clients can connect", IsUsable: true},
	{State: ChannelWaiting, Text: "a device or a representor is missing, is used by another " +
		"program, or fails, or a name cannot be looked up; the relay tries again", Alerts: true},
	{State: ChannelRetiring, Text: "it was removed from the configuration, or by command, and " +
		"closes with its last session"},
}

// ListenStatus describes whether clients can connect to a channel at one moment.
type ListenStatus struct {
	State ChannelState `json:"state"`
	// Since is when the channel entered State.
	Since time.Time `json:"since"`
	// LastError is why clients cannot connect; nil unless waiting. Reason is its text.
	LastError error  `json:"-"`
	Reason    string `json:"reason,omitempty"`
	// Attempt counts the attempts to open the channel since clients could last connect. NextAttempt
	// is when the next one begins; zero unless waiting.
	Attempt     int       `json:"attempt,omitempty"`
	NextAttempt time.Time `json:"next_attempt_at,omitzero"`
}

// listenStatus returns whether clients can connect.
func (c *channel) listenStatus() ListenStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening
}

// setListening changes whether clients can connect. Since changes only with the state.
func (c *channel) setListening(to ListenStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return
	}
	if to.Since = time.Now().UTC(); to.State == c.listening.State {
		to.Since = c.listening.Since
	}
	c.listening = to
}
