package adminserver

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table is a table for people. Its columns are aligned to the right, except for those of texts.
type Table struct {
	Indent string
	Heads  []string
	Texts  []string // heads of the columns of texts
	rows   [][]string
}

// Add adds a row.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = fmt.Sprint(cell)
	}
	t.rows = append(t.rows, row)
}

// Write prints the table after an empty line, or nothing if it has no rows.
func (t *Table) Write(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	rows := append([][]string{t.Heads}, t.rows...)
	widths := make([]int, len(t.Heads))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		line := t.Indent
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if slices.Contains(t.Texts, t.Heads[i]) {
				line += cell + padding + "  "
			} else {
				line += padding + cell + "  "
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}
