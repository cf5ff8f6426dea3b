// SPDX-License-Identifier: Apache-2.0

package testkit_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }

// recorder is a test that records why it fails instead of reporting it.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failureOf runs the body of a test and returns why it failed, "" if it passed.
func failureOf(t *testing.T, body func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		body(r)
	}()
	<-done
	return r.failure
}

func TestWaitsEndWhenWhatIsAwaitedHappensOrPatienceEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		want  string
	}{
		{"at once", 0, ""},
		{"late", testkit.Patience - time.Second, ""},
		{"too late", testkit.Patience + time.Second, "timed out waiting until it happens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				if got := failureOf(t, func(t testing.TB) {
					testkit.Eventually(t, "it happens",
						func() bool { return time.Since(begun) >= c.after })
				}); got != c.want {
					t.Errorf("a condition: %q, want %q", got, c.want)
				}
				channel := make(chan int, 1)
				time.AfterFunc(c.after, func() { channel <- 7 })
				if got := failureOf(t, func(t testing.TB) {
					if got := testkit.Receive(t, "it happens", channel); got != 7 {
						t.Fatalf("received %d, want 7", got)
					}
				}); got != c.want {
					t.Errorf("a channel: %q, want %q", got, c.want)
				}
				synctest.Wait()
				time.Sleep(time.Minute) // until the timer of what is too late has fired
			})
		})
	}
}

// The last line of a program counts, also if the program ends before anyone looks.
func TestALogIsReadToItsEndBeforeTheExitIsJudged(t *testing.T) {
	p := testkit.Start(t, exec.Command("sh", "-c", "echo before >&2; echo the last >&2; exit 3"))
	<-p.Ended()
	p.AwaitLog("the last")
	if code := p.Wait(); code != 3 {
		t.Errorf("the exit code is %d, want 3", code)
	}
	const want = `sh exited before it logged "absent"`
	if got := failureOf(t, func(tb testing.TB) {
		failing := testkit.Start(tb, exec.Command("sh", "-c", "echo present >&2"))
		failing.AwaitLog("absent")
	}); got != want {
		t.Errorf("a log without the text: %q, want %q", got, want)
	}
}

func TestAStoppedProcessContinues(t *testing.T) {
	cat := exec.Command("cat")
	if _, err := cat.StdinPipe(); err != nil { // which stays open, so that it does not end
		t.Fatal(err)
	}
	p := testkit.Start(t, cat)
	p.Stop()
	p.Continue()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != -1 {
		t.Errorf("the exit code is %d, want -1 after a signal", code)
	}
}

func TestAddressesDiffer(t *testing.T) {
	seen := make(map[netip.Addr]bool)
	for range 300 {
		address := testkit.Address(t)
		if seen[address] || !address.IsLoopback() {
			t.Fatalf("%v is not a loopback address of its own", address)
		}
		seen[address] = true
	}
}

// What a variable names is taken as it is, and a directory that is missing is no reason to build.
func TestAVariableNamesThePrograms(t *testing.T) {
	directory := t.TempDir()
	t.Setenv("ZC_RELAY_EXAMPLE_PROGRAMS", filepath.Join(directory, "absent"))
	if _, err := testkit.Examples.Find(); err == nil ||
		!strings.Contains(err.Error(), "ZC_RELAY_EXAMPLE_PROGRAMS") {
		t.Errorf("a missing directory: %v", err)
	}
	t.Setenv("ZC_RELAY_EXAMPLE_PROGRAMS", directory)
	if got, err := testkit.Examples.Find(); got != directory || err != nil {
		t.Errorf("found %q, error %v, want %q", got, err, directory)
	}
}
