// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/bucket"
	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// relayCommon is what the channels of a relay have in common, and all that they know of the relay.
type relayCommon struct {
	config  Config // without its Settings, which change
	devices *rdmaDeviceSet
	// dmaDevices are used by channels with bounce buffers.
	dmaDevices     *dmaDeviceSet
	lessee         *lease.Lessee
	peers          *controlmsg.Peers        // the processes of targets
	pool           *datapath.Pool           // shared by channels; nil without CPUs
	clientCounters *datapath.ClientCounters // by channel and name
	ends           endTimes
	outages        targets.Outages
	// onReadiness is called when it may have changed which channels can serve new sessions.
	onReadiness func()

	maxSessions  atomic.Int64
	maxBounced   atomic.Uint64 // bytes of bounce buffers
	bounced      atomic.Int64  // of these in use
	sessionID    atomic.Uint64
	sessionCount atomic.Int64
	draining     atomic.Pointer[time.Time] // since when; nil if not draining
}

// endTimes bound the end of sessions.
type endTimes struct {
	attempt time.Duration // to release a session before its client is told of the end
	pause   time.Duration // after an attempt that has failed
	// answer is how long a device may take over a request of a session that has ended.
	answer time.Duration
}

// usualEndTimes are the times of relays that are created.
var usualEndTimes = endTimes{attempt: 10 * time.Second, pause: time.Second,
	answer: devicecall.Timeout}

// channelCommon is what the sessions of a channel have in common, and all that they know of the
// channel.
type channelCommon struct {
	relay    *relayCommon
	id       ChannelID
	name     string // id as text
	log      *zap.Logger
	targets  *targets.Set
	workers  *datapath.Pool // nil until the first attempt to open the channel
	counters *datapath.CounterSet
	throttle datapath.Throttle
	exported atomic.Int64                  // bytes of client memory
	own      atomic.Pointer[memory.Device] // the Comch device; nil until it is known
	proven   atomic.Pointer[provenPath]
	path     atomic.Pointer[takenPath] // nil until a session has taken one
	bounced  atomic.Int64              // bytes of bounce buffers
	// A client exports the same memory again when it reconnects. Before that, the target must have
	// lost the access that former sessions gave it.
	clients *epoch.Registry
	dials   *bucket.Bucket // connections of sessions to the target
	// late holds the sessions whose release is tried again, until lateContext ends.
	late        sync.WaitGroup
	lateContext context.Context
	// forget removes a session that has been released, by its ID.
	forget func(id uint64)
}

var (
	errShuttingDown = status.Errorf(status.Shutdown,
		"the relay is shutting down (drain)")
	errDraining = status.Errorf(status.Shutdown,
		"the relay is being drained: it accepts no new sessions")
)

// admit counts a new session, or returns why the relay rejects it.
func (r *relayCommon) admit() error {
	if r.draining.Load() != nil {
		return errDraining
	}
	if limit := r.maxSessions.Load(); r.sessionCount.Add(1) > limit {
		r.sessionCount.Add(-1)
		return status.Errorf(status.Full, "the relay has reached its maximum of %d sessions", limit)
	}
	return nil
}

// rdmaDevice returns the RDMA device with a local address, and a channel that is closed when the
// device is lost.
func (r *relayCommon) rdmaDevice(
	ctx context.Context, source netip.Addr,
) (device rdma.Device, gone <-chan struct{}, err error) {
	if device, err = r.devices.at(ctx, source); err != nil {
		return nil, nil, err
	}
	return device, r.devices.gone(source), nil
}

// endpointConfig returns what all conversations with clients in our own protocol have in common.
func (r *relayCommon) endpointConfig(
	timeout time.Duration, log *zap.Logger,
) controlmsg.EndpointConfig {
	return controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: timeout,
		Software: r.config.Software, Logger: log}
}
