package controlmsg

import (
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// CreateRDMAConnection asks the target for a place to connect to.
type CreateRDMAConnection struct {
	// Queue is the number of the queue, from 0.
	Queue uint32
	// Role tells which of the queue's connections it is.
	Role iomsg.ConnectionRole
	// Source is where the relay will connect from.
	Source netip.Addr
}

// CreateRDMAConnectionReply tells where to connect to, and with what.
type CreateRDMAConnectionReply struct {
	Address netip.AddrPort
	// Token goes back to the target in the RDMAPrivateData of the connection
	// request. It is random and good once.
	Token [16]byte
	// Staging is where the relay may push the data of writes: a buffer of the
	// agreed buffer size for each of its slots. Nil means nowhere.
	Staging *rdma.RemoteMemory
}

// Kind returns KindCreateRDMAConnection.
func (*CreateRDMAConnection) Kind() Kind { return KindCreateRDMAConnection }

// Kind returns KindCreateRDMAConnectionReply.
func (*CreateRDMAConnectionReply) Kind() Kind { return KindCreateRDMAConnectionReply }

func (m *CreateRDMAConnection) validate() error {
	if m.Queue >= MaxQueues {
		return status.Errorf(status.TooBig, "queue is %d, the limit is %d", m.Queue, MaxQueues-1)
	}
	if m.Role >= iomsg.ConnectionRoleCount {
		return status.Errorf(status.InvalidValue, "connection role %d does not exist", m.Role)
	}
	return checkAddress("source", m.Source)
}

func (m *CreateRDMAConnectionReply) validate() error {
	if m.Address.Port() == 0 {
		return status.Errorf(status.InvalidValue, "port is 0")
	}
	if s := m.Staging; s != nil && (s.Length == 0 || s.Base+s.Length < s.Base) {
		return status.Errorf(status.InvalidValue, "staging of %d bytes at %#x is empty or wraps", s.Length, s.Base)
	}
	return checkAddress("address", m.Address.Addr())
}

// checkAddress refuses what nobody can connect to or from. A zone has a
// meaning on its own machine only.
func checkAddress(field string, address netip.Addr) error {
	if !address.IsValid() || address.IsUnspecified() || address.IsMulticast() || address.Zone() != "" {
		return status.Errorf(status.InvalidValue, "%s %q is no unicast IP address without zone", field, address)
	}
	return nil
}
