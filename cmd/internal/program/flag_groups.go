// SPDX-License-Identifier: Apache-2.0

package program

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
)

// manyFlags is from how many flags on help shows those of a command in groups.
const manyFlags = 25

// flagGroup is a part of the flags in help and manual pages.
type flagGroup struct {
	title string
	// names are in the order of help. One that ends in "*" stands for all with this beginning.
	names string
}

// flagGroups are the groups of all programs, in the order of help.
var flagGroups = []flagGroup{
	{"Flags", "config storage-server storage-servers volume device representor rw block-size " +
		"buffer-size offset length queue-depth queues passes runtime listen socket run " +
		"listen-address listen-port cpu admin-listen metrics-listen file admin timeout output " +
		"log-level help version"},
	{"Workload", "rwmix max-io-size blocks-per-io batch-size rate sessions warmup seed " +
		"validate-writes sweep job dry-run"},
	{"Results", "interval json-stream title label hlog csv picture trace trace-every"},
	{"Connection", "comch-provider comch-wait command-channel-name emulated-dir protocol " +
		"target-protocol target-order isolation import-device address-file poll"},
	{"Volume", "overwrite allow-empty preempt resume read-only strict"},
	{"NBD", "export connections print-uri exit-with-parent metrics-per-client"},
	{"Block device", "id unprivileged print-device"},
	{"Times and losses", "control-timeout io-timeout keep-alive-* session-wait drain-timeout " +
		"reconnect*"},
	{"Limits", "max-* channel-* session-* limits-* staging-limit memory"},
	{"Security", "tls-* data-security fabric-security web-config-file admin-token-file admin-web-config-file admin-tls-* " +
		"allowed-host volume-directory volume-device plain-text allow-user allow-any-user " +
		"access-users core-dumps"},
	{"RDMA", "rdma-*"},
	{"Log", "log-*"},
	{"Machine", "state-directory cpus workers path.*"},
	{"Faults, for tests", "allow-faults fault trace-operations"},
	{argp.FlagsTitle, ""},
	{"Other flags", "*"},
}

// groupOf returns the index of a flag's group, and its place in the group.
func groupOf(f *pflag.Flag) (group, place int) {
	for i, g := range flagGroups {
		if argp.IsMarked(f) != (g.title == argp.FlagsTitle) {
			continue
		}
		place := slices.IndexFunc(strings.Fields(g.names), func(name string) bool {
			prefix, isPrefix := strings.CutSuffix(name, "*")
			return name == f.Name || isPrefix && strings.HasPrefix(f.Name, prefix)
		})
		if place >= 0 || argp.IsMarked(f) {
			return i, place
		}
	}
	panic("no group has the flag " + f.Name)
}

// groupsOf returns the flags of a command by group, or nil if they are few. Those of its parents
// are among them.
func groupsOf(command *cobra.Command) [][]*pflag.Flag {
	groups, count := make([][]*pflag.Flag, len(flagGroups)), 0
	add := func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" {
			group, _ := groupOf(f)
			groups[group] = append(groups[group], f)
			count++
		}
	}
	command.LocalFlags().VisitAll(add)
	command.InheritedFlags().VisitAll(add)
	if count < manyFlags {
		return nil
	}
	for _, flags := range groups {
		slices.SortStableFunc(flags, func(a, b *pflag.Flag) int {
			_, first := groupOf(a)
			_, second := groupOf(b)
			return first - second
		})
	}
	return groups
}

// groupFlags makes the help of root and of its commands show many flags in groups.
func groupFlags(root *cobra.Command) {
	const begin, end = "{{if .HasAvailableLocalFlags}}", "{{if .HasHelpSubCommands}}"
	before, rest, _ := strings.Cut(root.UsageTemplate(), begin)
	ungrouped, after, _ := strings.Cut(rest, end)
	cobra.AddTemplateFunc("groupedFlags", groupedFlags)
	root.SetUsageTemplate(before + "{{with groupedFlags .}}{{.}}{{else}}" + begin + ungrouped +
		"{{end}}" + end + after)
}

// groupedFlags describes the flags of a command by group, and returns "" if they are few.
func groupedFlags(command *cobra.Command) string {
	var text strings.Builder
	for i, flags := range groupsOf(command) {
		if len(flags) == 0 {
			continue
		}
		group := pflag.NewFlagSet("", pflag.ContinueOnError)
		group.SortFlags = false
		for _, f := range flags {
			group.AddFlag(f)
		}
		text.WriteString("\n\n" + flagGroups[i].title + ":\n" +
			strings.TrimRight(group.FlagUsages(), "\n"))
	}
	return text.String()
}
