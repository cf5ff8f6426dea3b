package main

import (
	"fmt"
	"io"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
)

// transferProgress tells on standard error how a transfer goes, and how it
// went.
type transferProgress struct {
	w      io.Writer
	status *program.StatusLine
	begun  time.Time
}

func newTransferProgress(w io.Writer) *transferProgress {
	return &transferProgress{w: w, status: program.NewStatusLine(w), begun: time.Now()}
}

func (t *transferProgress) observe(bytes uint64) {
	t.status.Show("%d bytes, %s", bytes, t.rate(bytes))
}

// end tells what a successful transfer has done.
func (t *transferProgress) end(what string, bytes uint64, err error) {
	t.status.Clear()
	if err == nil {
		fmt.Fprintf(t.w, "%s: %d bytes in %s, %s\n", what, bytes, size.FormatDuration(time.Since(t.begun)), t.rate(bytes))
	}
}

func (t *transferProgress) rate(bytes uint64) string {
	seconds := max(time.Since(t.begun).Seconds(), 1e-9)
	return size.FormatThroughput(float64(bytes) / seconds)
}
