// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

var (
	// guestKills is how often relay or target are killed.
	guestKills = 2
	// guestFiles is how many files of up to guestFileSize bytes the guest copies.
	guestFiles = 200
)

const guestFileSize = 64 << 10

// TestTheFileSystemOfAVirtualMachineSurvivesKills lets a guest with ext4 on a virtio disk copy
// files while relay and target are killed by turns. The guest finds no difference and no error, and
// the file system is clean afterwards, for the guest and for the host.
func TestTheFileSystemOfAVirtualMachineSurvivesKills(t *testing.T) {
	t.Parallel()
	testkit.OnlyComplete(t, "file systems of this machine, and the commands of QEMU, use exports")
	testkit.RequireTools(t, "qemu-system-x86_64", "busybox", "cpio", "depmod", "mke2fs", "e2fsck",
		"nbdcopy", "apt-get")
	c, file := managedChain(t, "512MiB")
	makeImage := exec.Command("testdata/vm-image.sh", c.dir)
	if output, err := makeImage.CombinedOutput(); err != nil {
		t.Fatalf("make the image of the guest: %v\n%s", err, output)
	}
	makeTree(t, filepath.Join(c.dir, "tree", "tree"))
	c.mustServe(`truncate -s 512M disk; mke2fs -q -t ext4 -d tree disk; nbdcopy disk "$uri"`)

	p := c.gateway(`mkfifo end
		cat end | qemu-system-x86_64 -accel tcg -m 256 -nodefaults -no-reboot \
			-display none -serial stdio -kernel vmlinuz -initrd initramfs \
			-append "console=ttyS0 quiet panic=-1" \
			-drive file="$uri",format=raw,if=virtio,cache=none`)
	testkit.Eventually(t, "the guest has copied its files once", func() bool {
		select {
		case <-p.Ended():
			t.Fatalf("the guest has ended:\n%s", tail(p.Stdout.String()))
		default:
		}
		return strings.Contains(p.Stdout.String(), "copied 1\r")
	})
	random := seedtest.Random(t, 0)
	for i := range guestKills {
		c.killDaemon(p, i)
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond) // IO between two kills
	}
	writeFile(t, filepath.Join(c.dir, "end"), []byte("\n"))
	if code := p.Wait(); code != 0 || !strings.Contains(p.Stdout.String(), "all is well") {
		t.Errorf("exit code %d; the guest says:\n%s", code, tail(p.Stdout.String()))
	}
	if output, err := exec.Command("e2fsck", "-fn", file).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, output)
	}
	t.Logf("%d kills, %d copies of %d files", guestKills,
		strings.Count(p.Stdout.String(), "copied "), guestFiles)
}

// makeTree makes a directory with files like those of a package.
func makeTree(t *testing.T, directory string) {
	t.Helper()
	sizes := rand.New(rand.NewPCG(1, 0))
	for i := range guestFiles {
		d := filepath.Join(directory, fmt.Sprint(i%37))
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(d, fmt.Sprint(i)), someContent(sizes.IntN(guestFileSize)))
	}
}
