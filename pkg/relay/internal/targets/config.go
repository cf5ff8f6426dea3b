// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"context"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Order says which of a channel's targets the relay chooses when several are ready. The chosen one
// keeps the channel for as long as it is ready.
type Order string

const (
	// PreferredOrder chooses the first of ChannelConfig.Targets that is ready.
	PreferredOrder Order = "preferred"
	// AnyOrder chooses the next one behind the target that was lost.
	AnyOrder Order = "any"
)

// Config is what the targets of a channel need from the relay.
type Config struct {
	Channel string // its ID
	Network network.Network
	// TLS secures the connections. If it is nil, they are in plain text.
	TLS *mutualtls.Credentials
	// DataSecurity and Fabric are those of relay.Config.
	DataSecurity  controlmsg.DataSecurity
	Fabric        string
	HookTransport func(controlmsg.Transport) controlmsg.Transport
	Software      string // of the relay
	Lessee        *lease.Lessee
	Peers         *controlmsg.Peers
	// Device returns the RDMA device with a local address, and a channel that is closed when the
	// device is lost.
	Device func(context.Context, netip.Addr) (rdma.Device, <-chan struct{}, error)
	Logger *zap.Logger
	// Outages is that of the relay.
	Outages *Outages
	// ProbeInterval is how often the data path to a target that is ready is probed.
	ProbeInterval time.Duration
	// OnChange is called when it may have changed whether a target is ready.
	OnChange func()
}

// Settings are what a channel's configuration says about its targets.
type Settings struct {
	Addresses     []netip.AddrPort
	Volume        string
	Order         Order
	TLSServerName string // "" means the address of each target
	// RDMAAddress is the local address of RDMA connections; the zero Addr means that of the control
	// connection.
	RDMAAddress netip.Addr
	Dialect     dialects.Version // None means our own protocol
	Reconnect   retry.Policy
	// ControlTimeout bounds each step of a handshake.
	ControlTimeout time.Duration
	KeepAlive      controlmsg.KeepAliveConfig
	// CheckDevice fails if the targets behind an RDMA device cannot serve the channel. Only Set
	// needs it.
	CheckDevice func(rdma.Device) error
}
