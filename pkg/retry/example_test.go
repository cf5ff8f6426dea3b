// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A schedule follows one failure: it allows attempts, with growing pauses, until the policy is
// exhausted.
func Example() {
	policy := retry.Policy{
		Attempts:   retry.Times(3),
		Total:      retry.Within(time.Minute),
		FirstPause: time.Millisecond,
	}
	connect := func() error { return errors.New("connection refused") }

	schedule := policy.Begin(time.Now())
	for {
		pause, err := schedule.Next(time.Now())
		if err != nil {
			fmt.Println("give up:", errors.Is(err, status.TimeOut))
			return
		}
		time.Sleep(pause) // 0 before the first attempt
		if err := connect(); err == nil {
			return
		}
		fmt.Printf("%v failed\n", schedule)
	}
	// Output:
	// attempt 1 of 3 failed
	// attempt 2 of 3 failed
	// attempt 3 of 3 failed
	// give up: true
}

// A Bound reads from flags and configuration files. An unset one means the default of its user,
// which is neither 0 nor infinite.
func ExampleBound() {
	var fromFlag, unset retry.Bound
	if err := fromFlag.Set("infinite"); err != nil {
		fmt.Println(err)
	}
	fallback := retry.Within(30 * time.Second)
	fmt.Println(fromFlag.Or(fallback), unset.Or(fallback))
	// Output: infinite 30s
}
