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

	mu         sync.Mutex
	stopping   bool
	clients    int
	handshakes []Socket // oldest first
	admission  comch.Admission
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

		admission: config.Admission,
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
	if s.stopping {
		s.mu.Unlock()
		return nil
	}
	s.stopping = true
	for _, socket := range s.handshakes {
		_ = socket.Close()
	}
	s.mu.Unlock()
	close(s.closed)
	err := s.listener.Close()
	s.running.Wait()
	for {
		select {
		case c := <-s.accepted:
			c.Abort()
		default:
			return err
		}
	}
}

func (s *server) acceptLoop() {
	defer s.running.Done()
	for {
		socket, err := s.listener.Accept()
		switch {
		case err == nil:
			s.startHandshake(socket)
		case errors.Is(err, net.ErrClosed):
			return
		default:
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
	if s.stopping {
		_ = socket.Close()
		return
	}
	if len(s.handshakes) >= maxHandshakes {
		_ = s.handshakes[0].Close()
		s.handshakes = s.handshakes[1:]
	}
	s.handshakes = append(s.handshakes, socket)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		s.handshake(socket)
	}()
}

// handshake runs the handshake with a client and passes the connection to Accept.
func (s *server) handshake(socket Socket) {
	frames := newFrameSocket(socket, s.config.MaxMessageSize)
	frames.setTimeout(handshakeTimeout)
	peer, agreed, err := s.greet(frames)
	s.mu.Lock() // socket is no longer a handshake that Close or a newer client may end
	if i := slices.Index(s.handshakes, socket); i >= 0 {
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
	c := newConnection(serverRole, frames, peer, agreed, limits, s.log)
	c.onEnd = s.removeClient
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
	return agreed, s.addClient()
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
	return nil
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

func (s *server) addClient() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients >= s.admission.MaxClients {
		return status.Errorf(status.Full, "server has reached its limit of %d clients",
			s.admission.MaxClients)
	}
	s.clients++
	return nil
}

func (s *server) removeClient() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients--
}
