package volume_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryVolumeConforms(t *testing.T) { volumetest.Run(t, openMemory(1<<20)) }

func TestFileVolumeConforms(t *testing.T) { volumetest.Run(t, openFile(1<<20)) }
