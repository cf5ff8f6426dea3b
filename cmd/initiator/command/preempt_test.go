// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const testHolder = "0123456789abcdef"

// preempting returns command lines that take the volume from testHolder.
func preempting(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, testBlock), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := []string{
		"bench --rw read --run-limit-operation-count 100 --sessions 2",
		"bench --rw write --run-limit-operation-count 100 --blocks-per-io 1",
		"verify --length 64KiB", "put " + file, "get " + file + ".copy",
	}
	for i := range lines {
		lines[i] += " --preempt " + testHolder
	}
	return lines
}

func TestACommandTakesTheVolumeAsOneOwner(t *testing.T) {
	for _, line := range preempting(t) {
		r := newRelay()
		r.mustCall(t, line)
		for _, c := range r.configs {
			if last := r.configs[len(r.configs)-1]; c.Preempt != testHolder || c.Owner == nil ||
				c.Owner != last.Owner &&
					c.Owner != r.configs[0].Owner {
				t.Errorf("%s: the volume is opened with %+v", line, c)
			}
		}
	}
}

func TestAHolderThatIsNotThereIsExplainedAtOnce(t *testing.T) {
	for _, line := range preempting(t) {
		r := newRelay()
		r.openError = status.Errorf(status.InUse, "held by someone")
		begun := time.Now()
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, "decide again") ||
			len(r.configs) != 1 {
			t.Errorf("%s: exit code %d after %v and %d attempts: %s", line, o.code,
				time.Since(begun), len(r.configs), o.stderr)
		}
		r.openError = status.Errorf(status.NotPermitted, "may not preempt")
		if o := r.call(context.Background(), "", line); o.code != program.ExitUsage ||
			!strings.Contains(o.stderr, "preemptor") {
			t.Errorf("%s: exit code %d: %s", line, o.code, o.stderr)
		}
		r.openError = status.Errorf(status.Again, "still in flight")
		if o := r.call(context.Background(), "", line); o.code != program.ExitConnect {
			t.Errorf("%s: exit code %d: %s", line, o.code, o.stderr)
		}
	}
	o := newRelay().call(context.Background(), "",
		"nbd --export a=b --export c=d --preempt "+testHolder)
	if o.code != program.ExitUsage || !strings.Contains(o.stderr, "serve one export") {
		t.Errorf("nbd with two exports: exit code %d: %s", o.code, o.stderr)
	}
}

func TestACommandThatLosesItsVolumeToAnotherClientSaysSo(t *testing.T) {
	for reason, code := range map[error]status.Code{
		fmt.Errorf("%w: preempted by someone", client.ErrPreempted):    status.InUse,
		status.Errorf(status.NotPermitted, "was preempted by someone"): status.ConnectionReset,
	} {
		for _, line := range []string{"bench --rw read", "verify --overwrite", "get -"} {
			r := newRelay()
			r.prepare = func(v *session) {
				v.err = reason
				v.Intercept = func(*client.Request) status.Code { return code }
			}
			o := r.call(context.Background(), "", line)
			if o.code != program.ExitTaken || !strings.Contains(o.stderr, "preempted by someone") {
				t.Errorf("%s, after %v: exit code %d: %s", line, reason, o.code, o.stderr)
			}
		}
	}
}
