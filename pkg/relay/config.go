// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// The highest values of Limits. They are also the defaults, except for MaxSessions.
const (
	HighestMaxSessions    = 1024
	HighestMaxQueues      = controlmsg.SessionMaxQueues
	HighestMaxDepth       = controlmsg.SessionMaxDepth
	HighestMaxBufferSize  = controlmsg.SessionMaxBufferSize
	HighestMaxOutstanding = HighestMaxQueues * 1024
)

// Defaults of Settings, ChannelConfig and Limits.
const (
	DefaultDrainTimeout     = 10 * time.Second
	DefaultMaxSessionsInAll = 1024

	DefaultMaxSessions   = 256
	DefaultMaxExport     = 64 << 30
	DefaultMaxRingMemory = 128 << 20
	// DefaultMaxBounceMemory and DefaultMaxBounceMemoryInAll leave most of the 16 GiB of a
	// BlueField-2 to others.
	DefaultMaxBounceMemory      = 1 << 30
	DefaultMaxBounceMemoryInAll = 2 << 30
	DefaultIOTimeout            = 30 * time.Second
	DefaultControlTimeout       = 10 * time.Second
	// DefaultSessionWait bridges the restart of a target.
	DefaultSessionWait = 2 * time.Second
)

// Config configures a relay. Comch, RDMA and Channels are required, and CPUs unless each channel
// has its own.
type Config struct {
	Comch comch.Provider
	RDMA  rdma.Provider
	// Clock measures leases; nil means lease.Boottime.
	Clock lease.Clock
	// DMA copies the data of channels with Isolation Staged, and of those whose RDMA device cannot
	// reach the memory of clients, on the device with the address of the channel's Comch device;
	// nil if there are none.
	DMA dma.Provider
	// CPUs has an element per worker shared by the channels: the core to pin it to, or
	// datapath.NoCPU.
	CPUs   []int
	Policy progress.Policy
	// Network makes the control connections to targets; nil means network.Kernel{}.
	Network network.Network
	// TLS secures the control connections to targets. If it is nil, they are in plain text.
	TLS *mutualtls.Credentials
	// DataSecurity is what the relay wants for the RDMA connections of sessions; unless it is off,
	// TLS must be set. Fabric declares what protects a network that RDMA uses without TLS: "ipsec",
	// "macsec" or "trusted", "" for nothing.
	DataSecurity controlmsg.DataSecurity
	Fabric       string
	// HookTransport wraps the transport of each control connection, to clients and to targets; nil
	// means that it stays as it is.
	HookTransport func(controlmsg.Transport) controlmsg.Transport
	// Tracer records traced IOs; nil means that none are.
	Tracer *trace.Tracer
	// CountedClients bounds the clients whose IOs are counted by name, over all channels; a client
	// of several channels counts once for each. 0 counts none.
	CountedClients int
	// Software is the name and version that clients and targets see.
	Software string
	Logger   *zap.Logger
	// OnReady is called whenever it may have changed which channels can serve new sessions. It may
	// be nil.
	OnReady func(Readiness)
	// Settings holds the initial settings.
	Settings
}

// Settings is the part of a configuration that Reconfigure can change. Zero values mean the
// defaults.
type Settings struct {
	Channels []ChannelConfig
	// MaxSessions bounds the concurrent sessions of all channels together.
	MaxSessions int
	// MaxBounceMemory bounds the bytes of the relay's own memory that the bounce buffers of all
	// channels together may use (Staged).
	MaxBounceMemory uint64
	// DrainTimeout is how long to wait for IOs in flight at shutdown; unset means
	// DefaultDrainTimeout.
	DrainTimeout retry.Bound
}

// ChannelID identifies a channel: a Comch service on one device, for one representor.
type ChannelID struct {
	// Device and Representor say where the Comch server listens, Name is the service.
	Device      string `json:"device"`
	Representor string `json:"representor"`
	Name        string `json:"service"`
}

// String returns device, representor and name.
func (id ChannelID) String() string { return id.Device + "/" + id.Representor + "/" + id.Name }

// normalized returns the id with the addresses as the relay writes them.
func (id ChannelID) normalized() ChannelID {
	id.Device, id.Representor = pci.Normalize(id.Device), pci.Normalize(id.Representor)
	return id
}

// ChannelConfig configures a channel. ChannelID, Targets and Volume are required; zero values of
// the other fields mean the defaults.
type ChannelConfig struct {
	ChannelID
	// Targets holds the control addresses of the targets, Volume the name that they give to the
	// same volume. If there are several, one serves at a time, and the others may take over from
	// it.
	Targets []netip.AddrPort
	Volume  string
	// LookUp sets what has to be looked up, such as the Targets whose hosts have names; nil if that
	// is nothing. While it fails, the channel waits and calls it again, with rising pauses. At a
	// reconfiguration, a channel for which it has succeeded before keeps its former settings.
	LookUp func(context.Context, *ChannelConfig) error
	// TargetOrder is PreferredOrder or AnyOrder; "" means PreferredOrder.
	TargetOrder TargetOrder
	// TLSServerName is the name that the targets' certificates must have; "" means the address of
	// each.
	TLSServerName string
	// RDMAAddress is the local address of RDMA connections. The zero Addr means the local address
	// of the control connection.
	RDMAAddress netip.Addr
	// Isolation is Direct or Staged; "" means Direct.
	Isolation Isolation
	// ImportDevice is ImportAuto, ImportComch or ImportRDMA; "" means ImportAuto. With Isolation
	// Staged it makes no difference.
	ImportDevice ImportDevice
	// Protocol is what the clients speak; "" means ProtocolAuto.
	Protocol Protocol
	// TargetProtocol is what the target speaks: "" or ProtocolNative, or the name of a release of
	// the applications. Those of 2.10 and 3.0 need Direct isolation, that of 2.10 also clients that
	// speak the same.
	TargetProtocol Protocol
	// CPUs has an element per worker of this channel: the core to pin it to, or datapath.NoCPU. If
	// it is empty, the channel shares the relay's workers with other channels.
	CPUs   []int
	Limits Limits
	QoS    QoS
	Access Access
	// Reconnect is the schedule of attempts to connect to a target that is down. When it ends, the
	// relay makes no more attempts until the channel is reconfigured. Attempts to open the channel
	// itself have the same pauses, and no end.
	Reconnect retry.Policy
	// SessionWait is how long a new session may wait for a target that is down. 0 rejects the
	// session at once; unset means DefaultSessionWait.
	SessionWait retry.Bound
	// IOTimeout is how long the target may take for an IO before the session fails; unset means
	// DefaultIOTimeout.
	IOTimeout retry.Bound
	// ControlTimeout bounds each step of a handshake.
	ControlTimeout time.Duration
	// KeepAlive configures the control connections to the target.
	KeepAlive controlmsg.KeepAliveConfig
}

// TargetOrder says which of a channel's targets the relay chooses when several are ready. The
// chosen one keeps the channel for as long as it is ready.
type TargetOrder = targets.Order

const (
	// PreferredOrder chooses the first of ChannelConfig.Targets that is ready.
	PreferredOrder = targets.PreferredOrder
	// AnyOrder chooses the next one behind the target that was lost.
	AnyOrder = targets.AnyOrder
)

// HighestMaxTargets bounds ChannelConfig.Targets. Each has a connection of its own.
const HighestMaxTargets = 16

// QoS limits the rates of a channel's clients. Reconfigure changes them for open sessions, too. The
// queues that wait for the same limits share them equally.
type QoS struct {
	// Channel limits all sessions together, Session each of them.
	Channel datapath.RateLimits `json:"channel,omitzero"`
	Session datapath.RateLimits `json:"session,omitzero"`
}

// IsZero reports whether there are no limits.
func (q QoS) IsZero() bool { return q.Channel.IsZero() && q.Session.IsZero() }

// Access lists who may use a channel besides root and the relay's own user.
type Access struct {
	AnyUser bool
	Users   []uint32 // user ids
}

// Limits bounds the resources of a channel's clients. Zero values mean the defaults.
type Limits struct {
	// MaxSessions bounds concurrent sessions.
	MaxSessions int
	// MaxQueues, MaxDepth (IOs in flight per queue) and MaxBufferSize (bytes per IO) bound one
	// session. Clients learn them when they open the volume.
	MaxQueues     uint32
	MaxDepth      uint32
	MaxBufferSize uint32
	// MaxOutstanding bounds queues times depth of one session, and with it the memory of its rings.
	MaxOutstanding uint32
	// MaxExport bounds the bytes of client memory that all sessions together may export.
	MaxExport uint64
	// MaxRingMemory bounds the bytes of the relay's own memory that all sessions together may use
	// for Comch messages. A session may take no more of it than it leaves to others.
	MaxRingMemory uint64
	// MaxBounceMemory bounds the bytes of the relay's own memory that the bounce buffers of all
	// sessions together may use (Staged).
	MaxBounceMemory uint64
}

func (c *Config) setDefaults() {
	c.Software = cmp.Or(c.Software, "zc-relay")
	if c.Network == nil {
		c.Network = network.Kernel{}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.OnReady == nil {
		c.OnReady = func(Readiness) {}
	}
	if c.HookTransport == nil {
		c.HookTransport = func(t controlmsg.Transport) controlmsg.Transport { return t }
	}
}

// Check returns the errors in the settings, with which New would fail.
func (s Settings) Check() error {
	_, errs := s.complete()
	return errors.Join(errs...)
}

// complete returns s with defaults, and for each channel why its configuration cannot be used; nil
// if it can.
func (s Settings) complete() (Settings, []error) {
	s.MaxSessions = cmp.Or(s.MaxSessions, DefaultMaxSessionsInAll)
	s.MaxBounceMemory = cmp.Or(s.MaxBounceMemory, DefaultMaxBounceMemoryInAll)
	s.DrainTimeout = s.DrainTimeout.Or(retry.Within(DefaultDrainTimeout))
	channels, errs := make([]ChannelConfig, len(s.Channels)), make([]error, len(s.Channels))
	seen := make(map[ChannelID]int)
	for i, c := range s.Channels {
		c.ChannelID = c.normalized()
		c.setDefaults()
		errs[i] = c.Validate()
		if first, twice := seen[c.ChannelID]; twice {
			errs[i] = status.Errorf(status.AlreadyExist, "channel %v is configured twice",
				c.ChannelID)
			errs[first] = errs[i] // which one is meant is not known
		}
		seen[c.ChannelID] = i
		channels[i] = c
	}
	s.Channels = channels
	return s, errs
}

func (c *ChannelConfig) setDefaults() {
	c.TargetOrder = cmp.Or(c.TargetOrder, PreferredOrder)
	c.Isolation = cmp.Or(c.Isolation, Direct)
	c.ImportDevice = cmp.Or(c.ImportDevice, ImportAuto)
	c.Protocol = cmp.Or(c.Protocol, ProtocolAuto)
	c.TargetProtocol = cmp.Or(c.TargetProtocol, ProtocolNative)
	c.IOTimeout = c.IOTimeout.Or(retry.Within(DefaultIOTimeout))
	c.ControlTimeout = cmp.Or(c.ControlTimeout, DefaultControlTimeout)
	c.KeepAlive = cmp.Or(c.KeepAlive, controlmsg.DefaultKeepAlive())
	c.Reconnect = c.Reconnect.WithDefaults()
	c.SessionWait = c.SessionWait.Or(retry.Within(DefaultSessionWait))
	l := &c.Limits
	l.MaxSessions = min(cmp.Or(l.MaxSessions, DefaultMaxSessions), HighestMaxSessions)
	l.MaxQueues = min(cmp.Or(l.MaxQueues, HighestMaxQueues), HighestMaxQueues)
	l.MaxDepth = min(cmp.Or(l.MaxDepth, HighestMaxDepth), HighestMaxDepth)
	l.MaxBufferSize = min(cmp.Or(l.MaxBufferSize, HighestMaxBufferSize), HighestMaxBufferSize)
	l.MaxOutstanding = min(cmp.Or(l.MaxOutstanding, HighestMaxOutstanding), HighestMaxOutstanding)
	l.MaxExport = cmp.Or(l.MaxExport, DefaultMaxExport)
	l.MaxRingMemory = cmp.Or(l.MaxRingMemory, DefaultMaxRingMemory)
	l.MaxBounceMemory = cmp.Or(l.MaxBounceMemory, DefaultMaxBounceMemory)
}

// Validate returns why no relay can serve the channel, as far as its configuration alone tells. The
// defaults must be filled in.
func (c *ChannelConfig) Validate() error {
	isKnown := len(c.Targets) > 0 || c.LookUp == nil
	if isKnown && len(c.Targets) == 0 || len(c.Targets) > HighestMaxTargets {
		return status.Errorf(status.InvalidValue, "channel %v: %d targets, must be 1 to %d",
			c.ChannelID, len(c.Targets), HighestMaxTargets)
	}
	for i, target := range c.Targets {
		if !target.IsValid() || target.Port() == 0 {
			return status.Errorf(status.InvalidValue,
				"channel %v: target %v is not an address with a port", c.ChannelID, target)
		}
		if slices.Contains(c.Targets[:i], target) {
			return status.Errorf(status.InvalidValue, "channel %v: target %v is named twice",
				c.ChannelID, target)
		}
	}
	if c.TargetOrder != PreferredOrder && c.TargetOrder != AnyOrder {
		return status.Errorf(status.InvalidValue, "channel %v: target order %q is neither %s nor %s",
			c.ChannelID, c.TargetOrder, PreferredOrder, AnyOrder)
	}
	if c.RDMAAddress.IsUnspecified() {
		return status.Errorf(status.InvalidValue,
			"channel %v: RDMA address %v is unspecified: the target expects one address",
			c.ChannelID, c.RDMAAddress)
	}
	if c.Isolation != Direct && c.Isolation != Staged {
		return status.Errorf(status.InvalidValue, "channel %v: isolation %q is neither %s nor %s",
			c.ChannelID, c.Isolation, Direct, Staged)
	}
	if !slices.Contains([]ImportDevice{ImportAuto, ImportComch, ImportRDMA}, c.ImportDevice) {
		return status.Errorf(status.InvalidValue, "channel %v: import device %q is none of %s, %s, %s",
			c.ChannelID, c.ImportDevice, ImportAuto, ImportComch, ImportRDMA)
	}
	if err := c.Protocol.validate(); err != nil {
		return fmt.Errorf("channel %v: protocol: %w", c.ChannelID, err)
	}
	if !slices.Contains(TargetProtocols(), c.TargetProtocol) {
		return status.Errorf(status.InvalidValue, "channel %v: target protocol %q is none of %v",
			c.ChannelID, c.TargetProtocol, TargetProtocols())
	}
	if err := c.checkTargetProtocol(); err != nil {
		return fmt.Errorf("channel %v: %w", c.ChannelID, err)
	}
	return nil
}

// targetSettings returns the part of the settings that concerns targets.
func (c *ChannelConfig) targetSettings() *targets.Settings {
	dialect, _ := dialects.ParseVersion(string(c.TargetProtocol)) // None for ProtocolNative
	return &targets.Settings{
		Addresses: c.Targets, Volume: c.Volume, Order: c.TargetOrder,
		TLSServerName: c.TLSServerName, RDMAAddress: c.RDMAAddress, Dialect: dialect,
		Reconnect: c.Reconnect, ControlTimeout: c.ControlTimeout, KeepAlive: c.KeepAlive,
	}
}

// admission returns the part of the settings that the channel's Comch server enforces.
func (c *ChannelConfig) admission() comch.Admission {
	return comch.Admission{
		MaxClients:   c.Limits.MaxSessions,
		AllowAnyUser: c.Access.AnyUser, AllowUsers: c.Access.Users,
		MaxExportBytes: c.Limits.MaxExport,
		MaxRingBytes:   c.Limits.MaxRingMemory,
	}
}
