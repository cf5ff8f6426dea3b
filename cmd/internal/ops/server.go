// Package ops is how people and machines look at a daemon and steer it, over
// HTTP and apart from everything that serves IO: Server is open to the
// management network, Admin to this machine only.
package ops

import (
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
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

// page shows the status for people. It fetches /status by itself.
//
//go:embed page.html
var page []byte

// pagePolicy lets the page load nothing but itself and the status.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

func servePage(w http.ResponseWriter, _ *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(page) // a client that went is its own business
}

// BuildInfoMetric is the name of the metric whose labels tell the build.
const BuildInfoMetric = "zc_build_info"

// buildInfo is the customary metric that is always 1 and says which build runs.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: BuildInfoMetric, Help: "Always 1; its labels tell the build.",
		ConstLabels: prometheus.Labels{
			"version": buildinfo.Version(), "revision": buildinfo.Revision(), "tags": buildinfo.Tags(), "goversion": runtime.Version(),
		},
	})
	g.Set(1)
	return g
}
