package config

import (
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// Relay is the configuration of zc-relay.
type Relay struct {
	Log        Log
	Operations Operations
	Workers    Workers
	RDMA       RDMA
	TLS        TLS
	Comch      Comch
	Control    Control
	Limits     RelayLimits
	Shutdown   Shutdown
	Channels   []Channel
}

// Comch chooses the Comch provider.
type Comch struct {
	Provider  string
	Directory string
}

// RelayLimits are those of all channels together.
type RelayLimits struct {
	Sessions int
}

// DefaultRelay has no channels.
func DefaultRelay() *Relay {
	return &Relay{
		Log: defaultLog(), Workers: defaultWorkers(), RDMA: defaultRDMA(),
		Comch:   Comch{Provider: providers.DefaultComch},
		Control: defaultControl(relay.DefaultControlTimeout),
		Limits:  RelayLimits{Sessions: relay.DefaultMaxSessionsInAll}, Shutdown: Shutdown{DrainTimeout: relay.DefaultDrainTimeout},
	}
}

func (c *Relay) describe(s section) {
	s.section("log", "The log, on standard error.", c.Log.describe)
	s.section("operations", "The listener for those who operate the daemon.", c.Operations.describe)
	s.section("workers", "The data-path threads that channels share.", c.Workers.describe)
	s.section("rdma", "The connections to targets.", c.RDMA.describe)
	s.section("tls", "Security of the control connections to targets.", c.TLS.describe)
	s.section("comch", "The connections of clients.", c.Comch.describe)
	s.section("control", "Control connections to clients and targets.", func(s section) { c.Control.describe(s, NewSessions) })
	s.section("limits", "Limits of all channels together.", c.Limits.describe)
	s.section("shutdown", "The end of the daemon.", func(s section) { c.Shutdown.describe(s, AtOnce) })
	addList(s, "channels", "A Comch service with its target.", &c.Channels, defaultChannel, (*Channel).describe)
	channels := s.node.child("channels").reloads(AtOnce)
	channels.list.single = true
	channels.list.identifiedBy = []string{"device", "representor", "name"}
}

func (c *Comch) describe(s section) {
	s.value("provider", choice(&c.Provider, "emulated", "doca"), "Comch provider: emulated or doca").flagged("comch-provider", "")
	s.value("directory", text(&c.Directory, nil),
		"emulated: directory where servers and clients meet; empty is /run/zc-relay/comch for root, or one of the user's own").flagged("emulated-dir", "")
}

func (c *RelayLimits) describe(s section) {
	s.value("sessions", integer(&c.Sessions, 1, maxSessions), "sessions at once, of all channels").reloads(AtOnce)
}

const maxSessions = 1 << 16

func (c *Relay) check(report reporter) {
	c.Control.check(report.in("control"))
	c.TLS.check(report.in("tls"))
	if len(c.Channels) == 0 {
		report("channels", nil, "is empty: describe a channel in the file, or by --storage-server and --volume")
	}
	seen := make(map[[3]string]int)
	for i := range c.Channels {
		channel := &c.Channels[i]
		at := report.in("channels").element(i)
		channel.check(at)
		if channel.TLSServerName != "" && !c.TLS.Enabled() {
			at("tls_server_name", channel.TLSServerName, noTLS)
		}
		id := [3]string{channel.Device, channel.Representor, channel.Name}
		if first, twice := seen[id]; twice {
			at("name", channel.Name, "channel %d has the same name, device and representor: one of the three must differ", first)
		}
		seen[id] = i
	}
}

const noTLS = "is given, but no TLS: give tls.certificate (--tls-cert), tls.key (--tls-key) and tls.ca (--tls-ca) too"
