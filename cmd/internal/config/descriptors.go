// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

// What the daemons open, in file descriptors. Each number is at least what a daemon has been seen
// to use; descriptors that are passed from process to process are open in both for a moment.
const (
	// reservedDescriptors is for the process itself: its log, listeners, scrapes, profiles, and
	// handshakes that have not become sessions.
	reservedDescriptors = 1024
	// A worker has an epoll instance and a wake-up event, and a completion queue with the same two
	// on each RDMA device: for each of two transports, and an epoll instance for both, with auto.
	descriptorsPerWorker      = 4
	descriptorsPerWorkerQueue = 5
	// A channel has a socket, a lock, and its connection to the target.
	descriptorsPerChannel = 8
	// A session of the relay has a Comch connection, a control connection, and two regions of
	// shared memory. A queue has two RDMA connections, four sockets for doorbells, and three rings.
	descriptorsPerRelaySession = 6
	descriptorsPerRelayQueue   = 10
	// A session of the target has its control connection, and each may come with two pending ones.
	// A queue has two RDMA connections, message memory, staging, and the completions of its volume.
	descriptorsPerTargetSession = 4
	descriptorsPerTargetQueue   = 6
	// What a session and a queue of the relay have in the emulated Comch, as part of the above.
	descriptorsPerComchSession = 4
	descriptorsPerComchQueue   = 6
	// A volume has its file and the events of the threads that access it.
	descriptorsPerVolume = 24
)

// Descriptors returns how many file descriptors the relay can need, with the given number of shared
// workers, if clients use everything that the limits allow.
func (c *Relay) Descriptors(workers int) int {
	devices := make(map[string]bool)
	channels := make([]*Channel, len(c.Channels))
	for i := range c.Channels {
		channels[i] = &c.Channels[i]
		workers += len(channels[i].CPUs)
		if address := channels[i].RDMAAddress; address.IsValid() {
			devices[address.String()] = true
		} else {
			for _, target := range channels[i].Hosts() {
				devices[target.Name+target.Address.String()] = true // the route to it decides
			}
		}
	}
	total := reservedDescriptors + len(channels)*descriptorsPerChannel +
		workers*(descriptorsPerWorker+len(devices)*descriptorsPerWorkerQueue)
	// The sessions of all channels are limited together, and the most expensive ones count.
	slices.SortFunc(channels, func(a, b *Channel) int {
		return cmp.Compare(b.Limits.sessionDescriptors(), a.Limits.sessionDescriptors())
	})
	left, inComch, greediest, largest := c.Limits.Sessions, 0, 0, 0
	for _, channel := range channels {
		sessions := min(left, channel.Limits.Sessions)
		total += sessions * channel.Limits.sessionDescriptors()
		left -= sessions
		if sessions > 0 {
			each := channel.Limits.comchDescriptors()
			inComch += sessions * each
			greediest = max(greediest, each)
			largest = max(largest, (sessions+1)*each)
		}
	}
	if c.Comch.Provider != "emulated" {
		return total
	}
	// The emulated Comch takes half of the process's limit, and three quarters of that for one
	// channel. Each connection has to leave to others as much as it has.
	return max(total, 2*(inComch+greediest), (largest*8+2)/3)
}

func (c *ChannelLimits) comchDescriptors() int {
	return descriptorsPerComchSession +
		int(min(c.Queues, c.Outstanding))*descriptorsPerComchQueue
}

func (c *ChannelLimits) sessionDescriptors() int {
	queues := min(c.Queues, c.Outstanding) // each queue has at least one IO
	return descriptorsPerRelaySession + int(queues)*descriptorsPerRelayQueue
}

// Descriptors returns how many file descriptors the target can need, with the given number of
// workers, if relays use everything that the limits allow.
func (c *Target) Descriptors(workers int) int {
	perSession := TargetSessionDescriptors(controlmsg.SessionMaxQueues)
	return reservedDescriptors + workers*(descriptorsPerWorker+descriptorsPerWorkerQueue) +
		len(c.Volumes)*descriptorsPerVolume + c.Limits.Sessions*perSession
}

// TargetSessionDescriptors returns how many file descriptors a session of the target can need.
func TargetSessionDescriptors(queues int) int {
	return descriptorsPerTargetSession + queues*descriptorsPerTargetQueue
}

// DescriptorLimit returns the limit to set for a number of descriptors: the next power of two.
func DescriptorLimit(needed int) int { return 1 << bits.Len(uint(max(needed-1, 0))) }

// Shortage describes limits that allow more than the file descriptors of a process.
type Shortage struct {
	// Needed is how many descriptors the daemon can need, Allowed how many it may open, and
	// LimitNOFILE the limit to set.
	Needed      int `json:"needed"`
	Allowed     int `json:"allowed"`
	LimitNOFILE int `json:"limit_nofile"`
	// Sessions is how many sessions fit if each has as many queues as it may have, Queues, and
	// SmallSessions how many if each has one.
	Sessions      int `json:"sessions"`
	Queues        int `json:"queues"`
	SmallSessions int `json:"sessions_with_one_queue"`
}

// FindShortage compares what the daemon can need with how many descriptors a process may open. It
// returns nil if they suffice.
func FindShortage[C Configuration](c C, workers int, allowed uint64) *Shortage {
	needed := c.Descriptors(workers)
	if uint64(needed) <= allowed {
		return nil
	}
	most, queues := c.sessions()
	fitting := func(queues int) int {
		return sort.Search(most, func(n int) bool {
			return uint64(c.descriptorsFor(workers, n+1, queues)) > allowed
		})
	}
	return &Shortage{Needed: needed, Allowed: int(allowed), LimitNOFILE: DescriptorLimit(needed),
		Sessions: fitting(queues), Queues: queues, SmallSessions: fitting(1)}
}

// String says how many sessions fit.
func (s *Shortage) String() string {
	return fmt.Sprintf("the limits of sessions and queues allow %d file descriptors, but "+
		"RLIMIT_NOFILE is %d: %d sessions with %d queues fit, or %d with one, and others are "+
		"rejected", s.Needed, s.Allowed, s.Sessions, s.Queues, s.SmallSessions)
}

// Remedy says what to do, for the daemon with a systemd unit.
func (s *Shortage) Remedy(unit string) string {
	return fmt.Sprintf("systemctl edit %s, with [Service] LimitNOFILE=%d, or lower the limits of "+
		"sessions and queues", unit, s.LimitNOFILE)
}

func (c *Relay) sessions() (most, queues int) {
	inChannels := 0
	for i := range c.Channels {
		limits := &c.Channels[i].Limits
		inChannels += limits.Sessions
		queues = max(queues, int(min(limits.Queues, limits.Outstanding)))
	}
	return min(c.Limits.Sessions, inChannels), queues
}

func (c *Relay) descriptorsFor(workers, sessions, queues int) int {
	changed := *c
	changed.Limits.Sessions = sessions
	changed.Channels = slices.Clone(c.Channels)
	for i := range changed.Channels {
		limits := &changed.Channels[i].Limits
		limits.Queues = min(limits.Queues, uint32(queues))
	}
	return changed.Descriptors(workers)
}

func (c *Target) sessions() (most, queues int) {
	return c.Limits.Sessions, controlmsg.SessionMaxQueues
}

func (c *Target) descriptorsFor(workers, sessions, queues int) int {
	changed := *c
	changed.Limits.Sessions = 0
	return changed.Descriptors(workers) + sessions*TargetSessionDescriptors(queues)
}
