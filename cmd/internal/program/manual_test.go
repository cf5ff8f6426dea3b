package program_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManualPagesKeepUnderscores reads the pages of zc-relay, which has environment variables.
func TestManualPagesKeepUnderscores(t *testing.T) {
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
}
