// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// Over RDMA that cannot connect to programs written for DOCA, only our protocol is possible.
func TestOverIWARPNothingIsDetected(t *testing.T) {
	s := startTarget(t, func(config *target.Config) {
		config.DetectProtocol, config.ControlTimeout = true, 100*time.Millisecond
	})
	silent := dial(t, s.Address())
	if err := silent.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent connection stays beyond the control timeout")
	}
}

func TestTheProtocolsOfTheApplicationsNeedTheProviderDoca(t *testing.T) {
	_, err := target.New(t.Context(), target.Config{RDMA: iwarp.New(iwarp.Options{}),
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Protocol: dialects.DOCA3_2,
		RDMAListen: netip.MustParseAddrPort("127.0.0.1:0"), CPUs: []int{-1}})
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("over iWARP: %v", err)
	}
}
