// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

// chain is a target and a relay as processes.
type chain struct {
	t         testing.TB
	dir       string
	volumes   []string
	faults    []string            // rules of the target
	openFiles int                 // descriptors that the target may have; 0 changes nothing
	manager   *serviceManager     // keeps files of the target; nil for none
	environ   map[string][]string // by program, besides the environment of this process
	address   netip.AddrPort      // of the target
	target    *testkit.Process
	relay     *testkit.Process
}

// startChain starts a target with the given volumes, and a relay for the first of them.
func startChain(t testing.TB, volumes ...string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: volumes, address: listenAddress(t)}
	c.startTarget()
	c.relay = c.startRelay("comch")
	return c
}

// startObservedChain is startChain with metrics of both daemons, and with flags for the relay.
func startObservedChain(t *testing.T, volume string, flags ...string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{volume}, address: listenAddress(t)}
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	c.relay = c.startRelay("comch",
		append([]string{"--metrics-listen", "127.0.0.1:0"}, flags...)...)
	return c
}

// startFaultyChain is startObservedChain with a volume of 16 MiB and a fault rule of the target.
func startFaultyChain(t *testing.T, rule string, flags ...string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		faults: []string{rule}, address: listenAddress(t)}
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	c.relay = c.startRelay("comch",
		append([]string{"--metrics-listen", "127.0.0.1:0"}, flags...)...)
	return c
}

// startAdministeredChain is startObservedChain with an admin listener, whose address it returns.
func startAdministeredChain(t *testing.T) (c *chain, admin string) {
	t.Helper()
	c = &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	admin = "unix:" + filepath.Join(c.dir, "admin.sock")
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0", "--admin-listen", admin)
	return c, admin
}

func (c *chain) startTarget(more ...string) {
	c.t.Helper()
	file := filepath.Join(c.dir, "target.address")
	_ = os.Remove(file)
	args := []string{
		"--listen-address", c.address.Addr().String(),
		"--listen-port", fmt.Sprint(c.address.Port()),
		"--address-file", file, "--control-timeout", patience, "--keep-alive-dead-after", patience,
		"--drain-timeout", patience,
	}
	for _, v := range c.volumes {
		args = append(args, "--volume", v)
	}
	for _, rule := range c.faults {
		args = append(args, "--allow-faults", "--fault", rule)
	}
	args = append(args, targetFlags()...)
	command := []string{program(c.t, "target")}
	if c.openFiles > 0 {
		command = []string{"sh", "-c",
			fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, c.openFiles), command[0]}
	}
	var kept []*os.File
	if c.manager != nil {
		var names string
		if kept, names = c.manager.kept(c.t); len(kept) > 0 {
			command = []string{"sh", "-c",
				fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s exec "$0" "$@"`, len(kept),
					names), command[0]}
		}
	}
	inherited := inheritance{files: kept, environ: c.environ["target"]}
	c.target = spawnWith(c.t, inherited, "target", append(append(command, args...), more...)...)
	for _, file := range kept {
		_ = file.Close()
	}
	testkit.Eventually(c.t, "target listens", func() bool {
		select {
		case <-c.target.Ended():
			c.t.Fatal("the target exited at its start")
		default:
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		c.address = netip.MustParseAddrPort(strings.TrimSpace(string(text)))
		return true
	})
}

// startRelay starts a relay whose emulated Comch is in the given directory.
func (c *chain) startRelay(directory string, more ...string) *testkit.Process {
	c.t.Helper()
	name, _, _ := strings.Cut(c.volumes[0], "=")
	args := []string{"run"}
	for _, flag := range [][]string{{"--storage-server", c.address.String()}, {"--volume", name}} {
		if !slices.Contains(more, flag[0]) {
			args = append(args, flag...)
		}
	}
	args = append(args,
		"--emulated-dir", filepath.Join(c.dir, directory),
		"--control-timeout", patience, "--keep-alive-dead-after", patience,
		"--drain-timeout", patience, "--io-timeout", patience, "--session-wait", patience,
	)
	args = append(args, relayFlags()...)
	relay := spawnWith(c.t, inheritance{environ: c.environ["zc-relay"]}, "zc-relay",
		append(append([]string{program(c.t, "zc-relay")}, args...), more...)...)
	relay.AwaitLog("listening for clients")
	return relay
}

// awaitReady waits until a daemon says that it is ready. A relay listens for clients before it has
// connected to its target.
func (c *chain) awaitReady(p *testkit.Process) {
	c.t.Helper()
	testkit.Eventually(c.t, p.Name+" is ready", func() bool {
		code, _ := get(c.t, p, "/readyz")
		return code == http.StatusOK
	})
}

// rdmaAddress returns where the target listens for RDMA connections, according to its log.
func (c *chain) rdmaAddress() string {
	c.t.Helper()
	const key = `"rdma": "`
	c.target.AwaitLog(key)
	_, rest, _ := strings.Cut(c.target.Stderr.String(), key)
	address, _, _ := strings.Cut(rest, `"`)
	return address
}

// initiator starts an initiator on the chain.
func (c *chain) initiator(args ...string) *testkit.Process {
	c.t.Helper()
	return c.initiatorAt("comch", args...)
}

func (c *chain) initiatorAt(directory string, args ...string) *testkit.Process {
	c.t.Helper()
	all := []string{args[0], "--emulated-dir", filepath.Join(c.dir, directory),
		"--control-timeout", patience, "--io-timeout", patience}
	all = append(all, initiatorFlags()...)
	if args[0] == "verify" || args[0] == "bench" {
		all = append(all, fmt.Sprintf("--seed=%d", seedtest.Of(c.t)))
	}
	return spawn(c.t, "initiator", append(all, args[1:]...)...)
}

// mustRun runs an initiator, which has to succeed, and returns its standard output.
func (c *chain) mustRun(args ...string) string {
	c.t.Helper()
	p := c.initiator(args...)
	if code := p.Wait(); code != 0 {
		c.t.Fatalf("initiator %s exited with %d", strings.Join(args, " "), code)
	}
	return p.Stdout.String()
}

func bench(depth int) []string {
	return []string{"bench", "--rw", "randrw", "--block-size", "4KiB",
		"--queue-depth", strconv.Itoa(depth), "--runtime", patience, "--warmup", "0s",
		"--output", "json"}
}

// startIO starts an initiator that runs until the test ends it, and waits until IO is in progress.
func (c *chain) startIO(command ...string) *testkit.Process {
	c.t.Helper()
	p := c.initiator(command...)
	testkit.Eventually(c.t, "IO is in progress", func() bool { return c.ioTotal() > 100 })
	return p
}

// ioTotal returns how many IOs the relay has completed.
func (c *chain) ioTotal() float64 {
	return sumMetric(c.scrape(c.relay), "zc_relay_io_total")
}

func (c *chain) hasNoSession() bool {
	return sumMetric(c.scrape(c.relay), "zc_relay_sessions") == 0
}

// opsAddress returns where a daemon serves metrics, according to its log.
func opsAddress(t testing.TB, p *testkit.Process) string {
	t.Helper()
	p.AwaitLog("serving metrics and health")
	_, rest, _ := strings.Cut(p.Stderr.String(), "serving metrics and health")
	_, rest, found := strings.Cut(rest, `"address": "`)
	if !found {
		t.Fatal("the address of the metrics is not logged")
	}
	address, _, _ := strings.Cut(rest, `"`)
	return address
}

// get tries again, within a bound, if the connection breaks, as it can under load.
func get(t testing.TB, p *testkit.Process, path string) (code int, body string) {
	t.Helper()
	url := "http://" + opsAddress(t, p) + path
	testkit.Eventually(t, url+" replies", func() bool {
		var err error
		if code, body, err = fetch(url); err != nil {
			t.Log(err)
		}
		return err == nil
	})
	return code, body
}

func fetch(url string) (code int, body string, err error) {
	client := http.Client{Timeout: testkit.Patience}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, string(b), err
}

func (c *chain) scrape(p *testkit.Process) string {
	c.t.Helper()
	return scrapeURL(c.t, "http://"+opsAddress(c.t, p)+"/metrics")
}

// scrapeURL tries again as get does, and also until the metrics are there.
func scrapeURL(t testing.TB, url string) (body string) {
	t.Helper()
	testkit.Eventually(t, url+" replies", func() bool {
		code, text, err := fetch(url)
		if err != nil {
			t.Log(err)
			return false
		}
		body = text
		return code == http.StatusOK
	})
	return body
}

func TestAScrapeSurvivesABrokenConnection(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) < 3 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "up 1\n")
	}))
	defer server.Close()
	if body := scrapeURL(t, server.URL); body != "up 1\n" {
		t.Errorf("scraped %q", body)
	}
}

// sumMetric adds up all series of a metric.
func sumMetric(text, name string) float64 {
	var sum float64
	for line := range strings.Lines(text) {
		series, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); !found || bare != name {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}

// awaitMetrics waits until the metrics of a daemon contain all of wanted.
func (c *chain) awaitMetrics(p *testkit.Process, wanted ...string) {
	c.t.Helper()
	for _, want := range wanted {
		testkit.Eventually(c.t, p.Name+" has the metric "+want,
			func() bool { return strings.Contains(c.scrape(p), want) })
	}
}
