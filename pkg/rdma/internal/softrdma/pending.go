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

	"github.com/zc-relay/zc-relay/pkg/network"
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

// silentClients holds the clients that have not sent a complete request. Beyond the limit, the
// oldest of the source with the most of them is closed, and if there are no descriptors left, half
// of all are. So a source that connects without end locks out nobody but itself. Valid clients send
// their request at once, but with TLS only after some round trips.
type silentClients[S Stream] struct {
	limit int

	mu      sync.Mutex
	clients []silentClient[S] // oldest first
}

type silentClient[S Stream] struct {
	stream S
	source netip.Prefix
}

// sourceOf returns the source of a client; all clients of this machine's sockets have the same.
func sourceOf[S Stream](stream S) netip.Prefix {
	remote, has := any(stream).(interface{ RemoteAddr() net.Addr })
	if !has {
		return netip.Prefix{}
	}
	return network.SourceOf(network.AddressOf(remote.RemoteAddr()).Addr())
}

// add adds a client and, at the limit, closes another one.
func (s *silentClients[S]) add(stream S) {
	s.mu.Lock()
	var evicted []S
	if len(s.clients) == s.limit {
		i := s.expendable()
		evicted = append(evicted, s.clients[i].stream)
		s.clients = slices.Delete(s.clients, i, i+1)
	}
	s.clients = append(s.clients, silentClient[S]{stream, sourceOf(stream)})
	s.mu.Unlock()
	closeAll(evicted)
}

// expendable returns the index of the oldest client of the source with the most clients. The caller
// holds mu.
func (s *silentClients[S]) expendable() int {
	counts := make(map[netip.Prefix]int)
	for _, c := range s.clients {
		counts[c.source]++
	}
	most := 0
	for _, count := range counts {
		most = max(most, count)
	}
	return slices.IndexFunc(s.clients,
		func(c silentClient[S]) bool { return counts[c.source] == most })
}

// shed closes the older half of the clients and returns their number.
func (s *silentClients[S]) shed() int {
	s.mu.Lock()
	var oldest []S
	for _, c := range s.clients[:(len(s.clients)+1)/2] {
		oldest = append(oldest, c.stream)
	}
	s.clients = slices.Delete(s.clients, 0, len(oldest))
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
	i := slices.IndexFunc(s.clients, func(c silentClient[S]) bool { return c.stream == stream })
	if i < 0 {
		return false
	}
	s.clients = slices.Delete(s.clients, i, i+1)
	return true
}
