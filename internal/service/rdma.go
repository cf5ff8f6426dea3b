package service

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/providers"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// rdmaFlags choose and tune the RDMA provider.
type rdmaFlags struct {
	provider string
	address  string
	options  providers.RDMAOptions
	gidIndex int
}

// anyGID leaves the choice of the GID to the address.
const anyGID = -1

func (o *rdmaFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.provider, "rdma-provider", providers.DefaultRDMA, "RDMA provider: iwarp or verbs")
	f.StringVar(&o.address, "rdma-address", "", "local IP address of RDMA connections (default: that of the control connections)")
	f.BoolVar(&o.options.CRC, "rdma-crc", false, "iwarp: protect connections by CRC32C; on if either side asks for it")
	v := &o.options.Verbs
	f.StringVar(&v.Device, "rdma-device", "", "verbs: RDMA device, or network interface that has one (default: the device that has the address)")
	f.IntVar(&o.gidIndex, "rdma-gid-index", anyGID, "verbs: entry of the GID table to use (default: that of the address)")
	f.IntVar(&v.PathMTU, "rdma-path-mtu", 0, "verbs: payload of a packet in bytes, the same on both sides: 256 to 4096 (default: as the route allows)")
	f.Uint8Var(&v.TypeOfService, "rdma-tos", 0, "verbs: type of service of the packets, which selects the traffic class (default: the system's)")
	f.IntVar(&v.RetryCount, "rdma-retry-count", 0, "verbs: how often a packet without acknowledgement is sent again, 1 to 7 (default 7)")
}

// localAddress is the zero Addr if none was chosen.
func (o *rdmaFlags) localAddress() (netip.Addr, error) {
	if o.address == "" {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(o.address)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--rdma-address: %q is no IP address: %w", o.address, err)
	}
	return address.Unmap(), nil
}

func (o *rdmaFlags) open(log *zap.Logger) (rdma.Provider, error) {
	options := o.options
	options.Logger = log
	if o.gidIndex != anyGID {
		options.Verbs.GIDIndex = &o.gidIndex
	}
	p, err := providers.RDMA(o.provider, options)
	if err != nil {
		return nil, fmt.Errorf("--rdma-provider: %w", err)
	}
	return p, nil
}
