package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// targetConnection is a control connection to the target with its volume
// opened.
type targetConnection struct {
	address   netip.AddrPort
	name      string // of the volume, as it was asked for
	requester *controlmsg.Requester
	volume    *controlmsg.OpenVolumeReply
	software  string
	// source is the local address of RDMA connections, and device the RDMA
	// device that has it.
	source netip.Addr
	device rdma.Device
	// expendable tells that its end does not matter to the session any more.
	expendable atomic.Bool
}

// openTarget connects to the target and opens the volume.
func (c *channel) openTarget(ctx context.Context, settings *ChannelConfig) (*targetConnection, error) {
	ctx, cancel := context.WithTimeout(ctx, settings.ControlTimeout)
	defer cancel()
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", settings.Target.String())
	if err != nil {
		return nil, status.Errorf(status.NotConnected, "target %v cannot be reached (is it running?): %w", settings.Target, err)
	}
	tcp := connection.(*net.TCPConn)
	transport, err := c.secure(ctx, tcp, settings)
	if err != nil {
		return nil, fmt.Errorf("connect to target %v: %w", settings.Target, err)
	}
	t := &targetConnection{
		address: settings.Target, name: settings.Volume, source: settings.RDMAAddress,
		requester: controlmsg.NewRequester(transport, controlmsg.EndpointConfig{
			Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleRelay, Timeout: settings.ControlTimeout,
			KeepAlive: settings.KeepAlive, Software: c.relay.config.Software, Logger: c.log,
		}),
	}
	if !t.source.IsValid() {
		t.source = tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	if err := t.open(ctx, settings.Volume, c.relay.devices); err != nil {
		t.requester.Close(err)
		return nil, fmt.Errorf("open volume %q of target %v: %w", settings.Volume, settings.Target, err)
	}
	return t, nil
}

// secure makes a transport of a connection to the target, by TLS if that is
// configured.
func (c *channel) secure(ctx context.Context, connection *net.TCPConn, settings *ChannelConfig) (controlmsg.Transport, error) {
	credentials := c.relay.config.TLS
	if credentials == nil {
		return controlmsg.NewTCPTransport(connection, controlmsg.TCPConfig{}), nil
	}
	name := cmp.Or(settings.TLSServerName, settings.Target.Addr().String())
	return controlmsg.NewTLSClient(ctx, connection, credentials.Client(name), controlmsg.TCPConfig{})
}

func (t *targetConnection) open(ctx context.Context, volume string, devices *deviceSet) error {
	hello, err := t.requester.Greet(ctx)
	if err != nil {
		return err
	}
	t.software = hello.Software
	t.volume, err = controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, t.requester, &controlmsg.OpenVolume{Volume: volume})
	if err != nil {
		return err
	}
	if t.device, err = devices.at(t.source); err != nil {
		return err
	}
	return t.checkTransport()
}

// checkTransport refuses a target that the relay's device cannot talk to.
func (t *targetConnection) checkTransport() error {
	if ours := t.device.Capabilities().Transport; t.volume.Transport != ours {
		return status.Errorf(status.NotSupported,
			"the target's RDMA transport is %q, the relay's %q: choose --rdma-provider and device so that they agree", t.volume.Transport, ours)
	}
	return nil
}

// deviceSet is the RDMA devices through which targets are reached, by their
// local addresses. They stay open until the relay ends.
type deviceSet struct {
	provider rdma.Provider

	mu      sync.Mutex
	devices map[netip.Addr]rdma.Device
}

func newDeviceSet(provider rdma.Provider) *deviceSet {
	return &deviceSet{provider: provider, devices: make(map[netip.Addr]rdma.Device)}
}

// at returns the device that has a local address.
func (d *deviceSet) at(source netip.Addr) (rdma.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if device := d.devices[source]; device != nil {
		return device, nil
	}
	device, err := d.provider.Open(source)
	if err != nil {
		return nil, fmt.Errorf("open RDMA device at %v: %w", source, err)
	}
	d.devices[source] = device
	return device, nil
}

// close closes all devices. Nothing may use them any more.
func (d *deviceSet) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for source, device := range d.devices {
		errs = append(errs, device.Close())
		delete(d.devices, source)
	}
	return errors.Join(errs...)
}

// sourceAddress is the local address from which the target is reached.
func sourceAddress(target netip.AddrPort) (netip.Addr, error) {
	// A UDP socket is routed when it is connected; nothing is sent.
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return netip.Addr{}, status.Errorf(status.NotConnected, "find the route to target %v: %w", target, err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
