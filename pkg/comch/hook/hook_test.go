// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wrap(t testing.TB, injector *fault.Injector) comch.Provider {
	return hook.Wrap(emulated.New(emulated.Options{Directory: t.TempDir()}),
		hook.Config{Injector: injector})
}

// A hooked provider keeps every promise of the seam, whether its operations are recorded or
// postponed.
func TestHookedProvidersConform(t *testing.T) {
	for name, rules := range map[string][]string{
		"tracing": {"comch:any:trace"},
		// The rules of a switch that stays off make the suite take every path that can hold
		// something back.
		"delaying": {
			"comch:any:while=off:freeze", "comch:any:while=off:drop",
			"comch:consumer.poll:every=3:delay=100us", "comch:receive:every=5:delay=100us",
			"comch:any:trace",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "tracing" {
				testkit.OnlyComplete(t, "the rules that delay record operations, too")
			}
			injector, recorder := faulttest.New(t, rules...)
			config := comchtest.Config{
				Provider: wrap(t, injector), OtherDevice: "03:00.1", OtherHostDevice: "b1:00.1",
				ExportNeedsDescriptor: true,
			}
			comchtest.Run(t, config)
			contextstest.Run(t, config)
			if recorder.Collect(make([]fault.Event, 1)) != 1 {
				t.Error("nothing was recorded")
			}
		})
	}
}
