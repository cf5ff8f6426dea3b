// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		endBySignals()
	}
	goleak.VerifyTestMain(testkit.Main(m))
}

// testTree has a command that ends with err.
func testTree(err error, stderr *bytes.Buffer) *cobra.Command {
	root := &cobra.Command{Use: "tool", Version: "1"}
	root.SetErr(stderr)
	root.SetOut(&bytes.Buffer{})
	work := &cobra.Command{Use: "work", Args: cobra.NoArgs, RunE: func(*cobra.Command,
		[]string) error {
		return err
	}}
	work.Flags().Int("count", 0, "")
	work.Flags().String("needed", "", "what it is for")
	if err := work.MarkFlagRequired("needed"); err != nil {
		panic(err)
	}
	work.Flags().String("cert", "", "")
	work.Flags().String("key", "", "")
	work.MarkFlagsRequiredTogether("cert", "key")
	root.PersistentFlags().String("poll", "", "what an idle thread does")
	group := &cobra.Command{Use: "group"}
	group.AddCommand(&cobra.Command{Use: "list", Run: func(*cobra.Command, []string) {}})
	root.AddCommand(work, group)
	return root
}

func TestExitCodesFollowTheFailure(t *testing.T) {
	// Only the help of a command mends a wrong call.
	hints := map[string]bool{"usage": true, "unknown flag": true, "bad value": true,
		"missing flag": true, "extra argument": true, "unknown command": true, "no command": true,
		"similar command": true, "half a group": true, "similar command of a group": true,
		"no command of a group": true}
	for name, c := range map[string]struct {
		err       error
		arguments string
		want      int
		text      string
	}{
		"success": {nil, "work --needed x", ExitOK, ""},
		"failure": {errors.New("disk on fire"), "work --needed x", ExitFailure,
			"tool work: disk on fire\n"},
		"usage": {Usagef("no such disk"), "work --needed x", ExitUsage,
			"tool work: no such disk\nRun 'tool work --help' for usage.\n"},
		"rejected": {Rejected(status.Errorf(status.InUse, "another client has it")),
			"work --needed x", ExitUsage, "tool work: another client has it [IN_USE]\n"},
		"wrapped": {fmt.Errorf("run: %w", CannotConnect(status.NotFound)),
			"work --needed x", ExitConnect, "tool work: run: NOT_FOUND\n"},
		"several lines": {errors.Join(errors.New("one"), errors.New("two")), "work --needed x",
			ExitFailure, "tool work: one; two\n"},
		"unknown flag": {nil, "work --no-such", ExitUsage, "unknown flag"},
		"bad value": {nil, "work --needed x --count many", ExitUsage,
			"tool work: --count \"many\": must be a whole number of at least 0, for instance 500 or 10k\n"},
		"missing flag":    {nil, "work", ExitUsage, "--needed is missing: what it is for\n"},
		"extra argument":  {nil, "work --needed x y", ExitUsage, `operand "y"`},
		"unknown command": {nil, "dance", ExitUsage, "dance"},
		"no command":      {nil, "", ExitUsage, "no command"},
		"similar command": {nil, "worrk", ExitUsage,
			"tool: unknown command \"worrk\": did you mean work?\n"},
		"half a group": {nil, "work --needed x --key k", ExitUsage,
			"tool work: give --cert, too: --cert, --key belong together\n"},
		"similar command of a group": {nil, "group lsit", ExitUsage,
			"tool group: unknown command \"lsit\": did you mean list?\n"},
		"no command of a group": {nil, "group", ExitUsage, "tool group: no command was given: there are list\n"},
		"port of root": {&net.OpError{Op: "listen", Net: "tcp", Err: syscall.EACCES},
			"work --needed x", ExitFailure, "choose another port"},
		"file of root": {&fs.PathError{Op: "open", Path: "f", Err: syscall.EACCES},
			"work --needed x", ExitFailure, "run it as a user who may"},
		"version": {errors.New("not run"), "work -v", ExitOK, ""},
		"help":    {errors.New("not run"), "work --help", ExitOK, ""},
	} {
		var stderr bytes.Buffer
		got := Run(context.Background(), testTree(c.err, &stderr), strings.Fields(c.arguments))
		if got != c.want || !strings.Contains(stderr.String(), c.text) ||
			(c.text == "" && stderr.Len() > 0) ||
			strings.Contains(stderr.String(), "--help") != hints[name] {
			t.Errorf("%s: exit code %d, text %q", name, got, stderr.String())
		}
	}
	if Usage(nil) != nil || Rejected(nil) != nil || CannotConnect(nil) != nil {
		t.Error("no error has become one")
	}
}

func TestAWrongCallIsAnInvalidValueUnlessItsErrorHasACode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want status.Code
	}{
		{Usagef("depth 0"), status.InvalidValue},
		{fmt.Errorf("run: %w", Usagef("depth 0")), status.InvalidValue},
		{Usage(fs.ErrNotExist), status.NotFound},
		{Usage(status.Errorf(status.TooBig, "depth 9")), status.TooBig},
		{CannotConnect(errors.New("no route")), status.Unknown},
	} {
		if got := status.CodeOf(c.err); got != c.want {
			t.Errorf("%v has the code %v, want %v", c.err, got, c.want)
		}
	}
}

// TestShellsCompleteTheWordsOfGlobalFlags asks like a shell, which calls __complete.
func TestShellsCompleteTheWordsOfGlobalFlags(t *testing.T) {
	var stdout, stderr bytes.Buffer
	root := testTree(nil, &stderr)
	root.SetOut(&stdout)
	Run(context.Background(), root, []string{"__complete", "work", "--poll", ""})
	if !strings.HasPrefix(stdout.String(), "adaptive\nbusy\nevent\n") {
		t.Errorf("--poll is completed by %q", stdout.String())
	}
}

func TestProgressHasPercentageTotalRateAndRemainingTime(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, 300, 0)
	p.Show(100)
	p.Clear()
	if out.Len() > 0 {
		t.Errorf("something that is no terminal got %q", out.String())
	}
	// 60 of 300 MiB were moved earlier, and 40 in the 10 seconds before the first display.
	p = newProgress(&out, 300<<20, 60<<20)
	p.begun = p.begun.Add(-10 * time.Second)
	p.Show(100 << 20)
	for _, want := range []string{"33%", "100 MiB of 300 MiB, ", " MiB/s, ", " elapsed, ", " left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
	text := p.describe(100<<20, 10*time.Second, 68)
	wide := 80 - len("  33% ||   ") - len(text) - 1
	if want := strings.Repeat("█", wide/3) + strings.Repeat(" ", wide-wide/3); !strings.Contains(
		out.String(), "  33% |"+want+"|  "+text) {
		t.Errorf("no bar of %d columns is a third full in %q", wide, out.String())
	}
	p.Clear()
	if got, want := p.describe(100<<20, 10*time.Second, 68),
		"100 MiB of 300 MiB, 4.00 MiB/s, 10s elapsed, 50s left"; got != want {
		t.Errorf("the display is %q, want %q", got, want)
	}
	if got := p.describe(60<<20, 0, 68); strings.Contains(got, "left") {
		t.Errorf("before anything has moved, the display is %q", got)
	}
	p = newProgress(&out, UnknownTotal, 0)
	if got, want := p.describe(5<<20, time.Second, 68), "5.00 MiB, 5.00 MiB/s, 1s elapsed"; got != want {
		t.Errorf("of an unknown total, the display is %q, want %q", got, want)
	}
}

func TestProgressFitsIntoANarrowTerminal(t *testing.T) {
	p := newProgress(&bytes.Buffer{}, 300<<20, 60<<20)
	for columns, want := range map[int]string{
		53:             "100 MiB of 300 MiB, 4.00 MiB/s, 10s elapsed, 50s left",
		52:             "100 MiB of 300 MiB, 4.00 MiB/s, 50s left",
		40 - barOthers: "4.00 MiB/s, 50s left",
		10:             "4.00 MiB/s",
	} {
		if got := p.describe(100<<20, 10*time.Second, columns); got != want {
			t.Errorf("on %d columns, the display is %q, want %q", columns, got, want)
		}
	}
	for columns, want := range map[int]string{9: "12345678", 8: "123456…", 3: "1…", 1: "…"} {
		if got := fit("12345678", columns); got != want {
			t.Errorf("%d columns show %q, want %q", columns, got, want)
		}
	}
}

func TestCompletionForAnUnknownShellFails(t *testing.T) {
	for line, want := range map[string]string{
		"completion tcsh": "tool completion: unknown command \"tcsh\": did you mean bash or fish or zsh?\n",
		"completion elv":  "tool completion: unknown command \"elv\": there are bash, fish, powershell, zsh\n",
		"completion":      "tool completion: no command was given: there are bash, fish, powershell, zsh\n",
	} {
		var stderr bytes.Buffer
		root := testTree(nil, &stderr)
		root.SetOut(io.Discard)
		if code := Run(t.Context(), root, strings.Fields(line)); code != ExitUsage ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d: %s", line, code, stderr.String())
		}
	}
}

func TestHelpShowsManyFlagsInGroups(t *testing.T) {
	help := func(others int) string {
		root := testTree(nil, &bytes.Buffer{})
		var stdout bytes.Buffer
		root.SetOut(&stdout)
		work, _, _ := root.Find([]string{"work"})
		for _, name := range []string{"volume", "log-format", "rdma-crc", "tls-key", "config", "json"} {
			work.Flags().String(name, "", "")
		}
		argp.Mark(work.Flags(), "json")
		for i := range others {
			work.Flags().String(fmt.Sprint("rdma-", i), "", "")
		}
		Run(t.Context(), root, []string{"work", "--help"})
		return stdout.String()
	}
	if few := help(0); !strings.Contains(few, "\nFlags:\n      --cert") ||
		!strings.Contains(few, "\nGlobal Flags:\n") {
		t.Errorf("few flags are shown in groups:\n%s", few)
	}
	many, rest := help(20), ""
	for _, want := range []string{"\nFlags:\n", "--config", "--volume", "--help", "\nConnection:\n",
		"--poll", "\nSecurity:\n", "--tls-key", "\nRDMA:\n", "--rdma-0", "--rdma-crc", "\nLog:\n",
		"--log-format", "\nAs in the DOCA applications:\n", "--json", "\nOther flags:\n", "--needed"} {
		found := false
		if _, rest, found = strings.Cut(cmp.Or(rest, many), want); !found {
			t.Fatalf("%q is missing, or at another place:\n%s", want, many)
		}
	}
}

func TestAStatusLineIsOnlyForTerminals(t *testing.T) {
	var out bytes.Buffer
	l := NewStatusLine(&out)
	l.Show("%d %%", 50)
	l.Clear()
	if out.Len() > 0 || l.Active() {
		t.Errorf("something that is no terminal got %q", out.String())
	}
	l = &StatusLine{w: &out}
	l.Show("%d %%", 50)
	l.Clear()
	l.Clear()
	if want := eraseLine + "50 %" + eraseLine; out.String() != want {
		t.Errorf("a terminal got %q, want %q", out.String(), want)
	}
}

func TestASentenceHasOneCodeForEachProblem(t *testing.T) {
	for text, want := range map[string]string{
		"a [AUTHENTICATION] [NOT_CONNECTED]": "a [AUTHENTICATION]",
		"a [CODE_77] [UNKNOWN]\nb [UNKNOWN]": "a [CODE_77]; b [UNKNOWN]",
	} {
		if got := Sentence(errors.New(text)); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestAnErrorNamesTheCommandThatExplainsItsCode(t *testing.T) {
	const hint = "Run 'tool explain NOT_FOUND' for causes and remedies.\n"
	missing := status.Errorf(status.NotFound, "no volume")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"a code at the end":     {fmt.Errorf("open: %w", missing), true},
		"a code in the middle":  {fmt.Errorf("%w: is it there?", missing), true},
		"the last of two codes": {fmt.Errorf("first [TIME_OUT], then %w", missing), true},
		"rejected by a daemon":  {Rejected(missing), true},
		"a wrong call":          {Usage(missing), false},
		"no code":               {errors.New("disk on fire"), false},
		"no code of ours":       {errors.New("disk [SDA] on fire"), false},
		"a remedy":              {status.Errorf(status.NotFound, "%w", syscall.EADDRINUSE), false},
	} {
		var stderr bytes.Buffer
		Run(context.Background(), testTree(c.err, &stderr), []string{"work", "--needed", "x"})
		if got := strings.HasSuffix(stderr.String(), hint); got != c.want {
			t.Errorf("%s: %q", name, stderr.String())
		}
		if !c.want && strings.Contains(stderr.String(), "explain") {
			t.Errorf("%s: %q", name, stderr.String())
		}
	}
}
