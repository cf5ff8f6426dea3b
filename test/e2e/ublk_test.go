// SPDX-License-Identifier: Apache-2.0

//go:build ublk

package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// These tests need a kernel with ublk_drv, and nobody else who uses it: test/ublk/run.sh runs them
// in a small VM, as root. Each has the device ublkDevice for itself.

const (
	ublkID     = "7"
	ublkDevice = "/dev/ublkb7"
)

// ublkRounds is how often each of gateway, relay, and target is killed.
var ublkRounds = flag.Int("ublk-rounds", 3, "kills of each of gateway, relay, and target")

// serveUblk starts a gateway of the device, and waits until it serves.
func (c *chain) serveUblk(flags ...string) *testkit.Process {
	c.t.Helper()
	p := c.startUblk(flags...)
	p.AwaitLog("serving a block device")
	return p
}

func (c *chain) startUblk(flags ...string) *testkit.Process {
	c.t.Helper()
	return c.initiator(append([]string{"ublk", "--id", ublkID, "--reconnect-first-pause", "20ms",
		"--reconnect-longest-pause", "200ms"}, flags...)...)
}

// endUblk ends a gateway, and expects that it has removed the device.
func endUblk(t *testing.T, p *testkit.Process) {
	t.Helper()
	p.Terminate()
	if code := p.Wait(); code != 0 {
		t.Errorf("the gateway exited with %d:\n%s", code, tail(p.Stderr.String()))
	}
	if _, err := os.Stat("/sys/block/ublkb" + ublkID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the device is still there: %v\n%s", err, tail(p.Stderr.String()))
	}
}

// sh runs a shell script, which has to succeed, and returns what it prints.
func sh(t *testing.T, script string) string {
	t.Helper()
	output, err := exec.Command("bash", "-euc", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
	return string(output)
}

// mountUblk makes a file system and mounts it. The test's end unmounts it.
func mountUblk(t *testing.T, kind string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	sh(t, fmt.Sprintf("modprobe -q %[1]s; mkfs.%[1]s -q %[2]s; mount -t %[1]s %[2]s %[3]s", kind,
		ublkDevice, directory))
	t.Cleanup(func() { _ = syscall.Unmount(directory, syscall.MNT_DETACH) })
	return directory
}

func unmount(t *testing.T, directory string) {
	t.Helper()
	if err := syscall.Unmount(directory, 0); err != nil {
		t.Fatal(err)
	}
}

// fioUblk is fio that verifies what it writes, in a file or on the device.
func fioUblk(file string, flags ...string) string {
	return "fio --name=verify --filename=" + file + " --ioengine=libaio --direct=1 --rw=randrw " +
		"--iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=256 " +
		"--randrepeat=0 --minimal " + strings.Join(flags, " ")
}

func TestUblkFileSystemsSurvive(t *testing.T) {
	for _, c := range []struct {
		kind, check string
		flags       []string
	}{
		{"ext4", "e2fsck -fn", nil},
		{"xfs", "xfs_repair -n", nil},
		// mkfs.xfs takes sectors of 512 bytes then: the gateway changes parts of the volume's
		// blocks.
		{"xfs", "xfs_repair -n", []string{"--block-size", "512B", "--queues", "2"}},
		{"btrfs", "btrfs check -q", nil},
	} {
		t.Run(strings.Join(append([]string{c.kind}, c.flags...), " "), func(t *testing.T) {
			chain, _ := managedChain(t, "512MiB")
			chain.serveAndFill(t, c.kind, c.check, c.flags...)
		})
	}
}

// serveAndFill makes a file system, uses it, and checks it on another device.
func (c *chain) serveAndFill(t *testing.T, kind, check string, flags ...string) {
	p := c.serveUblk(flags...)
	directory := mountUblk(t, kind)
	sh(t, fioUblk(directory+"/fio", "--bs=4k-64k", "--size=8m", "--fsync=64"))
	sh(t, fmt.Sprintf("cd %s; head -c 5000000 /dev/urandom >a; cp a b; rm a; sync; fstrim .", directory))
	sum := sh(t, "md5sum <"+directory+"/b")
	unmount(t, directory)
	endUblk(t, p)

	p = c.serveUblk(append(flags, "--read-only")...)
	sh(t, check+" "+ublkDevice)
	sh(t, fmt.Sprintf("mount -o ro %s %s", ublkDevice, directory))
	if again := sh(t, "md5sum <"+directory+"/b"); again != sum {
		t.Error("a file has another content")
	}
	unmount(t, directory)
	if err := os.WriteFile(ublkDevice, []byte("x"), 0); !errors.Is(err, syscall.EPERM) &&
		!errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing to a read-only device: %v", err)
	}
	endUblk(t, p)
}

func TestUblkDiscardAndWriteZeroesReachTheVolume(t *testing.T) {
	c, file := managedChain(t, "64MiB")
	p := c.serveUblk("--metrics-listen", "127.0.0.1:0")
	allocated := func() int64 {
		about, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return about.Sys().(*syscall.Stat_t).Blocks * 512
	}
	sh(t, "dd if=/dev/urandom of="+ublkDevice+" bs=1M count=32 oflag=direct status=none")
	if n := allocated(); n < 32<<20 {
		t.Fatalf("the volume has %d bytes", n)
	}
	sh(t, "blkdiscard --offset 0 --length 16M "+ublkDevice)
	sh(t, "blkdiscard --zeroout --offset 16M --length 8M "+ublkDevice)
	if n := allocated(); n > 17<<20 {
		t.Errorf("the volume still has %d bytes", n)
	}
	device, err := os.Open(ublkDevice)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	content := make([]byte, 24<<20)
	if _, err := io.ReadFull(device, content); err != nil || !bytes.Equal(content,
		make([]byte, len(content))) {
		t.Errorf("what was discarded or cleared is not zero: %v", err)
	}
	metrics := c.scrape(p)
	count := func(command string) (sum float64) {
		for line := range strings.Lines(metrics) {
			if strings.Contains(line, `command="`+command+`"`) {
				sum += sumMetric(line, "zc_relay_ublk_requests_total")
			}
		}
		return sum
	}
	for _, command := range []string{"trim", "write_zeroes"} {
		if count(command) == 0 {
			t.Errorf("the gateway has seen no %s", command)
		}
	}
	device.Close()
	fua := readFile(t, "/sys/block/ublkb"+ublkID+"/queue/fua")
	if string(fua) != "1\n" {
		t.Errorf("the kernel flushes instead of writing with FUA: %s", fua)
	}
	endUblk(t, p)
}

// TestUblkUsersNoticeNoKill kills gateway, relay, and target by turns while fio verifies what it
// writes through a file system and on another part of the volume.
func TestUblkUsersNoticeNoKill(t *testing.T) {
	for name, volume := range map[string]string{"shared": "", "exclusive": ",exclusive"} {
		t.Run(name, func(t *testing.T) {
			c, _ := managedChain(t, "64MiB"+volume)
			p := c.serveUblk("--queues", "2")
			end := filepath.Join(c.dir, "stop")
			sh(t, "dmesg -c >/dev/null")
			load := testkit.Start(t, exec.Command("bash", "-euc", "while [ ! -e "+end+" ]; do "+
				fioUblk(ublkDevice, "--bs=4k", "--size=24m", "--fsync=50", "--numjobs=1")+
				"; echo round; done; echo passed"))
			for i := range 3 * *ublkRounds {
				switch i % 3 {
				case 0:
					p.Kill()
					p = c.serveUblk()
					if !p.HasLogged(`"recovered": true`) {
						t.Fatalf("the gateway did not take over:\n%s", p.Stderr.String())
					}
				default:
					c.killDaemon(p, i)
				}
				if load.HasEnded() {
					t.Fatalf("fio has ended after %d kills:\n%s\n%s", i+1, load.Stdout.String(),
						load.Stderr.String())
				}
				c.awaitProgress()
			}
			writeFile(t, end, nil)
			if code := load.Wait(); code != 0 || !load.Stdout.Contains("passed\n") {
				t.Errorf("fio: exit code %d\n%s\n%s", code, load.Stdout.String(),
					load.Stderr.String())
			}
			if log := sh(t, "dmesg"); strings.Contains(log, "I/O error") {
				t.Errorf("the kernel has seen errors:\n%s", log)
			}
			t.Logf("%d kills, %d rounds of fio", 3**ublkRounds,
				strings.Count(load.Stdout.String(), "round\n"))
			endUblk(t, p)
		})
	}
}

// awaitProgress waits until some requests have been answered.
func (c *chain) awaitProgress() {
	c.t.Helper()
	answered := func() (n uint64) {
		var fields [3]uint64 // reads, merged, sectors (Documentation/block/stat.rst)
		text, err := os.ReadFile("/sys/block/ublkb" + ublkID + "/stat")
		if err != nil {
			c.t.Fatal(err)
		}
		_, _ = fmt.Sscan(string(text), &fields[0], &fields[1], &fields[2])
		return fields[0]
	}
	before := answered()
	testkit.Eventually(c.t, "the device answers", func() bool { return answered() > before+20 })
}

func TestUblkADeviceInUseOutlivesItsGateway(t *testing.T) {
	c, _ := managedChain(t, "64MiB")
	p := c.serveUblk()
	directory := mountUblk(t, "ext4")
	writeFile(t, filepath.Join(directory, "file"), []byte("content"))
	p.Terminate()
	if code := p.Wait(); code != 0 || !p.HasLogged("the device stays") ||
		!p.HasLogged("is mounted at") {
		t.Fatalf("exit code %d:\n%s", code, p.Stderr.String())
	}
	sync := testkit.Start(t, exec.Command("sync", "-f", directory))
	p = c.serveUblk()
	if code := sync.Wait(); code != 0 {
		t.Errorf("sync: exit code %d", code)
	}
	sh(t, "echo 3 >/proc/sys/vm/drop_caches")
	if content := readFile(t, filepath.Join(directory, "file")); string(content) != "content" {
		t.Errorf("the file has %q", content)
	}
	if remove := c.initiator("ublk", "remove", "--id", ublkID); remove.Wait() != 2 ||
		!remove.HasLogged("serves the device") {
		t.Errorf("removing a served device: %s", remove.Stderr.String())
	}
	unmount(t, directory)
	endUblk(t, p)
}

func TestUblkADeviceHasOneGateway(t *testing.T) {
	c, _ := managedChain(t, "64MiB")
	p := c.serveUblk()
	second := c.startUblk()
	if code := second.Wait(); code != 2 || !second.HasLogged("serves "+ublkDevice) {
		t.Errorf("the second gateway exited with %d:\n%s", code, second.Stderr.String())
	}
	sh(t, "dd if="+ublkDevice+" of=/dev/null bs=1M count=4 iflag=direct status=none")
	endUblk(t, p)
}

func TestUblkAnAbandonedDeviceCanBeRemoved(t *testing.T) {
	c, _ := managedChain(t, "64MiB")
	p := c.serveUblk()
	directory := mountUblk(t, "ext4")
	p.Kill()
	writer := testkit.Start(t, exec.Command("dd", "if=/dev/zero", "of="+directory+"/file", "bs=1M",
		"count=4", "oflag=direct"))
	remove := c.initiator("ublk", "remove", "--id", ublkID)
	if code := remove.Wait(); code != 2 || !remove.HasLogged("is mounted at "+directory) {
		t.Errorf("removing a mounted device: exit code %d\n%s", code, remove.Stderr.String())
	}
	if writer.HasEnded() {
		t.Errorf("the writer did not wait: %s", writer.Stderr.String())
	}
	if code := c.initiator("ublk", "remove", "--force", "--id", ublkID).Wait(); code != 0 {
		t.Errorf("removing by force: exit code %d", code)
	}
	if code := writer.Wait(); code == 0 {
		t.Error("a write to a device that was removed succeeded")
	}
	_ = syscall.Unmount(directory, syscall.MNT_DETACH)
	if code := c.initiator("ublk", "remove", "--id", ublkID).Wait(); code != 2 {
		t.Errorf("removing a device that is not there: exit code %d", code)
	}
}

func TestUblkADeviceKeepsToItsVolume(t *testing.T) {
	c, _ := managedChain(t, "64MiB")
	p := c.serveUblk()
	p.Kill()
	other, _ := managedChain(t, "64MiB")
	wrong := other.startUblk()
	if code := wrong.Wait(); code != 1 || !wrong.HasLogged("another volume") {
		t.Errorf("with another volume: exit code %d\n%s", code, wrong.Stderr.String())
	}
	endUblk(t, c.serveUblk())
}

// TestUblkADeviceEndsWithAnotherVolume starts a target with a volume in memory again.
func TestUblkADeviceEndsWithAnotherVolume(t *testing.T) {
	c := startChain(t, "ram=memory:64MiB")
	p := c.serveUblk()
	c.target.Signal(syscall.SIGKILL)
	c.target.Wait()
	c.startTarget()
	if code := p.Wait(); code != 1 || !p.HasLogged("removing the device") {
		t.Errorf("exit code %d:\n%s", code, p.Stderr.String())
	}
	if _, err := os.Stat("/sys/block/ublkb" + ublkID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the device is still there: %v", err)
	}
}

func TestUblkUsersWaitForARelayThatIsAway(t *testing.T) {
	c, _ := managedChain(t, "64MiB")
	p := c.serveUblk()
	c.relay.Signal(syscall.SIGKILL)
	c.relay.Wait()
	reader := testkit.Start(t, exec.Command("dd", "if="+ublkDevice, "of=/dev/null", "bs=1M",
		"count=4", "iflag=direct"))
	time.Sleep(10 * time.Second) // what is tested is that nothing happens
	if reader.HasEnded() {
		t.Fatalf("the reader has ended: %s", reader.Stderr.String())
	}
	c.relay = c.startRelay("comch")
	if code := reader.Wait(); code != 0 {
		t.Errorf("the reader exited with %d: %s", code, reader.Stderr.String())
	}
	endUblk(t, p)
}

// TestUblkUnprivileged runs as an ordinary user, whom another process gives the device's file.
func TestUblkUnprivileged(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("for an ordinary user")
	}
	c, _ := managedChain(t, "64MiB")
	refused := c.startUblk()
	if code := refused.Wait(); code == 0 || !refused.HasLogged("CAP_SYS_ADMIN") {
		t.Errorf("without --unprivileged: exit code %d\n%s", code, refused.Stderr.String())
	}
	p := c.serveUblk("--unprivileged")
	testkit.Eventually(t, "the user has access to the device", func() bool {
		file, err := os.OpenFile(ublkDevice, os.O_RDWR, 0)
		if err == nil {
			_ = file.Close()
		}
		return err == nil
	})
	sh(t, fioUblk(ublkDevice, "--bs=4k-64k", "--size=8m", "--fsync=64"))
	endUblk(t, p)
}
