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
	widths := make([]int, len(t.heads))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		line := t.indent
		for i, cell := range row {
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
