// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// TestDaemonsOnOneMachineUseSharedMemory moves a file through relay and target with every pair of
// RDMA providers that fit each other, and looks at the transport that info and both daemons report.
func TestDaemonsOnOneMachineUseSharedMemory(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ relay, target, transport string }{
		"shm":                   {"shm", "shm", "shm"},
		"the default":           {"", "", "shm"},
		"auto to another iwarp": {"auto", "iwarp", "iwarp"},
		"iwarp to auto":         {"iwarp", "auto", "iwarp"},
		"shm to auto":           {"shm", "auto", "shm"},
		"auto to shm":           {"auto", "shm", "shm"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
				address: listenAddress(t)}
			flags := func(provider string) []string {
				observed := []string{"--metrics-listen", "127.0.0.1:0"}
				if provider == "" {
					return observed
				}
				return append(observed, "--rdma-provider", provider)
			}
			c.startTarget(flags(test.target)...)
			c.relay = c.startRelay("comch", flags(test.relay)...)
			original, content := randomFile(t, c.dir, 16<<20)
			copied := filepath.Join(c.dir, "copy")
			c.mustRun("put", original)
			c.mustRun("get", copied)
			if !bytes.Equal(readFile(t, copied), content) {
				t.Error("the copy differs from the original")
			}
			if info := c.mustRun("info", "-o", "json"); !strings.Contains(
				strings.ReplaceAll(info, " ", ""), `"transport":"`+test.transport+`"`) {
				t.Errorf("info does not announce %s:\n%s", test.transport, info)
			}
			c.startIO(bench(8)...)
			for metric, daemon := range map[string]*testkit.Process{
				`zc_relay_connected_queues{channel="03:00.0/b1:00.0/storage_zero_copy_comch",`: c.relay,
				`zc_target_connected_queues{`: c.target,
			} {
				want := metric + `transport="` + test.transport + `"} `
				testkit.Eventually(t, "the metrics have "+want, func() bool {
					_, all := get(t, daemon, "/metrics")
					return strings.Contains(all, want)
				})
			}
			_, status := get(t, c.relay, "/status")
			status = strings.ReplaceAll(status, " ", "")
			if want := `"transport":"` + test.transport + `"`; !strings.Contains(status, want) {
				t.Errorf("the status lacks %s:\n%s", want, status)
			}
		})
	}
}

// TestProvidersThatDoNotFitAreNamedBeforeAClientConnects starts a relay before targets with which
// no session is possible, and then mends the target.
func TestProvidersThatDoNotFitAreNamedBeforeAClientConnects(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ relay, target string }{
		"shm to iwarp": {"shm", "iwarp"}, "iwarp to shm": {"iwarp", "shm"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
				address: listenAddress(t)}
			c.startTarget("--rdma-provider", test.target)
			c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0",
				"--rdma-provider", test.relay)
			want := fmt.Sprintf("the target's RDMA transport is %q, the relay's %q: set rdma.provider "+
				"(--rdma-provider) on both sides so that they agree", test.target, test.relay)
			testkit.Eventually(t, "/readyz says "+want, func() bool {
				code, body := get(t, c.relay, "/readyz")
				return code == http.StatusServiceUnavailable && strings.Contains(body, want)
			})
			c.target.Terminate()
			c.startTarget("--rdma-provider", "auto")
			c.awaitReady(c.relay)
			c.mustRun("info")
		})
	}
}
