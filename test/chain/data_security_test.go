// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"crypto/tls"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/auto"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// securely adds to options what relay and target need for TLS.
func securely(t *testing.T, o options, ofRelay, ofTarget controlmsg.DataSecurity) options {
	t.Helper()
	authority := mutualtlstest.NewAuthority(t)
	return securelyBy(t, authority, t.TempDir(), o, ofRelay, ofTarget)
}

// securelyBy is securely with an authority, and a directory for the relay's certificate.
func securelyBy(t *testing.T, authority *mutualtlstest.Authority, directory string, o options,
	ofRelay, ofTarget controlmsg.DataSecurity) options {
	t.Helper()
	load := func(directory, name string) *mutualtls.Credentials {
		c, err := mutualtls.Load(authority.Write(directory, []string{name}), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	inTarget, inRelay := o.Target, o.Relay
	o.Target = func(c *target.Config) {
		c.TLS, c.DataSecurity = load(t.TempDir(), "target.test"), ofTarget
		if inTarget != nil {
			inTarget(c)
		}
	}
	o.Relay = func(c *relay.Config) {
		c.TLS, c.DataSecurity = load(directory, "relay.test"), ofRelay
		if inRelay != nil {
			inRelay(c)
		}
	}
	inChannel := o.Channel
	o.Channel = func(c *relay.ChannelConfig) {
		c.TLSServerName = "target.test"
		if inChannel != nil {
			inChannel(c)
		}
	}
	return o
}

// deceiver is a provider whose devices have TLS, and do not use it for connections of one kind.
type deceiver struct {
	rdma.Provider
	listens, connects bool
	requests          atomic.Int64 // that have arrived at a listener without TLS
}

type deceivingDevice struct {
	rdma.SecureDevice
	provider *deceiver
}

type deceivingListener struct {
	rdma.Listener
	provider *deceiver
}

func (p *deceiver) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	if err != nil {
		return nil, err
	}
	return deceivingDevice{device.(rdma.SecureDevice), p}, nil
}

func (d deceivingDevice) ListenTLS(
	ctx context.Context, address netip.AddrPort, config rdma.ServerTLS,
) (rdma.Listener, error) {
	if !d.provider.listens {
		return d.SecureDevice.ListenTLS(ctx, address, config)
	}
	l, err := d.Listen(ctx, address)
	return deceivingListener{l, d.provider}, err
}

func (d deceivingDevice) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	if d.provider.connects {
		config.TLS = nil
	}
	return d.SecureDevice.Connect(ctx, remote, config)
}

func (l deceivingListener) Accept(ctx context.Context) (rdma.Request, error) {
	request, err := l.Listener.Accept(ctx)
	if err == nil {
		l.provider.requests.Add(1)
	}
	return request, err
}

// TestNeitherSideTrustsWhatTheOtherOneSaysOfItsTLS has one side agree on TLS, and not use it.
func TestNeitherSideTrustsWhatTheOtherOneSaysOfItsTLS(t *testing.T) {
	chaintest.Parallel(t)
	const wanted, required = controlmsg.DataSecurityTLS, controlmsg.DataSecurityRequired
	const noTLS = "does the peer speak TLS?"
	for name, test := range map[string]struct {
		relay, target     controlmsg.DataSecurity
		listens, connects bool
		says              string // the relay's reason
	}{
		"the relay requires it, the target's listener has none": {relay: required, target: wanted,
			listens: true, says: noTLS},
		"both want it, the target's listener has none": {relay: wanted, target: wanted,
			listens: true, says: noTLS},
		"the target requires it, the relay connects without": {relay: wanted, target: required,
			connects: true, says: "connection reset"},
		"both want it, the relay connects without": {relay: wanted, target: wanted, connects: true,
			says: "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			deceiving := &deceiver{Provider: iwarp.New(iwarp.Options{}), listens: test.listens,
				connects: test.connects}
			c := chaintest.Start(t, securely(t, options{
				Target: func(c *target.Config) {
					if test.listens {
						c.RDMA = deceiving
					}
				},
				Relay: func(c *relay.Config) {
					if test.connects {
						c.RDMA = deceiving
					}
				},
				Channel: func(c *relay.ChannelConfig) { c.SessionWait = retry.Within(0) },
			}, test.relay, test.target))
			c.Await("the relay has tried the target", func() bool {
				link := c.Relay.Channels()[0].Link
				return link.LastError != nil || link.State == relay.LinkReady
			})
			v, err := client.Open(c.Context(), c.Config())
			if err == nil {
				_ = v.Close(c.Context())
				t.Fatal("there is a session")
			}
			reason := err.Error()
			if last := c.Relay.Channels()[0].Link.LastError; last != nil {
				reason += last.Error()
			}
			if !strings.Contains(reason, test.says) {
				t.Errorf("the reason is %q, want %q", reason, test.says)
			}
			if n := deceiving.requests.Load(); n > 0 {
				t.Errorf("%d requests have arrived without TLS", n)
			}
			c.AwaitRelease()
		})
	}
}

// TestAutoProtectsWhateverTransportItChooses requires TLS between targets and a relay with the
// provider auto on the same machine.
func TestAutoProtectsWhateverTransportItChooses(t *testing.T) {
	chaintest.Parallel(t)
	const required = controlmsg.DataSecurityRequired
	for name, test := range map[string]struct {
		target    rdma.Provider
		transport string
	}{
		"over shared memory":                     {auto.New(iwarp.Options{}), "shm"},
		"over TCP, if the target has only iWARP": {iwarp.New(iwarp.Options{}), "iwarp+tls"},
	} {
		t.Run(name, func(t *testing.T) {
			c := chaintest.Start(t, securely(t, options{
				Target: func(c *target.Config) { c.RDMA = test.target },
				Relay:  func(c *relay.Config) { c.RDMA = auto.New(iwarp.Options{}) },
			}, required, required))
			v := c.Open(c.Config())
			want := chaintest.RandomBytes(1<<20, 1)
			if _, err := v.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := v.ReadAt(got, 0); err != nil || string(got) != string(want) {
				t.Errorf("what was written is not read (%v)", err)
			}
			if got := v.Info().Transport; got != test.transport {
				t.Errorf("the transport is %q, want %q", got, test.transport)
			}
		})
	}
}

// watcher is a provider whose listeners with TLS note whose certificates they see.
type watcher struct {
	rdma.Provider
	mu    sync.Mutex
	names []string
}

type watchingDevice struct {
	rdma.SecureDevice
	provider *watcher
}

func (p *watcher) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	if err != nil {
		return nil, err
	}
	return watchingDevice{device.(rdma.SecureDevice), p}, nil
}

func (d watchingDevice) ListenTLS(
	ctx context.Context, address netip.AddrPort, config rdma.ServerTLS,
) (rdma.Listener, error) {
	inner := config.Config
	config.Config = func() *tls.Config {
		c := inner()
		verify := c.VerifyConnection
		c.VerifyConnection = func(state tls.ConnectionState) error {
			d.provider.mu.Lock()
			defer d.provider.mu.Unlock()
			d.provider.names = append(d.provider.names, state.PeerCertificates[0].DNSNames...)
			return verify(state)
		}
		return c
	}
	return d.SecureDevice.ListenTLS(ctx, address, config)
}

// seen returns whose certificates have been seen since the last call.
func (p *watcher) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := slices.Compact(p.names)
	p.names = nil
	return names
}

func TestTheNextSessionsDataConnectionsUseTheRelaysRenewedCertificate(t *testing.T) {
	chaintest.Parallel(t)
	const required = controlmsg.DataSecurityRequired
	authority, directory := mutualtlstest.NewAuthority(t), t.TempDir()
	watching := &watcher{Provider: iwarp.New(iwarp.Options{})}
	c := chaintest.Start(t, securelyBy(t, authority, directory,
		options{Target: func(c *target.Config) { c.RDMA = watching }}, required, required))
	c.AwaitState(client.DefaultChannelName, relay.LinkReady)
	before := c.Open(c.Config())
	if names := watching.seen(); !slices.Equal(names, []string{"relay.test"}) {
		t.Errorf("the first session connects as %q", names)
	}
	authority.Write(directory, []string{"renewed.test"})
	after := c.Open(c.Config())
	if names := watching.seen(); !slices.Equal(names, []string{"renewed.test"}) {
		t.Errorf("the next session connects as %q", names)
	}
	for _, v := range []*client.Volume{before, after} {
		if _, err := v.WriteAt(make([]byte, blockSize), 0); err != nil {
			t.Error(err)
		}
	}
}
