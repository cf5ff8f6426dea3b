// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A hook asks for the rules of its operations once, and for each operation what happens to it.
func Example() {
	rule, err := fault.Parse("volume:write:every=3:error=IO_FAILED")
	if err != nil {
		log.Fatal(err)
	}
	injector, err := fault.New([]fault.Rule{rule}, nil)
	if err != nil {
		log.Fatal(err)
	}
	writes := injector.Point(fault.Volume, "write")
	for range 3 {
		hit := writes.Next(4096)
		fmt.Println(hit.Action, hit.Action == fault.Error && errors.Is(hit.Err(), status.IOFailed))
	}
	for _, r := range injector.Rules() {
		fmt.Printf("%v: %d of %d operations\n", r.Rule, r.Matches, r.Seen)
	}
	// Output:
	// none false
	// none false
	// error true
	// volume:write:every=3:error=IO_FAILED: 1 of 3 operations
}
