// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// cuttableProvider is a provider whose devices cannot connect while isCut.
type cuttableProvider struct {
	rdma.Provider
	isCut    atomic.Bool
	attempts atomic.Int64
}

func (p *cuttableProvider) Open(address netip.Addr) (rdma.Device, error) {
	inner, err := p.Provider.Open(address)
	return &cuttableDevice{inner, p}, err
}

type cuttableDevice struct {
	rdma.Device
	provider *cuttableProvider
}

func (d *cuttableDevice) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	d.provider.attempts.Add(1)
	if d.provider.isCut.Load() {
		return nil, status.Errorf(status.TimeOut, "the network is cut")
	}
	return d.Device.Connect(ctx, remote, config)
}

// TestAChannelIsReadyOnlyWhileSessionsCanReachTheTargetsMemory cuts only the data path: the control
// connection stays.
func TestAChannelIsReadyOnlyWhileSessionsCanReachTheTargetsMemory(t *testing.T) {
	t.Cleanup(relay.SetProbeInterval(5 * time.Millisecond))
	provider := &cuttableProvider{Provider: iwarp.New(iwarp.Options{})}
	provider.isCut.Store(true)
	c := startChainWith(t, chainOptions{rdma: provider})
	cut := func() {
		t.Helper()
		testkit.Eventually(t, "the channel is not ready, and says why", func() bool {
			s := c.status().Link
			return s.State == relay.LinkWaiting && s.LastError != nil &&
				strings.Contains(s.LastError.Error(), "no RDMA connection from 127.0.0.1") &&
				strings.Contains(s.LastError.Error(), "the network is cut")
		})
	}
	heal := func() {
		t.Helper()
		provider.isCut.Store(false)
		testkit.Eventually(t, "the channel is ready", func() bool {
			return c.status().Link.State == relay.LinkReady
		})
	}
	cut()
	heal()
	probed := provider.attempts.Load()
	testkit.Eventually(t, "the relay probes a target that is ready", func() bool {
		return provider.attempts.Load() > probed+3
	})
	if s := c.status().Link; s.State != relay.LinkReady || s.Losses != 0 {
		t.Errorf("probes have made the link %s, with %d losses", s.State, s.Losses)
	}
	if open := c.target.OpenSessions(); len(open) != 1 { // the channel's own connection
		t.Errorf("probes have left %d sessions", len(open)-1)
	}
	c.openQueue()
	provider.isCut.Store(true)
	cut()
	heal()
}
