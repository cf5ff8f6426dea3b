package program

import (
	"fmt"
	"io"
)

// StatusLine is a line on a terminal that is written over and over again. On
// anything else than a terminal it shows nothing. It belongs to one goroutine.
type StatusLine struct {
	w     io.Writer // nil if nothing is to be shown
	shown bool
}

// NewStatusLine makes a status line on w, normally the standard error.
func NewStatusLine(w io.Writer) *StatusLine {
	if !IsTerminal(w) {
		return &StatusLine{}
	}
	return &StatusLine{w: w}
}

// Active reports whether there is a terminal to show the line on.
func (l *StatusLine) Active() bool { return l.w != nil }

// eraseLine returns to the first column and clears the line (ECMA-48 EL).
const eraseLine = "\r\x1b[K"

// Show replaces the line.
func (l *StatusLine) Show(format string, args ...any) {
	if l.w == nil {
		return
	}
	l.shown = true
	fmt.Fprintf(l.w, eraseLine+format, args...)
}

// Clear removes the line, so that other output can follow.
func (l *StatusLine) Clear() {
	if l.shown {
		l.shown = false
		fmt.Fprint(l.w, eraseLine)
	}
}
