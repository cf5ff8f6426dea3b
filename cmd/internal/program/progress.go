package program

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Progress shows how much of something has been moved, on a terminal: percentage, bytes and total,
// mean rate, and the time that has passed and that is left. On anything but a terminal it does
// nothing. One goroutine owns it.
type Progress struct {
	bar    *progressbar.ProgressBar // nil if there is no terminal
	total  int64
	former uint64 // bytes that had been moved before begun
	begun  time.Time
	shown  time.Time
}

// UnknownTotal is the total of something whose end is not known.
const UnknownTotal = -1

const progressInterval = 100 * time.Millisecond

// maxSecondsLeft is the longest time left that is shown; without a rate it is infinite.
const maxSecondsLeft = 1000 * 60 * 60

// NewProgress returns a display on w of so many bytes in total, or UnknownTotal. former of them
// were moved earlier; the clock for the rest starts now.
func NewProgress(w io.Writer, total int64, former uint64) *Progress {
	if !output.IsTerminal(w) {
		return &Progress{}
	}
	return newProgress(w, total, former)
}

// newProgress leaves only percentage and bar to the library: its clock would start with the first
// bytes shown, and its rate would count the former ones.
func newProgress(w io.Writer, total int64, former uint64) *Progress {
	return &Progress{total: total, former: former, begun: time.Now(),
		bar: progressbar.NewOptions64(total, progressbar.OptionSetWriter(w),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
			progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionFullWidth(),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetSpinnerChangeInterval(0))} // no goroutine
}

// Show shows that so many bytes have been moved, former ones included. Errors of the terminal do
// not matter.
func (p *Progress) Show(moved uint64) {
	now := time.Now()
	if p.bar == nil || now.Sub(p.shown) < progressInterval {
		return
	}
	p.shown = now
	p.bar.Describe(p.describe(moved, now.Sub(p.begun)))
	_ = p.bar.Set64(int64(moved))
}

// describe returns the numbers beside the bar.
func (p *Progress) describe(moved uint64, elapsed time.Duration) string {
	rate := float64(moved-min(p.former, moved)) / max(elapsed, 1).Seconds()
	amount, left := size.FormatBytes(moved), ""
	if p.total != UnknownTotal {
		amount += " of " + size.FormatBytes(uint64(p.total))
		if seconds := float64(p.total-int64(moved)) / rate; seconds < maxSecondsLeft {
			left = fmt.Sprintf(", %v left", time.Duration(seconds)*time.Second)
		}
	}
	return fmt.Sprintf("%s, %s, %v elapsed%s", amount, size.FormatThroughput(rate),
		elapsed.Truncate(time.Second), left)
}

// Clear removes the display.
func (p *Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
