// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A start with volumes that no attempt can ever open fails.
func TestVolumesThatAreConfiguredWronglyEndTheStart(t *testing.T) {
	wrong := config.Volume{Name: "wrong", Backend: "file:" + t.TempDir(), BlockSize: 4096}
	other := config.Volume{Name: "other", Backend: "volume:wrong", BlockSize: 4096}
	for _, strict := range []bool{false, true} {
		c := &config.Target{Volumes: []config.Volume{wrong, other}}
		c.Startup.Strict = strict
		_, err := openVolumes(c, zap.NewNop(), unhooked)
		if program.ExitCode(err) != program.ExitUsage ||
			strings.Count(err.Error(), "a directory") != 1 {
			t.Errorf("strict %v: the start returned %v", strict, err)
		}
	}
}

func unhooked(v volume.Volume) volume.Volume { return v }

// Beside others, one that no attempt could open is served once its storage has changed: its path
// may have been that of a missing mount.
func TestAVolumeThatIsConfiguredWronglyStopsNoOther(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "disk")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := openVolumes(&config.Target{Volumes: []config.Volume{
		{Name: "good", Backend: "memory:1MiB", BlockSize: 4096},
		{Name: "wrong", Backend: "file:" + path, BlockSize: 4096},
	}}, zap.NewNop(), unhooked)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := v.close(); err != nil {
			t.Error(err)
		}
	}()
	err = errors.Join(os.Remove(path), os.WriteFile(path, make([]byte, 1<<20), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the volume is served", v.served["wrong"].isOpen)
}

func TestAReloadWithAVolumeThatIsConfiguredWronglyChangesNothing(t *testing.T) {
	v := newVolumes(t)
	good := config.Volume{Name: "good", Backend: "memory:1MiB", BlockSize: 4096}
	wrong := config.Volume{Name: "wrong", Backend: "file:" + t.TempDir(), BlockSize: 4096}
	apply, err := v.prepare(t.Context(), nil, []config.Volume{good, wrong}, false)
	if apply != nil || program.ExitCode(err) != program.ExitUsage ||
		!strings.Contains(err.Error(), "a directory") {
		t.Errorf("the reload returned %v", err)
	}
	if len(v.all()) > 0 || len(v.turn) > 0 {
		t.Errorf("%d volumes are served, and the turn is taken: %v", len(v.all()), len(v.turn) > 0)
	}
}
