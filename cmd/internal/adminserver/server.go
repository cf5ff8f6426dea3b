// SPDX-License-Identifier: Apache-2.0

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

	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// Server serves /metrics, /healthz, /readyz, /status and a page that shows the status. It changes
// nothing. Its methods may be called concurrently.
type Server struct {
	*httpServer
	registry *prometheus.Registry
	ready    *atomic.Pointer[readiness]
	access   access
}

// readiness is what SetReady has said last.
type readiness struct {
	reason  error
	missing string
}

// errStarting is the reason why a new server is not ready.
var errStarting = errors.New("starting")

// ServerConfig configures a Server.
type ServerConfig struct {
	// Address is HOST:PORT; port 0 picks a port.
	Address string
	Status  Status
	// Web has TLS and users; nil for plain text and everybody.
	Web *webconfig.File
	// Hosts are names of this machine that a request may have in Host, besides localhost, the
	// name of the machine, and any address.
	Hosts []string
	Log   *zap.Logger
}

// Listen starts to serve. The server is not ready until SetReady without a reason.
func Listen(c ServerConfig) (*Server, error) {
	listener, err := network.ListenTCP(c.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics on %q: %w", c.Address, err)
	}
	s := &Server{registry: prometheus.NewRegistry(), ready: &atomic.Pointer[readiness]{},
		access: access{web: c.Web, hosts: newHosts(c.Hosts)}}
	s.SetReady(errStarting, "")
	s.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	config := serverConfig{name: "metrics", listener: listener, handler: s.handler(c.Status),
		isHealth: isHealth, log: c.Log}
	if c.Web != nil {
		config.tls = c.Web.TLS
	}
	s.httpServer = newHTTPServer(config)
	return s, nil
}

// The paths that probes of a service manager use.
const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

func isHealth(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == healthPath || r.URL.Path == readyPath)
}

func (s *Server) handler(status Status) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.access.guardAnyName(sameOriginOrLink(limitRequests(maxRequestsAtATime,
		promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
			MaxRequestsInFlight: maxRequestsAtATime, Timeout: requestTimeout, Registry: s.registry,
		})))))
	mux.Handle("GET /status", s.access.guard(sameOriginOrLink(
		limitRequests(maxRequestsAtATime, serveStatus(status)))))
	mux.Handle("GET /{$}", s.access.guard(http.HandlerFunc(servePage)))
	// Probes have neither a password nor a name for this machine.
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET "+readyPath, s.serveReady)
	return s.access.withHeaders(mux)
}

// serveReady answers everybody whether the daemon is ready, but only those who may see the status
// why not.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	now := s.ready.Load()
	isTrusted := s.access.check(r) == nil
	switch {
	case now.reason != nil && isTrusted:
		http.Error(w, "not ready: "+now.reason.Error(), http.StatusServiceUnavailable)
	case now.reason != nil:
		http.Error(w, "not ready", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ready")
		if now.missing != "" && isTrusted {
			fmt.Fprintln(w, now.missing)
		}
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
