package config

import (
	"cmp"
	"math/bits"
	"slices"

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
	left := c.Limits.Sessions
	for _, channel := range channels {
		sessions := min(left, channel.Limits.Sessions)
		total += sessions * channel.Limits.sessionDescriptors()
		left -= sessions
	}
	return total
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
