package iwarp

import (
	"math"
	"net/netip"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The limits of a connection. They bound its memory, not the protocol.
const (
	maxRequests = 1 << 15
	// maxMessageSize keeps lengths positive for peers with signed ones (siw).
	maxMessageSize = math.MaxInt32
)

// device implements rdma.Device: one local address.
type device struct {
	address netip.Addr
	options Options
	table   *memoryTable
	uses    useCount // protection domains, completion queues, listeners
	// mover is the domain, which is to say the session, that has moved bytes
	// last.
	mover atomic.Pointer[protectionDomain]
}

// Capabilities implements rdma.Device.
func (d *device) Capabilities() rdma.Capabilities {
	return rdma.Capabilities{
		Transport:          ProviderName,
		MaxInboundReads:    maxReadDepth,
		MaxOutboundReads:   maxReadDepth,
		MaxSendRequests:    maxRequests,
		MaxReceiveRequests: maxRequests,
		MaxSegments:        1,
		MaxMessageSize:     maxMessageSize,
		// With CRCs only the peer's wish, payloads are copied before they are
		// summed: a caller that was told nothing has to do nothing.
		StableSource: d.options.CRC,
	}
}

// NewProtectionDomain implements rdma.Device.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.use("make protection domain"); err != nil {
		return nil, err
	}
	return &protectionDomain{device: d, uses: newUseCount()}, nil
}

// NewCompletionQueue implements rdma.Device. The queue grows beyond capacity
// if its connections can have more requests outstanding.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue, "make completion queue: capacity %d is negative", capacity)
	}
	if err := d.use("make completion queue"); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, capacity)
	if err != nil {
		d.uses.release()
		return nil, err
	}
	return q, nil
}

// Close implements rdma.Device: status.InUse while anything made on it is
// open.
func (d *device) Close() error {
	if !d.uses.revokeUnused() {
		return status.Errorf(status.InUse, "close iwarp device %v: not everything made on it is closed", d.address)
	}
	return nil
}

func (d *device) use(operation string) error {
	if !d.uses.acquire() {
		return status.Errorf(status.BadState, "%s: iwarp device %v is closed", operation, d.address)
	}
	return nil
}
