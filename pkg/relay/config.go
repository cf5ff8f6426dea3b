package relay

import (
	"cmp"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Defaults of Config.
const (
	DefaultDrainTimeout     = 10 * time.Second
	DefaultMaxSessionsInAll = 1024
)

// Config says what a relay serves. Comch, RDMA, Channels and, unless each
// channel has its own, CPUs are required.
type Config struct {
	Comch comch.Provider
	RDMA  rdma.Provider
	// CPUs has an element for each worker that channels share: the core to
	// pin it to, or datapath.NoCPU.
	CPUs   []int
	Policy progress.Policy
	// TLS secures the control connections to targets. They are in plain text
	// if TLS is nil.
	TLS *mutualtls.Credentials
	// Software names the program to clients and targets.
	Software string
	Logger   *zap.Logger
	// OnReady is told whether any channel can serve new sessions, and if not
	// why. It may be nil.
	OnReady func(err error)
	// Settings are those to begin with.
	Settings
}

// Settings are the part of a configuration that Reconfigure can change. Zero
// values mean the defaults.
type Settings struct {
	Channels []ChannelConfig
	// MaxSessions bounds the concurrent sessions of all channels together.
	MaxSessions int
	// DrainTimeout is how long IOs in flight are waited for at shutdown;
	// negative is no wait.
	DrainTimeout time.Duration
}

func (c *Config) setDefaults() {
	c.Software = cmp.Or(c.Software, "zc-relay")
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.OnReady == nil {
		c.OnReady = func(error) {}
	}
}

// complete returns s with the defaults, or what is wrong with it.
func (s Settings) complete() (Settings, error) {
	s.MaxSessions = cmp.Or(s.MaxSessions, DefaultMaxSessionsInAll)
	s.DrainTimeout = cmp.Or(s.DrainTimeout, DefaultDrainTimeout)
	channels := make([]ChannelConfig, len(s.Channels))
	seen := make(map[ChannelID]bool)
	for i, c := range s.Channels {
		c.setDefaults()
		if err := c.validate(); err != nil {
			return s, err
		}
		if seen[c.ChannelID] {
			return s, status.Errorf(status.AlreadyExist, "channel %v is configured twice", c.ChannelID)
		}
		seen[c.ChannelID] = true
		channels[i] = c
	}
	s.Channels = channels
	return s, nil
}

// ChannelID names a channel: a Comch service on one device, for one
// representor.
type ChannelID struct {
	// Device and Representor are where the Comch server listens, under Name.
	Device      string
	Representor string
	Name        string
}

// String returns the parts from the general to the particular.
func (id ChannelID) String() string { return id.Device + "/" + id.Representor + "/" + id.Name }

// ChannelConfig says what a channel serves. ChannelID, Target and Volume are
// required; zero values of the others mean the defaults.
type ChannelConfig struct {
	ChannelID
	// Target is the control address of the storage server, Volume the name of
	// its volume.
	Target netip.AddrPort
	Volume string
	// TLSServerName is the name that the target's certificate must have; ""
	// means the address of Target.
	TLSServerName string
	// RDMAAddress is the local address of RDMA connections. The zero Addr
	// means that from which the target is reached.
	RDMAAddress netip.Addr
	// CPUs has an element for each of the channel's own workers: the core to
	// pin it to, or datapath.NoCPU. Without any the channel uses the relay's
	// workers, together with other channels.
	CPUs   []int
	Limits Limits
	Access Access
	// Reconnect says when the target is tried again after it was lost, or
	// could not be reached. If that ends, the channel is given up until it is
	// reconfigured.
	Reconnect retry.Policy
	// SessionWait is how long a new session may wait for a target that is
	// down; 0 refuses it at once, and unset means DefaultSessionWait.
	SessionWait retry.Bound
	// IOTimeout is how long the target may take for an IO before the session
	// is ended; negative is no bound.
	IOTimeout time.Duration
	// ControlTimeout bounds each step of a handshake.
	ControlTimeout time.Duration
	// KeepAlive of the control connections to the target.
	KeepAlive controlmsg.KeepAliveConfig
}

// Access says who may use a channel besides root and the relay's own user.
type Access struct {
	AnyUser bool
	Users   []uint32 // user ids
}

// Limits bound what the clients of a channel can take up. Zero values mean
// the defaults.
type Limits struct {
	// MaxSessions bounds concurrent sessions.
	MaxSessions int
	// MaxQueues, MaxDepth (IOs in flight of one queue) and MaxBufferSize
	// (bytes of one IO) bound one session. Clients learn them when they open
	// the volume.
	MaxQueues     uint32
	MaxDepth      uint32
	MaxBufferSize uint32
	// MaxOutstanding bounds queues times depth of one session, and with it
	// the rings.
	MaxOutstanding uint32
	// MaxExport bounds the bytes of client memory that all sessions together
	// may have exported.
	MaxExport uint64
}

// The highest that limits can be, which is their default as well, but for
// MaxSessions.
const (
	HighestMaxSessions    = 1024
	HighestMaxQueues      = 64
	HighestMaxDepth       = 4096
	HighestMaxBufferSize  = 64 << 20
	HighestMaxOutstanding = HighestMaxQueues * 1024

	DefaultMaxSessions = 256
	DefaultMaxExport   = 64 << 30
	DefaultIOTimeout   = 30 * time.Second

	DefaultControlTimeout = 10 * time.Second
	// DefaultSessionWait bridges the restart of a target.
	DefaultSessionWait = 2 * time.Second
)

func (c *ChannelConfig) setDefaults() {
	c.IOTimeout = cmp.Or(c.IOTimeout, DefaultIOTimeout)
	c.ControlTimeout = cmp.Or(c.ControlTimeout, DefaultControlTimeout)
	c.KeepAlive = cmp.Or(c.KeepAlive, controlmsg.DefaultKeepAlive())
	c.Limits.setDefaults()
	c.Reconnect = c.Reconnect.WithDefaults()
	c.SessionWait = c.SessionWait.Or(retry.Within(DefaultSessionWait))
}

func (c *ChannelConfig) validate() error {
	if !c.Target.IsValid() || c.Target.Port() == 0 {
		return status.Errorf(status.InvalidValue, "channel %v: target %v is no address with a port", c.ChannelID, c.Target)
	}
	if c.RDMAAddress.IsUnspecified() {
		return status.Errorf(status.InvalidValue, "channel %v: the target has to be told one address from which RDMA connections come, not %v",
			c.ChannelID, c.RDMAAddress)
	}
	return nil
}

// admission is what the channel's Comch server has to know.
func (c *ChannelConfig) admission() comch.Admission {
	return comch.Admission{
		MaxClients:   c.Limits.MaxSessions,
		AllowAnyUser: c.Access.AnyUser, AllowUsers: c.Access.Users, MaxExportBytes: c.Limits.MaxExport,
	}
}

func (l *Limits) setDefaults() {
	l.MaxSessions = min(cmp.Or(l.MaxSessions, DefaultMaxSessions), HighestMaxSessions)
	l.MaxQueues = min(cmp.Or(l.MaxQueues, HighestMaxQueues), HighestMaxQueues)
	l.MaxDepth = min(cmp.Or(l.MaxDepth, HighestMaxDepth), HighestMaxDepth)
	l.MaxBufferSize = min(cmp.Or(l.MaxBufferSize, HighestMaxBufferSize), HighestMaxBufferSize)
	l.MaxOutstanding = min(cmp.Or(l.MaxOutstanding, HighestMaxOutstanding), HighestMaxOutstanding)
	l.MaxExport = cmp.Or(l.MaxExport, DefaultMaxExport)
}
