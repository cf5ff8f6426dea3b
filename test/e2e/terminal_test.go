// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// terminal is a terminal of tmux with a program in it.
type terminal struct {
	t      *testing.T
	socket string
}

// startTerminal runs a program of users in a terminal of 40 lines.
func startTerminal(t *testing.T, command ...string) *terminal {
	t.Helper()
	testkit.RequireTools(t, "tmux")
	x := &terminal{t: t, socket: filepath.Join(t.TempDir(), "tmux")}
	t.Cleanup(func() { x.do("kill-server") })
	x.do(append([]string{"-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40"},
		command...)...)
	return x
}

// do gives tmux a command and returns what it prints.
func (x *terminal) do(args ...string) string {
	output, _ := exec.Command("tmux", append([]string{"-S", x.socket}, args...)...).
		CombinedOutput()
	return string(output)
}

// await returns the screen as soon as it matches an expression.
func (x *terminal) await(expression string) string {
	x.t.Helper()
	pattern := regexp.MustCompile(expression)
	var screen string
	defer func() {
		if x.t.Failed() {
			x.t.Logf("the screen:\n%s", screen)
		}
	}()
	testkit.Eventually(x.t, "the screen matches "+expression, func() bool {
		screen = x.do("capture-pane", "-p")
		return pattern.MatchString(screen)
	})
	return screen
}

// awaitEnd waits until the program has ended.
func (x *terminal) awaitEnd() {
	x.t.Helper()
	testkit.Eventually(x.t, "the program in the terminal has ended", func() bool {
		sessions := x.do("list-sessions")
		return strings.Contains(sessions, "no server running") ||
			strings.Contains(sessions, "error connecting")
	})
}

func TestTopIsLiveInATerminal(t *testing.T) {
	t.Parallel()
	c, admin := startAdministeredChain(t)
	c.startIO(bench(8)...)
	x := startTerminal(t, program(t, "zc-relay"), "top", "--interval", "100ms",
		"--admin", admin)
	screen := x.await(`IOPS +[1-9][0-9]*  [▁▂▃▄▅▆▇█]{3}`)
	for _, want := range []string{"channels: 1 of 1 ready", "storage_zero_copy_comch", "SESSION",
		"WORKER"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is missing on the screen:\n%s", want, screen)
		}
	}
	x.do("send-keys", "q")
	x.awaitEnd()
}

// A program that asks its terminal for something waits for the answer, and takes the next commands
// that a user has pasted for it.
func TestOnlyTopAsksTheTerminal(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "script")
	for _, name := range []string{"zc-relay", "target", "initiator"} {
		command := exec.Command("script", "-qec",
			"'"+program(t, name)+"' --version", "/dev/null")
		command.Env = append(os.Environ(), "TERM=xterm-256color")
		output, err := command.Output()
		if err != nil || !strings.Contains(string(output), "go1.") ||
			strings.Contains(string(output), "\x1b") {
			t.Errorf("%s sends the terminal %q: %v", name, output, err)
		}
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	_, admin := startAdministeredChain(t)
	code, _, stderr := call(t, "zc-relay", "top", "--admin", admin)
	if code != 2 || !strings.Contains(stderr, "needs a terminal") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestATransferShowsItsProgressInATerminal(t *testing.T) {
	t.Parallel()
	c := startChain(t, "disk=memory:64MiB")
	original, _ := randomFile(t, c.dir, 32<<20)
	x := startTerminal(t, program(t, "initiator"), "put", original,
		"--emulated-dir", filepath.Join(c.dir, "comch"), "--buffer-size", "64KiB", "--reconnect",
		"--queue-depth", "1", "--allow-faults", "--fault", "volume:write:delay=20ms")
	x.await(`[1-9][0-9]*% .* [0-9.]+ [KM]iB of 32\.0 MiB, [0-9.]+ MiB/s, [0-9]+s elapsed, ` +
		`[0-9ms]+ left`)
	c.relay.Signal(syscall.SIGKILL)
	c.relay.Wait()
	c.relay = c.startRelay("comch")
	x.await(`(?m)^20[0-9-]+T\S+\s+WARN\s+initiator\s+session lost`)
	x.do("send-keys", "C-c")
	x.awaitEnd()
}

// shells holds how each shell is started without the user's settings, how it prepares for
// completions, and how it loads one.
var shells = map[string]struct {
	command, files []string
	prepare, load  string
}{
	"bash": {[]string{"bash", "--norc", "--noprofile"},
		[]string{"/usr/share/bash-completion/bash_completion"},
		"source /usr/share/bash-completion/bash_completion", "source <(PROGRAM completion bash)"},
	"zsh": {[]string{"zsh", "-f"}, nil, "autoload -U compinit; compinit -u -D",
		"source <(PROGRAM completion zsh)"},
	"fish": {[]string{"fish", "--no-config"}, nil, "true", "PROGRAM completion fish | source"},
}

func TestShellsCompleteCommandsFlagsAndWords(t *testing.T) {
	t.Parallel()
	for name, shell := range shells {
		t.Run(name, func(t *testing.T) {
			testkit.RequireTools(t, append(shell.files, name)...)
			x := startTerminal(t, append([]string{"env", "HOME=" + t.TempDir(), "TERM=screen",
				"PATH=" + testkit.Plain.Directory(t) + ":" + os.Getenv("PATH")}, shell.command...)...)
			x.do("send-keys", shell.prepare, "Enter")
			for _, program := range []string{"initiator", "zc-relay", "target", "dma-copy"} {
				x.do("send-keys", strings.ReplaceAll(shell.load, "PROGRAM", program)+
					" && echo loa''ded "+program, "Enter")
				x.await(`(?m)^loaded ` + program)
			}
			for _, c := range []struct{ typed, shown string }{
				{"initiator ver", `verify(.|\n)*version|version(.|\n)*verify`},
				{"initiator bench --rw rand", `randread(.|\n)*randrw(.|\n)*randwrite`},
				{"initiator bench --block", `--block-size .*length of each request`},
				{"zc-relay config ", `check(.|\n)*dump`},
				{"target volume ", `add(.|\n)*list(.|\n)*remove`},
				{"dma-copy --log-", `--log-format(.|\n)*--log-level`},
			} {
				x.do("send-keys", c.typed)
				x.do("send-keys", "Tab")
				x.do("send-keys", "Tab")
				x.await(c.shown)
				x.do("send-keys", "C-u") // not C-c, which would swallow what is typed next
				x.do("send-keys", "C-l")
			}
		})
	}
}
