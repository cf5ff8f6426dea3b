// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// pageTime bounds the commands of a page.
const pageTime = 5 * time.Minute

// TestTheCommandsOfEachPage runs the blocks of each page, which must succeed, and print what the
// page says.
func TestTheCommandsOfEachPage(t *testing.T) {
	// Not parallel: daemons with the default settings must serve within seconds.
	testkit.OnlyComplete(t, "it takes minutes, and needs root and programs of peers")
	testkit.RequireTools(t, "unshare", "jq", "nbdinfo", "nbdcopy", "qemu-img", "openssl", "promtool",
		"curl", "setpriv")
	if os.Geteuid() != 0 {
		t.Fatal("only root can make the machines")
	}
	for _, page := range usersPages(t) {
		blocks, err := blocksOf(page)
		if err != nil {
			t.Fatal(err)
		}
		if runs(blocks) {
			t.Run(strings.TrimSuffix(strings.TrimPrefix(page, root+"docs/"), ".md"),
				func(t *testing.T) { run(t, page, blocks) })
		}
	}
}

func runs(blocks []block) bool {
	for _, b := range blocks {
		if b.whyNot == "" {
			return true
		}
	}
	return false
}

// output is what a command is to print.
type output struct {
	place, file, want string
}

func run(t *testing.T, page string, blocks []block) {
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := os.ReadFile("machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	outputs := t.TempDir()
	var wanted []output
	var script strings.Builder
	fmt.Fprintf(&script, "checkout=%q outputs=%q\n%s\n", checkout, outputs, machine)
	script.WriteString("trap 'echo \"$at: failed: $BASH_COMMAND\" >&2' ERR\nset -E\n")
	for _, b := range blocks {
		if b.whyNot != "" {
			continue
		}
		place := fmt.Sprintf("%s:%d", page, b.line)
		fmt.Fprintf(&script, "at=%q\n%s", place, b.first)
		switch {
		case b.kind == "console":
			for i, command := range strings.Split("\n"+b.text, "\n$ ")[1:] {
				line, want, _ := strings.Cut(command, "\n")
				name := fmt.Sprintf("%d-%d", b.line, i)
				fmt.Fprintf(&script, "{ %s\n} >/mnt/outputs/%s 2>&1\n", line, name)
				wanted = append(wanted, output{place + ": " + line, name, want})
			}
		case b.inBackground:
			fmt.Fprintf(&script, "{ %s} &\n", b.text)
		default:
			script.WriteString(b.text)
		}
	}
	script.WriteString("echo the page ends here\n")
	ctx, cancel := context.WithTimeout(context.Background(), pageTime)
	defer cancel()
	// The daemons end with the process space.
	shell := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork",
		"--kill-child", "--mount-proc", "bash", "-c", script.String())
	shell.WaitDelay = 10 * time.Second
	printed, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(printed), "the page ends here\n") {
		t.Fatalf("%s: %v\n%s", page, err, printed)
	}
	for _, o := range wanted {
		got, err := os.ReadFile(filepath.Join(outputs, o.file))
		if err != nil {
			t.Error(err)
		} else if !matches(string(got), o.want) {
			t.Errorf("%s printed\n%s\nand the page says\n%s", o.place, got, o.want)
		}
	}
}

// matches reports whether an output is what a page shows, where "…" stands for anything.
func matches(got, want string) bool {
	parts := strings.Split(strings.TrimSpace(want), "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, ".*") + `$`).
		MatchString(strings.TrimSpace(got))
}

func TestDotsStandForAnything(t *testing.T) {
	for _, c := range []struct {
		got, want string
		isSame    bool
	}{
		{"a b\n", "a b\n", true}, {"a b", "a c", false}, {"a 17 b\n", "a … b\n", true},
		{"a\nb\nc", "a\n…", true}, {"x a", "a", false}, {"a.c", "a?c", false}, {"", "", true},
	} {
		if got := matches(c.got, c.want); got != c.isSame {
			t.Errorf("%q matches %q: %v", c.got, c.want, got)
		}
	}
}
