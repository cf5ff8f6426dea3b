// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// probeAgain is the pause after a probe that has failed. A target or a relay that has much to
	// do may fail one.
	probeAgain = time.Second
	// probePoll is the pause between looks at the queue of a connection that should not exist.
	probePoll = time.Millisecond
)

// RDMARemote returns where the relay connects to for an address of the target's RDMA listener.
func (t *Connection) RDMARemote(address netip.AddrPort) (netip.AddrPort, error) {
	if address.Addr().Unmap().Is4() != t.Source.Is4() {
		return address, status.Errorf(status.NotConnected,
			"the target accepts RDMA connections at %v, which %v cannot reach: "+
				"choose --rdma-address on both sides from the same family", address, t.Source)
	}
	if address.Addr().IsLinkLocalUnicast() {
		zone := cmp.Or(t.Source.Zone(), t.Address.Addr().Zone())
		address = netip.AddrPortFrom(address.Addr().WithZone(zone), address.Port())
	}
	return address, nil
}

// probe reports why a session could not connect to the target's RDMA listener, or nil. The target
// turns the connection away, so that nothing of it stays. It does nothing for a target that has not
// said where it listens.
func (t *Connection) probe(ctx context.Context) error {
	if !t.Volume.RDMAAddress.IsValid() || t.Volume.RDMAPort == 0 {
		return nil
	}
	remote, err := t.RDMARemote(netip.AddrPortFrom(t.Volume.RDMAAddress, t.Volume.RDMAPort))
	if err != nil {
		return err
	}
	if err = probeListener(ctx, t.Device, t.Source, remote, t.DataTLS([16]byte{})); err == nil {
		return nil
	}
	if errors.Is(err, status.NotPermitted) {
		return status.Errorf(status.NotConnected, "target %v answers, but its %v does not admit this "+
			"relay: %w", t.Address, remote, err)
	}
	if own := t.Device.Capabilities().Transport; own != t.Volume.Transport {
		return transportError(t.Volume.Transport, own, err)
	}
	return status.Errorf(status.NotConnected, "target %v answers, but no RDMA connection from %v to "+
		"its %v is possible: check rdma.address on both sides, and firewalls between them: %w",
		t.Address, t.Source, remote, err)
}

// transportError returns the error for a relay and a target whose transports differ.
func transportError(target, own string, reason error) error {
	const text = "the target's RDMA transport is %q, the relay's %q: " +
		"set rdma.provider (--rdma-provider) on both sides so that they agree"
	if reason == nil {
		return status.Errorf(status.NotSupported, text, target, own)
	}
	return status.Errorf(status.NotConnected, text+", for instance to auto: %w", target, own, reason)
}

// probeListener connects a device to the RDMA listener of a target, which rejects the connection
// with the answer to a probe.
func probeListener(
	ctx context.Context, device rdma.Device, source netip.Addr, remote netip.AddrPort,
	secure *rdma.ClientTLS,
) (err error) {
	domain, err := device.NewProtectionDomain()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, domain.Close()) }()
	queue, err := device.NewCompletionQueue(4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	connection, err := device.Connect(ctx, remote, rdma.ConnectionConfig{
		Domain: domain, Queue: queue, Source: source, SendRequests: 1, ReceiveRequests: 1,
		PrivateData: controlmsg.RDMAPrivateData{}.Append(nil), TLS: secure,
	})
	if err == nil {
		return errors.Join(status.Errorf(status.NotConnected,
			"%v is not the RDMA listener of the target: it accepts any connection", remote),
			disconnect(ctx, connection, queue))
	}
	rejected, is := errors.AsType[*rdma.RejectedError](err)
	switch {
	case !is:
		return err
	case !bytes.HasPrefix(rejected.Reason, []byte(controlmsg.RDMAProbeAnswer)):
		// A connection manager of InfiniBand or RoCE pads a reason with zeros.
		return fmt.Errorf("%v is not the RDMA listener of the target: %w", remote, err)
	}
	return nil
}

// disconnect closes a connection and waits until its queue can be closed.
func disconnect(ctx context.Context, c rdma.Connection, queue rdma.CompletionQueue) error {
	c.Close()
	for {
		var completions [4]rdma.Completion
		for _, c := range completions[:queue.Poll(completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				return nil
			}
		}
		if !retry.Sleep(ctx, probePoll) {
			return context.Cause(ctx)
		}
	}
}

// probe probes the data path to a target, within the time of a step of a handshake.
func (l *Link) probe(ctx context.Context, t *Connection) error {
	return l.useDevice(ctx, &l.probing, "probe the data path", t.probe)
}

// watchPath probes the data path to a target at intervals. It returns why two probes in a row have
// failed, or nil if ctx ends.
func (l *Link) watchPath(ctx context.Context, t *Connection) error {
	for hasFailed := false; ; {
		pause := l.ProbeInterval
		if hasFailed {
			pause = min(probeAgain, pause)
		}
		if !retry.Sleep(ctx, pause) {
			return nil
		}
		err := l.probe(ctx, t)
		if err != nil && hasFailed {
			return err
		}
		hasFailed = err != nil
	}
}
