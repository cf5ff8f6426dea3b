// Package ops is how people and machines look at a daemon and steer it, over
// HTTP and apart from everything that serves IO: Server is open to the
// management network, Admin to this machine only.
package ops

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Server serves /metrics, /healthz, /readyz, /status and a page that shows the
// status. Nothing of it changes anything. Its methods may be called
// concurrently.
type Server struct {
	*httpServer
	registry *prometheus.Registry
	unready  *atomic.Pointer[error]
}

// errStarting is why a server is not ready that was not told otherwise.
var errStarting = errors.New("starting")

// Listen starts to serve on address, HOST:PORT; port 0 picks one. It is not
// ready before SetReady(nil).
func Listen(address string, status Status, log *zap.Logger) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics on %q: %w", address, err)
	}
	s := &Server{registry: prometheus.NewRegistry(), unready: &atomic.Pointer[error]{}}
	s.SetReady(errStarting)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.httpServer = newHTTPServer("metrics", listener, s.handler(status), log)
	return s, nil
}

func (s *Server) handler(status Status) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxRequestsAtATime, Timeout: requestTimeout, Registry: s.registry,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.Handle("GET /status", serveStatus(status))
	mux.HandleFunc("GET /{$}", servePage)
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
