// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// summary counts verdicts.
type summary struct{ killed, documented, undocumented, invalid, all int }

func summarize(verdicts []verdict) (s summary) {
	s.all = len(verdicts)
	for _, v := range verdicts {
		switch {
		case v.outcome == killed:
			s.killed++
		case v.outcome == invalid:
			s.invalid++
		case v.row.survives != "":
			s.documented++
		default:
			s.undocumented++
		}
	}
	return s
}

func (s summary) failed() bool { return s.undocumented > 0 || s.invalid > 0 }

func (s summary) String() string {
	text := fmt.Sprintf("mutants: %d of %d killed, %d survive as documented, %d invalid",
		s.killed, s.all, s.documented, s.invalid)
	if s.undocumented > 0 {
		text = fmt.Sprintf("mutants: %d survive although a test should notice\n", s.undocumented) + text
	}
	return text
}

// print prints a verdict.
func (v *verdict) print(w io.Writer) {
	fmt.Fprintf(w, "%-8s %5.1f s  %s", v.outcome, v.took.Seconds(), v.row.name)
	switch {
	case v.outcome == killed && v.row.survives != "":
		fmt.Fprintf(w, ": %s; remove the row's reason to survive\n", v.killer)
	case v.outcome == killed:
		fmt.Fprintf(w, ": %s\n", v.killer)
	case v.outcome == invalid:
		fmt.Fprintf(w, ": %v\n", v.reason)
	case v.row.survives != "":
		fmt.Fprintf(w, ": documented: %s\n", v.row.survives)
	default:
		fmt.Fprintf(w, ": %s (%s)\n", v.row.breaks, v.row.file)
	}
}

// The table in the document is between these lines.
const (
	tableBegin = "<!-- make mutants: begin -->\n"
	tableEnd   = "<!-- make mutants: end -->"
)

const tableHead = "| mutant | the promise that it breaks | file | killed by |\n|---|---|---|---|\n"

// writeTable replaces the table in a Markdown document. Rows without a verdict stay as they are.
func writeTable(name string, rows []mutant, verdicts []verdict) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	changed, err := updateTable(string(text), rows, verdicts)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(changed), 0o644)
}

func updateTable(document string, rows []mutant, verdicts []verdict) (string, error) {
	before, rest, ok := strings.Cut(document, tableBegin)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("no table between %q and %q", tableBegin, tableEnd)
	}
	lines := map[string]string{}
	for line := range strings.Lines(table) {
		lines[nameInTable(line)] = line
	}
	for _, v := range verdicts {
		lines[v.row.name] = v.line()
	}
	out := before + tableBegin + tableHead
	for _, row := range rows {
		line, ok := lines[row.name]
		if !ok {
			line = (&verdict{row: &row}).line()
		}
		out += line
	}
	return out + tableEnd + after, nil
}

// line returns the verdict, or that there is none yet, as a line of the table.
func (v *verdict) line() string {
	by := "**" + string(v.outcome) + "**"
	switch {
	case v.outcome == "":
		by = "not run yet"
	case v.outcome == killed:
		killers := strings.Split(v.killer, andAlso)
		for i, killer := range killers {
			killers[i] = formatKiller(killer)
		}
		by = strings.Join(killers, andAlso)
	case v.row.survives != "":
		by = "– " + v.row.survives
	}
	return fmt.Sprintf("| %s | %s | `%s` | %s |\n", v.row.name, v.row.breaks, v.row.file, by)
}

// formatKiller returns a package and a test, or the simulation and a seed, as Markdown.
func formatKiller(killer string) string {
	text := "`" + strings.Replace(killer, " ", "` `", 1) + "`"
	if how, ok := strings.CutSuffix(text, ")`"); ok {
		return strings.Replace(how, " (", "` (", 1) + ")"
	}
	return text
}

// nameInTable returns the mutant of a line of the table.
func nameInTable(line string) string {
	cells := strings.SplitN(line, "|", 3)
	if len(cells) < 3 {
		return ""
	}
	return strings.TrimSpace(cells[1])
}
