// SPDX-License-Identifier: Apache-2.0

//go:build soak

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func init() {
	targetRestarts, lateRelays, nbdKills = 100, 40, 100
	guestKills, guestFiles = 100, 1000 // as many files as a large package has
	stormSessions, stormRate = 1000, 500
	campaignGoal.processFaults, campaignGoal.lostConnections = 300, 1500
	campaignGoal.attacks = 500_000
}

// TestDMACopyMovesThreeGiBBothWays copies more bytes than fit in 31 bits. Most of the file is a
// hole, so that making it takes no time.
func TestDMACopyMovesThreeGiBBothWays(t *testing.T) {
	t.Parallel()
	const size = 3 << 30
	for _, toDPU := range []bool{true, false} {
		s := newCopySite(t)
		from, to := s.ends(toDPU)
		writeFile(t, from, someContent(5<<20))
		file, err := os.OpenFile(from, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, offset := range []int64{1<<31 - 7, 1<<32 - 3<<20, size - 1<<20} {
			if _, err := file.WriteAt(someContent(1<<20), offset%size); err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		host, dpu := s.start(false)
		if h, d := host.Wait(), dpu.Wait(); h != 0 || d != 0 {
			t.Fatalf("the host exited with %d, the DPU with %d", h, d)
		}
		t.Log(host.Stderr.String())
		if output, err := exec.Command("cmp", from, to).CombinedOutput(); err != nil {
			t.Errorf("the files differ: %v: %s", err, output)
		}
		_ = os.RemoveAll(s.dir)
	}
}

// TestVerifyOutlastsAStoppedRelay stops the relay under load until the client leaves its memory to
// it, and continues it.
func TestVerifyOutlastsAStoppedRelay(t *testing.T) {
	t.Parallel()
	c := startFileChain(t)
	run := c.initiator(reconnectingVerify("--control-timeout", "4s", "--io-timeout", "1s")...)
	const left = "has not released the data memory"
	for round := range 5 {
		c.awaitIO()
		c.relay.Stop()
		testkit.Eventually(t, "the client leaves its memory to the relay", func() bool {
			return strings.Count(run.Stderr.String(), left) > round
		})
		c.relay.Continue()
	}
	c.awaitIO()
	interruptVerify(t, run)
}
