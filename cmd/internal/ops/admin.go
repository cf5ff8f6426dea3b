package ops

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
)

// socketMode allows only root and the daemon's user to connect.
const socketMode = 0o600

// unixPrefix marks an address as the path of a Unix socket.
const unixPrefix = "unix:"

// AdminConfig configures an Admin.
type AdminConfig struct {
	// Address is "unix:PATH", or IP:PORT with a loopback address. Every user of the machine can
	// connect to the latter, only root and the daemon's user to the former.
	Address string
	Status  Status
	// Level is the lowest severity that Log logs.
	Level zap.AtomicLevel
	Log   *zap.Logger
}

// Admin is the listener for administrators on this machine. It serves what exposes secrets of the
// process (profiles) or changes it (the log level, and what Handle adds).
type Admin struct {
	*httpServer
	mux *http.ServeMux
}

// ListenAdmin starts to serve.
func ListenAdmin(config AdminConfig) (*Admin, error) {
	listener, err := listenAdmin(config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	a := &Admin{mux: http.NewServeMux()}
	a.mux.Handle("GET /status", serveStatus(config.Status))
	a.mux.Handle("GET /loglevel", config.Level)
	a.mux.Handle("PUT /loglevel", setLevel(config.Level, config.Log))
	a.handleProfiles()
	// A page in a browser of this machine could reach a loopback address.
	guarded := http.NewCrossOriginProtection().Handler(localHostOnly(listener.Addr(), a.mux))
	a.httpServer = newHTTPServer("admin", listener, guarded, config.Log)
	return a, nil
}

// Handle adds a pattern of http.ServeMux.
func (a *Admin) Handle(pattern string, handler http.Handler) { a.mux.Handle(pattern, handler) }

// handleProfiles serves the profiles of net/http/pprof and runtime/trace. Their number at a time is
// limited because they would measure each other.
func (a *Admin) handleProfiles() {
	profiles := http.NewServeMux()
	profiles.HandleFunc("GET /debug/pprof/", pprof.Index)
	profiles.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("GET /debug/pprof/profile", boundSeconds(pprof.Profile))
	profiles.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("GET /debug/pprof/trace", boundSeconds(pprof.Trace))
	a.mux.Handle("GET /debug/pprof/", limitRequests(maxRequestsAtATime, profiles))
}

// maxProfileSeconds limits the duration of a profile or trace, which slows down the process.
const maxProfileSeconds = 300

func boundSeconds(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("seconds")
		if seconds, err := strconv.ParseFloat(text, 64); text != "" &&
			(err != nil || !(seconds > 0 && seconds <= maxProfileSeconds)) {
			http.Error(w, fmt.Sprintf("seconds=%q is not a positive number up to %d", text,
				maxProfileSeconds), http.StatusBadRequest)
			return
		}
		handler(w, r)
	}
}

// setLevel changes the log level to {"level":"debug"} in the body, or to the form value level.
func setLevel(level zap.AtomicLevel, log *zap.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before := level.Level()
		// curl -d announces JSON as a form, too.
		body := bufio.NewReader(r.Body)
		if first, err := body.Peek(1); err == nil && first[0] == '{' {
			r.Header.Set("Content-Type", "application/json")
		}
		r.Body = io.NopCloser(body)
		level.ServeHTTP(w, r)
		if after := level.Level(); after != before {
			log.Log(max(before, after, zap.WarnLevel), "log level changed",
				zap.Stringer("from", before), zap.Stringer("to", after))
		}
	})
}

// localHostOnly rejects requests whose Host names another host. A web page could send such requests
// if its name resolves to this machine's loopback address.
func localHostOnly(address net.Addr, handler http.Handler) http.Handler {
	if address.Network() == "unix" {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host != "localhost" &&
			(err != nil || !ip.IsLoopback()) {
			http.Error(w, fmt.Sprintf("host %q is not this machine's loopback address", r.Host),
				http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

var errNotLocal = errors.New("administration is for this machine only: use unix:/run/zc-relay/admin.sock, or a loopback address such as 127.0.0.1:9472")

func listenAdmin(address string) (net.Listener, error) {
	if path, isUnix := strings.CutPrefix(address, unixPrefix); isUnix {
		return unixsocket.Listen(path, socketMode)
	}
	if strings.ContainsRune(address, filepath.Separator) {
		return nil, fmt.Errorf("address %q: write a path as %s%s", address, unixPrefix, address)
	}
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %q is neither unix:PATH nor IP:PORT: %w", address,
			errNotLocal)
	}
	if !parsed.Addr().Unmap().IsLoopback() {
		return nil, fmt.Errorf("address %q is not a loopback address: %w", address, errNotLocal)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return listener, nil
}

// DrainState is the reply to every request to DrainPath.
type DrainState struct {
	// Draining means that the daemon rejects new sessions.
	Draining bool `json:"draining"`
	// Since is the start of the drain; missing if the daemon does not drain.
	Since *time.Time `json:"since,omitempty"`
	// Sessions is the number of open sessions.
	Sessions int `json:"sessions"`
}

// Drainer is a daemon that can reject new sessions. Its methods may be called concurrently.
type Drainer interface {
	Drain()
	Resume()
	DrainState() DrainState
}

// DrainPath is the path of a Drainer: POST starts to drain, DELETE accepts sessions again, and GET
// reports the progress. None of them waits.
const DrainPath = "/drain"

// HandleDrain serves DrainPath.
func (a *Admin) HandleDrain(d Drainer) {
	serve := func(act func()) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			act()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			// fails only if the client has disconnected
			_ = json.NewEncoder(w).Encode(d.DrainState())
		}
	}
	a.Handle("POST "+DrainPath, serve(d.Drain))
	a.Handle("DELETE "+DrainPath, serve(d.Resume))
	a.Handle("GET "+DrainPath, serve(func() {}))
}
