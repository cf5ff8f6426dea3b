package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
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
		config.Volumes = map[string]target.Export{"disk": {Volume: v}}
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
	if now := s.VolumeStates()["disk"]; now != volume.Failed {
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
