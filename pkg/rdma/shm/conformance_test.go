// SPDX-License-Identifier: Apache-2.0

package shm_test

import (
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
)

func TestProviderConformance(t *testing.T) {
	for name, config := range map[string]rdmatest.Config{
		"nothing lent":     {Address: netip.MustParseAddr("127.0.0.1")},
		"lent for reading": {Address: netip.MustParseAddr("127.0.0.1"), Lend: rdmatest.LendForReading},
		"lent for writing": {Address: netip.MustParseAddr("127.0.0.1"), Lend: rdmatest.LendForWriting,
			Missing: map[rdmatest.Feature]string{
				rdmatest.WritesNeedPolling: "a Write to lent memory is a copy by its sender",
			}},
	} {
		t.Run(name, func(t *testing.T) {
			config.Provider = shm.New(shm.Options{})
			rdmatest.Run(t, config)
		})
	}
}
