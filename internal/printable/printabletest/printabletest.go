// Package printabletest checks that a peer does not decide how long our errors are.
package printabletest

import "testing"

// most is the longest text of an error that quotes what a peer has sent, in bytes. The longest that
// packages allow, 512 bytes, can take four times as many when they are quoted.
const most = 4 * 512

// Bounded fails the test if the text of an error is longer than any may be. err may be nil.
func Bounded(t testing.TB, err error) {
	t.Helper()
	const context = 256
	if err != nil && len(err.Error()) > most+context {
		t.Errorf("an error of %d bytes: %.200q", len(err.Error()), err.Error())
	}
}
