// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	loopback = netip.MustParseAddr("127.0.0.1")
	anyPort  = netip.AddrPortFrom(loopback, 0)
)

func wrap(injector *fault.Injector) rdma.Provider {
	return hook.Wrap(iwarp.New(iwarp.Options{}), hook.Config{Injector: injector})
}

// A hooked provider keeps every promise of the seam, whether its operations are recorded or
// postponed.
func TestHookedProvidersConform(t *testing.T) {
	for name, rules := range map[string][]string{
		"tracing": {"rdma:any:trace"},
		// The rules of a switch that stays off make the suite take every path that can hold
		// something back.
		"delaying": {
			"rdma:any:while=off:freeze", "rdma:post_send:while=off:drop",
			"rdma:poll:every=3:delay=100us", "rdma:any:trace",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "tracing" {
				testkit.OnlyComplete(t, "the rules that delay record operations, too")
			}
			injector, recorder := faulttest.New(t, rules...)
			rdmatest.Run(t, rdmatest.Config{Provider: wrap(injector), Address: loopback})
			if recorder.Collect(make([]fault.Event, 1)) != 1 {
				t.Error("nothing was recorded")
			}
		})
	}
}
