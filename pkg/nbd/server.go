// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/internal/roster"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Defaults of Config.
const (
	DefaultMaxConnections     = 16
	DefaultMaxPending         = 64
	DefaultNegotiationTimeout = 10 * time.Second
	DefaultBarrierTimeout     = 20 * time.Second
)

// Config configures a Server.
type Config struct {
	// Workers is the number of threads that serve connections; 0 means 1.
	Workers int
	// Policy is how they poll.
	Policy progress.Policy
	// TLS, if not nil, returns the configuration for each new connection, which must then start TLS
	// (section "FORCEDTLS mode"). With nil there is no TLS.
	TLS func() *tls.Config
	// Admit, if not nil, decides about each connection before anything is sent, and returns the
	// name of the client for the log. nil admits everybody.
	Admit func(conn net.Conn) (client string, err error)
	// CountedClients bounds the clients whose requests are counted by name, over all exports; 0
	// counts none. NameClient returns the name of a client that the log describes in this way; nil
	// means the description.
	CountedClients int
	NameClient     func(client string) string
	// MaxConnections bounds the connections to each export; 0 means DefaultMaxConnections.
	MaxConnections int
	// MaxPending bounds the connections that are negotiating. At the limit a new connection
	// replaces the oldest of them, so that silent clients keep nobody out. 0 means
	// DefaultMaxPending.
	MaxPending int
	// NegotiationTimeout bounds a negotiation; 0 means DefaultNegotiationTimeout. It does not
	// include the wait for the end of former connections, which BarrierTimeout bounds, with 0 for
	// DefaultBarrierTimeout. Connections that are leaving may use half of that.
	NegotiationTimeout time.Duration
	BarrierTimeout     time.Duration
	// Logger may be nil.
	Logger *zap.Logger
}

func (c *Config) setDefaults() {
	if c.Workers == 0 {
		c.Workers = 1
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = DefaultMaxConnections
	}
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
	if c.NegotiationTimeout == 0 {
		c.NegotiationTimeout = DefaultNegotiationTimeout
	}
	if c.BarrierTimeout == 0 {
		c.BarrierTimeout = DefaultBarrierTimeout
	}
	if c.NameClient == nil {
		c.NameClient = func(client string) string { return client }
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

// maxWorkers bounds Config.Workers: each is a thread.
const maxWorkers = 1024

// check returns an error for a configuration that cannot work.
func (c *Config) check() error {
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"Workers", int64(c.Workers)}, {"CountedClients", int64(c.CountedClients)},
		{"MaxConnections", int64(c.MaxConnections)}, {"MaxPending", int64(c.MaxPending)},
		{"NegotiationTimeout", int64(c.NegotiationTimeout)},
		{"BarrierTimeout", int64(c.BarrierTimeout)},
	} {
		if field.value < 0 {
			return status.Errorf(status.InvalidValue, "start an NBD server: Config.%s is negative",
				field.name)
		}
	}
	if c.Workers > maxWorkers {
		return status.Errorf(status.TooBig, "start an NBD server: Config.Workers is %d, the limit "+
			"is %d", c.Workers, maxWorkers)
	}
	return nil
}

// Server serves exports to NBD clients. Any goroutine may call its methods, but not the threads of
// its workers, on which Attach and the methods of disks run.
type Server struct {
	config  Config
	workers []*worker
	clients *roster.Roster[counterSet] // by export and name
	running sync.WaitGroup             // goroutines of listeners, negotiations, and TLS
	ctx     context.Context
	cancel  context.CancelFunc
	// closeTimeout bounds the wait for a client that does not accept its last replies, or the end
	// of TLS.
	closeTimeout time.Duration

	changes sync.Mutex // held while exports come and go, and when Close begins; locked before mu
	closed  chan struct{}
	failure error // of the first Close; set when closed is closed

	mu        sync.Mutex // guards the fields below
	exports   []*export
	byDefault *string // the name that the empty name stands for; nil before the first export
	listeners []net.Listener
	pending   []net.Conn // negotiating, oldest first
	closing   bool
}

// export is an Export under the name that clients know.
type export struct {
	blockio.Export
	name      string
	limit     int
	open      atomic.Int64
	ended     atomic.Bool // by EndExport
	perWorker []int       // connections; guarded by Server.mu
	accepted  atomic.Uint64
	counters  counterSet
}

// admit claims a place for a connection, which leave gives back.
func (e *export) admit() error {
	if e.open.Add(1) > int64(e.limit) {
		e.open.Add(-1)
		return fmt.Errorf("export %q has %d connections, which is the limit", e.name, e.limit)
	}
	e.accepted.Add(1)
	return nil
}

func (e *export) leave() { e.open.Add(-1) }

// NewServer starts a server without exports and listeners. Close ends it.
func NewServer(config Config) (*Server, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	config.setDefaults()
	s := &Server{config: config, closed: make(chan struct{}), closeTimeout: 5 * time.Second,
		clients: roster.New(config.CountedClients, (*counterSet).isIdle)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for i := range config.Workers {
		w, err := startWorker(i, &s.config)
		if err != nil {
			return nil, errors.Join(err, s.Close(s.ctx))
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// AddExport serves an export under a name of at most 4096 bytes. The default, which clients choose
// by the empty name, is the export that has this name, or else the first. When the default ends, no
// other one takes its place: a client that connects again would go on with another disk.
func (s *Server) AddExport(name string, disk blockio.Export) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	if s.isClosing() {
		return errClosed()
	}
	if disk == nil {
		return status.Errorf(status.InvalidValue, "add export %q: the Export is nil", name)
	}
	if !isString([]byte(name)) {
		return status.Errorf(status.InvalidValue, "%q is not a valid name of an export", name)
	}
	if e := s.find(name); e != nil && e.name == name {
		return status.Errorf(status.AlreadyExist, "there is an export %q already", name)
	}
	e := &export{Export: disk, name: name, limit: s.config.MaxConnections,
		perWorker: make([]int, len(s.workers))}
	for i, w := range s.workers {
		if err := w.attach(e); err != nil {
			for _, attached := range s.workers[:i] {
				attached.detach(e)
			}
			return fmt.Errorf("attach export %q: %w", name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exports = append(s.exports, e)
	if s.byDefault == nil || name == "" {
		s.byDefault = &name
	}
	return nil
}

// EndExport stops serving an export: its connections end after the requests that the server has
// received.
func (s *Server) EndExport(name string) {
	s.changes.Lock()
	defer s.changes.Unlock()
	s.mu.Lock()
	var ended []*export
	s.exports = slices.DeleteFunc(s.exports, func(e *export) bool {
		if e.name == name {
			ended = append(ended, e)
		}
		return e.name == name
	})
	s.mu.Unlock()
	for _, e := range ended {
		e.ended.Store(true) // for connections that have negotiated and that no worker has yet
		for _, w := range s.workers {
			w.drain(e)
		}
	}
}

// find returns the export with a name; "" is the default. It returns nil if there is none.
func (s *Server) find(name string) *export {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" && s.byDefault != nil {
		name = *s.byDefault
	}
	for _, e := range s.exports {
		if e.name == name {
			return e
		}
	}
	return nil
}

func (s *Server) list() []*export {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.exports)
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// acceptPause is the pause after a failure to accept, for instance for lack of descriptors.
const acceptPause = 100 * time.Millisecond

// Serve accepts connections from a listener, in the background, until Close, which also closes the
// listener.
func (s *Server) Serve(listener net.Listener) error {
	if listener == nil {
		return status.Errorf(status.InvalidValue, "serve NBD clients: the listener is nil")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errors.Join(errClosed(), listener.Close())
	}
	s.listeners = append(s.listeners, listener)
	s.running.Go(func() { s.accept(listener) })
	return nil
}

func (s *Server) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.config.Logger.Warn("cannot accept an NBD connection", zap.Error(err))
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if !s.addPending(conn) {
			_ = conn.Close()
			return
		}
		s.running.Go(func() { s.welcome(conn) })
	}
}

// addPending counts a connection as negotiating. It may end the oldest one in exchange.
func (s *Server) addPending(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	if len(s.pending) >= s.config.MaxPending {
		_ = s.pending[0].Close()
		s.pending = slices.Delete(s.pending, 0, 1)
	}
	s.pending = append(s.pending, conn)
	return true
}

func (s *Server) removePending(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(c net.Conn) bool { return c == conn })
}

// welcome negotiates with a client and gives the connection to a worker.
func (s *Server) welcome(conn net.Conn) {
	client := conn.RemoteAddr().String()
	if s.config.Admit != nil {
		name, err := s.config.Admit(conn)
		if name != "" {
			client = name
		}
		if err != nil {
			s.removePending(conn)
			_ = conn.Close()
			s.config.Logger.Warn("NBD client rejected", zap.String("client", client), zap.Error(err))
			return
		}
	}
	agreed, err := s.negotiate(conn)
	s.removePending(conn)
	if err != nil {
		_ = conn.Close()
		if !errors.Is(err, errDone) && !errors.Is(err, net.ErrClosed) {
			s.config.Logger.Warn("NBD negotiation failed", zap.String("client", client),
				zap.Error(err))
		}
		return
	}
	if agreed.client != "" {
		client += " (" + printable.Line(agreed.client, roster.MaxName) + ")"
	}
	if err := s.hand(agreed, client); err != nil {
		s.config.Logger.Warn("NBD connection failed", zap.String("client", client), zap.Error(err))
	}
}

// negotiate negotiates within the time that is allowed.
func (s *Server) negotiate(conn net.Conn) (*agreement, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.NegotiationTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	n := &negotiation{agreement: agreement{conn: conn}, server: s, deadline: deadline}
	agreed, err := n.negotiate(ctx)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err == nil {
		return agreed, nil
	}
	if n.place != nil {
		s.release(n.place)
	}
	switch {
	case errors.Is(err, errDone) && n.refusal != nil:
		err = n.refusal
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the client did not finish within %v", s.config.NegotiationTimeout)
	}
	return nil, err
}

// reserve waits until former connections of an export have no effect any more, and then reserves a
// place for a new one, at the worker with the fewest. Either release or the end of the connection
// gives the place back.
func (s *Server) reserve(e *export) (*connection, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.BarrierTimeout)
	defer cancel()
	s.awaitLeaving(e)
	if err := e.admit(); err != nil {
		return nil, err
	}
	if err := e.Barrier(ctx); err != nil {
		e.leave()
		return nil, err
	}
	c := newConnection(s.choose(e), e)
	if err := c.worker.reserve(c); err != nil {
		s.leave(c)
		return nil, err
	}
	return c, nil
}

// awaitLeaving waits for the connections to an export whose clients will send nothing more. It ends
// those that take too long.
func (s *Server) awaitLeaving(e *export) {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.BarrierTimeout/2)
	defer cancel()
	for _, w := range s.workers {
		for _, c := range w.leaving(e) {
			select {
			case <-c.gone:
			case <-ctx.Done():
				w.end(c, "its client has left, and a new one waits")
			}
		}
	}
}

// release gives back the place of a connection that does not begin.
func (s *Server) release(c *connection) {
	c.worker.cancel(c)
	s.leave(c)
}

// hand gives a connection to the worker at which it has a place.
func (s *Server) hand(agreed *agreement, client string) error {
	c := agreed.place
	var descriptor socket
	var err error
	if encrypted, ok := agreed.conn.(*tls.Conn); ok {
		c.carrier, _ = encrypted.NetConn().(syscall.Conn)
		descriptor, err = s.decrypt(encrypted)
	} else {
		descriptor, err = detach(agreed.conn)
	}
	if err != nil {
		s.release(c)
		return errors.Join(err, agreed.conn.Close())
	}
	c.left = func() {
		s.leave(c)
		if agreed.encrypted {
			// A client that reads nothing must not keep what carries its TLS.
			_ = agreed.conn.SetDeadline(time.Now().Add(s.closeTimeout))
		}
	}
	c.counted = []*counterSet{&c.export.counters}
	if set := s.clients.Of(c.export.name, s.config.NameClient(client)); set != nil {
		c.counted = append(c.counted, set)
	}
	if err := c.worker.serve(c, agreed, descriptor, client); err != nil {
		c.left()
		return err
	}
	return nil
}

// choose counts a connection to the export on the worker that has the fewest of them. So no worker
// has more than its even part of the connections that are allowed.
func (s *Server) choose(e *export) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := 0
	for i, n := range e.perWorker {
		if n < e.perWorker[least] {
			least = i
		}
	}
	e.perWorker[least]++
	return s.workers[least]
}

// leave undoes admit and choose for a connection.
func (s *Server) leave(c *connection) {
	c.export.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.export.perWorker[c.worker.index]--
}

// Close ends the server. Connections end after the requests that the server has received, or when
// ctx ends. Another call waits for the first, for as long as its own ctx allows, and returns the
// same error. AddExport and Serve then fail with status.ErrClosed.
func (s *Server) Close(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	s.changes.Lock()
	if s.isClosing() {
		s.changes.Unlock()
		select {
		case <-s.closed:
			return s.failure
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for another Close: %w",
				status.ContextError(ctx))
		}
	}
	s.mu.Lock()
	s.closing = true
	var err error
	for _, listener := range s.listeners {
		err = errors.Join(err, listener.Close())
	}
	s.listeners = nil
	for _, conn := range s.pending {
		_ = conn.Close()
	}
	s.exports = nil
	s.mu.Unlock()
	for _, w := range s.workers {
		w.drain(nil)
	}
	s.changes.Unlock()
	// All disks stay open until no connection is left: what one worker has in progress may wait for
	// what another one has.
	for _, w := range s.workers {
		err = errors.Join(err, w.awaitEmpty(ctx))
	}
	for _, w := range s.workers {
		err = errors.Join(err, w.stop())
	}
	s.cancel()
	s.running.Wait()
	s.failure = err
	close(s.closed)
	return err
}

func errClosed() error { return fmt.Errorf("NBD server: %w", status.ErrClosed) }
