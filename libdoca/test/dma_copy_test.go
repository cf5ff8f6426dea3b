// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// dmaCopy is a copy between our dma-copy --compat and a program in the shape of DOCA's DMA Copy
// application, at the other side.
type dmaCopy struct {
	theirs string // side: "dpu" or "host"
	test   string // what their side does: "sends" or "receives"
	size   int    // of the file
	// docaProviders lets our side use the providers named doca, on the emulated libdoca.
	docaProviders bool
	// onEmulation lets our side have the emulated libdoca, and choose its providers.
	onEmulation bool
	native      bool     // our side without --compat
	flags       []string // of our side, besides
	buffer      string   // their BUFFER, if they are the host
	hold        string   // their HOLD
	outcome     string   // their OUTCOME; "" is success
	// files says who has the file: "" the sender, "both", or "neither". Their program then takes
	// the same part as in test.
	files string
}

func (c *dmaCopy) String() string {
	provider := "emulated"
	if c.docaProviders {
		provider = "doca"
	}
	return fmt.Sprintf("%s_%s/%d/%s/%s", c.theirs, c.test, c.size, c.buffer, provider)
}

// running is a copy that has started.
type running struct {
	*dmaCopy
	t                  *testing.T
	ourSide, theirSide *testkit.Process
	ourFile, theirFile string
}

func contentOf(size int) []byte {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(content)
	return content
}

func (c *dmaCopy) start(t *testing.T, executable string) *running {
	t.Helper()
	directory := t.TempDir()
	r := &running{dmaCopy: c, t: t, ourFile: filepath.Join(directory, "ours"),
		theirFile: filepath.Join(directory, "theirs")}
	comchDirectory := filepath.Join(directory, "comch")
	for path, has := range map[string]bool{
		r.theirFile: c.test == "sends", // their program checks that it has what it sends
		r.ourFile:   (c.test == "receives" || c.files == "both") && c.files != "neither",
	} {
		if !has {
			continue
		}
		if err := os.WriteFile(path, contentOf(c.size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	programs := testkit.Plain
	arguments := []string{"-f", r.ourFile, "--emulated-dir", comchDirectory}
	if !c.native {
		arguments = append(arguments, "--compat")
	}
	if c.docaProviders || c.onEmulation {
		programs = testkit.Emulation
	}
	if c.docaProviders {
		arguments = append(arguments, "--comch-provider", "doca", "--dma-provider", "doca")
	}
	if c.theirs == "host" {
		arguments = append(arguments, "-d", "03:00.0", "-r", "b1:00.0")
	} else {
		arguments = append(arguments, "-d", "b1:00.0")
	}
	ours := exec.Command(programs.Program(t, "dma-copy"), append(arguments, c.flags...)...)
	ours.Env = append(os.Environ(), "ZC_DOCA_DEBUG=report")
	theirs := exec.Command(executable, c.theirs, c.test)
	theirs.Env = append(environment(t, "{role: "+c.theirs+", directory: "+comchDirectory+"}"),
		"FILE="+r.theirFile, "BUFFER="+c.buffer, "HOLD="+c.hold)
	if c.outcome != "" {
		theirs.Env = append(theirs.Env, "OUTCOME="+c.outcome)
	}
	r.ourSide, r.theirSide = testkit.Start(t, ours), testkit.Start(t, theirs)
	return r
}

// wantOurs fails unless our side ends with a code, and says each of the texts.
func (r *running) wantOurs(code int, texts ...string) {
	r.t.Helper()
	if got := r.ourSide.Wait(); got != code {
		r.t.Errorf("dma-copy ends with code %d, not %d", got, code)
	}
	for _, text := range texts {
		if !r.ourSide.HasLogged(text) {
			r.t.Errorf("dma-copy does not say %q, but %q", text, r.ourSide.Stderr)
		}
	}
	checkMisuse(r.t, "dma-copy", r.ourSide.Stderr.String())
}

// wantTheirs fails unless their side ends as it is told to.
func (r *running) wantTheirs() {
	r.t.Helper()
	if code := r.theirSide.Wait(); code != 0 {
		r.t.Errorf("their side ends with code %d: %s", code, r.theirSide.Stderr)
	}
	checkMisuse(r.t, "their side", r.theirSide.Stderr.String())
}

// wantFiles fails unless both files, or only that of the sender, are there.
func (r *running) wantFiles(areCopied bool) {
	r.t.Helper()
	from, to := r.ourFile, r.theirFile
	if r.test == "sends" {
		from, to = to, from
	}
	want := contentOf(r.size)
	if got, err := os.ReadFile(from); err != nil || !bytes.Equal(got, want) {
		r.t.Errorf("the file that was sent has %d bytes, and others, error %v", len(got), err)
	}
	got, err := os.ReadFile(to)
	switch {
	case areCopied && (err != nil || !bytes.Equal(got, want)):
		r.t.Errorf("%d bytes of %d have arrived, or others, error %v", len(got), len(want), err)
	case !areCopied && !errors.Is(err, fs.ErrNotExist):
		r.t.Errorf("%d bytes of a failed copy are there, error %v", len(got), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(to), ".*.partial")); err != nil ||
		len(left) > 0 {
		r.t.Errorf("%q are left, error %v", left, err)
	}
}

// compileDMACopy compiles their sides.
func compileDMACopy(t *testing.T, c *toolchain) map[string]string {
	return map[string]string{"host": c.compile(t, "dma_copy_host"),
		"dpu": c.compile(t, "dma_copy_dpu")}
}

// largestTask is what a device copies with one task.
const largestTask = 2 << 20

func TestDMACopyWithTheApplication(t *testing.T) {
	t.Parallel()
	eachToolchain(t, func(t *testing.T, toolchain *toolchain) {
		executables := compileDMACopy(t, toolchain)
		sizes := []int{1, 4096, 1<<20 + 1, largestTask, largestTask + 1}
		if toolchain != &toolchains[0] {
			sizes = sizes[2:3]
		}
		for _, size := range sizes {
			for _, c := range dmaCopiesOf(size) {
				t.Run(c.String(), func(t *testing.T) {
					t.Parallel()
					r := c.start(t, executables[c.theirs])
					if c.outcome == "rejected" {
						r.wantOurs(1, "the DPU reports a failure", "larger than what its device")
						r.wantTheirs()
						r.wantFiles(false)
						return
					}
					r.wantOurs(0)
					r.wantTheirs()
					r.wantFiles(true)
				})
			}
		}
	})
}

// dmaCopiesOf returns the copies of a file of one size: in both roles, directions, kinds of
// buffers, and kinds of providers.
func dmaCopiesOf(size int) (copies []dmaCopy) {
	for _, docaProviders := range []bool{false, true} {
		for _, test := range []string{"sends", "receives"} {
			for _, buffer := range []string{"pages", "malloc"} {
				copies = append(copies, dmaCopy{theirs: "host", test: test, size: size,
					buffer: buffer, docaProviders: docaProviders})
			}
			theirs := dmaCopy{theirs: "dpu", test: test, size: size, docaProviders: docaProviders}
			if size > largestTask {
				theirs.outcome = "rejected"
			}
			copies = append(copies, theirs)
		}
	}
	return copies
}

// holds are the stages at which a side can be killed.
var holds = map[string][]string{"host": {"connected", "asked"},
	"dpu": {"connected", "asked", "imported"}}

func TestDMACopyEndsWithTheApplication(t *testing.T) {
	t.Parallel()
	executables := compileDMACopyWithFirst(t)
	for theirs, stages := range holds {
		for _, stage := range stages {
			for _, test := range []string{"sends", "receives"} {
				for _, docaProviders := range []bool{false, true} {
					c := dmaCopy{theirs: theirs, test: test, size: 100_000, buffer: "malloc",
						docaProviders: docaProviders, hold: stage, outcome: "gone"}
					t.Run("theirs/"+stage+"/"+c.String(), func(t *testing.T) {
						t.Parallel()
						r := c.start(t, executables[c.theirs])
						awaitHeld(t, r.theirSide)
						r.theirSide.Kill()
						r.wantOurs(1, "disconnected before the copy was complete")
						r.wantFiles(false)
					})
					t.Run("ours/"+stage+"/"+c.String(), func(t *testing.T) {
						t.Parallel()
						r := c.start(t, executables[c.theirs])
						awaitHeld(t, r.theirSide)
						r.ourSide.Kill()
						r.wantTheirs()
						r.wantFiles(false)
					})
				}
			}
		}
	}
}

func awaitHeld(t *testing.T, p *testkit.Process) {
	t.Helper()
	testkit.Eventually(t, "their side is held", func() bool {
		if p.HasEnded() {
			t.Fatal("their side has ended before")
		}
		return p.Stdout.Contains("held")
	})
}

func TestDMACopyDoesNotWaitForeverForTheApplication(t *testing.T) {
	t.Parallel()
	executables := compileDMACopyWithFirst(t)
	for theirs := range executables {
		c := dmaCopy{theirs: theirs, test: "sends", size: 100_000, hold: "connected",
			flags: []string{"--timeout", "2s"}}
		t.Run(theirs, func(t *testing.T) {
			t.Parallel()
			r := c.start(t, executables[c.theirs])
			awaitHeld(t, r.theirSide)
			r.theirSide.Signal(syscall.SIGSTOP)
			r.wantOurs(1, "for 2s: is it stopped")
			r.wantFiles(false)
		})
	}
}

func TestDMACopySaysWhatDoesNotFitTheApplication(t *testing.T) {
	t.Parallel()
	executables := compileDMACopyWithFirst(t)
	for name, c := range map[string]struct {
		dmaCopy
		says string
	}{
		"host without --compat": {dmaCopy{theirs: "dpu", test: "receives", native: true,
			outcome: "rejected"}, "use --compat"},
		"DPU without --compat": {dmaCopy{theirs: "host", test: "sends", native: true,
			outcome: "rejected"}, "use --compat"},
		"both have the file as their DPU sees it": {dmaCopy{theirs: "dpu", test: "sends", files: "both",
			outcome: "rejected"}, "does the file exist on both sides"},
		"both have the file as ours sees it": {dmaCopy{theirs: "host", test: "sends", files: "both",
			outcome: "failure"}, "exists on both sides"},
		"neither has the file as their DPU sees it": {dmaCopy{theirs: "dpu", test: "receives", files: "neither",
			outcome: "rejected"}, "or on neither"},
		"neither has the file as ours sees it": {dmaCopy{theirs: "host", test: "receives", files: "neither",
			outcome: "failure"}, "exists on neither side"},
		"memory that is not exported any more": {dmaCopy{theirs: "host", test: "sends",
			buffer: "destroyed", outcome: "failure"}, "import the host's memory"},
		"memory that libdoca does not find": {dmaCopy{theirs: "host", test: "sends", docaProviders: true,
			buffer: "destroyed", outcome: "failure"}, "import the host's memory"},
		"parts of pages for DMA that cannot": {dmaCopy{theirs: "host", test: "sends",
			onEmulation: true, buffer: "malloc", outcome: "failure",
			flags: []string{"--dma-provider", "doca"}}, "use --dma-provider software"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.size = 10_000
			r := c.start(t, executables[c.theirs])
			r.wantOurs(1, c.says)
			r.wantTheirs()
			if c.files == "" {
				r.wantFiles(false)
			}
		})
	}
	t.Run("DMA for other Comch", func(t *testing.T) {
		t.Parallel()
		command := exec.Command(testkit.Emulation.Program(t, "dma-copy"), "-d", "03:00.0", "-r",
			"b1:00.0", "-f", filepath.Join(t.TempDir(), "file"), "--comch-provider", "doca")
		output, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(output), "use --dma-provider doca") {
			t.Errorf("dma-copy ends with %v: %s", err, output)
		}
	})
}

// compileDMACopyWithFirst compiles their sides with one compiler.
func compileDMACopyWithFirst(t *testing.T) map[string]string {
	t.Helper()
	toolchains[0].require(t)
	return compileDMACopy(t, &toolchains[0])
}
