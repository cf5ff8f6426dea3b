package printable_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/printable"
)

func TestTextOfAPeerBecomesOnePrintableLineWithinItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
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
