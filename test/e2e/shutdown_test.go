package e2e

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// clientConfig is for a client in this process.
func (c *chain) clientConfig(depth int) client.Config {
	const block = 4096
	return client.Config{
		Provider: emulated.New(emulated.Options{Directory: filepath.Join(c.dir, "comch")}),
		Device:   emulated.DefaultHostDevice, Queues: 1, Depth: depth, BufferSize: block, SyncDepth: -1,
	}
}

// startSlowChain has a volume that takes a while for everything, and a client
// with depth writes under way.
func startSlowChain(t *testing.T, depth int, delay string) (*chain, *client.Volume) {
	t.Helper()
	c := startObservedChain(t, "disk=fault:delay="+delay+":memory:16MiB")
	v, err := client.Open(testContext(t), c.clientConfig(depth))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	for i := range uint64(depth) {
		err := v.Queue(0).Submit(&client.Request{Type: iomsg.Write, Length: 4096, Offset: i * 4096, Memory: i * 4096, Tag: i})
		if err != nil {
			t.Fatal(err)
		}
	}
	v.Queue(0).Flush()
	time.Sleep(100 * time.Millisecond) // now they are under way
	return c, v
}

// outcomes polls until count requests have been answered.
func outcomes(t *testing.T, v *client.Volume, count int) map[status.Code]int {
	t.Helper()
	codes := map[status.Code]int{}
	results := make([]client.Result, count)
	total := 0
	eventually(t, "every request is answered", func() bool {
		n := v.Queue(0).Poll(results)
		for _, r := range results[:n] {
			codes[r.Code]++
		}
		total += n
		return total >= count
	})
	return codes
}

func TestWhatIsInFlightWhenADaemonIsToldToEndIsCarriedOut(t *testing.T) {
	const depth = 8
	for _, daemon := range []string{"relay", "target"} {
		t.Run(daemon, func(t *testing.T) {
			c, v := startSlowChain(t, depth, "700ms")
			p := c.relay
			if daemon == "target" {
				p = c.target
			}
			p.signal(syscall.SIGTERM)
			if daemon == "relay" {
				eventually(t, "the relay is not ready", func() bool {
					code, body := get(t, c.relay, "/readyz")
					return code == http.StatusServiceUnavailable && strings.Contains(body, "drain")
				})
			}
			if codes := outcomes(t, v, depth); codes[status.Success] != depth {
				t.Errorf("the requests ended with %v", codes)
			}
			<-v.Done()
			if err := v.Err(); !errors.Is(err, status.Shutdown) || !strings.Contains(err.Error(), "the "+daemon+" is shutting down (drain)") {
				t.Errorf("the client is told %v", err)
			}
			if code := p.wait(); code != 0 {
				t.Errorf("the %s ended with %d", daemon, code)
			}
		})
	}
}

func TestADrainIsBoundedAndWhatItLeavesIsAnswered(t *testing.T) {
	const depth = 8
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=fault:delay=20s:memory:16MiB"}, address: listenAddress()}
	c.startTarget()
	c.relay = c.startRelay("comch", "--drain-timeout", "300ms")
	v, err := client.Open(testContext(t), c.clientConfig(depth))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	for i := range uint64(depth) {
		if err := v.Queue(0).Submit(&client.Request{Type: iomsg.Read, Length: 4096, Offset: i * 4096, Memory: i * 4096, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	v.Queue(0).Flush()
	time.Sleep(100 * time.Millisecond)
	c.relay.signal(syscall.SIGTERM)
	if codes := outcomes(t, v, depth); codes[status.Shutdown] != depth {
		t.Errorf("the requests ended with %v", codes)
	}
	<-v.Done()
	if err := v.Err(); err == nil || !strings.Contains(err.Error(), "without a response from the target to 8 requests") {
		t.Errorf("the client is told %v", err)
	}
	if code := c.relay.waitWithin(10 * time.Second); code != 0 {
		t.Errorf("the relay ended with %d", code)
	}
}

func TestASecondSignalEndsADaemonAtOnce(t *testing.T) {
	for _, daemon := range []string{"relay", "target"} {
		t.Run(daemon, func(t *testing.T) {
			c, _ := startSlowChain(t, 4, "20s")
			p := c.relay
			if daemon == "target" {
				p = c.target
			}
			p.signal(syscall.SIGTERM)
			p.awaitLog("ending")
			p.signal(syscall.SIGTERM)
			if code := p.waitWithin(2 * time.Second); code != -1 {
				t.Errorf("the %s ended with %d and not by the signal", daemon, code)
			}
		})
	}
}

func TestDrainLetsSessionsEndAndTakesNoNewOnes(t *testing.T) {
	c, admin := startAdministeredChain(t)
	run := c.startIO(append(bench(8), "--runtime", "4s")...)
	if p := spawn(t, "zc-relay", "drain", "--admin", admin, "--timeout", "0"); p.wait() != 1 || !strings.Contains(p.stderr.String(), "1 sessions are still open") {
		t.Error("a drain with no time and a session did not fail")
	}
	code, body := get(t, c.relay, "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "drained") {
		t.Errorf("/readyz answers %d, %q", code, body)
	}
	refused := c.initiator("info", "--control-timeout", "2s")
	if code := refused.wait(); code != 3 || !strings.Contains(refused.stderr.String(), "being drained") {
		t.Errorf("a client of a relay that is being drained ended with %d", code)
	}
	if p := spawn(t, "zc-relay", "drain", "--admin", admin); p.wait() != 0 {
		t.Error("the drain failed")
	}
	select {
	case <-run.ended:
	case <-time.After(time.Second): // the session ends before its program
		t.Error("the drain did not wait for the session")
	}
	if code := run.wait(); code != 0 {
		t.Errorf("the session that went on ended with %d", code)
	}
	if p := spawn(t, "zc-relay", "drain", "--admin", admin, "--resume"); p.wait() != 0 {
		t.Error("resuming failed")
	}
	c.mustRun("info")
}
