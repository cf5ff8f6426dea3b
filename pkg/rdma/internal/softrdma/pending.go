// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Stream is the connection that a client sends its request on.
type Stream interface {
	comparable
	io.Closer
}

// Clients is how a listener gets from its clients to their requests.
type Clients[S Stream] struct {
	Address netip.AddrPort // where they arrive, with the actual port
	// Accept waits for the next client. It fails with net.ErrClosed after Stop.
	Accept func() (S, error)
	Stop   func() error
	// Read reads a client's request, until the context ends. Without a request and an error, the
	// client has asked for nothing. The request owns the stream.
	Read func(ctx context.Context, from S) (rdma.Request, error)
	// Timeout bounds Read.
	Timeout time.Duration
	Log     *zap.Logger
}

// acceptRetryDelay is the pause after a failed accept: the process or the machine has run out of
// some resource, most likely of descriptors.
const acceptRetryDelay = 10 * time.Millisecond

// serve reads the requests of clients, each in a goroutine of its own, and adds them to the
// backlog. As many clients as the backlog has places may be silent; the next one makes the oldest
// of them give way. serve runs until the listener is closed.
func serve[S Stream](b *Backlog, clients *Clients[S]) {
	silent := silentClients[S]{limit: cap(b.requests)}
	for {
		stream, err := clients.Accept()
		if err == nil {
			silent.add(stream)
			b.Go(func() { clients.serve(b, &silent, stream) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		clients.Log.Warn("cannot accept "+b.name+" connections", zap.Error(err),
			zap.Int("closed_pending_handshakes", silent.shed()))
		select {
		case <-time.After(acceptRetryDelay):
		case <-b.ctx.Done():
		}
	}
}

// serve reads a client's request and adds it to the backlog.
func (c *Clients[S]) serve(b *Backlog, silent *silentClients[S], stream S) {
	ctx, cancel := context.WithTimeout(b.ctx, c.Timeout)
	defer cancel()
	request, err := c.Read(ctx, stream)
	if stays := silent.remove(stream); !stays && err == nil {
		err = status.Errorf(status.Full, "%d later clients have come meanwhile", silent.limit)
	}
	if request != nil && err == nil {
		if err = b.Offer(request); err == nil {
			return
		}
	}
	if request != nil {
		_ = request.Reject(nil)
	} else {
		_ = stream.Close()
	}
	if err != nil {
		c.Log.Info(b.name+" client dropped", zap.Error(err))
	}
}

// silentClients holds the clients that have not sent a complete request. Beyond the limit the
// oldest is closed, and if there are no descriptors left, half of them are. Valid clients send
// their request at once, so the oldest is the one most likely to be invalid, and invalid clients
// cannot lock out others.
type silentClients[S Stream] struct {
	limit int

	mu      sync.Mutex
	streams []S // oldest first
}

// add adds a client and, at the limit, closes the oldest one.
func (s *silentClients[S]) add(stream S) {
	s.mu.Lock()
	var oldest []S
	if len(s.streams) == s.limit {
		oldest = slices.Clone(s.streams[:1])
		s.streams = slices.Delete(s.streams, 0, 1)
	}
	s.streams = append(s.streams, stream)
	s.mu.Unlock()
	closeAll(oldest)
}

// shed closes the older half of the clients and returns their number.
func (s *silentClients[S]) shed() int {
	s.mu.Lock()
	oldest := slices.Clone(s.streams[:(len(s.streams)+1)/2])
	s.streams = slices.Delete(s.streams, 0, len(oldest))
	s.mu.Unlock()
	closeAll(oldest)
	return len(oldest)
}

func closeAll[S Stream](streams []S) {
	for _, stream := range streams {
		_ = stream.Close() // makes its goroutine return
	}
}

// remove removes a client. It returns false if the client was closed to make room.
func (s *silentClients[S]) remove(stream S) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.streams, stream)
	if i < 0 {
		return false
	}
	s.streams = slices.Delete(s.streams, i, i+1)
	return true
}
