// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// A relay learns from its idle session that it cannot serve clients, and from each new one why. A
// session that is in use goes on.
func TestRelaysLearnThatAVolumeHasFailed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	v, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 4096,
		Backend: volume.FileBackend{Path: path, Size: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close(t.Context()) })
	s := startTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: v}}
	})
	idle, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	used, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := used.Call(t.Context(), configuration(1, 4)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	select {
	case <-idle.Done():
	case <-time.After(testkit.Patience):
		t.Fatal("the idle session goes on")
	}
	if now := s.Volumes()[0].State; now != volume.Failed {
		t.Errorf("the volume is %s", now)
	}
	_, err = relayTo(t, s.Address(), nil)
	if !errors.Is(err, status.IOFailed) || !strings.Contains(err.Error(), "has failed, at ") ||
		!strings.Contains(err.Error(), unix.ESTALE.Error()) {
		t.Errorf("a new session: %v", err)
	}
	select {
	case <-used.Done():
		t.Error("the session that is in use has ended")
	default:
	}
}

// A relay that asks for a volume that is not open yet learns why. It is served when the volume is
// open.
func TestRelaysLearnThatAVolumeCannotBeOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	begin := make(chan struct{})
	v := volume.OpenLate(volume.LateConfig{
		Spec: volume.Spec{Name: "disk", BlockSize: 4096, Backend: volume.FileBackend{Path: path}},
		Open: func(spec volume.Spec) (volume.Volume, error) {
			<-begin
			return volume.Open(spec)
		},
		Pauses: retry.Policy{FirstPause: time.Hour}, Silence: time.Hour})
	t.Cleanup(func() { _ = v.Close(t.Context()) })
	s := startTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: v},
			"same": {Volume: v, ReadOnly: true}, "other": {Volume: volumetest.OpenMemory(t, "1MiB")}}
	})
	rejects := func(code status.Code, text string) {
		t.Helper()
		_, err := relayTo(t, s.Address(), nil)
		// The relay takes NOT_FOUND for the answer of a target without the volume.
		if got := status.CodeOf(err); got != code || !strings.Contains(err.Error(), text) {
			t.Errorf("a new session: %v, want %v with %q", err, code, text)
		}
	}
	rejects(status.InProgress, "is being opened, since ")
	close(begin)
	<-v.Tried()
	rejects(status.IOFailed, "does not exist: add ,size=SIZE to create it [NOT_FOUND]")
	if all := s.Volumes(); all[0].State != volume.Failed || all[1].State != volume.Serving ||
		all[2].State != volume.Failed { // disk, other, same
		t.Errorf("the volumes are %v", all)
	}
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	v.Retry()
	testkit.Eventually(t, "a session opens the volume", func() bool {
		_, err := relayTo(t, s.Address(), nil)
		return err == nil
	})
}

// Relays ask again every few seconds. The log has the reason once, and does not blame them.
func TestTheLogHasARejectionOnce(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	path := filepath.Join(t.TempDir(), "disk")
	v := volume.OpenLate(volume.LateConfig{
		Spec:   volume.Spec{Name: "disk", BlockSize: 4096, Backend: volume.FileBackend{Path: path}},
		Open:   volume.Open,
		Pauses: retry.Policy{FirstPause: time.Hour}, Silence: time.Hour})
	t.Cleanup(func() { _ = v.Close(t.Context()) })
	s := startTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: v}}
		config.Logger = zap.New(core)
	})
	<-v.Tried()
	const attempts = 3
	for range attempts {
		relay, err := relayTo(t, s.Address(), nil)
		if !errors.Is(err, status.IOFailed) {
			t.Fatalf("a new session: %v", err)
		}
		relay.Close(fmt.Errorf("open volume of target: %w", err))
	}
	ended := func() *observer.ObservedLogs { return logs.FilterMessage("session ended") }
	testkit.Eventually(t, "the sessions have ended", func() bool { return ended().Len() == attempts })
	if n := logs.FilterMessage("request failed").FilterLevelExact(zap.WarnLevel).Len(); n != 1 {
		t.Errorf("the log has the reason %d times", n)
	}
	for _, line := range ended().All() {
		if text := fmt.Sprint(line.ContextMap()["error"]); line.Level != zap.DebugLevel ||
			!strings.Contains(text, "relay: left after its open_volume had failed here: volume") {
			t.Errorf("the session ended at level %v: %s", line.Level, text)
		}
	}
}
