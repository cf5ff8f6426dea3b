// SPDX-License-Identifier: Apache-2.0

package auto_test

import (
	"bytes"
	"crypto/tls"
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/auto"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

func TestProviderConformance(t *testing.T) {
	rdmatest.Run(t, rdmatest.Config{Provider: auto.New(iwarp.Options{}), Address: loopback,
		Lend: rdmatest.LendForReading})
}

// TestTheTransportIsWhatBothSidesHave connects every pair that can be connected.
func TestTheTransportIsWhatBothSidesHave(t *testing.T) {
	both, tcp := auto.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	for name, test := range map[string]struct {
		connecting, accepting rdma.Provider
		want                  string
	}{
		"auto to auto":  {both, both, shm.ProviderName},
		"auto to iwarp": {both, tcp, iwarp.ProviderName},
		"iwarp to auto": {tcp, both, iwarp.ProviderName},
		"auto to shm":   {both, shm.New(shm.Options{}), shm.ProviderName},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := newEnd(t, test.connecting), newEnd(t, test.accepting)
			defer x.close(t)
			defer y.close(t)
			listener, err := y.device.Listen(t.Context(), netip.AddrPortFrom(loopback, 0))
			must(t, err)
			defer func() { must(t, listener.Close()) }()
			expected := rdma.TransportTo(t.Context(), x.device, listener.Address())
			if expected != test.want {
				t.Errorf("the transport would be %s, want %s", expected, test.want)
			}
			result := make(chan error, 1)
			go func() {
				var err error
				x.connection, err = x.device.Connect(t.Context(), listener.Address(), x.config())
				result <- err
			}()
			request, err := listener.Accept(t.Context())
			must(t, err)
			y.connection, err = request.Accept(t.Context(), y.config())
			must(t, err)
			must(t, <-result)
			for _, e := range []*end{x, y} {
				if got := e.connection.Parameters().Transport; got != test.want {
					t.Errorf("the transport is %s, want %s", got, test.want)
				}
			}
		})
	}
}

// TestEachTransportIsProtected connects every pair with TLS required.
func TestEachTransportIsProtected(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	load := func(name string) *mutualtls.Credentials {
		c, err := mutualtls.Load(authority.Write(t.TempDir(), []string{name}), nil)
		must(t, err)
		return c
	}
	client, server := load("relay.test").DataClient("target.test"),
		load("target.test").DataServer(nil)
	both, tcp := auto.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	for name, test := range map[string]struct {
		connecting, accepting rdma.Provider
		isPlain               bool // the listener has no TLS
		want                  rdma.Protection
	}{
		"auto to auto":        {both, both, false, rdma.ProtectedByMachine},
		"auto to iwarp":       {both, tcp, false, rdma.ProtectedByTLS},
		"auto to plain iwarp": {both, tcp, true, rdma.Unprotected},
		"iwarp to auto":       {tcp, both, false, rdma.ProtectedByTLS},
		"iwarp to plain auto": {tcp, both, true, rdma.Unprotected},
		"auto to shm":         {both, shm.New(shm.Options{}), false, rdma.ProtectedByMachine},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := newEnd(t, test.connecting), newEnd(t, test.accepting)
			listen := func() (rdma.Listener, error) {
				secure, is := rdma.Secure(y.device)
				if !is {
					t.Fatal("the device protects nothing")
				}
				address := netip.AddrPortFrom(loopback, 0)
				if test.isPlain {
					return secure.Listen(t.Context(), address)
				}
				return secure.ListenTLS(t.Context(), address, rdma.ServerTLS{Required: true,
					Config: func() *tls.Config { return server }})
			}
			listener, err := listen()
			must(t, err)
			requests := make(chan rdma.Request, 1)
			accepting := make(chan error, 1)
			go func() {
				request, err := listener.Accept(t.Context())
				if err == nil {
					requests <- request
					y.connection, err = request.Accept(t.Context(), y.config())
				}
				accepting <- err
			}()
			config := x.config()
			config.TLS = &rdma.ClientTLS{Config: client,
				PrivateData: func(binding []byte) []byte { return binding }}
			x.connection, err = x.device.Connect(t.Context(), listener.Address(), config)
			if test.want == rdma.Unprotected {
				if err == nil {
					t.Error("connected without TLS")
				}
				must(t, listener.Close())
				if <-accepting == nil {
					t.Error("accepted a connection without TLS")
				}
				x.discard(t)
				y.discard(t)
				return
			}
			must(t, err)
			must(t, <-accepting)
			must(t, listener.Close())
			defer x.close(t)
			defer y.close(t)
			request := rdma.Protected(<-requests)
			if request.Protection() != test.want ||
				!bytes.Equal(request.Binding(), request.PrivateData()) {
				t.Errorf("the request's protection is %q", request.Protection())
			}
			for _, e := range []*end{x, y} {
				if got := e.connection.Parameters().Protection; got != test.want {
					t.Errorf("the protection is %q, want %q", got, test.want)
				}
			}
		})
	}
}

// end is one end of a connection.
type end struct {
	device     rdma.Device
	domain     rdma.ProtectionDomain
	queue      rdma.CompletionQueue
	memory     rdma.MemoryRegion
	connection rdma.Connection
}

func newEnd(t *testing.T, provider rdma.Provider) *end {
	t.Helper()
	e := &end{}
	var err error
	e.device, err = provider.Open(loopback)
	must(t, err)
	e.domain, err = e.device.NewProtectionDomain()
	must(t, err)
	e.queue, err = e.device.NewCompletionQueue(8)
	must(t, err)
	e.memory, err = e.domain.Register(memory.Wrap(make([]byte, 64)), memory.LocalWrite)
	must(t, err)
	return e
}

func (e *end) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, SendRequests: 1,
		ReceiveRequests: 1, Receives: []rdma.ReceiveRequest{{Local: rdma.Segment{
			Key: e.memory.LocalKey(), Length: 64}}}}
}

func (e *end) close(t *testing.T) {
	t.Helper()
	e.connection.Close()
	var completions [8]rdma.Completion
	for e.queue.Poll(completions[:]) > 0 {
	}
	e.discard(t)
}

// discard is close without a connection.
func (e *end) discard(t *testing.T) {
	t.Helper()
	must(t, e.memory.Deregister())
	must(t, e.queue.Close())
	must(t, e.domain.Close())
	must(t, e.device.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
