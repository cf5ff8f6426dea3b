//go:build verbs

package verbs

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// device implements rdma.Device: one port of a device, by one address.
type device struct {
	location
	options Options
	log     *zap.Logger
	context *ibv.Context
	channel *ibv.Channel
	limits  ibv.Limits
	monitor *monitor
	uses    atomic.Int64 // protection domains, completion queues, listeners; closed if negative

	nextHandle atomic.Uint64

	mu          sync.Mutex
	endpoints   map[uint64]*endpoint   // by handle
	connections map[uint32]*connection // by queue pair number
	lingering   []*endpoint            // to be destroyed by the monitor
}

func newDevice(place location, options Options, context *ibv.Context, channel *ibv.Channel) (*device, error) {
	limits, err := context.Limits(place.port)
	if err != nil {
		return nil, err
	}
	if !limits.PortActive {
		return nil, status.Errorf(status.NotConnected, "port %d of RDMA device %s is not active: see `rdma link`", place.port, place.device)
	}
	if options.PathMTU > limits.PathMTU && limits.Transport != ibv.IWARP {
		return nil, status.Errorf(status.TooBig, "path MTU %d is more than the %d that port %d of RDMA device %s has now",
			options.PathMTU, limits.PathMTU, place.port, place.device)
	}
	d := &device{
		location: place, options: options, context: context, channel: channel, limits: limits,
		log:       options.Logger.With(zap.String("device", place.device)),
		endpoints: map[uint64]*endpoint{}, connections: map[uint32]*connection{},
	}
	d.monitor, err = startMonitor(d)
	return d, err
}

// The bounds of a connection beyond those of the device. They bound its
// memory, and keep lengths positive for drivers with signed ones (siw).
const (
	maxRequests  = 1 << 15
	maxReadDepth = 128
	maxMessage   = math.MaxInt32
)

// Capabilities implements rdma.Device.
func (d *device) Capabilities() rdma.Capabilities {
	requests := min(d.limits.WorkRequests, maxRequests)
	return rdma.Capabilities{
		Transport:          string(d.limits.Transport),
		MaxInboundReads:    min(d.limits.InboundReads, maxReadDepth),
		MaxOutboundReads:   min(d.limits.OutboundReads, maxReadDepth),
		MaxSendRequests:    requests,
		MaxReceiveRequests: requests,
		MaxSegments:        1,
		MaxMessageSize:     min(d.limits.MessageBytes, maxMessage),
		WriteImpliesPlaced: d.limits.Transport != ibv.IWARP,
		// iWARP peers may have agreed on checksums over data in user memory.
		StableSource: d.limits.Transport == ibv.IWARP,
	}
}

// NewProtectionDomain implements rdma.Device.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.acquire("make protection domain"); err != nil {
		return nil, err
	}
	pd, err := d.context.NewProtectionDomain()
	if err != nil {
		d.release()
		return nil, fmt.Errorf("make protection domain on %s: %w", d.location.device, err)
	}
	return &protectionDomain{device: d, pd: pd}, nil
}

// NewCompletionQueue implements rdma.Device. The requests of all connections
// of the queue together are limited by its capacity, which is no less than
// minCompletions.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue, "make completion queue: capacity %d is negative", capacity)
	}
	if err := d.acquire("make completion queue"); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, capacity)
	if err != nil {
		d.release()
		return nil, fmt.Errorf("make completion queue on %s: %w", d.location.device, err)
	}
	return q, nil
}

// Close implements rdma.Device: status.InUse while anything made on it is
// open. It waits for the connection manager to have said farewell to the
// peers, for lingerTimeout at most.
func (d *device) Close() error {
	if !d.uses.CompareAndSwap(0, math.MinInt64/2) {
		return status.Errorf(status.InUse, "close verbs device %s: not everything made on it is closed", d.location.device)
	}
	d.monitor.stop()
	d.channel.Close()
	if err := d.context.Close(); err != nil {
		return fmt.Errorf("close verbs device %s: %w", d.location.device, err)
	}
	return nil
}

func (d *device) acquire(operation string) error {
	if d.uses.Add(1) > 0 {
		return nil
	}
	d.release()
	return status.Errorf(status.BadState, "%s: verbs device %s is closed", operation, d.location.device)
}

func (d *device) release() { d.uses.Add(-1) }
