// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference returns the page of the documentation with all commands and flags of a program, in
// Markdown.
func Reference(root *cobra.Command) []byte {
	var page strings.Builder
	fmt.Fprintf(&page, "# %s: commands and flags\n\nWritten by `make generate`: what `--help` says.\n",
		root.Name())
	writeCommand(&page, root)
	return []byte(page.String())
}

func writeCommand(w *strings.Builder, command *cobra.Command) {
	fmt.Fprintf(w, "\n## %s\n", command.CommandPath())
	text := command.Long
	if text == "" {
		text = command.Short + "."
	}
	writeProse(w, text)
	if command.Runnable() {
		fmt.Fprintf(w, "\n```text\n%s\n```\n", command.UseLine())
	}
	if command.Example != "" {
		fmt.Fprintf(w, "\n```text\n%s\n```\n", outdented(strings.Trim(command.Example, "\n")))
	}
	if command.PersistentFlags().HasAvailableFlags() && command.HasSubCommands() {
		w.WriteString("\nFlags that its commands have, too:\n")
		writeFlags(w, command.PersistentFlags())
	}
	writeFlags(w, command.LocalNonPersistentFlags())
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() {
			writeCommand(w, child)
		}
	}
}

// writeProse writes the paragraphs of a help text. Those that are indented are commands.
func writeProse(w *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		if strings.HasPrefix(paragraph, " ") {
			fmt.Fprintf(w, "\n```text\n%s\n```\n", outdented(paragraph))
			continue
		}
		fmt.Fprintf(w, "\n%s\n", escaped(paragraph))
	}
}

// outdented removes the indentation of the first line from all lines.
func outdented(text string) string {
	indentation := text[:len(text)-len(strings.TrimLeft(text, " "))]
	return strings.ReplaceAll(strings.TrimPrefix(text, indentation), "\n"+indentation, "\n")
}

// writeFlags writes a table for each group of flags.
func writeFlags(w *strings.Builder, all *pflag.FlagSet) {
	groups := make([][]*pflag.Flag, len(flagGroups))
	all.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && f.Name != "help" && f.Name != "version" {
			group, _ := groupOf(f)
			groups[group] = append(groups[group], f)
		}
	})
	for i, flags := range groups {
		if len(flags) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n| %s | default | |\n|---|---|---|\n", strings.ToLower(flagGroups[i].title))
		for _, f := range flags {
			value, usage := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if value != "" {
				name += " " + value
			}
			short := ""
			if f.Shorthand != "" {
				short = ", `-" + f.Shorthand + "`"
			}
			fmt.Fprintf(w, "| `%s`%s | %s | %s |\n", inCell(name), short, defaultOf(f),
				inCell(escaped(usage)))
		}
	}
}

func defaultOf(f *pflag.Flag) string {
	if f.DefValue == "" || f.DefValue == "false" || f.DefValue == "[]" {
		return ""
	}
	return "`" + inCell(f.DefValue) + "`"
}

// escaped keeps what Markdown would take for markup.
func escaped(text string) string {
	return strings.NewReplacer("*", `\*`, "<", `\<`, "[", `\[`).Replace(text)
}

// inCell keeps a text within its cell of a table.
func inCell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
