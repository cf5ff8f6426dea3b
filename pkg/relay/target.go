package relay

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
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
