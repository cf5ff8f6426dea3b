package iwarp

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "iwarp"

type provider struct{ options Options }

// New makes the provider. It is always available: it needs nothing but TCP.
func New(options Options) rdma.Provider {
	return &provider{options: options.withDefaults()}
}

// Name implements rdma.Provider.
func (p *provider) Name() string { return ProviderName }

// Open implements rdma.Provider. An unspecified address (0.0.0.0 or ::) stands
// for all of the machine's addresses.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	if !address.IsValid() {
		return nil, status.Errorf(status.InvalidValue, "open iwarp device: no address given")
	}
	// Whether an address is local is best told by the kernel: 127.0.0.0/8,
	// anycast and non-local binding make every own test wrong somewhere.
	probe, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
	if code := listenCode(err); code == status.NotFound {
		return nil, status.Errorf(code, "open iwarp device: %v is not an address of this machine: %w", address, err)
	}
	if err != nil {
		return nil, status.Errorf(listenCode(err), "open iwarp device %v: %w", address, err)
	}
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("open iwarp device %v: %w", address, err)
	}
	return &device{address: address, options: p.options, table: newMemoryTable(), uses: newUseCount()}, nil
}
