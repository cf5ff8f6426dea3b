// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestProgramsHaveTheFlagsThatOthersNameThemFor(t *testing.T) {
	for _, p := range programFlags {
		words := strings.Fields(p.command)
		help, err := exec.CommandContext(t.Context(), testkit.Plain.Program(t, words[0]),
			append(words[1:], "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		for flag := range strings.FieldsSeq(p.flags) {
			if !strings.Contains(string(help), " --"+flag+" ") {
				t.Errorf("%q has no flag --%s", p.command, flag)
			}
		}
	}
}

func TestAFlagForOneValueIsNotGivenTwice(t *testing.T) {
	for call, want := range map[string]string{
		"work --server a --server=b": "tool work: --server is given twice: for several, " +
			"use --servers a,b\n",
		"work -f a --file b": "tool work: --file is given twice, with \"a\" and \"b\": leave " +
			"one of them\n",
		"work --count 1 --count 2":             "",
		"--poll busy work --poll event":        "tool work: --poll is given twice, with \"busy\" and \"event\": leave",
		"work --yes --yes=false":               "",
		"work --server a --server a":           "",
		"work --servers a --servers b":         "",
		"work --server a -- --server=b":        "",
		"work --server a --no-such --server b": "unknown flag --no-such",
	} {
		var stderr bytes.Buffer
		root := &cobra.Command{Use: "tool", Version: "1"}
		root.SetErr(&stderr)
		work := &cobra.Command{Use: "work", Run: func(*cobra.Command, []string) {}}
		work.Flags().String("server", "", "")
		work.Flags().StringSlice("servers", nil, "")
		work.Flags().Int("count", 0, "")
		work.Flags().StringP("file", "f", "", "")
		work.Flags().Bool("yes", false, "")
		root.PersistentFlags().String("poll", "", "")
		root.AddCommand(work)
		code := Run(t.Context(), root, strings.Fields(call))
		if (code == ExitUsage) != (want != "") || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, %q", call, code, stderr.String())
		}
	}
}
