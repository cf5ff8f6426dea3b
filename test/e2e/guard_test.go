// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// TestVolumesAreProtected writes a file system to the volume, with the tools of an administrator.
func TestVolumesAreProtected(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "mkfs.ext4")
	c := startObservedChain(t, "disk=memory:64MiB")
	image := c.dir + "/image"
	if output, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", image, "32M").
		CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, output)
	}
	c.mustRun("put", image)
	for _, command := range [][]string{
		{"verify", "--passes", "1"}, {"bench", "--rw", "randwrite", "--runtime", "1s"},
	} {
		run := c.initiator(command...)
		if code := run.Wait(); code != 2 ||
			!strings.Contains(run.Stderr.String(), "ext2, ext3 or ext4 file system") {
			t.Errorf("%q on a file system exited with %d", command, code)
		}
	}
	c.mustRun("get", image+".copy")
	check := exec.CommandContext(t.Context(), "e2fsck", "-fn", image+".copy")
	if output, err := check.CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, output)
	}

	holder := c.startIO("verify", "--overwrite", "--runtime", patience, "--queues", "1",
		"--queue-depth", "4", "--output", "json")
	run := c.initiator("verify", "--passes", "1")
	if code := run.Wait(); code != 2 || !strings.Contains(run.Stderr.String(), "IN_USE") ||
		!strings.Contains(run.Stderr.String(), "(process ") {
		t.Errorf("verify of a volume in use exited with %d", code)
	}
	run = c.initiator("info")
	if code := run.Wait(); code != 0 || !strings.Contains(run.Stdout.String(), "1 session") {
		t.Errorf("info exited with %d", code)
	}
	interruptVerify(t, holder)
	noise, _ := randomFile(t, c.dir, 1<<20)
	c.mustRun("put", noise) // over the file system, which the holder may have left intact
	c.mustRun("verify", "--passes", "1")
}
