package adminserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Limits on the resources of a listener's clients.
const (
	requestTimeout     = 10 * time.Second
	idleTimeout        = time.Minute
	maxHeaderBytes     = 16 << 10
	maxBodyBytes       = 64 << 10
	maxConnections     = 64
	maxRequestsAtATime = 4   // of expensive requests
	maxEcho            = 128 // bytes of a parameter in an error
)

// headerTimeout is how long a client may take for the header of a request. Tests change it.
var headerTimeout = 5 * time.Second

// httpServer is an HTTP server with these limits.
type httpServer struct {
	listener net.Listener
	http     http.Server
	serving  sync.WaitGroup
	name     string
}

func newHTTPServer(name string, listener net.Listener, handler http.Handler,
	log *zap.Logger) *httpServer {
	limited := newLimitedListener(listener, maxConnections)
	s := &httpServer{name: name, listener: limited}
	s.http = http.Server{
		Handler:           http.MaxBytesHandler(handler, maxBodyBytes),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: zap.NewStdLog(log),
		ConnState: limited.observe, ConnContext: withRequester,
	}
	s.serving.Go(func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the listener failed", zap.String("listener", name), zap.Error(err))
		}
	})
	return s
}

// Address returns the address of the server, with the actual port.
func (s *httpServer) Address() net.Addr { return s.listener.Addr() }

// Shutdown stops serving. Requests in progress may finish until ctx ends. What clients do is no
// reason to fail: a connection that has sent nothing lasts until ctx ends.
func (s *httpServer) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if ctx.Err() != nil {
		err = s.http.Close()
	}
	s.serving.Wait()
	if err != nil {
		return fmt.Errorf("end the %s listener: %w", s.name, err)
	}
	return nil
}

// limitRequests rejects requests beyond a number at a time.
func limitRequests(limit int, handler http.Handler) http.Handler {
	places := make(chan struct{}, limit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			handler.ServeHTTP(w, r)
		default:
			w.Header().Set(admin.CodeHeader, status.Again.String())
			http.Error(w, fmt.Sprintf("%d such requests are in progress: try again", limit),
				http.StatusServiceUnavailable)
		}
	})
}

// Status returns the status of the daemon, a value for encoding/json. Several goroutines call it
// concurrently.
type Status func() any

// serveStatus returns the current status as JSON.
func serveStatus(status Status) http.Handler {
	return limitRequests(maxRequestsAtATime, http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		document, err := json.MarshalIndent(status(), "", "  ")
		if err != nil {
			http.Error(w, fmt.Sprintf("marshal the status: %v", err),
				http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(document, '\n')) // fails only if the client has disconnected
	}))
}

// limitedListener limits the number of open connections. At the limit, a new connection replaces
// the oldest one without a request in progress: connections that send nothing keep nobody out. If
// all have one, the new connection waits.
type limitedListener struct {
	net.Listener
	limit  int
	closed chan struct{}
	once   sync.Once
	freed  chan struct{} // has an element when a connection has ended or has no request any more

	mu          sync.Mutex
	connections []*limitedConn // oldest first
}

func newLimitedListener(inner net.Listener, limit int) *limitedListener {
	return &limitedListener{Listener: inner, limit: limit, closed: make(chan struct{}),
		freed: make(chan struct{}, 1)}
}

// Accept waits for a connection and, if necessary, for a place.
func (l *limitedListener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{Conn: inner, listener: l, silent: true}
	for {
		replaced, ok := l.admit(c)
		if replaced != nil {
			_ = replaced.Conn.Close() // its goroutine in net/http ends
		}
		if ok {
			return c, nil
		}
		select {
		case <-l.freed:
		case <-l.closed:
			_ = inner.Close()
			return nil, net.ErrClosed
		}
	}
}

// admit gives a connection a place, perhaps that of the returned one. It returns false if there is
// none.
func (l *limitedListener) admit(c *limitedConn) (replaced *limitedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.connections) == l.limit {
		i := slices.IndexFunc(l.connections, func(c *limitedConn) bool { return c.silent })
		if i < 0 {
			return nil, false
		}
		replaced = l.connections[i]
		l.connections = slices.Delete(l.connections, i, i+1)
	}
	l.connections = append(l.connections, c)
	return replaced, true
}

// observe is the ConnState of the HTTP server.
func (l *limitedListener) observe(connection net.Conn, state http.ConnState) {
	c, ok := connection.(*limitedConn)
	if !ok {
		return
	}
	l.mu.Lock()
	c.silent = state != http.StateActive
	l.mu.Unlock()
	if c.silent {
		l.free()
	}
}

func (l *limitedListener) free() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// Close also ends an Accept that waits for a place.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	silent   bool // no request is in progress; guarded by listener.mu
	begun    bool // something was read
}

// Read reads from the connection. If the first byte cannot begin a request, the peer speaks another
// protocol: Read replaces its bytes by a bad request, so that the HTTP server rejects it at once
// and does not wait for the end of a line.
func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.begun {
		c.begun = true
		if p[0] < ' ' && p[0] != '\r' && p[0] != '\n' {
			n = copy(p, "?\r\n\r\n")
		}
	}
	return n, err
}

// Close closes the connection and gives its place back.
func (c *limitedConn) Close() error {
	l := c.listener
	l.mu.Lock()
	l.connections = slices.DeleteFunc(l.connections,
		func(other *limitedConn) bool { return other == c })
	l.mu.Unlock()
	l.free()
	return c.Conn.Close()
}
