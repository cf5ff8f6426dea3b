package program

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// flagWords holds the words that flags accept, by the name of the flag. A flag means the same in
// every program.
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
}

// completeWords lets shells complete the words that a command's flags accept: those of flagWords,
// and those that the type of a flag lists, such as "read|write".
func completeWords(command *cobra.Command) {
	command.Flags().VisitAll(func(f *pflag.Flag) {
		words := flagWords[f.Name]
		if list := strings.Split(f.Value.Type(), "|"); len(list) > 1 {
			words = list
		}
		if _, done := command.GetFlagCompletionFunc(f.Name); done || len(words) == 0 {
			return
		}
		// It fails only for a flag that does not exist.
		_ = command.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(slices.Clone(words),
			cobra.ShellCompDirectiveNoFileComp))
	})
}
