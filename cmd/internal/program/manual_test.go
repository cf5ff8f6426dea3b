package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManualPagesKeepUnderscoresAndCommands reads the pages of zc-relay, which has environment
// variables, and commands that must not be filled.
func TestManualPagesKeepUnderscoresAndCommands(t *testing.T) {
	directory := t.TempDir()
	run := exec.CommandContext(t.Context(), "go", "run", "-tags", "manual",
		"github.com/zc-relay/zc-relay/cmd/zc-relay", directory)
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	page, err := os.ReadFile(filepath.Join(directory, "man", "zc-relay-config.1"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "ZC_RELAY__LOG__LEVEL") {
		t.Errorf("the page lacks the variable:\n%s", page)
	}
	if page, err = os.ReadFile(filepath.Join(directory, "man", "zc-relay-run.1")); err != nil {
		t.Fatal(err)
	}
	const command = ".EX\nzc-relay run --storage-server 10.0.0.5:7470 --volume disk\n.EE"
	if !strings.Contains(string(page), command) {
		t.Errorf("the page lacks the command as it is:\n%s", page)
	}
}
