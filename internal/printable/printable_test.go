// SPDX-License-Identifier: Apache-2.0

package printable_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func TestTextOfAPeerBecomesOnePrintableLineWithinItsLimit(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()),
			func(b []byte) string { return string(b) })).Draw(t, "text")
		limit := rapid.IntRange(0, 64).Draw(t, "limit")
		line := printable.Line(text, limit)
		if len(line) > limit || !utf8.ValidString(line) ||
			strings.ContainsFunc(line, printable.IsControl) {
			t.Fatalf("%q with limit %d became %q", text, limit, line)
		}
	})
}

func TestWhatIsLeftOutIsMarked(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for got, want := range map[string]string{
		printable.Quote("a\"b", 10):                     `"a\"b"`,
		printable.Quote("four", 4):                      `"four"`,
		printable.Quote("five5", 4):                     `"five"...`,
		printable.Names(nil):                            `[]`,
		printable.Names([]string{"a", "b"}):             `["a" "b"]`,
		printable.Names([]string{long}):                 `["` + long[:printable.MaxName] + `"...]`,
		printable.Names(strings.Split("123456789", "")): `["1" "2" "3" "4" "5" "6" "7" "8"] and 1 more`,
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestABoundedErrorMatchesWhatItBounds(t *testing.T) {
	err := printable.Error(errors.Join(errors.New(strings.Repeat("x", 5000)), io.EOF))
	if len(err.Error()) != printable.MaxError || !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}
