// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func TestFaultsReachEveryWayIntoTheVolume(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 10000), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"bench --rw read --runtime 50ms --fault volume:read:nth=3:error=EIO":     "EIO",
		"verify --queues 2 --fault volume:read:every=3:corrupt":                  "are wrong",
		"put " + file + " --fault volume:write:range=4KiB+1:error=ENOSPC":        "ENOSPC",
		"put " + file + " --offset 3 --fault volume:write:range=0+4:error=EIO":   "injected",
		"put " + file + " --fault volume:flush:error=EROFS":                      "injected",
		"verify --queues 1 --fault volume:write:range=8KiB+4KiB:p=0.999:drop":    "are wrong",
		"get " + file + " --fault volume:read:p=0.9999999:error=IO_FAILED":       "IO_FAILED",
		"verify --queues 1 --fault volume:write:range=8KiB+4KiB:p=0.999:corrupt": "are wrong",
	} {
		o := newRelay().call(context.Background(), "", line+" --allow-faults")
		if o.code != program.ExitFailure || !strings.Contains(o.stderr+o.stdout, want) {
			t.Errorf("%s: exit code %d: %s%s", line, o.code, o.stdout, o.stderr)
		}
	}
	o := newRelay().call(context.Background(), "", "get "+file+
		" --allow-faults --fault volume:read:delay=1ms --fault volume:flush:freeze")
	if o.code != program.ExitOK {
		t.Errorf("a delayed get: exit code %d: %s", o.code, o.stderr)
	}
}
