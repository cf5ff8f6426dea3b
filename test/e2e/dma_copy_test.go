// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

// copySite holds the files of both sides of a dma-copy.
type copySite struct {
	t        testing.TB
	dir      string
	hostFile string
	dpuFile  string
	flags    []string // of both sides
}

func newCopySite(t testing.TB) *copySite {
	t.Helper()
	s := &copySite{t: t, dir: t.TempDir()}
	for _, side := range []string{"host", "dpu"} {
		if err := os.Mkdir(filepath.Join(s.dir, side), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.hostFile = filepath.Join(s.dir, "host", "file")
	s.dpuFile = filepath.Join(s.dir, "dpu", "file")
	return s
}

// start starts both sides, in either order.
func (s *copySite) start(hostFirst bool) (host, dpu *testkit.Process) {
	s.t.Helper()
	common := append([]string{"--emulated-dir", filepath.Join(s.dir, "comch"),
		"--connect-timeout", patience, "--timeout", patience}, s.flags...)
	startDPU := func() {
		dpu = spawn(s.t, "dma-copy",
			append([]string{"--side", "dpu", "-p", "03:00.0", "-r", "b1:00.0", "-f", s.dpuFile},
				common...)...)
	}
	if !hostFirst {
		startDPU()
	}
	host = spawn(s.t, "dma-copy",
		append([]string{"--side", "host", "-d", "b1:00.0", "--file", s.hostFile}, common...)...)
	if hostFirst {
		startDPU()
	}
	return host, dpu
}

// ends returns the paths of the original and of the copy.
func (s *copySite) ends(toDPU bool) (from, to string) {
	if toDPU {
		return s.hostFile, s.dpuFile
	}
	return s.dpuFile, s.hostFile
}

func TestDMACopyMovesFilesOfAnySizeBothWays(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 1 << 20, 33<<20 + 5} {
		for _, toDPU := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/to_dpu=%v", size, toDPU), func(t *testing.T) {
				s := newCopySite(t)
				from, to := s.ends(toDPU)
				content := someContent(size)
				writeFile(t, from, content)
				host, dpu := s.start(toDPU)
				if h, d := host.Wait(), dpu.Wait(); h != 0 || d != 0 {
					t.Fatalf("the host exited with %d, the DPU with %d", h, d)
				}
				if !bytes.Equal(readFile(t, to), content) ||
					!bytes.Equal(readFile(t, from), content) {
					t.Error("the files differ")
				}
				want := fmt.Sprintf("%d bytes copied from", size)
				if !strings.Contains(host.Stderr.String(), want) ||
					!strings.Contains(dpu.Stderr.String(), want) || host.Stdout.String() != "" {
					t.Errorf("host: %q; DPU: %q", host.Stderr.String(), dpu.Stderr.String())
				}
			})
		}
	}
}

func TestDMACopySpeaksTheOriginalsMessages(t *testing.T) {
	t.Parallel()
	for _, toDPU := range []bool{true, false} {
		s := newCopySite(t)
		s.flags = []string{"--compat"}
		from, to := s.ends(toDPU)
		content := someContent(9<<20 + 1)
		writeFile(t, from, content)
		host, dpu := s.start(false)
		if h, d := host.Wait(), dpu.Wait(); h != 0 || d != 0 ||
			!bytes.Equal(readFile(t, to), content) {
			t.Errorf("the host exited with %d, the DPU with %d", h, d)
		}
	}
}

func TestDMACopyFailsOnBothSidesIfBothOrNeitherHaveTheFile(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{true, false} {
		s := newCopySite(t)
		want := "exists on neither side"
		if both {
			want = "exists on both sides"
			writeFile(t, s.hostFile, []byte("host"))
			writeFile(t, s.dpuFile, []byte("DPU"))
		}
		host, dpu := s.start(false)
		for _, side := range []*testkit.Process{host, dpu} {
			if code := side.Wait(); code != 1 || !strings.Contains(side.Stderr.String(), want) {
				t.Errorf("a side exited with %d: %s", code, side.Stderr.String())
			}
		}
		if both && (string(readFile(t, s.hostFile)) != "host" ||
			string(readFile(t, s.dpuFile)) != "DPU") {
			t.Error("a file was changed")
		}
	}
}

func TestDMACopyWithoutAnotherSideTimesOut(t *testing.T) {
	t.Parallel()
	s := newCopySite(t)
	for _, side := range [][]string{{"host", "-p", "b1:00.0"},
		{"dpu", "-p", "03:00.0", "-r", "b1:00.0"}} {
		lonely := spawn(t, "dma-copy",
			append(side[1:], "--side", side[0], "-f", s.hostFile, "--connect-timeout", "200ms",
				"--emulated-dir", s.dir)...)
		if code := lonely.Wait(); code != 3 ||
			!strings.Contains(lonely.Stderr.String(), "running?") {
			t.Errorf("%s exited with %d: %s", side[0], code, lonely.Stderr.String())
		}
	}
}

// awaitProgress waits until the given number of bytes of the copy have arrived, or the copy has
// ended.
func (s *copySite) awaitProgress(to string, arrived int64) {
	s.t.Helper()
	pattern, begun := filepath.Join(filepath.Dir(to), ".file.*.partial"), false
	deadline := time.Now().Add(testkit.Patience)
	for ; time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		parts, err := filepath.Glob(pattern)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(parts) == 0 {
			if _, err := os.Stat(to); err == nil || begun {
				return
			}
			continue
		}
		begun = true
		if about, err := os.Stat(parts[0]); err == nil && about.Size() >= arrived {
			return
		}
	}
	s.t.Fatalf("timed out waiting for %d bytes of the file", arrived)
}

// TestDMACopyThatIsKilledLeavesNoPartialFile kills one side at a random moment, over and over. The
// copy must then be either missing or complete, and the other side must have noticed.
func TestDMACopyThatIsKilledLeavesNoPartialFile(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	content, original := someContent(size), filepath.Join(t.TempDir(), "original")
	writeFile(t, original, content)
	rounds := 16
	if testing.Short() {
		rounds = 4
	}
	random, complete := seedtest.Random(t, 0), 0
	for round := range rounds {
		s := newCopySite(t)
		from, to := s.ends(round%2 == 0)
		if err := os.Link(original, from); err != nil {
			t.Fatal(err)
		}
		host, dpu := s.start(false)
		victim, other := host, dpu
		if round%4 < 2 {
			victim, other = dpu, host
		}
		underWay, moment := round%8 < 6, ""
		if underWay {
			arrived := 1 + random.Int64N(size)
			s.awaitProgress(to, arrived)
			moment = fmt.Sprintf("at %d bytes", arrived)
		} else {
			pause := time.Duration(random.Int64N(int64(80 * time.Millisecond)))
			time.Sleep(pause)
			moment = fmt.Sprintf("%v after its start", pause)
		}
		victim.Signal(syscall.SIGKILL)
		killed, code := victim.Wait(), -1
		if underWay {
			code = other.Wait() // which otherwise may not have met the victim
		}
		got, err := os.ReadFile(to)
		switch {
		case err == nil && bytes.Equal(got, content):
			complete++
		case !os.IsNotExist(err):
			t.Errorf("killed %s: %d bytes are under the final name, error %v", moment, len(got),
				err)
		case code == 0 || killed == 0:
			t.Errorf("killed %s: there is no file, but a side ended with success", moment)
		case code > 0 && !strings.Contains(other.Stderr.String(), "disconnected before"):
			t.Errorf("killed %s: the other side exited with %d: %s", moment, code,
				other.Stderr.String())
		}
		other.Signal(syscall.SIGKILL)
		other.Wait()
		_ = os.RemoveAll(s.dir)
	}
	t.Logf("%d of %d copies were complete when a side was killed", complete, rounds)
	if complete == rounds {
		t.Error("no copy was killed before it was complete")
	}
}

// writeHole makes a sparse file that takes long enough to copy for the copy to be disturbed.
func writeHole(t testing.TB, path string) {
	t.Helper()
	writeFile(t, path, nil)
	if err := os.Truncate(path, 2<<30); err != nil {
		t.Fatal(err)
	}
}

func TestDMACopyTimesOutWhenASideIsStopped(t *testing.T) {
	t.Parallel()
	for name, hostStops := range map[string]bool{"host": true, "DPU": false} {
		s := newCopySite(t)
		s.flags = []string{"--timeout", "3s"}
		writeHole(t, s.hostFile)
		host, dpu := s.start(false)
		stopped, other := dpu, host
		if hostStops {
			stopped, other = host, dpu
		}
		s.awaitProgress(s.dpuFile, 1)
		stopped.Stop()
		want := "no message from the " + name + " for 3s"
		if code := other.Wait(); code != 1 || !strings.Contains(other.Stderr.String(), want) {
			t.Errorf("the other side exited with %d: %s", code, other.Stderr.String())
		}
		if _, err := os.Stat(s.dpuFile); !os.IsNotExist(err) {
			t.Errorf("there is a file, or %v", err)
		}
	}
}

func TestDMACopyThatIsInterruptedIsReportedByBothSidesAndCleansUp(t *testing.T) {
	t.Parallel()
	for _, hostStops := range []bool{true, false} {
		s := newCopySite(t)
		writeHole(t, s.dpuFile)
		host, dpu := s.start(false)
		interrupted, other := dpu, host
		if hostStops {
			interrupted, other = host, dpu
		}
		s.awaitProgress(s.hostFile, 1)
		interrupted.Signal(syscall.SIGTERM)
		for _, side := range []*testkit.Process{interrupted, other} {
			if code := side.Wait(); code != 1 ||
				!strings.Contains(side.Stderr.String(), "stopped by signal") {
				t.Errorf("a side exited with %d: %s", code, side.Stderr.String())
			}
		}
		if entries, err := os.ReadDir(filepath.Dir(s.hostFile)); err != nil || len(entries) > 0 {
			t.Errorf("%v is left, error %v", entries, err)
		}
	}
}

// BenchmarkFileCopy compares dma-copy with cp, on files in memory. Each iteration includes the
// start of the processes.
func BenchmarkFileCopy(b *testing.B) {
	const size = 512 << 20
	base := "/dev/shm"
	if about, err := os.Stat(base); err != nil || !about.IsDir() {
		b.Skipf("no file system in memory: %v", err)
	}
	b.Setenv("TMPDIR", base)
	b.Run("cp", func(b *testing.B) {
		dir := b.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		writeFile(b, from, someContent(size))
		b.SetBytes(size)
		for b.Loop() {
			if output, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, output)
			}
			_ = os.Remove(to)
		}
	})
	for name, toDPU := range map[string]bool{"dma-copy/host_to_dpu": true,
		"dma-copy/dpu_to_host": false} {
		b.Run(name, func(b *testing.B) {
			s := newCopySite(b)
			from, to := s.ends(toDPU)
			writeFile(b, from, someContent(size))
			b.SetBytes(size)
			for b.Loop() {
				host, dpu := s.start(false)
				if h, d := host.Wait(), dpu.Wait(); h != 0 || d != 0 {
					b.Fatalf("the host exited with %d, the DPU with %d", h, d)
				}
				_ = os.Remove(to)
			}
		})
	}
}

func someContent(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), 7}).Read(b)
	return b
}
