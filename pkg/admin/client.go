// SPDX-License-Identifier: Apache-2.0

// Package admin administers a daemon, a relay or a target, on this machine: it talks to the admin
// listener of the daemon (--admin-listen), as the commands status, sessions, reload, log-level, and
// drain of the programs do.
package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/tokenfile"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// UnixPrefix marks an address as the path of a Unix socket.
const UnixPrefix = "unix:"

// The paths of the admin listener.
const (
	StatusPath   = "/status"
	LogLevelPath = "/loglevel" // GET, PUT
	ReloadPath   = "/reload"   // POST
	SessionsPath = "/sessions" // GET; DELETE with "/ID"
	DrainPath    = "/drain"    // GET, POST, DELETE
	TracePath    = "/trace"    // POST, DELETE
	// GET, POST; DELETE with "/NAME" and "/NAME/holders/HOLDER", POST with "/NAME/size"
	VolumesPath = "/volumes"
	// GET, POST; DELETE with "/NAME", POST with "/NAME/target" and "/NAME/qos"
	ChannelsPath = "/channels"
	OpenAPIPath  = "/openapi.json"
	ProfilesPath = "/debug/pprof/" // GET with the name of a profile
)

// CodeHeader is the header of a reply that does not mean success with the symbolic name of the
// status code of the error, such as "IN_USE".
const CodeHeader = "Zc-Status"

// maxReplyBytes is the largest reply that is read.
const maxReplyBytes = 64 << 20

// DefaultTimeout bounds a call whose context has no deadline, so that a listener that never replies
// does not hold its caller up for ever. Changes of volumes and channels, which may take long, end
// ten minutes later, and profiles after the time that they take.
const DefaultTimeout = 30 * time.Second

// Client talks to the admin listener of a daemon. Its methods may be called concurrently. A method
// waits until its context ends, or for DefaultTimeout if that has no deadline. A method that fails
// returns an error with a status code: NotConnected or TimeOut if the daemon cannot be reached,
// NotSupported if it does not offer the operation, Again if too many others ask for the same.
type Client struct {
	address   string
	timeout   time.Duration // DefaultTimeout
	tokenFile string        // "" for none
	scheme    string
	http      http.Client
}

// New returns a client for an admin address: unix:PATH, or IP:PORT. It does not connect yet.
func New(address string) (*Client, error) { return NewWith(address, Options{}) }

// Options say how a client proves to a daemon that listens at IP:PORT that it may administer it: by
// a token, or by a certificate.
type Options struct {
	// TokenFile has the token, and is read for each request; "" is for none.
	TokenFile string
	// Certificate and Key are PEM files of the client's certificate, and CA of the authorities that
	// may have signed that of the daemon. Without CA, the client does not use TLS.
	Certificate, Key, CA string
	// ServerName is a name in the daemon's certificate, "" for the IP address.
	ServerName string
}

// tlsConfig returns nil for plain text.
func (o *Options) tlsConfig(address string) (*tls.Config, error) {
	if o.CA == "" {
		if o.Certificate != "" || o.Key != "" || o.ServerName != "" {
			return nil, status.Errorf(status.InvalidValue, "a certificate, key, or server name "+
				"without the authorities of the daemon (--admin-tls-ca) has no effect: nothing "+
				"would be encrypted")
		}
		return nil, nil
	}
	const maxSize = 1 << 20
	authorities, err := files.Read(o.CA, maxSize)
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "read the authorities: %w", err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12,
		ServerName: o.ServerName}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, status.Errorf(status.BadConfig, "%s has no certificate in PEM format", o.CA)
	}
	if config.ServerName == "" {
		if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
			return nil, err
		}
	}
	if (o.Certificate == "") != (o.Key == "") {
		return nil, status.Errorf(status.InvalidValue, "a certificate (--admin-tls-cert) and its "+
			"key (--admin-tls-key) need each other")
	}
	if o.Certificate != "" {
		own, err := tls.LoadX509KeyPair(o.Certificate, o.Key)
		if err != nil {
			return nil, status.Errorf(status.BadConfig,
				"certificate %q and key %q cannot be used: %w", o.Certificate, o.Key, err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// NewWith is New with options, which do not matter for unix:PATH.
func NewWith(address string, o Options) (*Client, error) {
	network, destination := "unix", strings.TrimPrefix(address, UnixPrefix)
	if destination == address {
		network = "tcp"
		if _, err := netip.ParseAddrPort(address); err != nil {
			return nil, status.Errorf(status.InvalidValue,
				"admin address %q is neither unix:PATH nor IP:PORT, for instance "+
					"unix:/run/zc-relay/admin.sock", address)
		}
		if err := endpoint.CheckHost(address); err != nil {
			return nil, fmt.Errorf("admin address %q %w", address, err)
		}
	} else if destination == "" {
		return nil, status.Errorf(status.InvalidValue, "admin address %q has no path: write for "+
			"instance unix:/run/zc-relay/admin.sock", address)
	} else if err := endpoint.CheckSocketPath(destination); err != nil {
		return nil, fmt.Errorf("admin address %q: %w", address, err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, destination)
	}
	c := &Client{address: address, timeout: DefaultTimeout, tokenFile: o.TokenFile, scheme: "http"}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	if network == "tcp" {
		var err error
		if transport.TLSClientConfig, err = o.tlsConfig(address); err != nil {
			return nil, err
		}
		if transport.TLSClientConfig != nil {
			c.scheme = "https"
		}
	}
	c.http.Transport = transport
	return c, nil
}

// Status returns the daemon's status, a JSON document that docs/schemas/status.schema.json
// describes.
func (c *Client) Status(ctx context.Context) (json.RawMessage, error) {
	return c.do(ctx, http.MethodGet, StatusPath, nil)
}

// logLevel is the document of LogLevelPath.
type logLevel struct {
	Level string `json:"level"`
}

// LogLevel returns the lowest severity that is logged: debug, info, warn, or error.
func (c *Client) LogLevel(ctx context.Context) (string, error) {
	var l logLevel
	return l.Level, c.call(ctx, http.MethodGet, LogLevelPath, nil, &l)
}

// SetLogLevel changes the lowest severity that is logged, until the daemon's next start or reload.
func (c *Client) SetLogLevel(ctx context.Context, level string) error {
	return c.call(ctx, http.MethodPut, LogLevelPath, logLevel{level}, nil)
}

// OpenAPI returns the daemon's description of all that it serves, an OpenAPI 3.1 document as
// docs/openapi-relay.json or docs/openapi-target.json.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return c.do(ctx, http.MethodGet, OpenAPIPath, nil)
}

// The profiles of the Go runtime that take time, and the one that returns the command line. Others
// have the names of package runtime/pprof, such as "heap" and "goroutine".
const (
	ProfileCPU     = "profile"
	ProfileTrace   = "trace"
	ProfileCommand = "cmdline"
	ProfileSymbols = "symbol"
)

// Profile returns a profile of the daemon, in the format of "go tool pprof", or of "go tool trace"
// for ProfileTrace. These take a number of whole seconds, others are taken at once if during is 0.
// The name "" returns a page that lists all profiles. Profile fails with NotSupported if there is
// no such profile.
func (c *Client) Profile(ctx context.Context, name string, during time.Duration) ([]byte, error) {
	path := ProfilesPath + url.PathEscape(name)
	if seconds := int(during / time.Second); seconds > 0 {
		path += "?" + url.Values{"seconds": {strconv.Itoa(seconds)}}.Encode()
	}
	ctx, cancel := bounded(ctx, during+c.timeout)
	defer cancel()
	return c.do(ctx, http.MethodGet, path, nil)
}

// Reload is the outcome of a reload.
type Reload struct {
	Started time.Time `json:"started_at"`
	// Ended is nil if the reload still runs.
	Ended *time.Time `json:"ended_at"`
	// ConfigFile is the file that was read, "" for a daemon without one, whose settings stay.
	ConfigFile string `json:"config_file,omitempty"`
	// Certificates means that the TLS files were read again.
	Certificates bool `json:"certificates,omitempty"`
	// Applied holds the changes that the reload has made, and Failed those that it could not make.
	// Both are empty if the file could not be read.
	Applied []Change `json:"applied,omitempty"`
	Failed  []Change `json:"failed,omitempty"`
	// Error says what could not be applied, or why the reload has not ended, and Code is the name
	// of its status code.
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`
	// RestartPending holds the keys of the settings that take effect with the daemon's next start.
	// Daemons of former releases do not say.
	RestartPending []string `json:"restart_pending,omitempty"`
}

// Change is a change of a setting.
type Change struct {
	// Key is the path of the setting. The identity of a list element replaces its number.
	Key string `json:"key"`
	// Former and Now are the values. For a list element, Now is "added" or "removed".
	Former string `json:"former,omitempty"`
	Now    string `json:"now,omitempty"`
	// Element means that a list element was added or removed.
	Element bool `json:"element,omitempty"`
	// Effect says when the change takes effect: "at once" or "new sessions".
	Effect string `json:"effect,omitempty"`
}

// String returns key and values.
func (c Change) String() string {
	if c.Element {
		return c.Key + " " + c.Now
	}
	return fmt.Sprintf("%s: %q is now %q", c.Key, c.Former, c.Now)
}

// Err returns why the reload has failed, with a status code: InProgress if it has not ended. It is
// nil for a reload that has done what it could, even if settings wait for a restart.
func (r *Reload) Err() error {
	if r.Error != "" {
		code, found := codeNamed(r.Code)
		if !found { // of a former release
			code = status.BadConfig
		}
		return status.Errorf(code, "%s", r.Error)
	}
	if r.Ended == nil {
		return status.Errorf(status.InProgress,
			"the reload has not ended yet: status shows its outcome")
	}
	return nil
}

// Reload makes the daemon read its configuration and certificates again, as SIGHUP does, and waits
// a few seconds for the outcome.
func (c *Client) Reload(ctx context.Context) (Reload, error) {
	var r Reload
	err := c.call(ctx, http.MethodPost, ReloadPath, nil, &r)
	return r, err
}

// SessionsSchema names the format of SessionList as JSON. Fields may be added within a version.
const SessionsSchema = "zc-relay.sessions/1"

// SessionList is the document of SessionsPath.
type SessionList struct {
	Schema   string    `json:"schema"`
	Sessions []Session `json:"sessions"`
}

// Session is an open session of the daemon: of a client with a relay, or of a relay with a target.
type Session struct {
	// ID is the session's number in the log and the status.
	ID     uint64    `json:"id"`
	Opened time.Time `json:"opened_at"`
	// Channel is the relay's channel; empty at a target.
	Channel string `json:"channel,omitempty"`
	// Peer describes who has opened the session: a process of the host, or the address of a relay.
	Peer string `json:"peer"`
	// Volume is empty until it has been opened.
	Volume string `json:"volume"`
	// Client is the name of the program that has opened the volume; empty before, and if it has not
	// said its name. HolderID names it for PreemptHolder; empty before, and at a relay.
	Client   string `json:"client,omitempty"`
	HolderID string `json:"holder_id,omitempty"`
	Queues   int    `json:"queues"`
	// IO counts the session's IOs. The difference between two lists, divided by the time between
	// them, is a rate.
	IO IO `json:"io"`
	// Rates is set by "sessions list --interval".
	Rates *Rates `json:"rates,omitempty"`
	// Transports lists the RDMA transports of the queues' data; none while no queue is connected.
	Transports []string `json:"transports,omitempty"`
}

// IO counts IOs, of all operations.
type IO struct {
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	// Bytes is what the successful ones have moved, and LatencyNs what all latencies add up to.
	Bytes     uint64 `json:"bytes"`
	LatencyNs uint64 `json:"latency_ns"`
	InFlight  int64  `json:"in_flight"`
}

// Rates are what a session does per second.
type Rates struct {
	IOPS   float64 `json:"iops"`
	Bytes  float64 `json:"bytes_per_s"`
	Failed float64 `json:"failed_per_s"`
	// LatencyNs is the mean latency; nil without IOs.
	LatencyNs *uint64 `json:"latency_ns"`
}

// Sessions lists the open sessions, oldest first.
func (c *Client) Sessions(ctx context.Context) ([]Session, error) {
	var list SessionList
	err := c.call(ctx, http.MethodGet, SessionsPath, nil, &list)
	return list.Sessions, err
}

// EndSession ends a session at once. Its peer may open another one. It fails with NotFound if there
// is no such session.
func (c *Client) EndSession(ctx context.Context, id uint64) error {
	return c.call(ctx, http.MethodDelete, SessionsPath+"/"+strconv.FormatUint(id, 10), nil, nil)
}

// StartTrace makes the daemon record the passages of the IOs that clients sample, and forget former
// ones. It keeps a bounded number.
func (c *Client) StartTrace(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, TracePath, nil, nil)
}

// StopTrace ends what StartTrace has begun, and returns the records in the JSON format of Chrome's
// trace viewer.
func (c *Client) StopTrace(ctx context.Context) (json.RawMessage, error) {
	return c.do(ctx, http.MethodDelete, TracePath, nil)
}

// DrainState is the progress of a drain.
type DrainState struct {
	// Draining means that the daemon rejects new sessions.
	Draining bool `json:"draining"`
	// Since is the start of the drain; missing if the daemon does not drain.
	Since *time.Time `json:"since,omitempty"`
	// Sessions is the number of open sessions.
	Sessions int `json:"sessions"`
}

// Drain makes a relay reject new sessions. It does not wait for the open ones.
func (c *Client) Drain(ctx context.Context) (DrainState, error) {
	return c.drain(ctx, http.MethodPost)
}

// Resume makes a relay accept sessions again.
func (c *Client) Resume(ctx context.Context) (DrainState, error) {
	return c.drain(ctx, http.MethodDelete)
}

// DrainState returns the progress of a drain.
func (c *Client) DrainState(ctx context.Context) (DrainState, error) {
	return c.drain(ctx, http.MethodGet)
}

func (c *Client) drain(ctx context.Context, method string) (DrainState, error) {
	var s DrainState
	err := c.call(ctx, method, DrainPath, nil, &s)
	return s, err
}

// change makes a call for which the daemon may take as long as ctx allows.
func (c *Client) change(ctx context.Context, method, path string, parameters url.Values,
	request, reply any) error {
	all := waitFor(ctx)
	maps.Copy(all, parameters)
	ctx, cancel := bounded(ctx, longestWait+c.timeout)
	defer cancel()
	return c.call(ctx, method, path+"?"+all.Encode(), request, reply)
}

// longestWait is how long the daemon waits for a change if the caller sets no deadline.
const longestWait = 10 * time.Minute

// waitFor returns parameters that let the daemon answer before ctx ends.
func waitFor(ctx context.Context) url.Values {
	wait := longestWait
	if deadline, limited := ctx.Deadline(); limited {
		left := max(0, time.Until(deadline))
		wait = min(left-left/4, longestWait)
	}
	return url.Values{WaitParameter: {strconv.FormatInt(wait.Milliseconds(), 10)}}
}

// call sends a request with an optional document, and reads the document of the reply into reply,
// which may be nil.
func (c *Client) call(ctx context.Context, method, path string, request, reply any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("request %s from the daemon: %w", path, err)
		}
	}
	content, err := c.do(ctx, method, path, body)
	if err != nil || reply == nil {
		return err
	}
	if err := json.Unmarshal(content, reply); err != nil {
		return status.Errorf(status.Unexpected, "read the reply of the daemon at %s to %s: %w",
			c.address, path, err)
	}
	return nil
}

// bounded returns a context that ends after limit, unless ctx has a deadline.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// do sends a request and returns the body of the reply. A reply that does not mean success is an
// error with its text.
func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	begun := time.Now()
	ctx, cancel := bounded(ctx, c.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.scheme+"://localhost"+path,
		bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request %s from the daemon: %w", path, err)
	}
	if c.tokenFile != "" && !strings.HasPrefix(c.address, UnixPrefix) {
		token, err := tokenfile.Read(c.tokenFile, "the token is the daemon's: give "+
			"--admin-token-file the file that its operations.admin_token_file names, or a copy")
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", tokenfile.Header(token))
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explain(ctx, err, method, time.Since(begun))
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(response.Body, maxReplyBytes))
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, status.Errorf(status.TimeOut, "the daemon at %s has not completed its reply "+
			"within %v: %w", c.address, time.Since(begun).Round(time.Millisecond),
			context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("read the reply of the daemon at %s: %w", c.address, err)
	}
	text := strings.TrimSpace(string(reply))
	switch {
	case response.StatusCode/100 == 2:
		return reply, nil
	case response.StatusCode == http.StatusNotFound:
		return nil, status.Errorf(status.NotSupported, "the daemon at %s has no %s: %s", c.address,
			strings.TrimPrefix(path, "/"), c.explainMissing(ctx, path))
	case response.StatusCode == http.StatusUnauthorized:
		remedy := "give the same file by --admin-token-file"
		if strings.Contains(text, "certificate") {
			remedy = "give --admin-tls-cert and --admin-tls-key"
		}
		return nil, status.Errorf(status.NotPermitted, "the daemon at %s: %s: %s", c.address, text,
			remedy)
	case response.StatusCode == http.StatusGone:
		return nil, status.Errorf(status.NotFound, "the daemon at %s: %s", c.address, text)
	case response.StatusCode == http.StatusBadRequest && strings.Contains(text, "HTTPS server"):
		return nil, status.Errorf(status.NotConnected, "the daemon at %s speaks TLS: give its "+
			"authorities by --admin-tls-ca, and a certificate by --admin-tls-cert and "+
			"--admin-tls-key if it asks for one", c.address)
	case response.StatusCode == http.StatusBadRequest:
		return nil, status.Errorf(status.InvalidValue, "the daemon at %s: %s", c.address, text)
	}
	if code, found := codeNamed(response.Header.Get(CodeHeader)); found {
		return nil, status.Errorf(code, "the daemon at %s: %s", c.address, text)
	}
	return nil, status.Errorf(status.Unexpected, "%s %s at %s: %s: %s", method, path, c.address,
		response.Status, text)
}

// ownerOf holds the only program that serves a path, as its status calls it.
var ownerOf = map[string]string{
	VolumesPath: programTarget, ChannelsPath: programRelay, DrainPath: programRelay,
}

// Programs, as their status documents call them.
const (
	programRelay  = "zc-relay"
	programTarget = "target"
)

// explainMissing says why a daemon does not serve a path. It asks the daemon what it is.
func (c *Client) explainMissing(ctx context.Context, path string) string {
	const other = "it is of another version, or this is its listener for metrics"
	if path == StatusPath {
		return "it is no daemon of zc-relay, or of another version"
	}
	wanted := ""
	for prefix, owner := range ownerOf {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			wanted = owner
		}
	}
	var daemon struct{ Program string }
	content, err := c.Status(ctx)
	if err != nil || json.Unmarshal(content, &daemon) != nil || daemon.Program == wanted {
		return other
	}
	switch wanted {
	case programRelay:
		return "it is a target, and this takes a relay: give --admin the address of a relay"
	case programTarget:
		return "it is a relay, and this takes a target: give --admin the address of a target"
	}
	return other
}

// codeNamed returns the code of a symbolic name.
func codeNamed(name string) (code status.Code, found bool) {
	for code = range status.Code(status.CodeCount) {
		if code != status.Success && code.String() == name {
			return code, true
		}
	}
	return 0, false
}

// foreign says that the peer speaks another protocol, if err is about that. package http has no
// type for it.
func foreign(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, `malformed HTTP response "\x15\x03`):
		return "it speaks TLS"
	case strings.Contains(text, "malformed HTTP"):
		return "it does not speak HTTP"
	case strings.Contains(text, "readLoopPeekFail"): // of net/http, which says no more
		return "it speaks before it is asked"
	}
	return ""
}

// isNoSocket reports whether path is a file that is no socket. Connecting to it fails as if nobody
// listened.
func isNoSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() != fs.ModeSocket
}

// explain returns the error of a request that ended with err. The end of its context cuts the
// connection, which net/http may report instead.
func (c *Client) explain(
	ctx context.Context, err error, method string, waited time.Duration,
) error {
	if end := context.Cause(ctx); end != nil {
		err = end
	}
	if text := foreign(err); text != "" {
		return status.Errorf(status.Unexpected, "what listens at %s is not an admin listener "+
			"of a daemon: %s (its address is that of the daemon's --admin-listen)", c.address, text)
	}
	cause := "does it run with --admin-listen " + c.address + "?"
	if errors.Is(err, fs.ErrPermission) {
		cause = "only root and the daemon's user may"
	}
	code := status.NotConnected
	switch path, isUnix := strings.CutPrefix(c.address, UnixPrefix); {
	case isUnix && isNoSocket(path):
		cause = "this file is no socket: name the socket of the daemon, as given to its --admin-listen"
	case errors.Is(err, syscall.ECONNREFUSED) && isUnix:
		cause = "the socket is there, but nobody listens: the daemon that made it has ended; start " +
			"it, or name the socket of the one that runs"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if errors.Is(err, context.DeadlineExceeded) {
			code = status.TimeOut
		}
		cause = fmt.Sprintf("it has not answered within %v: is it stopped, or busy?",
			waited.Round(time.Millisecond))
		if method != http.MethodGet {
			cause += " It may still do what it was asked to when it goes on"
		}
	}
	if request, is := errors.AsType[*url.Error](err); is {
		err = request.Err // without the URL, whose host is nobody's
	}
	var reason syscall.Errno
	if errors.As(err, &reason) {
		err = reason
	}
	return status.Errorf(code, "cannot talk to the daemon at %s (%s): %w", c.address, cause, err)
}
