// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// The ports of a daemon. Each has an address of its own.
const (
	controlPort = 7470
	relayPort   = 9470
	targetPort  = 9471
)

// device is the Comch device of every relay. Channels are divided evenly among its representors.
const device = "03:00.0"

var representors = []string{"b1:00.0", "b1:00.1"}

// daemon is a relay or a target.
type daemon struct {
	t       testing.TB
	program string
	name    string
	dir     string // of its configuration, certificate, and sockets
	address netip.Addr
	*testkit.Process
}

func (f *fleet) newDaemon(program, name string) daemon {
	d := daemon{t: f.t, program: program, name: name, dir: filepath.Join(f.dir, name),
		address: testkit.Address(f.t)}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	return d
}

// start starts the daemon with its configuration file.
func (d *daemon) start() {
	d.t.Helper()
	args := []string{"--config", filepath.Join(d.dir, "config.yaml")}
	if d.program == "zc-relay" {
		args = append([]string{"run"}, args...)
	}
	d.Process = testkit.Start(d.t,
		exec.Command(testkit.Plain.Program(d.t, d.program), args...))
	d.Name = d.name
}

// configure writes the configuration file. common is what relays and targets share.
func (d *daemon) configure(port int, more string) {
	d.t.Helper()
	text := fmt.Sprintf(`operations: {listen: "%v:%d", admin: "unix:%s"}
workers: {count: 1, poll: event}
rdma: {provider: iwarp}
tls:
  certificate: %[4]s/certificate.pem
  key: %[4]s/key.pem
  ca: %[4]s/ca.pem
`, d.address, port, filepath.Join(d.dir, "admin.sock"), d.dir)
	d.write("config.yaml", text+more)
}

func (d *daemon) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// reload rereads configuration and certificates.
func (d *daemon) reload() { d.Signal(syscall.SIGHUP) }

// target is a target with its volumes.
type target struct {
	daemon
	volumes []string // NAME=PATH[,OPTION]
}

func (f *fleet) newTarget(name string) *target {
	return &target{daemon: f.newDaemon("target", name)}
}

// control returns the address to which relays connect.
func (g *target) control() string { return fmt.Sprintf("%v:%d", g.address, controlPort) }

// instance returns the address that Prometheus scrapes.
func (g *target) instance() string { return fmt.Sprintf("%v:%d", g.address, targetPort) }

func (g *target) configure() {
	var text strings.Builder
	fmt.Fprintf(&text, "listen: {address: %v, port: %d}\nstate: {directory: %s}\nvolumes:\n",
		g.address, controlPort, g.dir)
	for _, volume := range g.volumes {
		name, backend, _ := strings.Cut(volume, "=")
		fmt.Fprintf(&text, "- {name: %s, backend: \"file:%s,size=1MiB\"}\n", name, backend)
	}
	g.daemon.configure(targetPort, text.String())
}

// certify gives the target a new certificate.
func (g *target) certify(a *mutualtlstest.Authority, options ...mutualtlstest.Option) {
	a.Write(g.dir, []string{g.address.String()}, options...)
}

// relay is a relay with its channels.
type relay struct {
	daemon
	channels []*channel
}

// channel is a channel of a relay.
type channel struct {
	relay       *relay
	name        string
	representor string
	target      *target
	standby     *target // takes over from target; nil for most channels
	volume      string
}

// label returns the label that the metrics of the channel have.
func (c *channel) label() string { return device + "/" + c.representor + "/" + c.name }

func (f *fleet) newRelay(name string) *relay {
	r := &relay{daemon: f.newDaemon("zc-relay", name)}
	f.authority.Write(r.dir, []string{name + ".example"})
	return r
}

// instance returns the address that Prometheus scrapes.
func (r *relay) instance() string { return fmt.Sprintf("%v:%d", r.address, relayPort) }

// comch returns the directory of the emulated Comch.
func (r *relay) comch() string { return filepath.Join(r.dir, "comch") }

func (r *relay) configure() {
	var text strings.Builder
	fmt.Fprintf(&text, "comch: {directory: %s}\nchannels:\n", r.comch())
	for _, c := range r.channels {
		targets := fmt.Sprintf("target: %q", c.target.control())
		if c.standby != nil {
			targets = fmt.Sprintf("targets: [%q, %q]", c.target.control(), c.standby.control())
		}
		fmt.Fprintf(&text, "- {name: %s, device: %q, representor: %q, %s, volume: %s, "+
			"limits: {queues: 4, depth: 64}}\n", c.name, device, c.representor, targets, c.volume)
	}
	r.daemon.configure(relayPort, text.String())
}

// declare declares the representors that the relay's device has, and all functions of the host.
func (r *relay) declare(present ...string) {
	r.t.Helper()
	if err := os.MkdirAll(r.comch(), 0o700); err != nil {
		r.t.Fatal(err)
	}
	text := fmt.Sprintf("dpu %s representors=%s\n", device, strings.Join(present, ","))
	for _, representor := range representors {
		text += fmt.Sprintf("host %s\n", representor)
	}
	path := filepath.Join(r.comch(), "devices")
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		r.t.Fatal(err)
	}
}

// command runs a command of the relay's program against its admin listener.
func (r *relay) command(args ...string) (output string, err error) {
	args = append(slices.Clone(args), "--admin", "unix:"+filepath.Join(r.dir, "admin.sock"))
	b, err := exec.Command(testkit.Plain.Program(r.t, "zc-relay"), args...).CombinedOutput()
	return string(b), err
}
