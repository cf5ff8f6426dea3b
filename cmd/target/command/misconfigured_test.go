// SPDX-License-Identifier: Apache-2.0

package command

import (
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A volume that no attempt can ever open ends a start, and is no reason to reject one that may
// come.
func TestAVolumeThatIsConfiguredWronglyEndsTheStart(t *testing.T) {
	missing := config.Volume{Name: "missing", Backend: "file:" + filepath.Join(t.TempDir(), "x"),
		BlockSize: 4096}
	wrong := config.Volume{Name: "wrong", Backend: "file:" + t.TempDir(), BlockSize: 4096}
	other := config.Volume{Name: "other", Backend: "volume:wrong", BlockSize: 4096}
	for _, strict := range []bool{false, true} {
		c := &config.Target{Volumes: []config.Volume{missing, wrong, other}}
		if c.Startup.Strict = strict; strict {
			c.Volumes = c.Volumes[1:]
		}
		_, err := openVolumes(c, zap.NewNop(), func(v volume.Volume) volume.Volume { return v })
		if program.ExitCode(err) != program.ExitUsage ||
			strings.Count(err.Error(), "a directory") != 1 || strings.Contains(err.Error(), "missing") {
			t.Errorf("strict %v: the start returned %v", strict, err)
		}
	}
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
