package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// targetConnection is a control connection to the target on which the volume is open.
type targetConnection struct {
	link    *targetLink
	address netip.AddrPort
	name    string // of the volume, as configured
	// rdmaAddress is that of the settings: the zero Addr for the local address of the connection.
	rdmaAddress netip.Addr
	requester   targetConversation
	// lease is the connection as the lessee knows it. It is nil if the target asks no questions,
	// and until its hello.
	lease    atomic.Pointer[lease.Connection]
	dialect  *dialects.Requester // the requester, if the target is one of the DOCA applications
	version  dialects.Version    // that the dialect has
	volume   *controlmsg.OpenVolumeReply
	software string
	process  uint64 // of the target; 0 if it does not say
	// leases is how long the target's leases last; 0 if it asks no questions.
	leases time.Duration
	// source is the local address of RDMA connections, device the RDMA device with that address.
	source netip.Addr
	device rdma.Device
	// deviceGone is closed when the device is lost.
	deviceGone <-chan struct{}
	// moved is closed when the channel moves to another target.
	moved <-chan struct{}
	// expendable is set when losing the target no longer ends the session.
	expendable atomic.Bool
}

// targetConversation is the relay's side of a conversation with a target: a controlmsg.Requester,
// or a dialects.Requester.
type targetConversation interface {
	controlmsg.Caller
	Done() <-chan struct{}
	Err() error
	Close(reason error)
}

// openTarget connects to a target and opens the volume. onSize is called with each size in bytes
// that the target announces later, and must not block.
func (c *channel) openTarget(
	ctx context.Context, link *targetLink, settings *ChannelConfig, log *zap.Logger,
	onSize func(bytes uint64),
) (*targetConnection, error) {
	address, moved := link.address, link.untilMove()
	ctx, cancel := context.WithTimeout(ctx, settings.ControlTimeout)
	defer cancel()
	connection, err := c.relay.config.Network.Dial(ctx, netip.Addr{}, address)
	if err != nil {
		return nil, c.dialError(address, err)
	}
	if settings.TargetProtocol != ProtocolNative {
		return c.openDialectTarget(ctx, link, settings, connection)
	}
	var transport controlmsg.Transport
	config := controlmsg.TCPConfig{UserTimeout: settings.KeepAlive.DeadAfter}
	if credentials := c.relay.config.TLS; credentials == nil {
		transport = controlmsg.NewTCPTransport(connection, config)
	} else {
		name := cmp.Or(settings.TLSServerName, address.Addr().String())
		transport, err = controlmsg.NewTLSClient(ctx, connection, credentials.Client(name), config)
		if err != nil {
			return nil, fmt.Errorf("connect to target %v: %w", address, asPassing(err))
		}
	}
	transport = c.relay.config.HookTransport(transport)
	t := &targetConnection{
		link: link, address: address, name: settings.Volume, rdmaAddress: settings.RDMAAddress,
		source: settings.RDMAAddress, moved: moved,
	}
	requester := controlmsg.NewRequester(transport, controlmsg.EndpointConfig{
		Role:      controlmsg.RoleRelay,
		Timeout:   settings.ControlTimeout,
		KeepAlive: settings.KeepAlive,
		Announce:  func(m *controlmsg.KeepAlive) { m.Answer = t.lease.Load().Answer() },
		OnKeepAlive: func(m *controlmsg.KeepAlive) error {
			t.lease.Load().Hear(&m.Question)
			if m.VolumeSize > 0 {
				onSize(m.VolumeSize)
			}
			return nil
		},
		Software: c.relay.config.Software, Logger: log,
	})
	t.requester = requester
	if !t.source.IsValid() {
		t.source = network.AddressOf(connection.LocalAddr()).Addr()
	}
	hello, err := requester.Greet(ctx)
	if errors.Is(err, status.TimeOut) {
		err = fmt.Errorf("%w: is that the --listen-port of a target? doctor finds out more", err)
	}
	if err == nil {
		t.software, t.process = hello.Software, hello.Process
		t.leases = time.Duration(hello.LeaseMs) * time.Millisecond
		t.lease.Store(c.relay.lessee.Connect(hello.Process, t.leases, hello.Question,
			requester.Announce))
		err = t.openVolume(ctx, c.relay)
	}
	if err == nil {
		err = c.targets.accept(t)
	}
	if err != nil {
		t.close(err)
		return nil, t.openError(err)
	}
	return t, nil
}

// close ends the conversation, with a reason for the target unless it is nil.
func (t *targetConnection) close(reason error) {
	t.requester.Close(reason)
	t.lease.Load().Disconnect()
}

// errNoRoute is why no connection to an address can exist, whoever listens there.
var errNoRoute = errors.New("this machine has no route to it")

// dialError explains why a target could not be dialled.
func (c *channel) dialError(target netip.AddrPort, err error) error {
	// Dialling alone does not tell: a lack of free ports has the same error as that of an address.
	_, noRoute := c.relay.config.Network.SourceAddress(target)
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

// transport returns the RDMA transport that a session's connections to the target would use.
func (t *targetConnection) transport(ctx context.Context) string {
	if t.volume.RDMAPort == 0 {
		return t.volume.Transport
	}
	listener := netip.AddrPortFrom(t.address.Addr(), t.volume.RDMAPort)
	return rdma.TransportTo(ctx, t.device, listener)
}

// openDialectTarget begins a conversation with a target of the DOCA applications.
func (c *channel) openDialectTarget(
	ctx context.Context, link *targetLink, settings *ChannelConfig, connection network.Stream,
) (*targetConnection, error) {
	if c.relay.config.TLS != nil {
		_ = connection.Close()
		return nil, status.Errorf(status.NotConnected, "target %v: protocol %s has no TLS",
			link.address, settings.TargetProtocol)
	}
	v, err := dialects.ParseVersion(string(settings.TargetProtocol))
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	dialect := dialects.NewRequester(
		c.relay.config.HookTransport(controlmsg.NewTCPTransport(connection, v.TCPConfig())),
		dialects.RequesterConfig{Version: v, Timeout: settings.ControlTimeout})
	t := &targetConnection{
		link: link, address: link.address, name: settings.Volume, source: settings.RDMAAddress,
		requester: dialect, dialect: dialect, version: v, software: v.String() + " target",
	}
	if !t.source.IsValid() {
		t.source = network.AddressOf(connection.LocalAddr()).Addr()
	}
	err = t.openVolume(ctx, c.relay)
	if err == nil {
		err = c.targets.accept(t)
	}
	if err != nil {
		t.close(err)
		return nil, t.openError(err)
	}
	return t, nil
}

// exportForDialect completes a request with the export of the client's memory.
func (t *targetConnection) exportForDialect(
	request *controlmsg.ConfigureDataPath, registered rdma.MemoryRegion,
) error {
	exported, ok := registered.(rdma.ExportedRegion)
	if !ok || len(exported.Export()) == 0 {
		return status.Errorf(status.NotSupported,
			"protocol %v needs the RDMA provider doca, and memory that the target may use",
			t.version)
	}
	if request.Depth > math.MaxUint32/2 {
		return status.Errorf(status.TooBig, "depth %d", request.Depth)
	}
	request.Export.Descriptor = exported.Export()
	return nil
}

// place tells where the volume is served.
func (t *targetConnection) place() lease.Place {
	return lease.Place{Channel: t.link.channel.id.String(), UUID: t.volume.UUID,
		Sole: t.volume.Sole}
}

// openError adds the volume and the target to an error of openVolume.
func (t *targetConnection) openError(err error) error {
	return fmt.Errorf("open volume %q of target %v: %w", t.name, t.address, asPassing(err))
}

// noVolumeError is the answer of a target that does not have the volume.
type noVolumeError struct{ error }

func (e *noVolumeError) Unwrap() error { return e.error }

func isNoVolume(err error) bool {
	_, is := errors.AsType[*noVolumeError](err)
	return is
}

// asPassing returns an error between relay and target under a code that clients take for a passing
// one. Codes such as AUTHENTICATION or UNSUPPORTED_VERSION describe what the relay asked for, and a
// client that got them would not try again, although an operator can mend the target or the relay.
func asPassing(err error) error {
	switch status.CodeOf(err) {
	case status.NotPermitted, status.NotSupported, status.InvalidValue, status.TooBig,
		status.UnsupportedVersion, status.Authentication, status.BadConfig, status.Unexpected:
		return status.Errorf(status.NotConnected, "%w", err)
	}
	return err
}

// openVolume opens the volume, or opens it again to learn of a changed size.
func (t *targetConnection) openVolume(ctx context.Context, r *Relay) error {
	asked := r.lessee.Now()
	confirm := r.lessee.Awaits(t.link.channel.id.String(), t.process)
	volume, err := controlmsg.Call(ctx, t.requester,
		&controlmsg.OpenVolume{Volume: t.name, Confirm: confirm})
	if errors.Is(err, status.NotFound) {
		err = &noVolumeError{err}
	}
	if err != nil {
		return err
	}
	t.volume = volume
	if confirm && volume.Confirmed {
		r.lessee.Replaced(t.process, t.place(), asked)
	}
	if t.device, err = r.devices.at(ctx, t.source); err != nil {
		return err
	}
	t.deviceGone = r.devices.gone(t.source)
	if own := t.device.Capabilities().Transport; t.volume.Transport != own {
		return status.Errorf(status.NotSupported,
			"the target's RDMA transport is %q, the relay's %q: "+
				"choose --rdma-provider and device so that they agree",
			t.volume.Transport, own)
	}
	return nil
}
