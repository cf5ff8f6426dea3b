// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAHiddenProcessIsNotDumpedAndReachesItsOwnFiles(t *testing.T) {
	if os.Getenv("SECRETS_TEST_CHILD") == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), "SECRETS_TEST_CHILD=1")
		output, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "PASS") {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	if err := HideMemory(); err != nil {
		t.Fatal(err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || dumpable != 0 {
		t.Errorf("PR_GET_DUMPABLE is %d, %v", dumpable, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Cur != 0 {
		t.Errorf("a core dump may have %d bytes, %v", limit.Cur, err)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"limits", "maps", "smaps", "status"} {
		if _, err := os.ReadFile("/proc/self/" + path); err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{"fd", "task"} {
		if _, err := os.ReadDir("/proc/self/" + path); err != nil {
			t.Error(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}
