// Package printable makes text that a peer has sent safe on a terminal and in a log.
package printable

import (
	"strings"
	"unicode"
)

// Line returns text as one line of at most limit bytes that is safe on a terminal and in a log. A
// peer may have sent the text, or it may be several errors joined by line feeds.
func Line(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	text = strings.ToValidUTF8(text, "")
	return strings.Map(func(r rune) rune {
		if IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// IsControl reports whether r is a control character, or may reorder text or break a line.
func IsControl(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' ||
		r == '\u2029'
}
