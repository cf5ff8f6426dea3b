// Package adminserver lets people and machines monitor and control a daemon over HTTP, apart from
// everything that serves IO. Server is for the management network, Admin only for this machine.
package adminserver

import (
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// Server serves /metrics, /healthz, /readyz, /status and a page that shows the status. It changes
// nothing. Its methods may be called concurrently.
type Server struct {
	*httpServer
	registry *prometheus.Registry
	ready    *atomic.Pointer[readiness]
}

// readiness is what SetReady has said last.
type readiness struct {
	reason  error
	missing string
}

// errStarting is the reason why a new server is not ready.
var errStarting = errors.New("starting")

// Listen starts to serve on address, HOST:PORT; port 0 picks a port. The server is not ready until
// SetReady without a reason.
func Listen(address string, status Status, log *zap.Logger) (*Server, error) {
	listener, err := network.ListenTCP(address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics on %q: %w", address, err)
	}
	s := &Server{registry: prometheus.NewRegistry(), ready: &atomic.Pointer[readiness]{}}
	s.SetReady(errStarting, "")
	s.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	s.httpServer = newHTTPServer("metrics", listener, s.handler(status), log)
	return s, nil
}

func (s *Server) handler(status Status) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxRequestsAtATime, Timeout: requestTimeout, Registry: s.registry,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w,
			"ok")
	})
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.Handle("GET /status", serveStatus(status))
	mux.HandleFunc("GET /{$}", servePage)
	return mux
}

func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	now := s.ready.Load()
	if now.reason != nil {
		http.Error(w, "not ready: "+now.reason.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
	if now.missing != "" {
		fmt.Fprintln(w, now.missing)
	}
}

// SetReady makes /readyz report that the daemon can serve, and what of its configuration is
// missing, or return 503 with the reason why it cannot.
func (s *Server) SetReady(reason error, missing string) {
	s.ready.Store(&readiness{reason, missing})
}

// Register adds metrics.
func (s *Server) Register(collector prometheus.Collector) error {
	return s.registry.Register(collector)
}

// page shows the status for people. It fetches /status by itself.
//
//go:embed page.html
var page []byte

// pagePolicy allows the page to load nothing but the status.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

func servePage(w http.ResponseWriter, _ *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(page) // fails only if the client has disconnected
}

// BuildInfoMetric is the name of the metric whose labels describe the build.
const BuildInfoMetric = "zc_build_info"

// buildInfo returns the customary metric that is always 1 and describes the running build.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: BuildInfoMetric, Help: "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{
			"version": buildinfo.Version(), "revision": buildinfo.Revision(),
			"tags": buildinfo.Tags(), "goversion": runtime.Version(),
		},
	})
	g.Set(1)
	return g
}
