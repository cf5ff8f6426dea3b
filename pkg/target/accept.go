package target

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxRequests bounds the RDMA connection requests that are being dealt with at
// a time.
const maxRequests = 1024

// acceptRDMA takes RDMA connections until ctx ends. A connection without a
// good token is refused.
func (t *Target) acceptRDMA(ctx context.Context) {
	var accepting sync.WaitGroup
	defer accepting.Wait()
	places := make(chan struct{}, maxRequests)
	for {
		request, err := t.rdma.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, status.Shutdown) {
				t.log.Error("accept RDMA connections", zap.Error(err))
			}
			return
		}
		places <- struct{}{}
		accepting.Go(func() {
			defer func() { <-places }()
			t.acceptRequest(request)
		})
	}
}

func (t *Target) acceptRequest(request rdma.Request) {
	remote := request.Remote()
	data, err := controlmsg.DecodeRDMAPrivateData(request.PrivateData())
	if err == nil {
		var record tokenRecord
		if record, err = t.tokens.claim(data.Token, remote.Addr().Unmap(), time.Now()); err == nil {
			// Bound to the session: its end must not wait for a peer that
			// does not go on.
			ctx, cancel := context.WithTimeout(record.session.ctx, t.config.ControlTimeout)
			defer cancel()
			if err = record.session.acceptConnection(ctx, request, record); err != nil {
				record.session.cancel(err)
			}
			return
		}
	}
	t.log.Warn("refused an RDMA connection", zap.Stringer("from", remote), zap.Error(err))
	if err := request.Reject(nil); err != nil {
		t.log.Debug("reject an RDMA connection", zap.Stringer("from", remote), zap.Error(err))
	}
}
