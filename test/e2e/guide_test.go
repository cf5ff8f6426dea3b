// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheProgramOfTheClientGuideRuns(t *testing.T) {
	t.Parallel()
	guide := string(readFile(t, "../../docs/guides/client.md"))
	_, program, _ := strings.Cut(guide, "```go\npackage main")
	program, _, _ = strings.Cut(program, "```")
	file := filepath.Join(t.TempDir(), "main.go")
	writeFile(t, file, []byte("package main"+program))
	c := startChain(t, "disk=memory:1MiB")
	run := exec.Command("go", "run", file)
	run.Env = append(os.Environ(), "EMULATED_DIR="+filepath.Join(c.dir, "comch"))
	output, err := run.CombinedOutput()
	if want := "disk has 1048576 bytes\nhello, block\n"; err != nil || string(output) != want {
		t.Errorf("it prints %q, want %q, error %v", output, want, err)
	}
}
