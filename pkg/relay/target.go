package relay

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// targetConnection is a control connection to the target with its volume
// opened.
type targetConnection struct {
	requester *controlmsg.Requester
	volume    *controlmsg.OpenVolumeReply
	software  string
	// source is the local address of RDMA connections.
	source netip.Addr
	// expendable tells that its end does not matter to the session any more.
	expendable atomic.Bool
}

// openTarget connects to the target and opens the volume.
func (r *Relay) openTarget(ctx context.Context) (*targetConnection, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config.ControlTimeout)
	defer cancel()
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", r.config.Target.String())
	if err != nil {
		return nil, status.Errorf(status.NotConnected, "target %v cannot be reached (is it running?): %w", r.config.Target, err)
	}
	tcp := connection.(*net.TCPConn)
	transport, err := r.secure(ctx, tcp)
	if err != nil {
		return nil, fmt.Errorf("connect to target %v: %w", r.config.Target, err)
	}
	t := &targetConnection{
		source: r.config.RDMAAddress,
		requester: controlmsg.NewRequester(transport, controlmsg.EndpointConfig{
			Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleRelay, Timeout: r.config.ControlTimeout,
			KeepAlive: r.config.KeepAlive, Software: r.config.Software, Logger: r.log,
		}),
	}
	if !t.source.IsValid() {
		t.source = tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	err = t.open(ctx, r.config.Volume)
	if err == nil {
		err = r.checkTransport(t.volume.Transport)
	}
	if err != nil {
		t.requester.Close(err)
		return nil, fmt.Errorf("open volume %q of target %v: %w", r.config.Volume, r.config.Target, err)
	}
	return t, nil
}

// secure makes a transport of a connection to the target, by TLS if that is
// configured.
func (r *Relay) secure(ctx context.Context, connection *net.TCPConn) (controlmsg.Transport, error) {
	if r.config.TLS == nil {
		return controlmsg.NewTCPTransport(connection, controlmsg.TCPConfig{}), nil
	}
	name := cmp.Or(r.config.TLSServerName, r.config.Target.Addr().String())
	return controlmsg.NewTLSClient(ctx, connection, r.config.TLS.Client(name), controlmsg.TCPConfig{})
}

// checkTransport refuses a target that the relay's device cannot talk to.
func (r *Relay) checkTransport(theirs string) error {
	if ours := r.device.Capabilities().Transport; theirs != ours {
		return status.Errorf(status.NotSupported,
			"the target's RDMA transport is %q, the relay's %q: choose --rdma-provider and device so that they agree", theirs, ours)
	}
	return nil
}

func (t *targetConnection) open(ctx context.Context, volume string) error {
	hello, err := t.requester.Greet(ctx)
	if err != nil {
		return err
	}
	t.software = hello.Software
	t.volume, err = controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, t.requester, &controlmsg.OpenVolume{Volume: volume})
	return err
}

// Pauses between attempts to reach a target that is down.
const (
	firstRetryPause = 100 * time.Millisecond
	lastRetryPause  = 5 * time.Second
)

// watchTarget keeps one control connection to the target besides those of the
// sessions: it tells whether new sessions can be served, before any client
// asks.
func (r *Relay) watchTarget(ctx context.Context) {
	pause := firstRetryPause
	for attempt := 1; ctx.Err() == nil; attempt++ {
		target, err := r.openTarget(ctx)
		if err == nil {
			attempt, pause = 0, firstRetryPause
			r.log.Info("target is ready", zap.Stringer("target", r.config.Target), zap.String("volume", target.volume.Volume),
				zap.Uint64("size_bytes", target.volume.Size), zap.Uint32("block_size_bytes", target.volume.BlockSize),
				zap.String("target_software", target.software))
			r.config.OnReady(nil)
			err = awaitEnd(ctx, target.requester)
		}
		if ctx.Err() != nil {
			return
		}
		r.config.OnReady(err)
		r.log.Warn("target is not available", zap.Stringer("target", r.config.Target), zap.Error(err),
			zap.Int("attempt", attempt+1), zap.Duration("next_in", pause))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetryPause)
	}
}

// awaitEnd waits for the end of a control connection and says why it ended.
func awaitEnd(ctx context.Context, requester *controlmsg.Requester) error {
	select {
	case <-requester.Done():
		err := requester.Err()
		requester.Close(nil)
		return err
	case <-ctx.Done():
		requester.Close(errShuttingDown)
		return ctx.Err()
	}
}
