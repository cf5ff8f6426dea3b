//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// request implements rdma.Request.
type request struct {
	endpoint    *endpoint
	remote      netip.AddrPort
	offer       readDepths // what the peer allows
	privateData []byte
	answered    atomic.Bool
}

func newRequest(e *endpoint, event *ibv.CMEvent) *request {
	return &request{
		endpoint: e, remote: e.id.Remote(), offer: readDepthsOf(event), privateData: limitPrivateData(event.PrivateData),
	}
}

// PrivateData implements rdma.Request. On InfiniBand and RoCE zeros follow
// what the peer set.
func (r *request) PrivateData() []byte { return r.privateData }

// Remote implements rdma.Request.
func (r *request) Remote() netip.AddrPort { return r.remote }

var errAnswered = status.Errorf(status.BadState, "connection request has been answered already")

// Accept implements rdma.Request. If it fails, the peer finds its request
// refused.
func (r *request) Accept(ctx context.Context, config rdma.ConnectionConfig) (rdma.Connection, error) {
	if r.answered.Swap(true) {
		return nil, errAnswered
	}
	ctx, cancel := context.WithTimeout(ctx, rdma.DefaultHandshakeTimeout)
	defer cancel()
	c, err := newConnection(r.endpoint.device, &config)
	if err != nil {
		r.endpoint.destroy()
	} else if err = r.accept(ctx, &config, c); err == nil {
		return c, nil
	} else {
		c.abandon(ctx, r.endpoint)
	}
	return nil, fmt.Errorf("accept RDMA connection from %v: %w", r.remote, err)
}

func (r *request) accept(ctx context.Context, config *rdma.ConnectionConfig, c *connection) error {
	e := r.endpoint
	if name := e.id.DeviceName(); name != e.device.location.device {
		return status.Errorf(status.NotFound, "the request came in on RDMA device %q, not on %s", name, e.device.location.device)
	}
	if err := c.createQueuePair(e, config.Receives); err != nil {
		return err
	}
	depths := offeredReadDepths(config).limitedTo(r.offer)
	if err := c.makeReady(depths); err != nil {
		return err
	}
	c.parameters = newParameters(e, r.privateData, depths, config)
	parameters := c.connectionParameters(depths, config.PrivateData)
	if err := e.id.Accept(&parameters); err != nil {
		return err
	}
	if _, err := e.await(ctx, ibv.EventConnected); err != nil {
		return err
	}
	c.open()
	return nil
}

// Reject implements rdma.Request.
func (r *request) Reject(reason []byte) error {
	if len(reason) > rdma.MaxPrivateData {
		return status.Errorf(status.TooBig, "reject RDMA connection: reason of %d bytes exceeds %d", len(reason), rdma.MaxPrivateData)
	}
	if r.answered.Swap(true) {
		return errAnswered
	}
	defer r.endpoint.destroy()
	if err := r.endpoint.id.Reject(reason); err != nil {
		return fmt.Errorf("reject RDMA connection from %v: %w", r.remote, err)
	}
	return nil
}
