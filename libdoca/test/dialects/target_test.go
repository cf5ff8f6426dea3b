// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package dialects_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startTarget starts a target that has a volume disk.
func startTarget(t *testing.T, configure func(*target.Config)) *target.Target {
	t.Helper()
	s := newTarget(t, configure)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newTarget is startTarget without the start.
func newTarget(t *testing.T, configure func(*target.Config)) *target.Target {
	t.Helper()
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	config := target.Config{Listen: loopback, RDMAListen: loopback, CPUs: []int{datapath.NoCPU},
		Volumes:        map[string]target.Offer{"disk": {Volume: volumetest.OpenMemory(t, "1MiB")}},
		ControlTimeout: testkit.Patience, SessionRate: 1e6,
		KeepAlive: controlmsg.KeepAliveConfig{Interval: testkit.Patience / 4,
			DeadAfter: testkit.Patience}}
	configure(&config)
	s, err := target.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t *testing.T, address netip.AddrPort) network.Stream {
	t.Helper()
	stream, err := network.Kernel{}.Dial(t.Context(), netip.Addr{}, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	return stream
}

// ourRelay returns the control connection of a relay of our own, after hello. It tries again until
// it is fast enough for a timeout of the target.
func ourRelay(t *testing.T, address netip.AddrPort) *controlmsg.Requester {
	t.Helper()
	for begun := time.Now(); ; {
		r := controlmsg.NewRequester(
			controlmsg.NewTCPTransport(dial(t, address), controlmsg.TCPConfig{}),
			controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: testkit.Patience})
		_, err := r.Greet(t.Context())
		if err == nil {
			return r
		}
		r.Close(nil)
		if !errors.Is(err, status.TimeOut) || time.Since(begun) > testkit.Patience {
			t.Fatal(err)
		}
	}
}

// openDisk opens the volume for such a relay.
func openDisk(t *testing.T, r *controlmsg.Requester) error {
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{Volume: "disk"})
	return err
}
