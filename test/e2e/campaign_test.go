// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// campaignGoal is how much a campaign goes through. The test with the tag soak sets more.
var campaignGoal = struct{ processFaults, lostConnections, attacks int64 }{4, 5, 2000}

// campaign is a target with two volumes, and a relay for each. The clients of both relays verify
// what they write, while processes are killed and stopped, connections are lost, operations are
// late, and strangers connect to every socket.
type campaign struct {
	*chain
	t        *testing.T
	provider string   // of RDMA
	secure   []string // flags of both daemons for TLS
	relays   [2]*testkit.Process
	clients  [2]*testkit.Process
	rdma     netip.AddrPort // of the target, the same after restarts
	random   *rand.Rand
	matches  map[*testkit.Process]map[string]uint64 // of fault rules, at the last look

	// Late operations and failed attempts to connect are otherFaults.
	processFaults, lostConnections, otherFaults int64
	attacks                                     atomic.Int64
}

// The rules are off while a daemon starts. A connection is lost with each message that is dropped.
var (
	campaignTargetRules = []string{
		"rdma:post_send:while=storm:p=0.0002:seed=1:drop",
		"rdma:poll:while=storm:p=0.0002:seed=2:delay=30ms",
		"control:any:while=storm:p=0.02:seed=3:drop",
		"volume:any:while=storm:p=0.0002:seed=4:delay=30ms",
	}
	campaignRelayRules = []string{
		"rdma:post_send:while=storm:p=0.0002:seed=5:drop",
		"rdma:poll:while=storm:p=0.0002:seed=6:delay=30ms",
		"rdma:connect:while=storm:p=0.05:seed=7:error=CONNECTION_ABORTED",
		"control:any:while=storm:p=0.02:seed=8:drop",
		"comch:producer.send:while=storm:p=0.0001:seed=9:drop",
		"comch:consumer.poll:while=storm:p=0.0002:seed=10:delay=30ms",
		"comch:send:while=storm:p=0.01:seed=11:drop",
	}
)

// Nothing is wrong, lost, or left behind after any number of faults of all kinds at once.
func TestNothingIsLostInACampaign(t *testing.T) {
	t.Parallel()
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("strangers connect to sockets of the embedded providers")
	}
	for _, provider := range []string{"iwarp", "auto", overTLS} {
		t.Run(provider, func(t *testing.T) {
			if provider != "iwarp" {
				testkit.OnlyComplete(t, "a campaign over iWARP, and shared memory and TLS elsewhere")
			}
			runCampaign(t, provider)
		})
	}
}

// campaignName is what the certificate of a campaign over TLS is for.
const campaignName = "campaign.test"

// overTLS is the provider iwarp with TLS for control and data.
const overTLS = "iwarp+tls"

func runCampaign(t *testing.T, provider string) {
	dir := t.TempDir()
	var secure []string
	if provider == overTLS {
		files := mutualtlstest.NewAuthority(t).Write(dir, []string{campaignName})
		secure = append(tlsFlagsOf(files), "--data-security", "required",
			"--core-dumps") // so that descriptors can be counted
		provider = "iwarp"
	}
	c := &campaign{t: t, provider: provider, secure: secure, random: seedtest.Random(t, 0),
		matches: make(map[*testkit.Process]map[string]uint64),
		chain: &chain{t: t, dir: dir, address: listenAddress(t), faults: campaignTargetRules,
			volumes: []string{
				"disk=file:" + filepath.Join(dir, "disk.img") + ",size=16MiB",
				"other=file:" + filepath.Join(dir, "other.img") + ",size=16MiB",
			}}}
	c.startTarget()
	for i := range c.relays {
		c.startRelay(i)
	}
	c.verifyAnew()
	testkit.Eventually(t, "all sessions are released", c.hasNoSession)
	before := c.holdings()

	const forever = "1000h" // on a slow machine, a campaign and its outages take long
	for i := range c.clients {
		c.clients[i] = c.initiatorAt(campaignDirectory(i),
			reconnectingVerify("--runtime", forever, "--reconnect-timeout", forever)...)
	}
	c.awaitIO() // the first attempt to open a volume is the only one
	for _, daemon := range c.daemons() {
		c.turnOnFaults(daemon)
	}
	stopAttack := c.attack()
	for round := 0; c.processFaults < campaignGoal.processFaults ||
		c.lostConnections < campaignGoal.lostConnections ||
		c.attacks.Load() < campaignGoal.attacks; round++ {
		c.awaitIO()
		c.countNetworkFaults()
		if round%3 == 0 {
			c.injectProcessFault()
		}
		if round%100 == 99 {
			c.logFaults()
		}
	}
	stopAttack()
	for _, daemon := range c.daemons() {
		daemon.Signal(syscall.SIGUSR2)
		daemon.AwaitLog("fault switches turned off")
	}
	c.awaitIO()

	for _, client := range c.clients {
		interruptVerify(t, client)
		r := verifyReport(t, client)
		if r.Result.LostBlocks > 0 {
			t.Errorf("%d blocks are lost", r.Result.LostBlocks)
		}
		t.Logf("%d blocks written, %d checked, %d reconnections, the longest outage %v",
			r.Result.BlocksWritten, r.Result.BlocksChecked, r.Result.Reconnections.Count,
			time.Duration(r.Result.Reconnections.LongestOutageNs))
	}
	c.verifyAnew()
	var after []holding
	defer func() { t.Logf("the daemons held %+v before, and %+v after", before, after) }()
	testkit.Eventually(t, "the daemons hold as much as before", func() bool {
		after = c.holdings()
		for i := range after {
			if after[i].exceeds(&before[i]) {
				return false
			}
		}
		return true
	})
	c.logFaults()
}

func (c *campaign) logFaults() {
	c.t.Logf("%d faults of processes, %d lost connections, %d other faults, %d attacks",
		c.processFaults, c.lostConnections, c.otherFaults, c.attacks.Load())
}

func campaignDirectory(i int) string { return fmt.Sprintf("comch%d", i) }

// flags returns the flags of a daemon, which serves operators at the admin socket of that name. The
// log of the attacks is bounded.
func (c *campaign) flags(name string) []string {
	return append([]string{"--rdma-provider", c.provider, "--metrics-listen", "127.0.0.1:0",
		"--admin-listen", "unix:" + c.adminSocket(name), "--log-sampling", "10",
		"--keep-alive-dead-after", "2s", "--control-timeout", "10s"}, c.secure...)
}

func (c *campaign) adminSocket(name string) string { return filepath.Join(c.dir, name+".sock") }

func (c *campaign) startTarget() {
	c.t.Helper()
	c.chain.startTarget(append([]string{"--rdma-port", fmt.Sprint(c.rdma.Port())},
		c.flags("target")...)...)
	c.rdma = netip.MustParseAddrPort(c.rdmaAddress())
}

func (c *campaign) startRelay(i int) {
	c.t.Helper()
	name, _, _ := strings.Cut(c.volumes[i], "=")
	flags := append([]string{"--volume", name}, c.flags(campaignDirectory(i))...)
	if len(c.secure) > 0 {
		flags = append(flags, "--tls-server-name", campaignName)
	}
	for _, rule := range campaignRelayRules {
		flags = append(flags, "--allow-faults", "--fault", rule)
	}
	c.relays[i] = c.chain.startRelay(campaignDirectory(i), flags...)
}

func (c *campaign) daemons() []*testkit.Process {
	return []*testkit.Process{c.target, c.relays[0], c.relays[1]}
}

// verifyAnew verifies both volumes with clients that do not reconnect.
func (c *campaign) verifyAnew() {
	c.t.Helper()
	for i := range c.relays {
		newcomer := c.initiatorAt(campaignDirectory(i), "verify", "--queues", "2", "--passes", "1")
		if code := newcomer.Wait(); code != 0 {
			c.t.Errorf("a verification of the whole volume exited with %d", code)
		}
	}
}

func (c *campaign) hasNoSession() bool {
	for _, relay := range c.relays {
		if sumMetric(c.scrape(relay), "zc_relay_sessions") > 0 {
			return false
		}
	}
	return true
}

// awaitIO waits until both clients complete IO that was submitted after this call.
func (c *campaign) awaitIO() {
	c.t.Helper()
	var before [len(c.relays)]float64
	for i, relay := range c.relays {
		before[i] = sumMetric(c.scrape(relay), "zc_relay_io_total")
	}
	for i, relay := range c.relays {
		testkit.Eventually(c.t, relay.Name+" completes IO", func() bool {
			select {
			case <-c.clients[i].Ended():
				c.t.Fatal("a client has ended")
			default:
			}
			return sumMetric(c.scrape(relay), "zc_relay_io_total") > before[i]+500
		})
	}
}

// injectProcessFault kills, ends, or stops a daemon, and lets it continue.
func (c *campaign) injectProcessFault() {
	c.t.Helper()
	i := c.random.IntN(len(c.daemons()))
	daemon := c.daemons()[i]
	c.processFaults++
	switch c.random.IntN(3) {
	case 0:
		daemon.Stop()
		// Sometimes this is longer than a peer waits.
		time.Sleep(time.Duration(c.random.Int64N(int64(3 * time.Second))))
		daemon.Continue()
		return
	case 1:
		daemon.Signal(syscall.SIGKILL)
		daemon.Wait()
	case 2:
		daemon.Signal(syscall.SIGUSR2)
		daemon.Terminate()
	}
	if i == 0 {
		c.startTarget()
	} else {
		c.startRelay(i - 1)
	}
	c.turnOnFaults(c.daemons()[i])
}

// turnOnFaults returns when the daemon has got the signal: a later one could overtake it.
func (c *campaign) turnOnFaults(daemon *testkit.Process) {
	c.t.Helper()
	daemon.Signal(syscall.SIGUSR1)
	daemon.AwaitLog("fault switches turned on")
}

// countNetworkFaults counts the matches of rules since the last look.
func (c *campaign) countNetworkFaults() {
	c.t.Helper()
	for _, daemon := range c.daemons() {
		now := c.faultMatches(daemon)
		for rule, matches := range now {
			fresh := int64(matches - c.matches[daemon][rule])
			if strings.HasSuffix(rule, ":drop") {
				c.lostConnections += fresh
			} else {
				c.otherFaults += fresh
			}
		}
		c.matches[daemon] = now
	}
}

// holding is what a daemon holds.
type holding struct {
	descriptors int
	goroutines  float64
	heap        float64 // bytes, after a garbage collection
	resident    float64 // bytes
}

// exceeds reports whether a daemon holds more than before. Scrapes have connections and goroutines
// of their own, and the Go runtime keeps memory that it has freed.
func (h *holding) exceeds(before *holding) bool {
	const slack, heapSlack, residentSlack = 4, 4 << 20, 96 << 20
	return h.descriptors > before.descriptors+slack || h.goroutines > before.goroutines+slack ||
		h.heap > before.heap+heapSlack || h.resident > before.resident+residentSlack
}

func (c *campaign) holdings() []holding {
	c.t.Helper()
	var all []holding
	for i, daemon := range c.daemons() {
		name := "target"
		if i > 0 {
			name = campaignDirectory(i - 1)
		}
		c.collectGarbage(name)
		metrics := c.scrape(daemon)
		all = append(all, holding{descriptors: daemon.Descriptors(),
			goroutines: sumMetric(metrics, "go_goroutines"),
			heap:       sumMetric(metrics, "go_memstats_heap_alloc_bytes"),
			resident:   sumMetric(metrics, "process_resident_memory_bytes")})
	}
	return all
}

// collectGarbage makes a daemon collect its garbage.
func (c *campaign) collectGarbage(name string) {
	c.t.Helper()
	client := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.adminSocket(name))
		}}}
	response, err := client.Get("http://daemon/debug/pprof/heap?gc=1")
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		c.t.Fatal(err)
	}
}

// attack lets strangers connect to all sockets until the goal is reached or the returned function
// is called.
func (c *campaign) attack() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var attacking sync.WaitGroup
	stop = func() {
		cancel()
		attacking.Wait()
	}
	c.t.Cleanup(stop)
	sockets := []struct{ network, address string }{
		{"tcp", c.address.String()},
		{"tcp", c.rdma.String()},
		{"unixpacket", fmt.Sprintf("@zc-relay/rdma/%d", c.rdma.Port())},
	}
	for i := range c.relays {
		paths, err := filepath.Glob(filepath.Join(c.dir, campaignDirectory(i), "*", "*", "*"))
		if err != nil || len(paths) == 0 {
			c.t.Fatalf("relay %d has no socket: %v", i, err)
		}
		sockets = append(sockets, struct{ network, address string }{"unixpacket", paths[0]})
	}
	for i, socket := range sockets {
		random := rand.New(rand.NewPCG(c.random.Uint64(), uint64(i)))
		attacking.Go(func() {
			var silent []net.Conn
			for ctx.Err() == nil && c.attacks.Load() < campaignGoal.attacks {
				conn, err := (&net.Dialer{}).DialContext(ctx, socket.network, socket.address)
				if err != nil {
					time.Sleep(10 * time.Millisecond) // the daemon is being restarted
					continue
				}
				c.attacks.Add(1)
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				_, _ = conn.Write(garbage(random))
				if silent = append(silent, conn); len(silent) == 32 {
					for _, conn := range silent {
						_ = conn.Close()
					}
					silent = silent[:0]
				}
			}
			for _, conn := range silent {
				_ = conn.Close()
			}
		})
	}
	return stop
}

// garbage returns what a stranger sends: the beginning of something that a socket expects, with
// random bytes behind it.
func garbage(random *rand.Rand) []byte {
	rest := make([]byte, random.IntN(256))
	for i := range rest {
		rest[i] = byte(random.Uint32())
	}
	switch random.IntN(5) {
	case 0: // the length of a control message
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(rest)+random.IntN(2))), rest...)
	case 1: // a frame of the emulated Comch
		head := binary.LittleEndian.AppendUint32(nil, random.Uint32N(16))
		return append(binary.LittleEndian.AppendUint32(head, uint32(len(rest))), rest...)
	case 2: // RFC 5044, section 7.1
		return append([]byte("MPA ID Req Frame\x00\x01\x00"), rest...)
	case 3:
		return append([]byte("GET / HTTP/1.1\r\n"), rest...)
	}
	return rest
}
