// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// table is a table for people. Its columns are aligned to the right, except for those of texts.
type table struct {
	indent string
	heads  []string
	texts  []string // heads of the columns of texts
	rows   [][]string
	// width is how long lines may be, 0 for any length. Columns with a head in optional are left
	// out until the others fit, the first ones first, and then cells of the first column of texts
	// are shortened.
	width    int
	optional []string
}

// add adds a row.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = fmt.Sprint(cell)
	}
	t.rows = append(t.rows, row)
}

// write prints the table after an empty line, or nothing if it has no rows.
func (t *table) write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	rows := append([][]string{t.heads}, t.rows...)
	widths := t.fit(rows)
	fmt.Fprintln(w)
	for _, row := range rows {
		line := t.indent
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			cell = shortenMiddle(cell, widths[i])
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if slices.Contains(t.texts, t.heads[i]) {
				line += cell + padding + "  "
			} else {
				line += padding + cell + "  "
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// fit returns the widths of the columns, 0 for those that are left out.
func (t *table) fit(rows [][]string) []int {
	const gap, leastText = 2, 8
	widths := make([]int, len(t.heads))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	excess := func() int {
		total := utf8.RuneCountInString(t.indent) - gap
		for _, w := range widths {
			if w > 0 {
				total += w + gap
			}
		}
		return total - t.width
	}
	if t.width <= 0 {
		return widths
	}
	for _, head := range t.optional {
		if excess() > 0 {
			widths[slices.Index(t.heads, head)] = 0
		}
	}
	for i, head := range t.heads {
		if n := excess(); n > 0 && widths[i] > 0 && slices.Contains(t.texts, head) {
			widths[i] = max(min(leastText, widths[i]), widths[i]-n)
		}
	}
	return widths
}

// shorten returns a text of no more than that many characters.
func shorten(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return text
}

// shortenMiddle shortens a name, whose beginning and end tell it from others.
func shortenMiddle(text string, width int) string {
	r := []rune(text)
	if len(r) <= width {
		return text
	}
	head := (width - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}
