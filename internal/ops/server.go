// Package ops is the operations listener of a daemon: metrics and health over
// HTTP, apart from everything that serves IO.
package ops

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Bounds on what a client of the listener can take up.
const (
	headerTimeout     = 5 * time.Second
	requestTimeout    = 10 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	maxConnections    = 64
	maxScrapesAtATime = 4
)

// Server serves /metrics, /healthz and /readyz. Its methods may be called
// concurrently.
type Server struct {
	listener net.Listener
	http     http.Server
	registry *prometheus.Registry
	serving  sync.WaitGroup

	unready atomic.Pointer[error]
}

// errStarting is why a server is not ready that was not told otherwise.
var errStarting = errors.New("starting")

// Listen starts to serve on address, HOST:PORT; port 0 picks one. It is not
// ready before SetReady(nil).
func Listen(address string, log *zap.Logger) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics on %q: %w", address, err)
	}
	s := &Server{listener: newLimitedListener(listener, maxConnections), registry: prometheus.NewRegistry()}
	s.SetReady(errStarting)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.http = http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: zap.NewStdLog(log),
	}
	s.serving.Go(func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", zap.Error(err))
		}
	})
	return s, nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapesAtATime, Timeout: requestTimeout, Registry: s.registry,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	return mux
}

func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	if reason := *s.unready.Load(); reason != nil {
		http.Error(w, "not ready: "+reason.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// SetReady makes /readyz answer that the daemon can serve, or with 503 and
// the reason why it cannot.
func (s *Server) SetReady(reason error) { s.unready.Store(&reason) }

// Register adds metrics.
func (s *Server) Register(collector prometheus.Collector) error {
	return s.registry.Register(collector)
}

// Address is where the server listens, with the actual port.
func (s *Server) Address() net.Addr { return s.listener.Addr() }

// Shutdown stops serving. Requests under way may finish until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("end the metrics listener: %w", err), s.http.Close())
	}
	s.serving.Wait()
	return err
}
