// SPDX-License-Identifier: Apache-2.0

package doca_test

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch/doca"
	docalibrary "github.com/zc-relay/zc-relay/pkg/doca"
)

// Whether the machine has libdoca shows when something needs it: a program that can use other
// providers starts in any case.
func Example() {
	provider := doca.New(doca.Options{})
	c, err := provider.Capabilities("03:00.0")
	switch {
	case errors.Is(err, docalibrary.ErrAbsent):
		fmt.Println("no libdoca here:", err)
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("messages of up to", c.MaxMessageSize, "bytes")
	}
}
