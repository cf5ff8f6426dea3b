// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var destructiveCommands = []string{
	"verify", "bench --rw randwrite --run-limit-operation-count 100",
	"bench --rw randrw --run-limit-operation-count 100 --sessions 2",
}

func TestDestructiveCommandsSpareWhatOthersNeed(t *testing.T) {
	for _, line := range destructiveCommands {
		r := newRelay()
		copy(r.data, "XFSB")
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, "XFS") ||
			!strings.Contains(o.stderr, "--overwrite") || string(r.data[:4]) != "XFSB" {
			t.Errorf("%s on a file system: exit code %d, %s", line, o.code, o.stderr)
		}
		r.mustCall(t, line+" --overwrite")
		for i, config := range r.configs[1:] {
			if config.Exclusive {
				t.Errorf("%s --overwrite: session %d is exclusive", line, i)
			}
		}
	}
}

// TestDestructiveCommandsOpenTheVolumeExclusively also holds while they look at it: there is no
// moment at which another client could open it, and the sessions of a command keep no other of the
// same command out.
func TestDestructiveCommandsOpenTheVolumeExclusively(t *testing.T) {
	for _, line := range destructiveCommands {
		r := newRelay()
		open := 0
		r.prepare = func(*session) {
			if open++; r.closed > 0 && open <= 2 {
				t.Errorf("%s closed the volume before it opened it again", line)
			}
		}
		r.mustCall(t, line)
		for i, config := range r.configs {
			if !config.Exclusive || config.Owner != r.configs[0].Owner ||
				config.ReadOnly != (i == 0) {
				t.Errorf("%s: session %d was opened with %+v", line, i, config)
			}
		}
	}
}

func TestCommandsThatOnlyReadKeepNobodyOut(t *testing.T) {
	for _, line := range []string{
		"bench --rw randread --run-limit-operation-count 100", "get -", "info",
	} {
		r := newRelay()
		copy(r.data, "XFSB")
		r.mustCall(t, line)
		if c := r.configs[0]; len(r.configs) != 1 || c.Exclusive {
			t.Errorf("%s: %d sessions, %+v", line, len(r.configs), c)
		}
	}
}

// TestAVolumeInUseIsExplained runs in virtual time: the initiator waits a moment for the volume.
func TestAVolumeInUseIsExplained(t *testing.T) {
	synctest.Test(t, explainVolumeInUse)
}

func explainVolumeInUse(t *testing.T) {
	for _, line := range append([]string{"put -", "get -"}, destructiveCommands...) {
		r := newRelay()
		r.openError = status.Errorf(status.InUse, "open exclusively by someone")
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, "by someone") ||
			!strings.Contains(o.stderr, "--overwrite") {
			t.Errorf("%s: exit code %d, %s", line, o.code, o.stderr)
		}
	}
}

func TestAVolumeForOneWriterIsExplained(t *testing.T) {
	synctest.Test(t, explainVolumeForOneWriter)
}

func explainVolumeForOneWriter(t *testing.T) {
	for _, line := range append([]string{"put -"}, destructiveCommands...) {
		r := newRelay()
		r.openError = status.Errorf(status.InUse, "open exclusively by someone")
		describe := func(context.Context, client.Config) (client.Info, error) {
			return client.Info{Exclusive: true, Holder: "someone"}, nil
		}
		var stderr strings.Builder
		root := newCommand(r.open, describe)
		root.SetErr(&stderr)
		code := program.Run(t.Context(), root, strings.Fields(line))
		if text := stderr.String(); code != program.ExitUsage ||
			!strings.Contains(text, "one writer at a time, even with --overwrite") {
			t.Errorf("%s: exit code %d, %s", line, code, text)
		}
	}
}

func TestAVolumeOfAnotherOwnerIsExplained(t *testing.T) {
	for _, line := range append([]string{"put -"}, destructiveCommands...) {
		r := newRelay()
		r.openError = status.Errorf(status.NotPermitted, "may not open volume exclusively")
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, "--overwrite") {
			t.Errorf("%s: exit code %d, %s", line, o.code, o.stderr)
		}
	}
}

func TestAVolumeThatTheRelayMayOnlyReadIsExplained(t *testing.T) {
	r := newRelay()
	r.openError = status.Errorf(status.NotPermitted, "may not open volume exclusively")
	describe := func(context.Context, client.Config) (client.Info, error) {
		return client.Info{ReadOnly: true}, nil
	}
	var stderr strings.Builder
	root := newCommand(r.open, describe)
	root.SetErr(&stderr)
	if code := program.Run(t.Context(), root, []string{"put", "-"}); code != program.ExitUsage ||
		!strings.Contains(stderr.String(), "read-only for clients of this relay") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}

func TestInfoTellsWhoHasTheVolume(t *testing.T) {
	r := newRelay()
	r.prepare = func(v *session) {
		v.Volume.Info.Exclusive, v.Volume.Info.Sessions = true, 3
		v.Volume.Info.Holder = "verify on host-a (process 7)"
	}
	text := r.mustCall(t, "info").stdout
	want := "3 sessions, exclusively by verify on host-a (process 7); one writer at a time"
	if !strings.Contains(text, want) {
		t.Errorf("info says\n%s", text)
	}
}
