package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTopIsLiveInATerminal runs top in a terminal of tmux.
func TestTopIsLiveInATerminal(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed: make test-tools requires it")
	}
	c, admin := startAdministeredChain(t)
	c.startIO(bench(8)...)
	socket := filepath.Join(t.TempDir(), "tmux")
	tmux := func(args ...string) string {
		output, _ := exec.Command("tmux", append([]string{"-S", socket}, args...)...).
			CombinedOutput()
		return string(output)
	}
	t.Cleanup(func() { tmux("kill-server") })
	tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40",
		filepath.Join(programs, "zc-relay")+" top --interval 100ms --admin "+admin)
	rate := regexp.MustCompile(`IOPS +[1-9][0-9]*  [▁▂▃▄▅▆▇█]{3}`)
	var screen string
	eventually(t, "the screen shows a rate over time", func() bool {
		screen = tmux("capture-pane", "-p")
		return rate.MatchString(screen)
	})
	for _, want := range []string{"channels: 1 of 1 ready", "storage_zero_copy_comch", "SESSION",
		"WORKER"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is missing on the screen:\n%s", want, screen)
		}
	}
	tmux("send-keys", "q")
	eventually(t, "q has ended it", func() bool {
		return strings.Contains(tmux("list-sessions"), "no server running") ||
			strings.Contains(tmux("list-sessions"), "error connecting")
	})
}

func TestTopNeedsATerminal(t *testing.T) {
	_, admin := startAdministeredChain(t)
	code, _, stderr := call(t, "zc-relay", "top", "--admin", admin)
	if code != 2 || !strings.Contains(stderr, "needs a terminal") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
