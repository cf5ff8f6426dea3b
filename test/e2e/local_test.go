package e2e

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestDaemonsOnOneMachineUseSharedMemory moves a file through relay and target with every pair of
// RDMA providers that fit each other, and looks at the transport that the relay reports.
func TestDaemonsOnOneMachineUseSharedMemory(t *testing.T) {
	for name, test := range map[string]struct{ relay, target, transport string }{
		"shm":                   {"shm", "shm", "shm"},
		"auto":                  {"auto", "auto", "shm"},
		"auto to another iwarp": {"auto", "iwarp", "iwarp"},
		"iwarp to auto":         {"iwarp", "auto", "iwarp"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
				address: listenAddress()}
			c.startTarget("--rdma-provider", test.target)
			c.relay = c.startRelay("comch", "--rdma-provider", test.relay,
				"--metrics-listen", "127.0.0.1:0")
			original, content := randomFile(t, c.dir, 16<<20)
			copied := filepath.Join(c.dir, "copy")
			c.mustRun("put", original)
			c.mustRun("get", copied)
			if !bytes.Equal(readFile(t, copied), content) {
				t.Error("the copy differs from the original")
			}
			c.startIO(bench(8)...)
			_, status := get(t, c.relay, "/status")
			status = strings.ReplaceAll(status, " ", "")
			if want := `"transport":"` + test.transport + `"`; !strings.Contains(status, want) {
				t.Errorf("the status lacks %s:\n%s", want, status)
			}
		})
	}
}
