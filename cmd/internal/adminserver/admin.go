// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/audit"
	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/internal/tokenfile"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// socketMode allows only root and the daemon's user to connect.
const socketMode = 0o600

// AdminConfig configures an Admin.
type AdminConfig struct {
	// Address is "unix:PATH", or IP:PORT with a loopback address. Only root and the daemon's user
	// can connect to the former, and every user of the machine to the latter.
	Address string
	// TokenFile holds the token that clients of IP:PORT must know, unless they have a certificate
	// that Web asks for. One of the two is required.
	TokenFile string
	Web       *webconfig.File
	// Hosts are names that a request to IP:PORT may have in Host, besides localhost and loopback
	// addresses.
	Hosts  []string
	Status Status
	// OpenAPI describes what the daemon serves.
	OpenAPI []byte
	// Level is the lowest severity that Log logs.
	Level zap.AtomicLevel
	Log   *zap.Logger
	// Audit says who has changed the daemon.
	Audit *audit.Log
}

// Admin is the listener for administrators on this machine. It serves what exposes secrets of the
// process (profiles) or changes it (the log level, and what is handled later). routes lists it all.
type Admin struct {
	*httpServer
	mux   *http.ServeMux
	audit *audit.Log
	proof *proof
}

// ListenAdmin starts to serve.
func ListenAdmin(config AdminConfig) (*Admin, error) {
	p, err := loadProof(&config)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	listener, err := listenAdmin(config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	a := &Admin{mux: http.NewServeMux(), audit: config.Audit, proof: p}
	a.handle("getStatus", serveStatus(config.Status))
	a.handle("getOpenAPI", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(config.OpenAPI) // fails only if the client has disconnected
	}))
	a.handle("getLogLevel", showLevel(config.Level))
	a.handle("setLogLevel",
		a.audited(operationLogLevel, setLevel(config.Level, config.Log)))
	a.handleProfiles()
	server := serverConfig{name: "admin", listener: listener, log: config.Log,
		handler: sameOriginOnly(readBodyFirst(a.mux))}
	if p != nil {
		// Every user can connect, and so can a page in a browser of this machine.
		server.handler = localHostOnly(config.Hosts, p.require(config.Log, server.handler))
		if config.Web != nil {
			server.tls = config.Web.TLS
		}
	}
	a.httpServer = newHTTPServer(server)
	return a, nil
}

// ReloadToken reads the token again. If it cannot be used, the former one stays in use.
func (a *Admin) ReloadToken() error {
	if a.proof == nil {
		return nil
	}
	return a.proof.reload()
}

// handleProfiles serves the profiles of net/http/pprof and runtime/trace. Their number at a time is
// limited because they would measure each other.
func (a *Admin) handleProfiles() {
	profiles := http.NewServeMux()
	profiles.HandleFunc("GET /debug/pprof/", pprof.Index)
	profiles.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("GET /debug/pprof/profile", boundSeconds(pprof.Profile))
	profiles.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("GET /debug/pprof/trace", boundSeconds(pprof.Trace))
	limited := limitStreams(maxRequestsAtATime, profiles)
	for _, operation := range []string{"listProfiles", "getCommandLine", "profileCPU",
		"getSymbols", "traceExecution", "getProfile"} {
		a.mux.Handle(routeOf(operation).pattern(), limited)
	}
}

// maxProfileSeconds limits the duration of a profile or trace, which slows down the process.
const maxProfileSeconds = 300

func boundSeconds(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("seconds")
		if seconds, err := strconv.ParseFloat(text, 64); text != "" &&
			(err != nil || !(seconds > 0 && seconds <= maxProfileSeconds)) {
			http.Error(w, fmt.Sprintf("seconds=%s is not a positive number up to %d",
				printable.Quote(text, maxEcho),
				maxProfileSeconds), http.StatusBadRequest)
			return
		}
		handler(w, r)
	}
}

// showLevel returns the log level.
func showLevel(level zap.AtomicLevel) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		level.ServeHTTP(w, r)
	})
}

// setLevel changes the log level to {"level":"debug"} in the body, or to the form value level.
func setLevel(level zap.AtomicLevel, log *zap.Logger) func(http.ResponseWriter, *http.Request,
	*change) {
	return func(w http.ResponseWriter, r *http.Request, c *change) {
		before := level.Level()
		// curl -d announces JSON as a form, too.
		body := bufio.NewReader(r.Body)
		if first, err := body.Peek(1); err == nil && first[0] == '{' {
			r.Header.Set("Content-Type", "application/json")
		}
		r.Body = io.NopCloser(body)
		outcome := levelReply{header: make(http.Header), code: http.StatusOK}
		level.ServeHTTP(&outcome, r)
		after := level.Level()
		if after != before {
			log.Log(max(before, after, zap.WarnLevel), "log level changed",
				zap.Stringer("from", before), zap.Stringer("to", after))
		}
		c.object = "log level"
		if c.err = outcome.err(); c.err != nil {
			replyError(w, c.err)
			return
		}
		c.detail = fmt.Sprintf("from %v to %v", before, after)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(outcome.body.Bytes()) // fails only if the client has disconnected
	}
}

// levelReply is the reply of zap.AtomicLevel.
type levelReply struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header returns the header of the reply.
func (r *levelReply) Header() http.Header { return r.header }

// WriteHeader notes the status.
func (r *levelReply) WriteHeader(code int) { r.code = code }

// Write adds to the body.
func (r *levelReply) Write(p []byte) (int, error) { return r.body.Write(p) }

// err returns an error if the reply means that the request was wrong.
func (r *levelReply) err() error {
	if r.code/100 == http.StatusOK/100 {
		return nil
	}
	var reply struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(r.body.Bytes(), &reply) != nil || reply.Error == "" {
		reply.Error = http.StatusText(r.code)
	}
	return status.Errorf(status.InvalidValue, "%s", printable.Line(reply.Error, maxEcho))
}

// localHostOnly rejects requests whose Host names another host. A web page could send such requests
// if its name resolves to this machine's loopback address.
func localHostOnly(names []string, handler http.Handler) http.Handler {
	known := append(hosts{"localhost"}, names...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r)
		if ip, err := netip.ParseAddr(host); !slices.Contains(known, host) &&
			(err != nil || !ip.IsLoopback()) {
			http.Error(w, fmt.Sprintf("host %s is not this machine's loopback address",
				printable.Quote(r.Host, maxEcho)),
				http.StatusForbidden)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// proof decides which clients of a port may administer the daemon.
type proof struct {
	web       *webconfig.File        // nil for no TLS
	tokenFile string                 // "" for none
	token     atomic.Pointer[string] // nil for none
}

// loadProof returns nil for a Unix socket, whose mode says who may connect.
func loadProof(config *AdminConfig) (*proof, error) {
	if strings.HasPrefix(config.Address, admin.UnixPrefix) {
		return nil, nil
	}
	if _, err := socketOf(config.Address); err != nil {
		return nil, err
	}
	if err := CheckAuthentication(config.Address, config.TokenFile,
		config.Web != nil); err != nil {
		return nil, fmt.Errorf("address %q %w", config.Address, err)
	}
	if config.TokenFile == "" && !config.Web.Current().VerifiesClients() {
		return nil, status.Errorf(status.BadConfig, "the web configuration file asks clients for no "+
			"certificate, and there is no token: add client_auth_type: RequireAndVerifyClientCert "+
			"and client_ca_file to it")
	}
	p := &proof{web: config.Web, tokenFile: config.TokenFile}
	return p, p.reload()
}

// CheckAuthentication returns an error if everybody who can connect to an admin address could
// administer the daemon.
func CheckAuthentication(address, tokenFile string, hasWeb bool) error {
	if strings.HasPrefix(address, admin.UnixPrefix) || tokenFile != "" || hasWeb {
		return nil
	}
	return status.Errorf(status.InvalidValue, "lets every user of this machine administer the "+
		"daemon: use unix:PATH, or give the file of a token (operations.admin_token_file, "+
		"--admin-token-file), or a web configuration file that asks for certificates "+
		"(operations.admin_web_config_file, --admin-web-config-file); %s", tokenfile.How)
}

// reload reads the token.
func (p *proof) reload() error {
	if p.tokenFile == "" {
		return nil
	}
	text, err := tokenfile.Read(p.tokenFile, tokenfile.How)
	if err != nil {
		return err
	}
	p.token.Store(&text)
	return nil
}

// isGiven reports whether a request is from a client with a certificate of the authorities, or with
// the token.
func (p *proof) isGiven(r *http.Request) bool {
	if p.web != nil && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 &&
		p.web.Current().Accepts(r.TLS) {
		return true
	}
	token := p.token.Load()
	if token == nil {
		return false
	}
	want := sha256.Sum256([]byte(tokenfile.Header(*token)))
	got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// require rejects, and logs, requests without a proof.
func (p *proof) require(log *zap.Logger, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.isGiven(r) {
			log.Warn("rejected a request for administration without the token",
				zap.String("method", r.Method),
				zap.String("path", printable.Line(r.URL.Path, maxEcho)),
				zap.String("peer", r.RemoteAddr))
			text := "the token is missing or wrong: it is in the file of the daemon's " +
				"operations.admin_token_file"
			if p.token.Load() == nil {
				text = "a client certificate is missing, which this daemon wants instead of a token"
			}
			(&refusal{code: http.StatusUnauthorized, challenge: `Bearer realm="zc-relay"`,
				text: text}).reply(w)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

var errNotLocal = errors.New("administration is for this machine only: use unix:/run/zc-relay/admin.sock, or a loopback address such as 127.0.0.1:9472")

func listenAdmin(address string) (net.Listener, error) {
	path, err := socketOf(address)
	if err != nil {
		return nil, err
	}
	if path != "" {
		return unixsocket.Listen(path, socketMode)
	}
	listener, err := network.ListenTCP(address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return listener, nil
}

// CheckAdmin returns why ListenAdmin would fail with an address, except that it does not try a
// port. The error is syscall.EADDRINUSE if another process listens on the socket.
func CheckAdmin(address string) error {
	path, err := socketOf(address)
	if err != nil || path == "" {
		return err
	}
	return unixsocket.Check(path)
}

// CheckAddress returns why no machine can serve administration at an address.
func CheckAddress(address string) error {
	_, err := socketOf(address)
	return err
}

// socketOf returns the path of the Unix socket that an admin address names, "" for a port.
func socketOf(address string) (path string, err error) {
	if path, isUnix := strings.CutPrefix(address, admin.UnixPrefix); isUnix {
		return path, nil
	}
	if strings.ContainsRune(address, filepath.Separator) {
		return "", fmt.Errorf("address %q: write a path as %s%s", address, admin.UnixPrefix, address)
	}
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", fmt.Errorf("address %q is neither unix:PATH nor IP:PORT: %w", address, errNotLocal)
	}
	if !parsed.Addr().Unmap().IsLoopback() {
		return "", fmt.Errorf("address %q is not a loopback address: %w", address, errNotLocal)
	}
	return "", nil
}

// The admin addresses of the packaged daemons.
const (
	DefaultRelayAdminAddress  = admin.UnixPrefix + "/run/zc-relay/admin.sock"
	DefaultTargetAdminAddress = admin.UnixPrefix + "/run/zc-relay-target/admin.sock"
)

// Drainer is a daemon that can reject new sessions. Its methods may be called concurrently.
type Drainer interface {
	Drain()
	Resume()
	DrainState() admin.DrainState
}

// SessionKeeper is a daemon with sessions. Its methods may be called concurrently.
type SessionKeeper interface {
	// AdminSessions lists the open sessions, oldest first.
	AdminSessions() []admin.Session
	// EndSession starts to end a session, or fails with status.NotFound.
	EndSession(id uint64) error
}

// CountIO adds up the counts of all operations.
func CountIO(counts *datapath.QueueCounts) admin.IO {
	io := admin.IO{InFlight: counts.InFlight}
	for operation := range iomsg.OperationCount {
		io.Succeeded += counts.IO(operation, status.Success)
		io.Failed += counts.Failed(operation)
		io.Bytes += counts.Bytes(operation)
		io.LatencyNs += counts.Latency(operation).SumNs
	}
	return io
}

// DistinctTransports returns the transports of queues, each once and in order. Queues that are not
// connected have the transport "".
func DistinctTransports(ofQueues []string) []string {
	distinct := slices.Compact(slices.Sorted(slices.Values(ofQueues)))
	return slices.DeleteFunc(distinct, func(transport string) bool { return transport == "" })
}

// HandleSessions serves admin.SessionsPath.
func (a *Admin) HandleSessions(k SessionKeeper) {
	a.handle("listSessions", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		list := admin.SessionList{Schema: admin.SessionsSchema, Sessions: k.AdminSessions()}
		if list.Sessions == nil {
			list.Sessions = []admin.Session{}
		}
		reply(w, list)
	}))
	a.handle("endSession", a.audited(operationEndSession,
		func(w http.ResponseWriter, r *http.Request, c *change) {
			c.object = "session " + r.PathValue("id")
			if c.err = endSession(k, r.PathValue("id")); c.err != nil {
				replyError(w, c.err)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}))
}

func endSession(k SessionKeeper, text string) error {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return status.Errorf(status.InvalidValue, "%s is not the number of a session",
			printable.Quote(text, maxEcho))
	}
	return k.EndSession(id)
}

// HandleReload serves admin.ReloadPath. reload starts a reload and waits for its outcome until the
// context ends.
func (a *Admin) HandleReload(reload func(context.Context) admin.Reload) {
	a.handle("reload", a.audited(OperationReload,
		func(w http.ResponseWriter, r *http.Request, c *change) {
			ctx, cancel := context.WithTimeout(r.Context(), requestTimeout/2)
			defer cancel()
			outcome := reload(ctx)
			c.err = outcome.Err()
			reply(w, outcome)
		}))
}

// HandleTrace serves admin.TracePath: POST starts a trace, DELETE ends it and replies with what was
// recorded.
func (a *Admin) HandleTrace(p trace.Program, t *trace.Tracer) {
	a.handle("startTrace", a.audited(operationStartTrace,
		func(w http.ResponseWriter, _ *http.Request, _ *change) {
			t.Start()
			w.WriteHeader(http.StatusNoContent)
		}))
	a.handle("stopTrace", a.audited(operationStopTrace,
		func(w http.ResponseWriter, _ *http.Request, _ *change) {
			records, lost := t.Stop()
			reply(w, trace.NewFile(p, records, lost))
		}))
}

// reply sends a JSON document. That fails only if the client has disconnected.
func reply(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(document)
}

// HandleDrain serves admin.DrainPath: POST starts to drain, DELETE accepts sessions again, and GET
// reports the progress. None of them waits.
func (a *Admin) HandleDrain(d Drainer) {
	serve := func(act func()) func(http.ResponseWriter, *http.Request, *change) {
		return func(w http.ResponseWriter, _ *http.Request, _ *change) {
			act()
			reply(w, d.DrainState())
		}
	}
	a.handle("drain", a.audited(operationDrain, serve(d.Drain)))
	a.handle("resume", a.audited(operationResume, serve(d.Resume)))
	a.handle("getDrain", http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { reply(w, d.DrainState()) }))
}
