// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/bucket"
	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// channel is a Comch service with its targets and its sessions.
type channel struct {
	channelCommon
	// settings are replaced as a whole. A session keeps the settings that it started with.
	settings atomic.Pointer[ChannelConfig]
	applying sync.Mutex     // held while settings and targets change together
	ownPool  *datapath.Pool // nil if the relay's workers serve the channel; guarded by mu
	stop     context.CancelFunc
	unlisted chan struct{} // closed when the channel no longer holds its name
	served   chan struct{} // closed when run has returned
	released chan struct{} // closed when the channel has been removed and released
	former   []*channel    // removed channels of the same id, until none holds the name

	accepted  atomic.Uint64
	rejected  atomic.Uint64
	running   sync.WaitGroup // sessions
	stopLate  context.CancelFunc
	linking   sync.WaitGroup  // links to the targets
	links     context.Context // of these
	stopLinks context.CancelCauseFunc

	opening  devicecall.Step // an attempt to open the channel, one at a time
	checking devicecall.Step // of the devices in other settings
	schedule *retry.Schedule // of these; nil after success
	changed  chan struct{}   // has an element when the settings have changed

	mu        sync.Mutex // guards what follows
	listening ListenStatus
	server    comch.Server
	closed    bool                    // no server is needed any more
	suspend   context.CancelCauseFunc // stops accepting clients; nil until it has begun
	// maxClients is how many clients the server's device supports.
	maxClients int
	sessions   map[uint64]*session // by their ID
	removed    bool                // from the configuration
}

// newChannel creates a channel, which continues to count with counters. former are the removed
// channels of the same id.
func newChannel(
	relay *relayCommon, config *ChannelConfig, counters *datapath.CounterSet, former []*channel,
) *channel {
	id := config.ChannelID
	c := &channel{
		channelCommon: channelCommon{
			relay: relay, id: id, name: id.String(), counters: counters,
			clients: epoch.NewRegistry(epoch.Config{Restart: true}),
			dials:   bucket.New(channelDialInterval),
		},
		unlisted: make(chan struct{}), served: make(chan struct{}),
		released: make(chan struct{}), former: former,
		sessions: make(map[uint64]*session),
		changed:  make(chan struct{}, 1),

		listening: ListenStatus{State: ChannelOpening, Since: time.Now().UTC()},
	}
	if len(former) > 0 {
		c.clients = former[0].clients // their sessions and the new ones may be the same clients'
	}
	c.forget = c.remove
	c.lateContext, c.stopLate = context.WithCancel(context.Background())
	c.links, c.stopLinks = context.WithCancelCause(context.Background())
	c.log = relay.config.Logger.With(zap.String("channel", id.Name), zap.String("representor", id.Representor))
	c.settings.Store(config)
	c.throttle.SetLimits(config.QoS.Channel)
	c.targets = targets.New(&targets.Config{
		Channel: c.name, Network: relay.config.Network, TLS: relay.config.TLS,
		DataSecurity: relay.config.DataSecurity, Fabric: relay.config.Fabric,
		HookTransport: relay.config.HookTransport, Software: relay.config.Software,
		Lessee: relay.lessee, Peers: relay.peers, Device: relay.rdmaDevice, Logger: c.log,
		Outages: &relay.outages, OnChange: relay.onReadiness, ProbeInterval: probeInterval,
	}, c.targetSettings(config))
	return c
}

// ownWorkers returns the workers that serve this channel only.
func (c *channel) ownWorkers() []*datapath.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ownPool == nil {
		return nil
	}
	return c.ownPool.Workers()
}

// close releases the channel. All its sessions must have ended. Those that are not released wait
// for no target any more, and stay so when ctx ends.
func (c *channel) close(ctx context.Context) error {
	c.stopLinks(errShuttingDown)
	c.linking.Wait()
	stop := context.AfterFunc(ctx, c.stopLate)
	c.late.Wait()
	stop()
	c.stopLate()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.closeServer()
	if c.ownPool != nil { // no attempt to open the channel starts one any more
		err = errors.Join(err, c.ownPool.Stop())
	}
	return err
}

// signal adds an element to a channel with room for one, unless it is full.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// isRemoved reports whether the channel has been removed from the configuration.
func (c *channel) isRemoved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removed
}
