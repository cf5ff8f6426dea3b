// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxHandshakes bounds the clients that have not sent their hello. At the limit, the server
// disconnects the oldest: an honest client sends its hello at once.
const maxHandshakes = 64

// maxUnfinished bounds the handshakes that are in progress or being ended. Ending one can block,
// because the client may have sent descriptors whose closing blocks. At the limit, the server
// accepts nobody until one has ended.
const maxUnfinished = 4 * maxHandshakes

// acceptRetryDelay is the pause after a failed accept, for instance when the process has no
// descriptors left.
const acceptRetryDelay = 50 * time.Millisecond

type server struct {
	provider *provider
	config   comch.ServerConfig
	limits   Limits
	log      *zap.Logger
	listener SocketListener
	accepted chan *connection
	closed   chan struct{}
	running  sync.WaitGroup
	pool     *pool
	// unfinished holds a token per handshake.
	unfinished chan struct{}

	mu         sync.Mutex
	closing    bool
	clients    int
	handshakes []Socket // oldest first
	admission  comch.Admission
	// disposing is the number of connections, by user, that have ended and still hold what their
	// clients have passed.
	disposing map[uint32]int
	disposed  chan struct{} // closed when one of them is done
}

func newServer(p *provider, config comch.ServerConfig, listener SocketListener) *server {
	s := &server{
		provider: p,
		config:   config,
		limits:   p.limits,
		log:      p.log.With(zap.String("server", config.Name)),
		listener: listener,
		accepted: make(chan *connection, p.limits.MaxClients),
		closed:   make(chan struct{}),
		pool: newPool(&p.account, holdings{descriptors: p.limits.MaxServerDescriptors,
			ringBytes: int(config.MaxRingBytes)}),
		unfinished: make(chan struct{}, maxUnfinished),

		admission: config.Admission,
		disposing: make(map[uint32]int),
		disposed:  make(chan struct{}),
	}
	s.running.Add(1)
	go s.acceptLoop()
	return s
}

func (s *server) Address() string { return s.listener.Address() }

// Accept skips clients that have already disconnected.
func (s *server) Accept(ctx context.Context) (comch.Connection, error) {
	for {
		select {
		case <-s.closed:
			return nil, status.Errorf(status.Shutdown, "accept Comch client: server %q is closed",
				s.config.Name)
		case <-ctx.Done():
			return nil, fmt.Errorf("accept Comch client: %w", ctx.Err())
		case c := <-s.accepted:
			if c.Err() == nil {
				return c, nil
			}
		}
	}
}

// Close also disconnects the clients that nobody has accepted.
func (s *server) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	for _, socket := range s.handshakes {
		interrupt(socket)
	}
	s.mu.Unlock()
	close(s.closed)
	err := s.listener.Close()
	s.awaitHandshakes(2 * goodbyeTimeout)
	for {
		select {
		case c := <-s.accepted:
			c.Abort()
		default:
			return err
		}
	}
}

// awaitHandshakes waits for the handshakes, up to bound.
func (s *server) awaitHandshakes(bound time.Duration) {
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		s.log.Warn("handshakes of a closed server have not ended",
			zap.Int("handshakes", len(s.unfinished)))
	}
}

func (s *server) acceptLoop() {
	defer s.running.Done()
	for {
		select {
		case s.unfinished <- struct{}{}: // taken by the handshake
		case <-s.closed:
			return
		}
		socket, err := s.listener.Accept()
		switch {
		case err == nil:
			s.startHandshake(socket)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			<-s.unfinished
			s.log.Warn("failed to accept clients", zap.Error(err))
			select {
			case <-s.closed:
				return
			case <-time.After(acceptRetryDelay):
			}
		}
	}
}

// startHandshake starts the handshake with a client on its own goroutine.
func (s *server) startHandshake(socket Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames := newFrameSocket(socket, s.config.MaxMessageSize)
	frames.setTimeout(handshakeTimeout)
	if s.closing {
		interrupt(socket)
	}
	if len(s.handshakes) >= maxHandshakes {
		interrupt(s.handshakes[0])
		s.handshakes = s.handshakes[1:]
	}
	s.handshakes = append(s.handshakes, socket)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		s.handshake(frames)
		<-s.unfinished
	}()
}

// interrupt makes a handshake end. Unlike Close, it does not block.
func interrupt(socket Socket) {
	_ = socket.SetReadDeadline(time.Unix(0, 1)) // fails only on a closed socket
	_ = socket.SetWriteDeadline(time.Unix(0, 1))
}

// handshake runs the handshake with a client and passes the connection to Accept.
func (s *server) handshake(frames *frameSocket) {
	peer, agreed, err := s.greet(frames)
	s.mu.Lock() // it is no longer a handshake that Close or a newer client may end
	if i := slices.Index(s.handshakes, frames.socket); i >= 0 {
		s.handshakes = slices.Delete(s.handshakes, i, i+1)
	}
	s.mu.Unlock()
	if err != nil {
		if s.config.Refused != nil {
			s.config.Refused(peer, err)
		}
		s.log.Warn("rejected client",
			zap.Int("peer_pid", peer.PID), zap.Uint32("peer_uid", peer.UID), zap.Error(err))
		frames.close()
		return
	}
	frames.setTimeout(0)
	limits := s.limits
	limits.MaxExportBytes = s.currentAdmission().MaxExportBytes
	c := newConnection(serverRole, frames, peer, agreed, limits, s.pool, s.log)
	c.onEnd = s.removeClient
	c.reachesImports = s.provider.reachesImports
	c.cleanup.onBusy = func(busy bool) { s.setDisposing(peer.UID, busy) }
	c.start()
	select {
	case s.accepted <- c:
	default: // clients that came and went without being accepted fill the queue
		c.fail(status.Errorf(status.Full, "server does not accept its clients"))
	}
}

// greet is the server's side of the handshake. An admitted client counts as connected until its
// connection ends.
func (s *server) greet(frames *frameSocket) (comch.Peer, terms, error) {
	peer, err := frames.socket.Peer()
	if err != nil {
		return peer, terms{}, err
	}
	agreed, err := s.admit(frames, peer)
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			goodbye := textFrame(frameGoodbye, err)
			// Best effort: the server disconnects the client anyway.
			_ = frames.write(&goodbye, descriptors{})
		}
		return peer, terms{}, err
	}
	welcome := greeting{agreed.maxMessageSize, agreed.receiveQueue}.welcome()
	if err := frames.write(&welcome, descriptors{}); err != nil {
		s.removeClient()
		return peer, terms{}, err
	}
	return peer, agreed, nil
}

// admit authorizes a client, reads its hello, and counts it.
func (s *server) admit(frames *frameSocket, peer comch.Peer) (terms, error) {
	if err := s.authorize(peer); err != nil {
		return terms{}, err
	}
	agreed, err := receiveHello(frames, greeting{s.config.MaxMessageSize, s.config.ReceiveQueue})
	if err != nil {
		return terms{}, err
	}
	return agreed, s.addClient(peer)
}

// SetAdmission also makes the server's files accessible if it now allows other users.
func (s *server) SetAdmission(admission comch.Admission) error {
	err := s.provider.prepareAdmission(&admission)
	if err == nil && admission.AllowsOthers() {
		err = s.listener.OpenToEveryUser()
	}
	if err != nil {
		return fmt.Errorf("change the admission of Comch server %q: %w", s.config.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admission = admission
	s.pool.account.setLimit(holdings{descriptors: s.limits.MaxServerDescriptors,
		ringBytes: int(admission.MaxRingBytes)})
	return nil
}

func (p *provider) prepareAdmission(a *comch.Admission) error {
	setDefault(&a.MaxClients, min(defaultMaxClients, p.limits.MaxClients))
	setDefault(&a.MaxExportBytes, p.limits.MaxExportBytes)
	setDefault(&a.MaxRingBytes, uint64(p.limits.MaxServerRingBytes))
	a.MaxRingBytes = min(a.MaxRingBytes, uint64(highestLimits.MaxServerRingBytes))
	return checkCount("MaxClients", a.MaxClients, p.limits.MaxClients)
}

func (s *server) currentAdmission() comch.Admission {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admission
}

func (s *server) authorize(peer comch.Peer) error {
	a := s.currentAdmission()
	own := uint32(os.Geteuid())
	if a.AllowAnyUser || peer.UID == 0 || peer.UID == own ||
		slices.Contains(a.AllowUsers, peer.UID) {
		return nil
	}
	return status.Errorf(status.NotPermitted,
		"user %d cannot connect: the server allows only root, user %d, and its configured users",
		peer.UID, own)
}

// addClient counts a client. Connections that have ended do not count, but a user whose connections
// cannot be cleaned up gets no more of them.
func (s *server) addClient(peer comch.Peer) error {
	deadline := time.Now().Add(memoryTimeout)
	for first := true; ; first = false {
		err, wait := s.tryAddClient(peer)
		if wait == nil {
			return err
		}
		if first {
			s.pool.lingering.freeAll(peer.UID, memoryTimeout, s.closed)
			continue
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-wait:
			timer.Stop()
		case <-timer.C:
			return err
		}
	}
}

// tryAddClient returns what to wait for if the failure may pass at once.
func (s *server) tryAddClient(peer comch.Peer) (err error, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.admission.MaxClients
	if s.clients >= limit {
		return status.Errorf(status.Full, "server has reached its limit of %d clients", limit), nil
	}
	if held := s.disposing[peer.UID]; held >= limit {
		return status.Errorf(status.Full, "%d connections of user %d have ended, but descriptors "+
			"that they sent cannot be closed: end the processes that delay that", held,
			peer.UID), s.disposed
	}
	if err := s.pool.checkNewcomer(); err != nil {
		return err, nil
	}
	s.clients++
	return nil, nil
}

// setDisposing counts a connection that has ended until it holds nothing.
func (s *server) setDisposing(user uint32, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if busy {
		s.disposing[user]++
		return
	}
	if s.disposing[user]--; s.disposing[user] == 0 {
		delete(s.disposing, user)
	}
	close(s.disposed)
	s.disposed = make(chan struct{})
}

func (s *server) removeClient() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients--
}
