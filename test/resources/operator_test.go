// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
)

// baseConfiguration is the relay's configuration between bursts. The limits of a channel are what
// checkPeaks expects the relay to keep.
const baseConfiguration = `comch: {directory: %q}
log: {format: json, level: info, sampling: 0}
operations: {listen: "127.0.0.1:0", admin: "unix:%s", core_dumps: true}
control: {timeout: %v, keep_alive_dead_after: %v}
limits: {sessions: 64}
`

const channelConfiguration = `  - {name: %s, target: %q, volume: %s, io_timeout: %v,
     reconnect: {first_pause: 10ms, longest_pause: 100ms, session_wait: %v},
     limits: {sessions: %d, queues: %d, depth: 256, outstanding: %d, buffer_size: 4MiB,
       export: %dMiB, ring_memory: %dMiB}}
`

// relayConfiguration returns the text of a configuration of the relay: a random one, or the initial
// one if random is nil.
func (c *chain) relayConfiguration(random *rand.Rand) string {
	var b strings.Builder
	fmt.Fprintf(&b, baseConfiguration, c.directory+"/comch", c.directory+"/relay.sock",
		controlTimeout, controlTimeout)
	if c.tls != (mutualtls.Files{}) {
		fmt.Fprintf(&b, "tls: {certificate: %q, key: %q, ca: %q}\n", c.tls.Certificate, c.tls.Key,
			c.tls.CA)
	}
	b.WriteString("channels:\n")
	channel := func(name, target, volume string) {
		timeout, wait, sessions, queues := 2*time.Second, time.Second, 32, channelQueues
		export, rings := channelExport>>20, channelRings>>20
		if random != nil {
			timeout = pick(random, timeout, 100*time.Millisecond, time.Minute)
			wait = pick(random, wait, 0)
			sessions, queues = 1+random.IntN(sessions), 1+random.IntN(queues)
			export, rings = 1+random.IntN(export), 1+random.IntN(rings)
		}
		fmt.Fprintf(&b, channelConfiguration, name, target, volume, timeout, wait, sessions, queues,
			channelOutstanding, export, rings)
	}
	channel("disk", c.targetAddress.String(), "disk")
	if c.tls != (mutualtls.Files{}) {
		return b.String()
	}
	channel("fake", c.fake.listener.Address().String(), "fake")
	if random == nil {
		return b.String()
	}
	for i := range random.IntN(3) {
		channel(fmt.Sprintf("extra-%d", i), pick(random, c.targetAddress.String(),
			c.fake.listener.Address().String(), "127.0.0.1:1"), pick(random, "disk", "none"))
	}
	if random.IntN(8) == 0 {
		b.WriteString(pick(random, "nonsense: 1\n", "  - {name: disk}\n", "\x00", "limits: {}\n"))
	}
	return b.String()
}

// operate does what operators do.
func (p *peer) operate() {
	administer := unixClient(p.relay.admin)
	request := func(method, path, body string) {
		_, _ = fetch(administer, method, "http://relay"+path, body)
	}
	defer request(http.MethodDelete, "/drain", "")
	for range 1 + p.random.IntN(8) {
		switch p.random.IntN(8) {
		case 0, 1, 2:
			p.replaceConfiguration(p.relayConfiguration(p.random))
			p.relay.Signal(syscall.SIGHUP)
		case 3:
			request(http.MethodPost, "/drain", "")
			request(http.MethodGet, "/drain", "")
			request(http.MethodDelete, "/drain", "")
		case 4:
			p.target.Signal(syscall.SIGHUP)
		case 5:
			level := pick(p.random, "debug", "info", "warn", "nonsense")
			request(http.MethodPut, "/loglevel",
				fmt.Sprintf(`{"level":%q}`, level))
		default:
			d := pick(p.random, p.relay, p.target)
			path := pick(p.random, "/", "/status", "/metrics", "/healthz", "/readyz", "/nothing")
			_, _ = fetch(d.scraper, http.MethodGet, "http://"+d.metrics+path, "")
		}
	}
}

// replaceConfiguration replaces the relay's configuration file.
func (c *chain) replaceConfiguration(text string) {
	c.configuring.Lock()
	defer c.configuring.Unlock()
	file := c.directory + "/relay.yaml"
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		c.t.Error(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		c.t.Error(err)
	}
}

// restoreConfiguration restores the initial configuration, and waits until the relay has applied
// it, resumed, and logs as before.
func (c *chain) restoreConfiguration() {
	c.t.Helper()
	administer := unixClient(c.relay.admin)
	c.replaceConfiguration(c.relayConfiguration(nil))
	written := time.Now()
	c.relay.Signal(syscall.SIGHUP)
	c.eventually("the relay has the initial configuration again", func() error {
		var document struct {
			Reload struct {
				Started time.Time `json:"started_at"`
				Ended   time.Time `json:"ended_at"`
				Error   string
			}
		}
		text, err := fetch(administer, http.MethodGet, "http://relay/status", "")
		if err == nil {
			err = json.Unmarshal(text, &document)
		}
		if r := document.Reload; err == nil && (r.Started.Before(written) || r.Ended.IsZero()) {
			err = fmt.Errorf("the last reload has started at %v, the file is from %v", r.Started,
				written)
		}
		return err
	})
}
