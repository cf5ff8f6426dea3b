// SPDX-License-Identifier: Apache-2.0

// Package explain says what the codes of errors mean, what causes them, and what to do: in the
// command "explain" of each program, and on the page docs/reference/errors.md.
package explain

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Schema is that of the JSON document, which docs/schemas/explain.schema.json describes.
const Schema = "zc-relay.explain/1"

// Case is a cause of an error and its remedy.
type Case struct {
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// description is an explanation as JSON.
type description struct {
	Code    string   `json:"code"`
	Number  uint32   `json:"number"`
	Meaning string   `json:"meaning"`
	Cases   []Case   `json:"cases"`
	See     []string `json:"see,omitempty"`
}

// NewCommand returns the command "explain".
func NewCommand() *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "explain [CODE]",
		Short: "Explain the code of an error: what causes it, and what to do",
		Long: `explain says what the code of an error means, what causes it, and what to do.
CODE is the word in brackets at the end of the error, such as NOT_CONNECTED, or
its number. Without it, explain lists all codes.`,
		Example: "  explain NOT_CONNECTED",
		Args: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if _, ok := find(name); !ok {
					return status.Errorf(status.NotFound,
						"there is no code %q: without one, the command lists all", name)
				}
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) (
			[]string, cobra.ShellCompDirective,
		) {
			var names []string
			for _, e := range explanations {
				names = append(names, e.code.String())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen := explanations
			if len(args) == 1 {
				e, _ := find(args[0])
				chosen = []explanation{e}
			}
			return write(cmd.OutOrStdout(), chosen, len(args) == 1, output)
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}

// find returns the explanation of a code by its name, as DOCA or this project write it, or number.
func find(text string) (explanation, bool) {
	name := strings.ToUpper(strings.Trim(text, "[]"))
	name = strings.TrimPrefix(name, "DOCA_ERROR_")
	number, err := strconv.ParseUint(name, 10, 32)
	for _, e := range explanations {
		if e.code.String() == name || err == nil && uint64(e.code) == number {
			return e, true
		}
	}
	return explanation{}, false
}

// Has reports whether there is an explanation of a code, by its name.
func Has(name string) bool {
	return slices.ContainsFunc(explanations, func(e explanation) bool {
		return e.code.String() == name
	})
}

func write(w io.Writer, chosen []explanation, isSingle bool, output report.Output) error {
	switch {
	case output == report.JSON:
		var codes []description
		for _, e := range chosen {
			codes = append(codes, description{e.code.String(), uint32(e.code), e.meaning, e.cases,
				e.see})
		}
		return report.WriteJSON(w, map[string]any{"schema": Schema, "codes": codes})
	case !isSingle:
		for _, e := range chosen {
			if _, err := fmt.Fprintf(w, "%-22s %s\n", e.code, plain(e.meaning)); err != nil {
				return err
			}
		}
		return nil
	}
	var text strings.Builder
	for _, e := range chosen {
		fmt.Fprintf(&text, "%s (%d): %s\n", e.code, uint32(e.code), plain(e.meaning))
		for _, c := range e.cases {
			fmt.Fprintf(&text, "\n  cause: %s\n  to do: %s\n", plain(c.Cause), plain(c.Remedy))
		}
		for i, page := range e.see {
			if i == 0 {
				text.WriteString("\nThe documentation says more:\n")
			}
			fmt.Fprintf(&text, "  %s\n", page)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// plain returns a text for a terminal, where commands stand in quotes.
func plain(text string) string { return strings.ReplaceAll(text, "`", `"`) }

// WritePage writes the body of the reference: a section for each code.
func WritePage(w io.Writer) {
	var text strings.Builder
	for _, e := range explanations {
		fmt.Fprintf(&text, "## %s\n\n%s\n\n| cause | what to do |\n|---|---|\n", e.code, e.meaning)
		for _, c := range e.cases {
			fmt.Fprintf(&text, "| %s | %s |\n", c.Cause, c.Remedy)
		}
		for i, page := range e.see {
			text.WriteString([]string{"\nSee ", ", "}[min(i, 1)])
			name, _, _ := strings.Cut(page, ".md")
			fmt.Fprintf(&text, "[%s](../%s)", name, page)
		}
		if len(e.see) > 0 {
			text.WriteString(".\n")
		}
		fmt.Fprintf(&text, "\nNumber %d, in DOCA `DOCA_ERROR_%s`.\n\n", uint32(e.code), e.code)
	}
	_, _ = io.WriteString(w, strings.TrimSuffix(text.String(), "\n")) // to memory
}
