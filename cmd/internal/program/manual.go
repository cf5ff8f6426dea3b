// SPDX-License-Identifier: Apache-2.0

//go:build manual

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// MorePages holds functions that write further manual pages of a program into a directory.
var MorePages []func(root *cobra.Command, directory string) error

// Main writes the manual pages and the shell completions of a program into the directories man,
// bash, zsh and fish below the directory named on the command line, instead of running it. Only
// builds with the tag "manual", for packages, contain this code and its dependencies.
func Main(root *cobra.Command) {
	answerTo(root, os.Args[0])
	root.InitDefaultHelpCmd()
	if err := writeManual(root, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeManual(root *cobra.Command, directory string) error {
	for _, kind := range []string{"man", "bash", "zsh", "fish"} {
		if err := os.MkdirAll(filepath.Join(directory, kind), 0o755); err != nil {
			return err
		}
	}
	name := root.Name()
	if err := root.GenBashCompletionFileV2(filepath.Join(directory, "bash", name),
		true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(directory, "zsh", "_"+name)); err != nil {
		return err
	}
	if err := root.GenFishCompletionFile(filepath.Join(directory, "fish", name+".fish"),
		true); err != nil {
		return err
	}
	for _, write := range MorePages {
		if err := write(root, filepath.Join(directory, "man")); err != nil {
			return err
		}
	}
	root.DisableAutoGenTag = true
	toMarkdown(root)
	// The date is $SOURCE_DATE_EPOCH, which makes packages reproducible.
	man := filepath.Join(directory, "man")
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1",
		Source: "zc-relay " + buildinfo.Version(), Manual: "zc-relay"}, man); err != nil {
		return err
	}
	return groupOptions(root, man)
}

// optionName matches the name of an option in a manual page.
var optionName = regexp.MustCompile(`\\fB--([a-z0-9.-]+)\\fP`)

// groupOptions orders the options in the manual pages of command and its children as help does.
func groupOptions(command *cobra.Command, directory string) error {
	for _, child := range command.Commands() {
		if err := groupOptions(child, directory); err != nil {
			return err
		}
	}
	groups := groupsOf(command)
	if groups == nil {
		return nil
	}
	path := filepath.Join(directory, strings.ReplaceAll(command.CommandPath(), " ", "-")+".1")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const options, inherited, next = ".SH OPTIONS\n",
		".SH OPTIONS INHERITED FROM PARENT COMMANDS\n", ".SH SEE ALSO\n"
	before, rest, _ := strings.Cut(string(page), options)
	ordered, after, _ := strings.Cut(rest, next)
	texts := map[string]string{}
	for text := range strings.SplitSeq(strings.ReplaceAll(ordered, inherited, ".PP\n"), ".PP\n") {
		if name := optionName.FindStringSubmatch(text); name != nil {
			texts[name[1]] = strings.TrimSpace(text)
		}
	}
	var grouped strings.Builder
	for i, flags := range groups {
		if len(flags) > 0 {
			fmt.Fprintf(&grouped, ".SS %s\n", flagGroups[i].title)
		}
		for _, f := range flags {
			fmt.Fprintf(&grouped, ".PP\n%s\n", texts[f.Name])
		}
	}
	return os.WriteFile(path, []byte(before+options+grouped.String()+next+after), 0o644)
}

// toMarkdown prepares texts for the generator, which takes them for Markdown. It keeps __LOG__ from
// becoming bold, and makes indented lines, which hold commands, code that is not filled.
func toMarkdown(command *cobra.Command) {
	lines := strings.Split(command.Long, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, " ") {
			lines[i] = "    " + strings.TrimPrefix(line, "  ")
		} else {
			lines[i] = strings.ReplaceAll(line, "_", `\_`)
		}
	}
	command.Long = strings.Join(lines, "\n")
	command.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "_", `\_`) })
	for _, child := range command.Commands() {
		toMarkdown(child)
	}
}
