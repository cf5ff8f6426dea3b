// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// controlTimeout is the daemons' timeout of each step of a handshake.
const controlTimeout = 2 * time.Second

const (
	volumeSize = 16 << 20
	blockSize  = 4096
)

// chain is a target and a relay as processes, and a fake target in this process.
type chain struct {
	t             *testing.T
	directory     string
	loopback      netip.Addr // of this chain
	target, relay *daemon
	targetAddress netip.AddrPort
	targetRDMA    netip.AddrPort
	fake          *fakeTarget
	comch         comch.Provider
	configuring   sync.Mutex // held while the configuration file is replaced
	// tls has the relay's files; without TLS they are "". The fake target has no TLS, so then there
	// is no channel for it.
	tls mutualtls.Files

	seed   uint64        // of the current burst
	crowd  int           // its peers
	epochs atomic.Uint64 // of all client instances
	totals totals
	honest []time.Duration // time to serve the honest client
}

// totals counts what the peers have done, and keeps the longest waits.
type totals struct {
	bursts, peers int
	connections   atomic.Int64
	// Steps that have succeeded, and IO messages.
	opened, configured, started, messages atomic.Int64

	bursting  time.Duration // in all bursts together
	returning time.Duration // until a daemon had returned everything, at most
	timeWait  int           // connections in TIME_WAIT, at most
}

// programs has the daemons.
var programs = testkit.Plain

// startChain starts the daemons.
func startChain(t *testing.T) *chain {
	t.Helper()
	return startChainWith(t, false)
}

// startChainWith is startChain, with TLS between relay and target if secure is set.
func startChainWith(t *testing.T, secure bool) *chain {
	t.Helper()
	directory, err := os.MkdirTemp("", "zcr") // short, because the paths of sockets are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	c := &chain{t: t, directory: directory, loopback: testkit.Address(t),
		comch: emulated.New(emulated.Options{Directory: directory + "/comch"})}
	var tlsFlags []string
	if secure {
		authority := mutualtlstest.NewAuthority(t)
		c.tls = authority.Write(t.TempDir(), []string{"relay.test"})
		target := authority.Write(t.TempDir(), []string{c.loopback.String()})
		tlsFlags = []string{"--tls-cert", target.Certificate, "--tls-key", target.Key, "--tls-ca",
			target.CA, "--core-dumps"} // for measure, which reads /proc
	}
	c.target = c.start("target", append(tlsFlags,
		"--listen-address", c.loopback.String(), "--listen-port", "0",
		"--volume", fmt.Sprintf("disk=memory:%d", volumeSize),
		"--volume", fmt.Sprintf("file=file:%s/volume,size=%d", directory, volumeSize),
		"--log-format", "json", "--log-sampling", "0",
		"--metrics-listen", "127.0.0.1:0", "--admin-listen", "unix:"+directory+"/target.sock",
		"--control-timeout", controlTimeout.String(),
		"--keep-alive-dead-after", controlTimeout.String(),
		"--max-sessions", "64", "--staging-limit", fmt.Sprint(stagingLimit))...)
	listening := c.target.awaitEntry("listening for relays")
	c.targetAddress = netip.MustParseAddrPort(listening["control"].(string))
	c.targetRDMA = netip.MustParseAddrPort(listening["rdma"].(string))
	c.fake = startFakeTarget(c)
	c.replaceConfiguration(c.relayConfiguration(nil))
	c.relay = c.start("zc-relay", "run", "--config", directory+"/relay.yaml")
	for _, d := range []*daemon{c.target, c.relay} {
		d.metrics = d.awaitEntry("serving metrics and health")["address"].(string)
	}
	c.target.admin, c.relay.admin = directory+"/target.sock", directory+"/relay.sock"
	return c
}

// daemon is a running program.
type daemon struct {
	*testkit.Process
	chain   *chain
	read    int    // bytes of the log that checkLogs has seen
	metrics string // address of the metrics
	admin   string // path of the admin socket
	scraper *http.Client

	baseline usage // before the first burst
	peak     usage // of this burst
	most     usage // of all bursts
}

func (c *chain) start(name string, args ...string) *daemon {
	c.t.Helper()
	d := &daemon{chain: c,
		Process: testkit.Start(c.t, exec.Command(programs.Program(c.t, name), args...)),
		scraper: &http.Client{Timeout: callTimeout,
			Transport: &http.Transport{DisableKeepAlives: true}}}
	c.t.Cleanup(d.Terminate)
	return d
}

// awaitEntry waits for the log entry with a text, and returns its fields.
func (d *daemon) awaitEntry(text string) (entry map[string]any) {
	d.chain.t.Helper()
	d.chain.eventually(d.Name+" logs "+text, func() error {
		for line := range strings.Lines(d.Stderr.String()) {
			if strings.Contains(line, text) && json.Unmarshal([]byte(line), &entry) == nil {
				return nil
			}
		}
		return errors.New("there is no such entry")
	})
	return entry
}

// expectedErrors are the entries at level error that operators cause.
var expectedErrors = []string{"reload failed, the affected settings are unchanged"}

// checkLogs fails the test if a daemon has exited, panicked, or logged an error.
func (c *chain) checkLogs() {
	c.t.Helper()
	for _, d := range []*daemon{c.target, c.relay} {
		if d.HasEnded() {
			c.fatalf("%s has exited: %v", d.Name, d.Cmd.ProcessState)
		}
		fresh := d.Stderr.String()[d.read:]
		fresh = fresh[:strings.LastIndexByte(fresh, '\n')+1]
		d.read += len(fresh)
		for line := range strings.Lines(fresh) {
			d.checkEntry(line)
		}
	}
}

func (d *daemon) checkEntry(line string) {
	d.chain.t.Helper()
	var entry struct{ Level, Msg, Message string }
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		d.chain.fatalf("%s has written what is no log entry: %s", d.Name, line)
	}
	switch strings.ToLower(entry.Level) {
	case "debug", "info", "warn":
		return
	}
	for _, expected := range expectedErrors {
		if strings.Contains(line, expected) {
			return
		}
	}
	d.chain.fatalf("%s has logged an error: %s", d.Name, line)
}

// fatalf ends the test, and says how to repeat the burst.
func (c *chain) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s\nseed %d: go test ./test/resources -seed=%d", fmt.Sprintf(format, args...),
		c.seed, c.seed)
}

// eventually waits until condition returns nil. what completes "waiting until".
func (c *chain) eventually(what string, condition func() error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); {
		if err = condition(); err == nil {
			return
		}
		for _, d := range []*daemon{c.target, c.relay} {
			if d == nil {
				continue
			}
			if d.HasEnded() {
				c.fatalf("%s has exited: %v", d.Name, d.Cmd.ProcessState)
			}
		}
		time.Sleep(20 * time.Millisecond) // as each look may cost a daemon a garbage collection
	}
	for _, d := range []*daemon{c.target, c.relay} {
		if d != nil {
			stacks, _ := fetch(unixClient(d.admin), http.MethodGet,
				"http://daemon/debug/pprof/goroutine?debug=1", "")
			heap, _ := fetch(unixClient(d.admin), http.MethodGet,
				"http://daemon/debug/pprof/heap?gc=1&debug=1", "")
			c.t.Logf("the goroutines of %s:\n%s\nits heap:\n%s", d.Name, stacks, heap)
		}
	}
	c.fatalf("timed out waiting until %s: %v", what, err)
}

// unixClient returns an HTTP client of a Unix socket.
func unixClient(path string) *http.Client {
	return &http.Client{Timeout: callTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

// fetch sends a request and returns the body of the response.
func fetch(client *http.Client, method, url, body string) ([]byte, error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}
