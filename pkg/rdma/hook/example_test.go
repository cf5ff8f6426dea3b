// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Whoever opens devices of this provider has to cope with a driver that fails the second time.
func ExampleWrap() {
	rule, err := fault.Parse("rdma:open:nth=2:error=DRIVER")
	must(err)
	injector, err := fault.New([]fault.Rule{rule}, nil)
	must(err)
	provider := hook.Wrap(iwarp.New(iwarp.Options{}), hook.Config{Injector: injector})
	for range 2 {
		device, err := provider.Open(netip.MustParseAddr("127.0.0.1"))
		fmt.Println(status.CodeOf(err), errors.Is(err, fault.ErrInjected))
		if err == nil {
			must(device.Close())
		}
	}
	// Output:
	// SUCCESS false
	// DRIVER true
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
