// Package verbs is the place of the RDMA provider for verbs devices. It is
// absent from this build: Open answers with status.NotSupported, so that
// programs can list the provider and say why it cannot be chosen.
package verbs

import (
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ErrAbsent is why the provider cannot be used. It matches
// status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported, "rdma provider verbs is not part of this build: use the provider iwarp")

type absent struct{}

// New returns the provider.
func New() rdma.Provider { return absent{} }

func (absent) Name() string { return "verbs" }

func (absent) Open(netip.Addr) (rdma.Device, error) { return nil, ErrAbsent }
