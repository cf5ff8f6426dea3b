// Package conformancetest holds the one rule by which the conformance suites of this repository
// (comchtest, dmatest, rdmatest) skip a test.
package conformancetest

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// SkipIfNotSupported judges the error of an attempt to use something optional. No error lets the
// test continue. status.NotSupported skips it: the provider has said that it cannot do this. Any
// other error fails it, because a provider that is broken must not look like one that is merely
// limited. action names the attempt, for instance "open device 03:00.0".
func SkipIfNotSupported(t testing.TB, action string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, status.NotSupported):
		t.Skipf("%s: %v", action, err)
	default:
		t.Fatalf("%s: %v", action, err)
	}
}
