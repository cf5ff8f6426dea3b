// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Progress shows how much of something has been moved, on a terminal: percentage, bytes and total,
// mean rate, and the time that has passed and that is left. On anything but a terminal it does
// nothing. One goroutine owns it.
type Progress struct {
	line   StatusLine
	total  int64
	former uint64 // bytes that had been moved before begun
	begun  time.Time
	shown  time.Time
	shows  int // how often something of an unknown total was shown
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

func newProgress(w io.Writer, total int64, former uint64) *Progress {
	return &Progress{line: StatusLine{w: w}, total: total, former: former, begun: time.Now()}
}

// Show shows that so many bytes have been moved, former ones included, and nothing once all have.
func (p *Progress) Show(moved uint64) {
	now := time.Now()
	if !p.line.Active() || now.Sub(p.shown) < progressInterval {
		return
	}
	p.shown = now
	text := p.describe(moved, now.Sub(p.begun), output.TerminalWidth(p.line.w)-barOthers)
	switch {
	case p.total == UnknownTotal:
		p.line.Show("%c  %s ", `|/-\`[p.shows%4], text)
		p.shows++
	case moved >= uint64(p.total):
		p.line.Clear()
	default:
		part := float64(moved) / float64(p.total)
		p.line.Show("%4d%% |%s|  %s ", int(part*100), bar(part, p.barWidth(text)), text)
	}
}

// barOthers is how many columns are neither the bar's nor the text's; the cursor stays in the line.
const barOthers = len(" 100% ||   ") + 1

// barWidth returns how many columns of the terminal are left for the bar beside a text.
func (p *Progress) barWidth(text string) int {
	return max(0, output.TerminalWidth(p.line.w)-utf8.RuneCountInString(text)-barOthers)
}

// bar draws a bar that is filled in part, in so many columns.
func bar(part float64, width int) string {
	filled := int(part * float64(width))
	return strings.Repeat("█", filled) + strings.Repeat(" ", width-filled)
}

// describe returns the numbers beside the bar: as many as fit into so many columns, the rate at
// least.
func (p *Progress) describe(moved uint64, elapsed time.Duration, columns int) string {
	rate := float64(moved-min(p.former, moved)) / max(elapsed, 1).Seconds()
	amount, left := size.FormatBytes(moved), ""
	if p.total != UnknownTotal {
		amount += " of " + size.FormatBytes(uint64(p.total))
		if seconds := float64(p.total-int64(moved)) / rate; seconds < maxSecondsLeft {
			left = fmt.Sprintf(", %v left", time.Duration(seconds)*time.Second)
		}
	}
	speed := size.FormatThroughput(rate)
	all := fmt.Sprintf("%s, %s, %v elapsed%s", amount, speed, elapsed.Truncate(time.Second), left)
	for _, text := range []string{all, amount + ", " + speed + left, speed + left} {
		if utf8.RuneCountInString(text) <= columns {
			return text
		}
	}
	return speed
}

// Clear removes the display.
func (p *Progress) Clear() { p.line.Clear() }
