// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Relay is the configuration of zc-relay.
type Relay struct {
	Daemon
	Comch    Comch
	Limits   RelayLimits
	State    State
	Channels []Channel
}

// Comch chooses the Comch provider.
type Comch struct {
	Provider  string
	Directory string
	Wait      string // "auto" or "never"
}

// Options returns the options of the provider, without a logger.
func (c *Comch) Options() providers.ComchOptions {
	return providers.ComchOptions{Directory: c.Directory, NeverWait: c.Wait == "never"}
}

// RelayLimits holds the limits of all channels together.
type RelayLimits struct {
	Sessions     int
	RingMemory   uint64
	BounceMemory uint64
}

// DefaultRelay returns the defaults. They have no channels.
func DefaultRelay() *Relay {
	return &Relay{
		Daemon: defaultDaemon(relay.DefaultControlTimeout, relay.DefaultDrainTimeout),
		Comch:  Comch{Provider: providers.DefaultComch, Wait: "auto"},
		Limits: RelayLimits{Sessions: relay.DefaultMaxSessionsInAll, RingMemory: 512 << 20,
			BounceMemory: relay.DefaultMaxBounceMemoryInAll},
	}
}

func (c *Relay) describe(s section) {
	s.section("log", "The log, on standard error.", c.Log.describe)
	s.section("operations", "The listener for those who operate the daemon.", c.Operations.describe)
	s.section("metrics", "How much detail metrics have.", c.Metrics.describe)
	s.section("workers", "The data-path threads that channels share.", c.Workers.describe)
	s.section("rdma", "The connections to targets.", c.RDMA.describe)
	s.section("tls", "Security of the control connections to targets.", c.TLS.describe)
	s.section("security", "Security of data on its way to and from targets.", c.Security.describe)
	s.section("comch", "The connections of clients.", c.Comch.describe)
	s.section("control", "Control connections to clients and targets.",
		func(s section) { c.Control.describe(s, NewSessions) })
	s.section("limits", "Limits of all channels together.", c.Limits.describe)
	s.section("shutdown", "The end of the daemon.",
		func(s section) { c.Shutdown.describe(s, AtOnce) })
	s.section("state", "What outlives the daemon.", func(s section) {
		c.State.describe(s, "directory of "+KeptFile+", where the relay keeps the channels that "+
			"were added by command; it is created in an existing one; empty is $STATE_DIRECTORY, "+
			"which systemd sets; without either, channels cannot be added by command")
	})
	addList(s, "channels", "A Comch service with its targets.", &c.Channels, DefaultChannel,
		(*Channel).describe)
	channels := s.node.child("channels").reloads(AtOnce)
	channels.list.single = true
	channels.list.identifiedBy = []string{"device", "representor", "name"}
}

func (c *Comch) describe(s section) {
	s.value("provider", choice(&c.Provider, "emulated", "doca"),
		"Comch provider: emulated or doca").flagged("comch-provider", "")
	s.value("directory", text(&c.Directory, nil),
		"emulated: directory of the sockets, which is created in an existing one; empty is /run/zc-relay/comch for root, or a directory of the user").
		flagged("emulated-dir", "")
	s.value("wait", choice(&c.Wait, "auto", "never"), "doca: whether threads sleep until the "+
		"device wakes them (auto, if it can) or look for work every now and then (never)").
		flagged("comch-wait", "")
}

func (c *RelayLimits) describe(s section) {
	s.value("sessions", integer(&c.Sessions, 1, maxSessions),
		"concurrent sessions of all channels").reloads(AtOnce)
	s.value("ring_memory", byteSize(&c.RingMemory, size.MiB, 1<<40),
		"memory of the relay that all channels together may use for messages to and from clients")
	s.value("bounce_memory", byteSize(&c.BounceMemory, size.MiB, 1<<40),
		"memory of the relay that all channels together may use for staged data").reloads(AtOnce)
}

const maxSessions = 1 << 16

func (c *Relay) check(report reporter) {
	c.Operations.check(report.in("operations"))
	c.Control.check(report.in("control"))
	c.Comch.checkEffect(report.in("comch"))
	c.RDMA.checkEffect(report.in("rdma"))
	c.TLS.check(report.in("tls"))
	c.Security.check(report.in("security"), &c.TLS, &c.RDMA)
	if len(c.Channels) == 0 && c.State.Path() == "" { // otherwise commands may add channels
		report("channels", nil, "is empty: describe a channel in the file, or by --storage-server "+
			"and --volume, or set state.directory and add channels by \"zc-relay channel add\"")
	}
	seen := make(map[channelID]int)
	for i := range c.Channels {
		channel := &c.Channels[i]
		at := report.in("channels").element(i)
		channel.check(at, &c.Control)
		if err := c.RDMA.checkZone(channel.RDMAAddress); err != nil {
			at("rdma_address", channel.RDMAAddress, "%s", status.Text(err))
		}
		if c.Comch.Provider == "emulated" {
			channel.checkEmulated(at)
		}
		if c.TLS.Enabled() && channel.TargetProtocol != string(relay.ProtocolNative) {
			at("target_protocol", channel.TargetProtocol, "has no TLS: remove the section tls")
		}
		c.RDMA.checkProtocol(at, "target_protocol", channel.TargetProtocol)
		if channel.TLSServerName != "" && !c.TLS.Enabled() {
			at("tls_server_name", channel.TLSServerName, noTLS)
		}
		if channel.ImportDevice != string(relay.ImportAuto) &&
			c.Comch.Provider == providers.DefaultComch {
			at("import_device", channel.ImportDevice, "is for comch.provider doca: with %s, the "+
				"relay maps the memory of clients, and no device imports it; remove it, or give "+
				"--comch-provider doca", c.Comch.Provider)
		}
		if first, twice := seen[channel.id()]; twice {
			at("name", channel.Name,
				"channel %d has the same name, device and representor: one of the three must differ",
				first)
		}
		seen[channel.id()] = i
	}
}

// channelID is what distinguishes a channel from others.
type channelID struct{ device, representor, name string }

func (c *Channel) id() channelID {
	return channelID{pci.Normalize(c.Device), pci.Normalize(c.Representor), c.Name}
}

const noTLS = "is given, but no TLS: give tls.certificate (--tls-cert), tls.key (--tls-key) and tls.ca (--tls-ca) too"

// Channel is a Comch service with its targets.
type Channel struct {
	Name        string
	Device      string
	Representor string
	// Target is the only target, invalid if there are several; Hosts returns both.
	Target      Host
	Targets     []Host
	TargetOrder string // relay.PreferredOrder or relay.AnyOrder
	Volume      string
	// TLSServerName is "" for the target's address. RDMAAddress is invalid for the local address of
	// the route to the target.
	TLSServerName  string
	RDMAAddress    netip.Addr
	Isolation      string // relay.Direct or relay.Staged
	ImportDevice   string // relay.ImportAuto, relay.ImportComch or relay.ImportRDMA
	Protocol       string // one of relay.Protocols
	TargetProtocol string // one of relay.TargetProtocols
	CPUs           []int  // empty for the shared workers
	IOTimeout      retry.Bound
	Limits         ChannelLimits
	QoS            QoS
	Access         Access
	Reconnect      Reconnect

	origin string // FILE:LINE; "" if flags describe the channel
}

// QoS limits the rates of a channel's clients.
type QoS struct{ Channel, Session RateLimits }

// RateLimits limits IOs and bytes per second; 0 is infinite.
type RateLimits struct {
	IOPS      uint32
	Bandwidth uint64
	Burst     time.Duration
}

// ChannelLimits limits the resources of a channel's clients.
type ChannelLimits struct {
	Sessions    int
	Queues      uint32
	Depth       uint32
	Outstanding uint32
	BufferSize  uint32
	Export      uint64
	RingMemory  uint64
	// BounceMemory matters to Isolation Staged.
	BounceMemory uint64
}

// Access determines who may use a channel, besides root and the relay's own user.
type Access struct {
	AnyUser bool
	Users   []string // names or numbers
}

// Reconnect configures the behaviour of a channel while its target is down.
type Reconnect struct {
	Attempts     retry.Count
	GiveUpAfter  retry.Bound
	FirstPause   time.Duration
	LongestPause time.Duration
	SessionWait  retry.Bound
}

// DefaultChannel returns a channel with the defaults. It has neither target nor volume.
func DefaultChannel() Channel {
	policy := retry.Policy{}.WithDefaults()
	return Channel{
		Name: client.DefaultChannelName, Device: emulated.DefaultDevice,
		Representor:    emulated.DefaultRepresentor,
		TargetOrder:    string(relay.PreferredOrder),
		Isolation:      string(relay.Direct),
		ImportDevice:   string(relay.ImportAuto),
		Protocol:       string(relay.ProtocolAuto),
		TargetProtocol: string(relay.ProtocolNative),
		IOTimeout:      retry.Within(relay.DefaultIOTimeout),
		Limits: ChannelLimits{
			Sessions: relay.DefaultMaxSessions, Queues: relay.HighestMaxQueues,
			Depth:       relay.HighestMaxDepth,
			Outstanding: relay.HighestMaxOutstanding, BufferSize: relay.HighestMaxBufferSize,
			Export: relay.DefaultMaxExport, RingMemory: relay.DefaultMaxRingMemory,
			BounceMemory: relay.DefaultMaxBounceMemory,
		},
		QoS: QoS{
			Channel: RateLimits{Burst: defaultBurst}, Session: RateLimits{Burst: defaultBurst},
		},
		Reconnect: Reconnect{
			Attempts: policy.Attempts, GiveUpAfter: policy.Total, FirstPause: policy.FirstPause,
			LongestPause: policy.LongestPause,
			SessionWait:  retry.Within(relay.DefaultSessionWait),
		},
	}
}

func (c *Channel) describe(s section) {
	s.value("name", text(&c.Name, checkName(maxComchName)),
		"name of the Comch service").flagged("command-channel-name", "")
	s.value("device", text(&c.Device, checkName(maxComchName)),
		"Comch device, as the DPU sees it").flagged("device", "d")
	s.value("representor", text(&c.Representor, checkName(maxComchName)),
		"representor of the host function to serve; only clients on that function can connect").
		flagged("representor", "r")
	s.value("target", host(&c.Target),
		"control address of the target; the name of a host is looked up at the start, until it has an address, and at each reload").
		flagged("storage-server", "").requireUnless("targets").reloads(NewSessions)
	s.value("targets", hosts(&c.Targets, relay.HighestMaxTargets),
		"control addresses of several targets that take over from one another, instead of target; the name of a host stands for all its addresses").
		flagged("storage-servers", "").reloads(NewSessions)
	s.value("target_order", choice(&c.TargetOrder, string(relay.PreferredOrder),
		string(relay.AnyOrder)),
		"which of several targets to choose: the first that is ready (preferred), or any, the next one behind the one that was lost").
		flagged("target-order", "").reloads(NewSessions)
	s.value("volume", text(&c.Volume, checkName(controlmsg.MaxVolumeNameLength)),
		"name of the volume at the target").
		flagged("volume", "").require().reloads(NewSessions)
	s.value("tls_server_name", text(&c.TLSServerName, nil),
		"name that the target's certificate must have; empty is the address of the target").
		flagged("tls-server-name", "").reloads(NewSessions)
	s.value("rdma_address", ipAddress(&c.RDMAAddress, true, ""),
		"local IP address of RDMA connections; empty is the local address of the route to the target").
		flagged("rdma-address", "").reloads(NewSessions)
	s.value("isolation", choice(&c.Isolation, string(relay.Direct), string(relay.Staged)),
		"direct moves data straight between target and client, if a device can; staged copies it through memory of the relay, so that the target never reaches the client's").
		flagged("isolation", "").reloads(NewSessions)
	s.value("import_device", choice(&c.ImportDevice, string(relay.ImportAuto),
		string(relay.ImportComch), string(relay.ImportRDMA)),
		"device of a BlueField that imports clients' memory for isolation direct: the Comch device (comch), the RDMA device (rdma), or auto, whichever works, and otherwise the data is staged").
		flagged("import-device", "").reloads(NewSessions)
	s.value("protocol", choice(&c.Protocol, names(relay.Protocols())...),
		"what clients speak: our own protocol, that of a release of the DOCA storage applications, or auto, whatever a client's first message is in").
		flagged("protocol", "").reloads(NewSessions)
	s.value("target_protocol", choice(&c.TargetProtocol, names(relay.TargetProtocols())...),
		"what the target speaks: our own protocol, or that of a release of the DOCA storage applications, which needs rdma.provider doca").
		flagged("target-protocol", "").reloads(NewSessions)
	s.value("cpus", cpuList(&c.CPUs),
		"workers of this channel alone, pinned to these cores; empty uses the shared workers")
	s.value("io_timeout", bound(&c.IOTimeout, time.Millisecond),
		"end the session when the target takes longer than this for an IO; infinite sets no limit").
		flagged("io-timeout", "").reloads(NewSessions)
	s.section("limits", "Limits on the clients of the channel.", c.Limits.describe)
	s.section("qos", "Rate limits. IO beyond them waits.", c.QoS.describe)
	s.section("access", "Who may connect besides root and the relay's own user.", c.Access.describe)
	s.section("reconnect", "Behaviour while the target is down.", c.Reconnect.describe)
}

func (c *ChannelLimits) describe(s section) {
	s.value("sessions", integer(&c.Sessions, 1, relay.HighestMaxSessions),
		"concurrent sessions").flagged("max-clients", "").reloads(AtOnce)
	s.value("queues", integer(&c.Queues, 1, relay.HighestMaxQueues),
		"queues of a session").reloads(NewSessions)
	s.value("depth", integer(&c.Depth, 1, relay.HighestMaxDepth),
		"IOs in flight of a queue").reloads(NewSessions)
	s.value("outstanding", integer(&c.Outstanding, 1, relay.HighestMaxOutstanding),
		"queues times depth of a session").reloads(NewSessions)
	s.value("buffer_size", byteSize(&c.BufferSize, 512, relay.HighestMaxBufferSize),
		"data of one IO").reloads(NewSessions)
	s.value("export", byteSize(&c.Export, 4*size.KiB, 1<<50),
		"client memory that all sessions together may export").reloads(NewSessions)
	s.value("bounce_memory", byteSize(&c.BounceMemory, size.MiB, 1<<40),
		"memory of the relay that the staged data of all sessions together may use").
		reloads(NewSessions)
	s.value("ring_memory", byteSize(&c.RingMemory, size.MiB, 1<<40),
		"memory of the relay that all sessions together may use for messages to and from clients").
		reloads(AtOnce)
}

// defaultBurst is long enough for the bursts of a page cache's writer, and short enough that
// nobody notices the other clients' wait.
const defaultBurst = 100 * time.Millisecond

func (c *QoS) describe(s section) {
	s.section("channel", "Limits of all sessions of the channel together.", func(s section) {
		c.Channel.describe(s, "channel", "of all sessions together")
	})
	s.section("session", "Limits of each session.", func(s section) {
		c.Session.describe(s, "session", "of each session")
	})
}

func (c *RateLimits) describe(s section, level, whose string) {
	s.value("iops", orWord(integer(&c.IOPS, 1, maxIOPS), &c.IOPS, infiniteText, 0),
		"IOs per second "+whose+", or infinite").flagged(level+"-iops", "").reloads(AtOnce)
	s.value("bandwidth",
		orWord(byteSize(&c.Bandwidth, size.MiB, 1<<40), &c.Bandwidth, infiniteText, 0),
		"data per second "+whose+", or infinite").flagged(level+"-bandwidth", "").reloads(AtOnce)
	s.value("burst", duration(&c.Burst, 0, time.Minute),
		"how long unused IOs and bytes add up for a burst").reloads(AtOnce)
}

// maxIOPS is beyond what a relay can forward.
const maxIOPS = 1_000_000_000

func (c *Access) describe(s section) {
	s.value("any_user", boolean(&c.AnyUser),
		"let clients of every user connect").flagged("allow-any-user", "").reloads(AtOnce)
	s.value("users", words(&c.Users, checkUser),
		"users whose clients may connect, by name or number").reloads(AtOnce)
}

func (c *Reconnect) describe(s section) {
	s.value("attempts", attempts(&c.Attempts),
		"attempts before the channel stays down until the next reload; 0 makes none, infinite sets no limit").
		flagged("reconnect-attempts", "").reloads(AtOnce)
	s.value("give_up_after", within(&c.GiveUpAfter),
		"how long to try before the channel stays down until the next reload, or infinite").reloads(AtOnce)
	s.value("first_pause", duration(&c.FirstPause, time.Millisecond, longest),
		"pause after the first attempt; it doubles each time, and is shortened at random by up to a quarter").reloads(AtOnce)
	s.value("longest_pause", duration(&c.LongestPause, time.Millisecond, longest),
		"longest pause").reloads(AtOnce)
	s.value("session_wait", within(&c.SessionWait),
		"how long a new session may wait for the target; 0s rejects it at once, infinite is as long as the client waits").
		flagged("session-wait", "").reloads(NewSessions)
}

// Settings returns the settings of the relay's channel, without the targets and the users, which
// have to be looked up.
func (c *Channel) Settings(control *Control) relay.ChannelConfig {
	return relay.ChannelConfig{
		ChannelID:   relay.ChannelID{Device: c.Device, Representor: c.Representor, Name: c.Name},
		TargetOrder: relay.TargetOrder(c.TargetOrder),
		Volume:      c.Volume, TLSServerName: c.TLSServerName,
		RDMAAddress: c.RDMAAddress, Isolation: relay.Isolation(c.Isolation),
		ImportDevice: relay.ImportDevice(c.ImportDevice),
		Protocol:     relay.Protocol(c.Protocol), TargetProtocol: relay.Protocol(c.TargetProtocol),
		CPUs: c.CPUs,
		Limits: relay.Limits{
			MaxSessions: c.Limits.Sessions, MaxQueues: c.Limits.Queues, MaxDepth: c.Limits.Depth,
			MaxOutstanding: c.Limits.Outstanding,
			MaxBufferSize:  c.Limits.BufferSize, MaxExport: c.Limits.Export,
			MaxRingMemory: c.Limits.RingMemory, MaxBounceMemory: c.Limits.BounceMemory,
		},
		QoS: relay.QoS{
			Channel: datapath.RateLimits(c.QoS.Channel),
			Session: datapath.RateLimits(c.QoS.Session),
		},
		Access: relay.Access{AnyUser: c.Access.AnyUser},
		Reconnect: retry.Policy{
			Attempts: c.Reconnect.Attempts, Total: c.Reconnect.GiveUpAfter,
			FirstPause: c.Reconnect.FirstPause, LongestPause: c.Reconnect.LongestPause,
		},
		SessionWait: c.Reconnect.SessionWait,
		IOTimeout:   c.IOTimeout, ControlTimeout: control.Timeout,
		KeepAlive: controlmsg.KeepAliveConfig{Interval: control.KeepAliveInterval,
			DeadAfter: control.KeepAliveDeadAfter},
	}
}

// checkEmulated checks the names that are those of files with the emulated Comch.
func (c *Channel) checkEmulated(report reporter) {
	for _, named := range []struct{ key, name string }{
		{"name", c.Name}, {"device", c.Device}, {"representor", c.Representor},
	} {
		if err := emulated.CheckName(named.key, named.name); err != nil {
			report(named.key, named.name, "%s", status.Text(err))
		}
	}
}

func (c *Channel) check(report reporter, control *Control) {
	if c.Target.isValid() && len(c.Targets) > 0 {
		report("targets", nil, "is given besides target (--storage-server): remove one of the two")
	}
	if c.Access.AnyUser && len(c.Access.Users) > 0 {
		report.in("access")("users", c.Access.Users,
			"any_user is true, which lets every user connect: remove one of the two")
	}
	if r := &c.Reconnect; r.LongestPause < r.FirstPause {
		report.in("reconnect")("longest_pause", r.LongestPause,
			"must not be less than first_pause, which is %v", r.FirstPause)
	}
	if c.RDMAAddress.IsUnspecified() && c.RDMAAddress.IsValid() {
		report("rdma_address", c.RDMAAddress,
			"is not an address that the target can connect to: use an address of this machine")
		return
	}
	settings := c.Settings(control)
	settings.LookUp = func(context.Context, *relay.ChannelConfig) error { return nil }
	if err := settings.Validate(); err != nil { // values that do not fit the target's protocol
		report("target_protocol", c.TargetProtocol, "%s", status.Text(err))
	}
}

// maxComchName is the hardware's limit, in bytes.
const maxComchName = 120

// checkName returns a check for printable text of limited length without a slash.
func checkName(most int) func(string) error {
	return func(s string) error {
		if s == "" || len(s) > most || !printable.MatchString(s) {
			return fmt.Errorf("must be 1 to %d printable characters without a slash", most)
		}
		return nil
	}
}

var (
	printable = regexp.MustCompile(`^[^\pC/]+$`)
	userName  = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}\$?$`)
)

func checkUser(s string) error {
	if _, err := strconv.ParseUint(s, 10, 32); err != nil && !userName.MatchString(s) {
		return errors.New("must be names or numbers of users, for instance alice or 1000")
	}
	return nil
}

func names(protocols []relay.Protocol) (all []string) {
	for _, protocol := range protocols {
		all = append(all, string(protocol))
	}
	return all
}
