// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package doca

import (
	"fmt"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

type absent struct{}

// New returns a provider whose Open fails with status.NotSupported: this build lacks cgo.
func New(Options) rdma.Provider { return absent{} }

func (absent) Name() string { return ProviderName }

func (absent) Open(netip.Addr) (rdma.Device, error) {
	return nil, fmt.Errorf("rdma provider %s: %w", ProviderName, doca.ErrAbsent)
}
