// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// seam is a network whose streams are not sockets, to whoever uses them. It counts them.
type seam struct {
	network.Kernel
	dialled, accepted, routed atomic.Int64
}

type opaque struct{ network.Stream }

func (s *seam) Dial(
	ctx context.Context, local netip.Addr, remote netip.AddrPort,
) (network.Stream, error) {
	stream, err := s.Kernel.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	s.dialled.Add(1)
	return opaque{stream}, nil
}

func (s *seam) SourceAddress(remote netip.AddrPort) (netip.Addr, error) {
	s.routed.Add(1)
	return s.Kernel.SourceAddress(remote)
}

func (s *seam) Listen(ctx context.Context, address netip.AddrPort) (network.Listener, error) {
	listener, err := s.Kernel.Listen(ctx, address)
	if err != nil {
		return nil, err
	}
	return seamListener{listener, s}, nil
}

type seamListener struct {
	network.Listener
	seam *seam
}

func (l seamListener) Accept() (network.Stream, error) {
	stream, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.seam.accepted.Add(1)
	return opaque{stream}, nil
}

func TestControlConnectionsUseTheConfiguredNetwork(t *testing.T) {
	chaintest.Parallel(t)
	atRelay, atTarget := &seam{}, &seam{}
	c := chaintest.Start(t, options{
		Target: func(config *target.Config) { config.Network = atTarget },
		Relay:  func(config *relay.Config) { config.Network = atRelay },
	})
	v := c.Open(c.Config())
	if _, err := v.WriteAt([]byte("over the seam"), 0); err != nil {
		t.Fatal(err)
	}
	// The link and the session have a connection each.
	if dialled, accepted := atRelay.dialled.Load(), atTarget.accepted.Load(); dialled != 2 ||
		accepted != 2 || atRelay.routed.Load() != 1 {
		t.Errorf("%d connections dialled, %d accepted, %d routes looked up", dialled, accepted,
			atRelay.routed.Load())
	}
}
