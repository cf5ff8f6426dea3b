package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Limits on the resources of a listener's clients.
const (
	headerTimeout      = 5 * time.Second
	requestTimeout     = 10 * time.Second
	idleTimeout        = time.Minute
	maxHeaderBytes     = 16 << 10
	maxBodyBytes       = 64 << 10
	maxConnections     = 64
	maxRequestsAtATime = 4 // of expensive requests
)

// httpServer is an HTTP server with these limits.
type httpServer struct {
	listener net.Listener
	http     http.Server
	serving  sync.WaitGroup
	name     string
}

func newHTTPServer(name string, listener net.Listener, handler http.Handler,
	log *zap.Logger) *httpServer {
	s := &httpServer{name: name, listener: newLimitedListener(listener, maxConnections)}
	s.http = http.Server{
		Handler:           http.MaxBytesHandler(handler, maxBodyBytes),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: zap.NewStdLog(log),
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

// Shutdown stops serving. Requests in progress may finish until ctx ends.
func (s *httpServer) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("end the %s listener: %w", s.name, err), s.http.Close())
	}
	s.serving.Wait()
	return err
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

// limitedListener limits the number of open connections. Further ones wait in the kernel's queue.
type limitedListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newLimitedListener(inner net.Listener, limit int) *limitedListener {
	return &limitedListener{Listener: inner, places: make(chan struct{}, limit),
		closed: make(chan struct{})}
}

// Accept waits for a place, then for a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	connection, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: connection, release: sync.OnceFunc(func() { <-l.places })}, nil
}

// Close also ends an Accept that waits for a place.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn frees its place when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close closes the connection and frees its place.
func (c *limitedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
