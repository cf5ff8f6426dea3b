package e2e

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// serviceManager hears what daemons tell their service manager.
type serviceManager struct {
	path  string
	mu    sync.Mutex
	heard []string
}

func startServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{path: filepath.Join(t.TempDir(), "notify")}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := socket.Read(b)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.heard = append(m.heard, string(b[:n]))
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		listening.Wait()
	})
	return m
}

// count is how many messages match a regular expression.
func (m *serviceManager) count(pattern string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, expression := 0, regexp.MustCompile("^(?:"+pattern+")$")
	for _, message := range m.heard {
		if expression.MatchString(message) {
			n++
		}
	}
	return n
}

func TestTheServiceManagerHearsHowTheDaemonsAre(t *testing.T) {
	for _, daemon := range []string{"target", "zc-relay"} {
		t.Run(daemon, func(t *testing.T) {
			m := startServiceManager(t)
			t.Setenv("NOTIFY_SOCKET", m.path)
			t.Setenv("WATCHDOG_USEC", "300000")
			c := startTLSTarget(t)
			p := c.target
			if daemon == "zc-relay" {
				t.Setenv("NOTIFY_SOCKET", "")
				c = startTLSTarget(t)
				t.Setenv("NOTIFY_SOCKET", m.path)
				p = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
			}
			eventually(t, daemon+" is ready", func() bool { return m.count("READY=1") >= 1 && m.count("STATUS=ready") >= 1 })
			eventually(t, "the watchdog is fed", func() bool { return m.count("WATCHDOG=1") >= 5 })
			p.signal(syscall.SIGHUP)
			p.awaitLog("reloaded")
			eventually(t, "the reload is announced", func() bool { return m.count(`RELOADING=1\nMONOTONIC_USEC=[0-9]+`) >= 1 })
			p.terminate()
			if m.count(`STOPPING=1\nEXTEND_TIMEOUT_USEC=[0-9]+`) == 0 {
				t.Errorf("the end is not announced: %q", m.heard)
			}
		})
	}
}

func TestSIGHUPKeepsCertificatesThatCannotBeReplaced(t *testing.T) {
	c := startTLSTarget(t)
	c.relay = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
	other := c.authority.Write(filepath.Join(c.dir, "other"), []string{"relay.test"})
	mustCopy(t, other.Key, c.ofRelay.Key)
	c.relay.signal(syscall.SIGHUP)
	c.relay.awaitLog("private key does not match")
	c.mustServe("comch")
	mustCopy(t, other.Certificate, c.ofRelay.Certificate)
	before := strings.Count(c.relay.stderr.String(), "loaded TLS certificate")
	c.relay.signal(syscall.SIGHUP)
	eventually(t, "the new certificate is loaded", func() bool {
		return strings.Count(c.relay.stderr.String(), "loaded TLS certificate") > before
	})
	c.mustServe("comch")
}
