// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAHolderIDIsReadOnlyAsItIsWritten(t *testing.T) {
	for text, want := range map[string]HolderID{
		"00000000000000ff": 0xff, "0123456789abcdef": 0x0123456789abcdef,
		"": 0, "0": 0, "0000000000000000": 0, "ff": 0, "00000000000000FF": 0,
		"+0000000000000ff": 0, "0x000000000000ff": 0, "000000000000_0ff": 0,
		"00000000000000ff0": 0, "1ffffffffffffffff": 0, "holder": 0,
	} {
		id, err := ParseHolderID(text)
		if id != want || (err == nil) != (want != 0) {
			t.Errorf("ParseHolderID(%q) is %v, %v, want %v", text, id, err, want)
		}
		if err != nil && !errors.Is(err, status.InvalidValue) {
			t.Errorf("ParseHolderID(%q) fails with %v, want INVALID_VALUE", text, err)
		}
	}
	if text := HolderID(0).String(); text != "" {
		t.Errorf("no holder is %q", text)
	}
	for range 100 {
		id := NewHolderID()
		if again, err := ParseHolderID(id.String()); again != id || err != nil || id == 0 {
			t.Fatalf("%v is read as %v, %v", id, again, err)
		}
	}
}
