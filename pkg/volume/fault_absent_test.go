//go:build !faultinject

package volume_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestFaultVolumeIsRejectedUnlessBuiltIn(t *testing.T) {
	_, err := volume.ParseSpec("v=fault:eio=0.1:memory:1MiB", 4096)
	if !errors.Is(err, status.NotSupported) ||
		!strings.Contains(err.Error(), "build with -tags faultinject") {
		t.Errorf("ParseSpec returned %v", err)
	}
}
