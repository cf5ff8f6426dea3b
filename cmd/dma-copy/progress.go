package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/dma-copy/internal/dmacopy"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
)

// progressBar tells on standard error how a copy goes, if that is a terminal,
// and how it went.
type progressBar struct {
	w     io.Writer
	line  *program.StatusLine
	begun time.Time // of the first byte
	shown time.Time
}

const (
	barWidth    = 30 // characters
	barInterval = 100 * time.Millisecond
)

func newProgressBar(w io.Writer) *progressBar {
	return &progressBar{w: w, line: program.NewStatusLine(w)}
}

func (p *progressBar) observe(moved, total uint64) {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	}
	if !p.line.Active() || now.Sub(p.shown) < barInterval && moved < total {
		return
	}
	p.shown = now
	p.line.Show("%s", bar(moved, total, now.Sub(p.begun)))
}

// bar is one picture of a copy under way. total is not 0.
func bar(moved, total uint64, elapsed time.Duration) string {
	part := float64(moved) / float64(total)
	filled := int(part * barWidth)
	rate := float64(moved) / max(elapsed.Seconds(), 1e-3)
	left := time.Duration(float64(total-moved) / max(rate, 1) * float64(time.Second))
	return fmt.Sprintf("[%s%s] %3.0f %%, %d of %d bytes, %s, %v left",
		strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), 100*part, moved, total, size.FormatThroughput(rate), left.Round(time.Second))
}

// end tells what a successful copy has done.
func (p *progressBar) end(path string, r dmacopy.Result, err error) {
	p.line.Clear()
	if err != nil {
		return
	}
	rate := size.FormatThroughput(float64(r.Bytes) / max(r.Duration.Seconds(), 1e-9))
	fmt.Fprintf(p.w, "%s: %d bytes copied from %v in %s, %s\n", path, r.Bytes, r.Direction, size.FormatDuration(r.Duration), rate)
}
