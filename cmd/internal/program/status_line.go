// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
)

// StatusLine is a line on a terminal that is rewritten in place. On anything but a terminal it
// shows nothing. One goroutine owns it.
type StatusLine struct {
	w     io.Writer // nil if there is no terminal
	shown bool
}

// NewStatusLine returns a status line on w, normally standard error.
func NewStatusLine(w io.Writer) *StatusLine {
	if !output.IsTerminal(w) {
		return &StatusLine{}
	}
	return &StatusLine{w: w}
}

// Active reports whether the line is shown.
func (l *StatusLine) Active() bool { return l.w != nil }

// eraseLine moves to the first column and clears the line (ECMA-48 EL).
const eraseLine = "\r\x1b[K"

// Show replaces the line. It cuts off what does not fit: a line that wraps could not be erased.
func (l *StatusLine) Show(format string, args ...any) {
	if l.w == nil {
		return
	}
	l.shown = true
	fmt.Fprint(l.w, eraseLine+fit(fmt.Sprintf(format, args...), output.TerminalWidth(l.w)))
}

// fit returns as much of a text as leaves a column of so many for the cursor.
func fit(text string, columns int) string {
	runes := []rune(text)
	if len(runes) < columns {
		return text
	}
	return string(runes[:max(columns-2, 0)]) + "…"
}

// Clear removes the line, so that other output can follow.
func (l *StatusLine) Clear() {
	if l.shown {
		l.shown = false
		fmt.Fprint(l.w, eraseLine)
	}
}
