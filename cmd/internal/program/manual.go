//go:build manual

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
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
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "zc-relay",
		Manual: "zc-relay"}, filepath.Join(directory, "man"))
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
