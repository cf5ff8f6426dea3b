// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"context"
	"crypto/tls"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// OverTLS returns a provider whose devices use TLS for all connections. change may adapt the
// configurations of both sides.
func OverTLS(
	t testing.TB, provider rdma.Provider, change ...func(client, server *tls.Config),
) rdma.Provider {
	t.Helper()
	const name = "rdma.test"
	authority := mutualtlstest.NewAuthority(t)
	credentials, err := mutualtls.Load(authority.Write(t.TempDir(), []string{name}), nil)
	if err != nil {
		t.Fatal(err)
	}
	client, server := credentials.DataClient(name), credentials.DataServer(nil)
	for _, f := range change {
		f(client, server)
	}
	return &secureProvider{Provider: provider, client: client, server: server}
}

type secureProvider struct {
	rdma.Provider
	client, server *tls.Config
}

// Open opens a device.
func (p *secureProvider) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	if err != nil {
		return nil, err
	}
	return &secureDevice{device.(rdma.SecureDevice), p}, nil
}

type secureDevice struct {
	rdma.SecureDevice
	provider *secureProvider
}

// Listen listens for connections with TLS.
func (d *secureDevice) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	return d.ListenTLS(ctx, address, rdma.ServerTLS{
		Config: func() *tls.Config { return d.provider.server }, Required: true,
	})
}

// Connect connects with TLS.
func (d *secureDevice) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	data := config.PrivateData
	config.TLS = &rdma.ClientTLS{Config: d.provider.client,
		PrivateData: func([]byte) []byte { return data }}
	return d.SecureDevice.Connect(ctx, remote, config)
}
