// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// stormSessions is how many sessions lose their target at the same time, and stormRate how many of
// them the target admits per second.
var stormSessions, stormRate = 40, 50

// stormRelays is how many relays have the sessions: one would need many descriptors.
const stormRelays = 4

// stormDirectory returns the directory of the relay that a session uses.
func stormDirectory(session int) string { return fmt.Sprint("comch", session%stormRelays) }

func TestAllSessionsComeBackToARestartedTarget(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t),
		volumes: []string{"disk=file:" + filepath.Join(t.TempDir(), "disk.img") + ",size=32MiB"}}
	target := []string{"--metrics-listen", "127.0.0.1:0", "--max-sessions", "2048",
		"--max-session-rate", fmt.Sprint(stormRate)}
	c.startTarget(target...)
	for relay := range stormRelays {
		c.startRelay(stormDirectory(relay), "--session-wait", "2s", "--max-clients",
			fmt.Sprint(stormSessions))
	}
	volumes := make([]*client.Volume, stormSessions)
	opening := time.Now()
	forEach(volumes, 32, func(i int) {
		config := c.clientConfig(1)
		config.Provider = emulated.New(emulated.Options{
			Directory: filepath.Join(c.dir, stormDirectory(i)),
		})
		config.Reconnect = &retry.Policy{}
		// The target admits so many sessions per second, and a relay waits for it for a while only.
		v, err := client.Open(testkit.Context(t), config)
		for errors.Is(err, status.Again) {
			v, err = client.Open(testkit.Context(t), config)
		}
		if err != nil {
			t.Errorf("open volume %d: %v", i, err)
			return
		}
		t.Cleanup(v.Abort)
		volumes[i] = v
	})
	if t.Failed() {
		t.FailNow()
	}
	opened := time.Since(opening)

	c.target.Signal(syscall.SIGKILL)
	c.target.Wait()
	restarting := time.Now()
	c.startTarget(target...)
	back := time.Now()
	after := make([]time.Duration, stormSessions)
	forEach(volumes, stormSessions, func(i int) {
		testkit.Eventually(t, "the volume is reopened", func() bool {
			return volumes[i].Reconnections().Count > 0
		})
		after[i] = time.Since(back)
		testkit.Eventually(t, "a read succeeds", func() bool { return reads(volumes[i]) })
	})
	slices.Sort(after)
	all := after[stormSessions-1]
	// Before this process has noticed that the target listens, sessions may have been admitted.
	least := time.Duration(stormSessions-stormRate/5) * time.Second / time.Duration(stormRate)
	if all+time.Since(restarting)-time.Since(back) < least {
		t.Errorf("all sessions are back after %v, at %d per second it takes %v", all, stormRate,
			least)
	}
	metrics := c.scrape(c.target)
	if got := sumMetric(metrics, "zc_target_sessions"); got != float64(stormSessions+stormRelays) {
		t.Errorf("the target has %v sessions", got)
	}
	t.Logf("%d sessions at %d/s: opened in %v, back %v (half of them), %v (all) after the target, "+
		"which told %v a turn", stormSessions, stormRate, opened.Round(time.Millisecond),
		after[stormSessions/2].Round(time.Millisecond), all.Round(time.Millisecond),
		sumMetric(metrics, "zc_target_sessions_postponed_total"))
}

// forEach calls do for each volume, for some of them at the same time.
func forEach(volumes []*client.Volume, together int, do func(i int)) {
	var running sync.WaitGroup
	places := make(chan struct{}, together)
	for i := range volumes {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	running.Wait()
}

// reads reports whether a read of the volume succeeds, once the volume is not being reopened.
func reads(v *client.Volume) bool {
	q, results := v.Queue(0), make([]client.Result, 1)
	q.Poll(results) // switches to the session
	if q.Submit(&client.Request{Type: client.Read, Length: 4096}) != nil {
		return false
	}
	q.Ring()
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); {
		if q.Poll(results) > 0 {
			return results[0].Code == status.Success
		}
		time.Sleep(time.Millisecond)
	}
	return false
}
