// SPDX-License-Identifier: Apache-2.0

// Package chain tests target, relay, and client together over the providers doca, in one process,
// on the emulation of libdoca.
package chain

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
