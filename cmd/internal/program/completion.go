// SPDX-License-Identifier: Apache-2.0

package program

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// flagWords holds the words that flags accept, by the name of the flag, unless their value knows
// them. A flag means the same in every program.
var flagWords = map[string][]string{
	"output":     {string(report.Text), string(report.JSON)},
	"log-level":  {"debug", "info", "warn", "error"},
	"log-format": {"console", "json"},
	"poll": {progress.Adaptive.String(), progress.Busy.String(),
		progress.Event.String()},
	"comch-provider": {"emulated", "doca"},
	"rdma-provider":  {"iwarp", "verbs", "shm", "doca", "auto"},
	"dma-provider":   {"software", "doca"},
	"comch-wait":     {"auto", "never"},
	"isolation":      {"direct", "staged"},
	"import-device":  {"auto", "comch", "rdma"},
	"side":           {"host", "dpu"},
	"protocol":       {"native", "doca-2.10", "doca-3.0", "doca-3.1", "doca-3.2"},
}

// completeWords lets shells complete the words that a command's flags accept: those that the value
// of a flag has (Words, Complete) or that its type lists, such as "read|write", and those of
// flagWords.
func completeWords(command *cobra.Command) {
	complete := func(f *pflag.Flag) {
		words := flagWords[f.Name]
		if list := strings.Split(f.Value.Type(), "|"); len(list) > 1 {
			words = list
		}
		if value, ok := f.Value.(interface{ Words() []string }); ok && len(value.Words()) > 0 {
			words = value.Words()
		}
		if _, done := command.GetFlagCompletionFunc(f.Name); done {
			return
		}
		if value, ok := f.Value.(interface{ Complete(string) []string }); ok {
			_ = command.RegisterFlagCompletionFunc(f.Name, func(_ *cobra.Command, _ []string,
				text string) ([]string, cobra.ShellCompDirective) {
				return Continued(value.Complete(text))
			})
			return
		}
		if len(words) == 0 {
			return
		}
		// It fails only for a flag that does not exist.
		_ = command.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(slices.Clone(words),
			cobra.ShellCompDirectiveNoFileComp))
	}
	command.Flags().VisitAll(complete)
	command.PersistentFlags().VisitAll(complete)
}

// Continued completes words, of which those that end in a colon or an equals sign go on.
func Continued(words []string) ([]string, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(words, func(word string) bool {
		return strings.HasSuffix(word, ":") || strings.HasSuffix(word, "=")
	}) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return words, directive
}
