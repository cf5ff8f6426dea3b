// SPDX-License-Identifier: Apache-2.0

package size_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/internal/size"
)

func TestCountsAreWrittenOut(t *testing.T) {
	for text, want := range map[string]string{
		"10k": "10000", "10K": "10000", "1M": "1000000", "1m": "1000000", "2G": "2000000000",
		"0k": "0000", "-1k": "-1000", "7": "7",
		"": "", "k": "k", "10kk": "10kk", "1.5k": "1.5k", "0xAk": "0xAk", "10ki": "10ki",
		"1T": "1T", "x": "x",
	} {
		if got := size.ExpandCount(text); got != want {
			t.Errorf("%q is written out as %q, want %q", text, got, want)
		}
	}
}
