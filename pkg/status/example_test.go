// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// An error carries the code under which it is reported to a peer. Callers match the code with
// errors.Is, and can still match the cause.
func Example() {
	cause := fmt.Errorf("open /var/lib/disk: %w", fs.ErrNotExist)
	err := fmt.Errorf("open volume: %w", status.Errorf(status.NotFound, "no volume %q: %w", "disk",
		cause))

	fmt.Println(err)
	fmt.Println(errors.Is(err, status.NotFound), errors.Is(err, fs.ErrNotExist))
	fmt.Println(uint32(status.CodeOf(err)), status.CodeOf(err))
	// Output:
	// open volume: no volume "disk": open /var/lib/disk: file does not exist [NOT_FOUND]
	// true true
	// 16 NOT_FOUND
}

// CodeOf also knows the errors of the standard library that have a counterpart.
func ExampleCodeOf() {
	for _, err := range []error{nil, context.DeadlineExceeded, fs.ErrPermission,
		errors.New("odd")} {
		fmt.Println(status.CodeOf(err))
	}
	// Output:
	// SUCCESS
	// TIME_OUT
	// NOT_PERMITTED
	// UNKNOWN
}
