package program

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how much of something has been moved, on a terminal: percentage, bytes and total,
// rate, and the time that is left. On anything but a terminal it does nothing.
type Progress struct{ bar *progressbar.ProgressBar }

// UnknownTotal is the total of something whose end is not known.
const UnknownTotal = -1

const progressInterval = 100 * time.Millisecond

// NewProgress returns a display on w of so many bytes in total, or UnknownTotal.
func NewProgress(w io.Writer, total int64) *Progress {
	if !IsTerminal(w) {
		return &Progress{}
	}
	return newProgress(w, total)
}

func newProgress(w io.Writer, total int64) *Progress {
	return &Progress{bar: progressbar.NewOptions64(total, progressbar.OptionSetWriter(w),
		progressbar.OptionShowBytes(true), progressbar.OptionShowCount(),
		progressbar.OptionUseIECUnits(true), progressbar.OptionSetPredictTime(true),
		progressbar.OptionShowElapsedTimeOnFinish(), progressbar.OptionFullWidth(),
		progressbar.OptionThrottle(progressInterval), progressbar.OptionClearOnFinish())}
}

// Show shows that so many bytes have been moved. Errors of the terminal do not matter.
func (p *Progress) Show(moved uint64) {
	if p.bar != nil {
		_ = p.bar.Set64(int64(moved))
	}
}

// Clear removes the display.
func (p *Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}
