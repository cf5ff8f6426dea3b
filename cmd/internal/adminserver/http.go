// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Limits on the resources of a listener's clients.
const (
	idleTimeout        = time.Minute
	maxHeaderBytes     = 16 << 10
	maxBodyBytes       = 64 << 10
	maxConnections     = 64
	maxPerSource       = 16  // of the connections
	maxReserved        = 8   // further connections, for health
	maxRequestsAtATime = 4   // of expensive requests; a source may have half of them
	maxEcho            = 128 // bytes of a parameter in an error
)

// headerTimeout is how long a client may take for the header of a request, and requestTimeout how
// long for all of it, and for the reply. Tests change them.
var (
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
)

// httpServer is an HTTP server with these limits.
type httpServer struct {
	listener net.Listener
	http     http.Server
	serving  sync.WaitGroup
	name     string
}

// serverConfig configures an httpServer.
type serverConfig struct {
	name     string
	listener net.Listener
	handler  http.Handler
	// isHealth reports whether the server answers a request even when all places are taken; nil for
	// none.
	isHealth func(*http.Request) bool
	// tls returns the configuration for a new connection, nil for plain text; nil for always.
	tls func() *tls.Config
	log *zap.Logger
}

func newHTTPServer(c serverConfig) *httpServer {
	limited := newLimitedListener(c.listener, c.tls)
	s := &httpServer{name: c.name, listener: limited}
	s.http = http.Server{
		Handler: http.MaxBytesHandler(replyWithoutBody(onlyHealthBeyondLimit(c.isHealth,
			c.handler)), maxBodyBytes),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:  log.New(complaints{&c}, "", 0),
		ConnState: limited.observe, ConnContext: withConnection,
	}
	s.serving.Go(func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			c.log.Error("the listener failed", zap.String("listener", c.name), zap.Error(err))
		}
	})
	return s
}

// complaints logs what net/http says of connections. Its texts have addresses of peers. They are a
// field, so that the entries of many failing peers count as repeats, which are sampled.
type complaints struct{ server *serverConfig }

func (c complaints) Write(text []byte) (int, error) {
	c.server.log.Info("HTTP server", zap.String("listener", c.server.name),
		zap.ByteString("error", bytes.TrimSpace(text)))
	return len(text), nil
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

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// replyWithoutBody makes the server reply as soon as the handler has, whatever of the request's
// body is missing: net/http would wait for it.
func replyWithoutBody(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			handler.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(&unreadBody{ResponseWriter: w, request: r}, r)
		abandonBody(w)
	})
}

// abandonBody makes the server close the connection after the reply, and not read from it before.
func abandonBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(longAgo)
}

// unreadBody abandons the body of a request when the handler begins its reply.
type unreadBody struct {
	http.ResponseWriter
	request *http.Request
	begun   bool
}

func (w *unreadBody) begin() {
	if !w.begun {
		w.begun = true
		abandonBody(w.ResponseWriter)
	}
}

// WriteHeader begins the reply.
func (w *unreadBody) WriteHeader(code int) {
	w.begin()
	w.ResponseWriter.WriteHeader(code)
}

// Write begins or continues the reply.
func (w *unreadBody) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *unreadBody) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// readBodyFirst reads the body of a request before the handler takes a place or does anything, so
// that a client that is slow to send it holds nothing but its connection.
func readBodyFirst(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 && (r.Method == http.MethodPut || r.Method == http.MethodPost) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, fmt.Sprintf("read the body of the request: %v", err),
					http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		handler.ServeHTTP(w, r)
	})
}

// onlyHealthBeyondLimit turns away requests on connections that have no place, except for those
// that isHealth names.
func onlyHealthBeyondLimit(isHealth func(*http.Request) bool, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connectionOf(r); c != nil && c.reserved {
			w.Header().Set("Connection", "close")
			if isHealth == nil || !isHealth(r) {
				w.Header().Set("Retry-After", "1")
				http.Error(w, fmt.Sprintf("too many requests are in progress, %d in all or %d of "+
					"one address: try again", maxConnections, maxPerSource),
					http.StatusServiceUnavailable)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// places limits what goes on at a time. A source may have at most half, so that it cannot keep the
// others out.
type places struct {
	limit int

	mu    sync.Mutex
	taken map[netip.Prefix]int // by source
	total int
}

// take takes a place, which the returned function gives back. It returns nil if there is none.
func (p *places) take(source netip.Prefix) (giveBack func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.limit || source.IsValid() && p.taken[source] >= max(1, p.limit/2) {
		return nil
	}
	if p.taken == nil {
		p.taken = make(map[netip.Prefix]int)
	}
	p.total++
	p.taken[source]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.total--
		if p.taken[source]--; p.taken[source] == 0 {
			delete(p.taken, source)
		}
	}
}

// limitRequests rejects requests beyond a number at a time. A request gives its place back before
// its reply is sent, so that slow readers hold none.
func limitRequests(limit int, handler http.Handler) http.Handler {
	return limitWriting(limit, handler, true)
}

// limitStreams rejects requests beyond a number at a time, whose replies are too long to keep.
func limitStreams(limit int, handler http.Handler) http.Handler {
	return limitWriting(limit, handler, false)
}

func limitWriting(limit int, handler http.Handler, keep bool) http.Handler {
	p := &places{limit: limit}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		giveBack := p.take(sourceOf(r))
		if giveBack == nil {
			w.Header().Set("Retry-After", "1")
			w.Header().Set(admin.CodeHeader, status.Again.String())
			http.Error(w, fmt.Sprintf("%d such requests are in progress, or half of them from "+
				"your address: try again", limit), http.StatusServiceUnavailable)
			return
		}
		if !keep {
			defer giveBack()
			handler.ServeHTTP(w, r)
			return
		}
		reply := &keptReply{ResponseWriter: w, code: http.StatusOK}
		func() {
			defer giveBack()
			handler.ServeHTTP(reply, r)
		}()
		w.WriteHeader(reply.code)
		_, _ = w.Write(reply.body.Bytes()) // fails only if the client has disconnected
	})
}

// keptReply keeps a reply until it is complete.
type keptReply struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

// WriteHeader keeps the code.
func (r *keptReply) WriteHeader(code int) { r.code = code }

// Write keeps a part of the body.
func (r *keptReply) Write(p []byte) (int, error) { return r.body.Write(p) }

// Unwrap is for http.ResponseController.
func (r *keptReply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Status returns the status of the daemon, a value for encoding/json. Several goroutines call it
// concurrently.
type Status func() any

// serveStatus returns the current status as JSON.
func serveStatus(status Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		document, err := json.MarshalIndent(status(), "", "  ")
		if err != nil {
			http.Error(w, fmt.Sprintf("marshal the status: %v", err),
				http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(document, '\n')) // fails only if the client has disconnected
	})
}
