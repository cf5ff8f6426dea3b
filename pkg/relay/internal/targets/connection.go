// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connection is a control connection to a target on which the volume is open.
type Connection struct {
	config  *Config
	Address netip.AddrPort
	name    string // of the volume, as configured
	// rdmaAddress is that of the settings: the zero Addr for the local address of the connection.
	rdmaAddress netip.Addr
	Requester   controlmsg.Caller
	// Lease is the connection as the lessee knows it. It is nil if the target asks no questions,
	// and until its hello.
	Lease    atomic.Pointer[lease.Connection]
	Dialect  *dialects.Requester // the Requester, if the target is one of the DOCA applications
	Version  dialects.Version    // that the Dialect has
	Volume   *controlmsg.OpenVolumeReply
	software string
	process  uint64 // of the target; 0 if it does not say
	// LeaseLength is how long the target's leases last; 0 if it asks no questions.
	LeaseLength time.Duration
	// chains verify the target's certificate, which is for serverName; nil without TLS. binder
	// proves that the TLS connections of data belong to this one; nil if data travels without TLS.
	chains     [][]*x509.Certificate
	serverName string
	binder     *controlmsg.DataBinder
	// securesData means that both sides want TLS for data.
	securesData bool
	// Source is the local address of RDMA connections, Device the RDMA device with that address.
	Source netip.Addr
	Device rdma.Device
	// deviceGone is closed when the device is lost.
	deviceGone <-chan struct{}
	// Moved is closed when the channel moves to another target.
	Moved <-chan struct{}
}

// connect connects to a target and opens the volume. onSize is called with each size in bytes that
// the target announces later, and must not block.
func connect(
	ctx context.Context, config *Config, address netip.AddrPort, settings *Settings,
	log *zap.Logger, onSize func(bytes uint64),
) (*Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, settings.ControlTimeout)
	defer cancel()
	stream, err := config.Network.Dial(ctx, netip.Addr{}, address)
	if err != nil {
		return nil, dialError(config.Network, address, err)
	}
	t := &Connection{config: config, Address: address, name: settings.Volume,
		rdmaAddress: settings.RDMAAddress, Source: settings.RDMAAddress}
	if !t.Source.IsValid() {
		t.Source = network.AddressOf(stream.LocalAddr()).Addr()
	}
	if settings.Dialect == dialects.None {
		err = t.greet(ctx, stream, settings, log, onSize)
	} else {
		err = t.beginDialect(stream, settings)
	}
	if t.Requester == nil {
		return nil, err
	}
	if err == nil {
		err = t.OpenVolume(ctx)
	}
	if err != nil {
		t.Close(err)
		return nil, t.OpenError(err)
	}
	return t, nil
}

// greet begins a conversation in our own protocol. If it fails before that, there is no Requester.
func (t *Connection) greet(
	ctx context.Context, stream network.Stream, settings *Settings, log *zap.Logger,
	onSize func(bytes uint64),
) error {
	var transport controlmsg.Transport
	tcp := controlmsg.TCPConfig{UserTimeout: settings.KeepAlive.DeadAfter}
	if credentials := t.config.TLS; credentials == nil {
		transport = controlmsg.NewTCPTransport(stream, tcp)
	} else {
		t.serverName = cmp.Or(settings.TLSServerName, t.Address.Addr().String())
		secured, err := controlmsg.NewTLSClient(ctx, stream, credentials.Client(t.serverName), tcp)
		if err != nil {
			return fmt.Errorf("connect to target %v: %w", t.Address, AsTemporary(suspectPort(err)))
		}
		transport, t.chains = secured, controlmsg.VerifiedChains(secured)
	}
	secured := transport
	requester := controlmsg.NewRequester(t.config.HookTransport(transport),
		controlmsg.EndpointConfig{
			Role:      controlmsg.RoleRelay,
			Timeout:   settings.ControlTimeout,
			KeepAlive: settings.KeepAlive,
			Announce:  func(m *controlmsg.KeepAlive) { m.Answer = t.Lease.Load().Answer() },
			OnKeepAlive: func(m *controlmsg.KeepAlive) error {
				t.Lease.Load().Hear(&m.Question)
				if m.VolumeSize > 0 {
					onSize(m.VolumeSize)
				}
				return nil
			},
			DataSecurity: t.config.DataSecurity,
			Peers:        t.config.Peers, Software: t.config.Software, Logger: log,
			Rejections: &t.config.Outages.conversations,
		})
	t.Requester = requester
	hello, err := requester.Greet(ctx)
	if err != nil {
		return suspectPort(err)
	}
	useTLS, err := controlmsg.DataUsesTLS(t.config.DataSecurity, hello.DataSecurity)
	t.securesData = useTLS
	if err == nil && useTLS {
		t.binder, err = controlmsg.NewDataBinder(secured)
	}
	if err != nil {
		return err
	}
	t.software, t.process = hello.Software, hello.Process
	t.LeaseLength = time.Duration(hello.LeaseMs) * time.Millisecond
	t.Lease.Store(t.config.Lessee.Connect(hello.Process, route{t.Address, settings.KeepAlive},
		t.LeaseLength, hello.Question, requester.Announce))
	return nil
}

// suspectPort says what a port probably is that does not answer a greeting as targets do: silence,
// and the end of the connection without a reason.
func suspectPort(err error) error {
	_, answered := errors.AsType[*controlmsg.Error](err)
	const ask = "%w: is that the --listen-port of a target%s? doctor finds out more"
	switch {
	case answered:
		return err
	case errors.Is(err, status.TimeOut):
		return fmt.Errorf(ask, err, "")
	case errors.Is(err, status.ConnectionReset), errors.Is(err, status.ConnectionAborted),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return fmt.Errorf(ask, err, ", and not its port for RDMA, or that of another program")
	}
	return err
}

// route is what connections to one process must have in common to share a lease and keep-alives.
type route struct {
	address   netip.AddrPort
	keepAlive controlmsg.KeepAliveConfig
}

// beginDialect begins a conversation with a target of the DOCA applications. If it fails, there is
// no Requester.
func (t *Connection) beginDialect(stream network.Stream, settings *Settings) error {
	v := settings.Dialect
	if t.config.TLS != nil {
		_ = stream.Close()
		return status.Errorf(status.NotConnected, "target %v: protocol %v has no TLS", t.Address, v)
	}
	t.Dialect = dialects.NewRequester(
		t.config.HookTransport(controlmsg.NewTCPTransport(stream, v.TCPConfig())),
		dialects.RequesterConfig{Version: v, Timeout: settings.ControlTimeout})
	t.Requester, t.Version, t.software = t.Dialect, v, v.String()+" target"
	return nil
}

// Close ends the conversation, with a reason for the target unless it is nil.
func (t *Connection) Close(reason error) {
	t.Requester.Close(reason)
	t.Lease.Load().Disconnect()
}

// errNoRoute is why no connection to an address can exist, whoever listens there.
var errNoRoute = errors.New("this machine has no route to it")

// dialError explains why a target could not be dialled.
func dialError(via network.Network, target netip.AddrPort, err error) error {
	// Dialling alone does not tell: a lack of free ports has the same error as that of an address.
	_, noRoute := via.SourceAddress(target)
	switch {
	case !errors.Is(noRoute, syscall.EADDRNOTAVAIL) && !errors.Is(noRoute, syscall.ENETUNREACH) &&
		!errors.Is(noRoute, syscall.EAFNOSUPPORT):
		return status.Errorf(status.NotConnected,
			"target %v cannot be reached (is it running?): %w", target, err)
	case target.Addr().Is6():
		return status.Errorf(status.NotConnected,
			"target %v cannot be reached: %w (is IPv6 switched off?): %w", target, errNoRoute, err)
	}
	return status.Errorf(status.NotConnected, "target %v cannot be reached: %w: %w", target,
		errNoRoute, err)
}

// Transport returns the RDMA transport that a session's connections to the target would use, by the
// name of rdma.Parameters.Name.
func (t *Connection) Transport(ctx context.Context) string {
	p := rdma.Parameters{Transport: t.transport(ctx)}
	if t.binder != nil && p.Transport == t.Device.Capabilities().Transport {
		p.Protection = rdma.ProtectedByTLS
	}
	return p.Name()
}

func (t *Connection) transport(ctx context.Context) string {
	if t.Volume.RDMAPort == 0 {
		return t.Volume.Transport
	}
	address := t.Address.Addr()
	if t.Volume.RDMAAddress.IsValid() {
		address = t.Volume.RDMAAddress
	}
	listener := netip.AddrPortFrom(address, t.Volume.RDMAPort)
	return rdma.TransportTo(ctx, t.Device, listener)
}

// CheckPeer fails if the relay would no longer accept the target's certificate.
func (t *Connection) CheckPeer() error {
	if t.config.TLS == nil {
		return nil
	}
	if err := t.config.TLS.CheckPeer(t.chains, nil); err != nil {
		return fmt.Errorf("target %v: %w", t.Address, AsTemporary(err))
	}
	return nil
}

// DataTLS returns what the RDMA connection with a token needs for TLS, and nil if it has none.
func (t *Connection) DataTLS(token [16]byte) *rdma.ClientTLS {
	if t.binder == nil {
		return nil
	}
	return &rdma.ClientTLS{
		Config: t.config.TLS.DataClient(t.serverName),
		PrivateData: func(binding []byte) []byte {
			return t.binder.Bind(token, binding).Append(nil)
		},
	}
}

// ExportForDialect completes a request with the export of the client's memory.
func (t *Connection) ExportForDialect(
	request *controlmsg.ConfigureDataPath, registered rdma.MemoryRegion,
) error {
	exported, ok := registered.(rdma.ExportedRegion)
	if !ok || len(exported.Export()) == 0 {
		return status.Errorf(status.NotSupported,
			"protocol %v needs the RDMA provider doca, and memory that the target may use",
			t.Version)
	}
	if request.Depth > math.MaxUint32/2 {
		return status.Errorf(status.TooBig, "depth %d", request.Depth)
	}
	request.Export.Descriptor = exported.Export()
	return nil
}

// Place returns where the volume of a channel is served.
func (t *Connection) Place(channel string) lease.Place {
	return lease.Place{Channel: channel, UUID: t.Volume.UUID, Sole: t.Volume.Sole}
}

// OpenError adds the volume and the target to an error of OpenVolume.
func (t *Connection) OpenError(err error) error {
	return fmt.Errorf("open volume %q of target %v: %w", t.name, t.Address, AsTemporary(err))
}

// noVolumeError is the answer of a target that does not have the volume.
type noVolumeError struct {
	error
	target netip.AddrPort
	volume string
}

// Unwrap returns the target's own error.
func (e *noVolumeError) Unwrap() error { return e.error }

// forClient returns the error for clients. The names of the volumes that the target has are for the
// relay's operator only: they are in its log and status.
func (e *noVolumeError) forClient() error {
	return status.Errorf(status.NotFound, "target %v has no volume %q, which this channel of the "+
		"relay is configured for: the relay's log and status list the volumes that it has",
		e.target, e.volume)
}

// ForClient returns the error for the client of a session in place of one of OpenVolume's.
func ForClient(err error) error {
	if missing, is := errors.AsType[*noVolumeError](err); is {
		return missing.forClient()
	}
	switch status.CodeOf(err) {
	// Another target has taken the volume since, or a device of the relay is missing.
	case status.NoLock, status.NotFound:
		return status.Errorf(status.NotConnected, "%w", err)
	}
	return err
}

// AsTemporary returns an error between relay and target under a code that clients take for a
// temporary one. Codes such as AUTHENTICATION or UNSUPPORTED_VERSION describe what the relay asked
// for, and a client that got them would not try again, although an operator can mend the target or
// the relay.
func AsTemporary(err error) error {
	switch status.CodeOf(err) {
	case status.NotPermitted, status.NotSupported, status.InvalidValue, status.TooBig,
		status.UnsupportedVersion, status.Authentication, status.BadConfig, status.Unexpected:
		return status.Errorf(status.NotConnected, "%w", err)
	}
	return err
}

// OpenVolume opens the volume, or opens it again to learn of a changed size.
func (t *Connection) OpenVolume(ctx context.Context) error {
	lessee := t.config.Lessee
	asked := lessee.Now()
	confirm := lessee.Awaits(t.config.Channel, t.process)
	volume, err := controlmsg.Call(ctx, t.Requester,
		&controlmsg.OpenVolume{Volume: t.name, Confirm: confirm})
	if errors.Is(err, status.NotFound) {
		err = &noVolumeError{err, t.Address, t.name}
	}
	if err != nil {
		return err
	}
	t.Volume = volume
	if confirm && volume.Confirmed {
		lessee.Replaced(t.process, t.Place(t.config.Channel), asked)
	}
	if t.Device, t.deviceGone, err = t.config.Device(ctx, t.Source); err != nil {
		return err
	}
	if err := t.config.DataSecurity.CheckDevice(t.Device, t.config.Fabric); err != nil {
		return err
	}
	if _, protects := rdma.Secure(t.Device); !protects {
		t.binder = nil
	}
	own := t.Device.Capabilities().Transport
	if !controlmsg.TransportsMayAgree(own, t.Volume.Transport) {
		return transportError(t.Volume.Transport, own, nil)
	}
	return nil
}

// IsStandBy reports whether a target has answered that it serves the volume only when the target
// that owns it is gone.
func IsStandBy(err error) bool { return errors.Is(err, status.NoLock) }

// IsPostponed reports whether a target has answered by a time to try again.
func IsPostponed(err error) bool { return controlmsg.RetryAfter(err) > 0 }

// Call sends a request to the target on behalf of a session's client.
func Call[R controlmsg.Message](
	ctx context.Context, t *Connection, request controlmsg.RequestFor[R],
) (R, error) {
	reply, err := controlmsg.Call(ctx, t.Requester, request)
	if err != nil {
		if t.Requester.Err() != nil {
			err = AsTemporary(err) // the connection has failed, not the request
		}
		return reply, fmt.Errorf("target %v: %w", t.Address, err)
	}
	return reply, nil
}
