// SPDX-License-Identifier: Apache-2.0

package epoch_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The second session of a client ends the first one, and begins when that is released.
func Example() {
	ctx, registry := context.Background(), epoch.NewRegistry(epoch.Config{Remember: 10})
	client := epoch.Instance{1}

	var first *epoch.Session
	first = epoch.NewSession(func(reason error) {
		fmt.Println("the first session ends:", errors.Is(reason, status.ConnectionReset))
		go registry.Release(first) // when nothing of it can take effect any more
	})
	fmt.Println(registry.Supersede(ctx, client, 1, first))

	second := epoch.NewSession(func(error) {})
	fmt.Println(registry.Supersede(ctx, client, 2, second))

	// A session of an earlier epoch comes too late.
	late := epoch.NewSession(func(error) {})
	fmt.Println(registry.Supersede(ctx, client, 1, late) != nil)
	registry.Release(second)
	// Output:
	// <nil>
	// the first session ends: true
	// <nil>
	// true
}
