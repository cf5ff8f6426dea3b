// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestRequestsOutliveARelay(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	p, answers := talk(t, leakless(compileTest(t, "outage"),
		c.configuration("reconnect=true,depth=4")))
	for i, what := range []string{"lost: start the relay", "in use: start the relay"} {
		await(t, p, "open: stop the relay", i+1)
		c.relay.Stop()
		answer(t, answers)
		await(t, p, "outstanding: kill the relay", i+1)
		c.relay.Kill()
		answer(t, answers)
		await(t, p, what, 1)
		c.startRelay(t)
		answer(t, answers)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
}

// Without reconnect=true, a volume ends with its session, and says so.
func TestAVolumeEndsWithItsSession(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	p, answers := talk(t, leakless(compileTest(t, "end"), c.configuration("depth=4")))
	await(t, p, "open: stop the relay", 1)
	c.relay.Stop()
	answer(t, answers)
	await(t, p, "outstanding: kill the relay", 1)
	c.relay.Kill()
	answer(t, answers)
	if code := p.Wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
}

// Two threads, of which one sleeps on the queue's descriptor, lose nothing while the relay is
// killed over and over.
func TestNothingIsLostWithTheRelay(t *testing.T) {
	t.Parallel()
	const kills = 3
	c := startChain(t)
	p, answers := talk(t, leakless(compileTest(t, "survive"),
		c.configuration("reconnect=true,queues=2,depth=16,buffer_size=4KiB")))
	awaitProgress(t, p)
	for range kills {
		c.relay.Kill()
		c.startRelay(t)
		awaitProgress(t, p)
	}
	if err := answers.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	if want := fmt.Sprintf("reopened %d, replaced 0\n", kills); !p.Stdout.Contains(want) {
		t.Errorf("it does not say %q", want)
	}
}

// A relay that is stopped may still use the memory of its session when it continues: the program
// goes on with new memory.
func TestTheMemoryOfASilentRelayIsReplaced(t *testing.T) {
	testkit.OnlyComplete(t, "the tests of pkg/client, without the six seconds of a lease")
	t.Parallel()
	c := startChain(t)
	p, answers := talk(t, leakless(compileTest(t, "survive"), c.configuration(
		"reconnect=true,queues=2,depth=16,buffer_size=4KiB,io_timeout=1s,release_timeout=1s")))
	awaitProgress(t, p)
	c.relay.Stop()
	isQuarantined := regexp.MustCompile(`quarantined [1-9]`)
	testkit.Eventually(t, "requests are quarantined", func() bool {
		return isQuarantined.MatchString(p.Stdout.String()) || p.HasEnded()
	})
	c.relay.Continue()
	awaitProgress(t, p)
	if err := answers.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	if !p.Stdout.Contains("reopened 1, replaced 2\n") {
		t.Error("it does not say that both queues have new memory")
	}
}

// talk starts a program and returns its standard input, too.
func talk(t *testing.T, command *exec.Cmd) (*testkit.Process, io.WriteCloser) {
	t.Helper()
	answers, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Start(t, command), answers
}

// await waits until the program has said something so many times.
func await(t *testing.T, p *testkit.Process, text string, times int) {
	t.Helper()
	hasSaid := func() bool { return strings.Count(p.Stdout.String(), text) >= times }
	testkit.Eventually(t, "the program says "+text, func() bool {
		return hasSaid() || p.HasEnded()
	})
	if !hasSaid() {
		t.Fatalf("it has ended before it says %q", text)
	}
}

func answer(t *testing.T, answers io.Writer) {
	t.Helper()
	if _, err := io.WriteString(answers, "done\n"); err != nil {
		t.Fatal(err)
	}
}

// awaitProgress waits until the program has written a hundred blocks more.
func awaitProgress(t *testing.T, p *testkit.Process) {
	t.Helper()
	const more = 100
	written := func() int {
		lines := strings.Split(p.Stdout.String(), "\n")
		n, err := strconv.Atoi(lines[max(0, len(lines)-2)])
		if err != nil {
			return 0
		}
		return n
	}
	begun := written()
	testkit.Eventually(t, "the program writes", func() bool {
		return written() >= begun+more || p.HasEnded()
	})
	if p.HasEnded() {
		t.Fatal("it has ended")
	}
}
