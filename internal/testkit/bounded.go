// SPDX-License-Identifier: Apache-2.0

package testkit

import "testing"

// mostQuoted is the longest text of an error that quotes what a peer has sent, in bytes. The
// longest that packages allow, 512 bytes, can take four times as many when they are quoted.
const mostQuoted = 4 * 512

// CheckBounded fails the test if the text of an error is longer than any may be: a peer does not
// decide how long our errors are. err may be nil.
func CheckBounded(t testing.TB, err error) {
	t.Helper()
	const context = 256
	if err != nil && len(err.Error()) > mostQuoted+context {
		t.Errorf("an error of %d bytes: %.200q", len(err.Error()), err.Error())
	}
}
