// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// While a relay restarts, its directory is missing, and then closed to other users for a moment.
// Neither may end a volume for good, unlike an answer that another attempt would not change.
func TestARestartOfTheRelayDoesNotEndAVolume(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&os.PathError{Op: "open", Path: "/run/zc-relay/comch", Err: syscall.EACCES}, false},
		{&os.PathError{Op: "open", Path: "/run/zc-relay/comch", Err: syscall.ENOENT}, false},
		{status.Errorf(status.ConnectionReset, "the relay was killed"), false},
		{status.Errorf(status.NotPermitted, "the relay does not admit this client"), true},
		{ErrAnotherVolume, true},
	} {
		if got := isPermanent(fmt.Errorf("connect: %w", c.err)); got != c.want {
			t.Errorf("%v: permanent %v, want %v", c.err, got, c.want)
		}
	}
}
