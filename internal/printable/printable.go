// SPDX-License-Identifier: Apache-2.0

// Package printable makes text that a peer has sent safe on a terminal and in a log, and bounds it:
// a peer must not decide how long our replies and log entries are.
package printable

import (
	"fmt"
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

// Quote returns text as Line does, in quotation marks. An ellipsis follows if something is missing.
func Quote(text string, limit int) string {
	quoted := fmt.Sprintf("%q", Line(text, limit))
	if len(text) > limit {
		quoted += "..."
	}
	return quoted
}

// maxNames is the most names in a list, and MaxName the longest part of each that is shown, in
// bytes.
const (
	maxNames = 8
	MaxName  = 128
)

// Names lists names. It leaves out the end of a long list, and says so.
func Names(names []string) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, name := range names[:min(len(names), maxNames)] {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(Quote(name, MaxName))
	}
	b.WriteByte(']')
	if more := len(names) - maxNames; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// MaxError is the longest text of an Error, in bytes: there is room for Names.
const MaxError = 2048

// Error returns an error that matches what err matches, and whose text is that of err as one line
// of at most MaxError bytes. Errors of other packages may contain any amount of what a peer has
// sent: those of crypto/tls and crypto/x509 quote names of certificates, and protocols that the
// peer offers.
func Error(err error) error { return &boundedError{err} }

type boundedError struct{ err error }

func (e *boundedError) Error() string { return Line(e.err.Error(), MaxError) }
func (e *boundedError) Unwrap() error { return e.err }
