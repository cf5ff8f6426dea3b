// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

const mib = 1 << 20

// rewriteEnd writes the last block of a volume of the given size and reads it back.
func rewriteEnd(t *testing.T, queue volume.Queue, size uint64) {
	t.Helper()
	content := bytes.Repeat([]byte{7}, 4096)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: size - 4096, Length: 4096,
		Buffer: content})
	found := make([]byte, 4096)
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Offset: size - 4096, Length: 4096,
		Buffer: found})
	if !bytes.Equal(found, content) {
		t.Error("the last block has other content than was written")
	}
}

func TestAFileVolumeGrowsUnderOpenQueues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, mib))
	queue := volumetest.NewQueue(t, v, 1)
	beyond := volume.Request{Operation: iomsg.OpRead, Offset: mib, Length: 4096,
		Buffer: make([]byte, 4096)}
	if err := queue.Submit(&beyond); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a read beyond the end: %v", err)
	}
	for _, refused := range []uint64{1, 4095, 2*mib + 1} {
		if err := v.Resize(refused, true); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%d bytes: %v", refused, err)
		}
	}
	if err := v.Resize(2*mib, false); err != nil || v.Info().Size != 2*mib {
		t.Fatalf("%v, %d bytes", err, v.Info().Size)
	}
	rewriteEnd(t, queue, 2*mib)

	// Another program extends the file; the volume follows by itself, in whole blocks.
	if err := os.Truncate(path, 3*mib+17); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); v.Info().Size != 3*mib; {
		if time.Now().After(end) {
			t.Fatalf("the volume still has %d bytes", v.Info().Size)
		}
		time.Sleep(time.Millisecond)
	}
	rewriteEnd(t, queue, 3*mib)
	if err := os.Truncate(path, 3*mib); err != nil {
		t.Fatal(err)
	}

	if err := v.Resize(mib, false); !errors.Is(err, status.BadState) {
		t.Errorf("a cut that was not asked for: %v", err)
	}
	if err := v.Resize(mib, true); !errors.Is(err, status.InUse) || v.Info().Size != 3*mib {
		t.Errorf("a cut with a queue: %v, %d bytes", err, v.Info().Size)
	}
	volumetest.CloseQueue(t, queue)
	if err := v.Resize(mib, true); err != nil || v.Info().Size != mib {
		t.Errorf("a cut: %v, %d bytes", err, v.Info().Size)
	}
	queue = volumetest.NewQueue(t, v, 1)
	rewriteEnd(t, queue, mib)
	volumetest.CloseQueue(t, queue)
	if err := v.Resize(2*mib, false); err != nil {
		t.Error(err)
	}
	volumetest.CloseVolume(t, v)

	// A file that has grown may have more than the size that it was created with.
	v = open(t, fileSpec(path, mib))
	if v.Info().Size != 2*mib {
		t.Errorf("reopened: %d bytes", v.Info().Size)
	}
	volumetest.CloseVolume(t, v)
}

func TestAVolumeOnABlockDeviceGrowsWithIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	device := loopDeviceOn(t, path, mib)
	v := open(t, fileSpec(device, 0))
	queue := volumetest.NewQueue(t, v, 1)
	if err := os.Truncate(path, 2*mib); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("losetup", "--set-capacity", device).CombinedOutput(); err != nil {
		t.Fatalf("losetup: %v: %s", err, output)
	}
	testkit.Eventually(t, "the volume has grown", func() bool { return v.Info().Size == 2*mib })
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: 2*mib - 4096, Length: 4096,
		Buffer: make([]byte, 4096)})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

// The kernel reports a failed write-back only once, so a resize that gets the report must not keep
// it from the next flush.
func TestLostWritesThatAResizeFindsFailTheNextFlush(t *testing.T) {
	v := open(t, fileSpec(filepath.Join(t.TempDir(), "volume"), mib))
	queue := volumetest.NewQueue(t, v, 1)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
		Buffer: make([]byte, 4096)})
	reported := false
	volume.SetSync(v, func() error {
		if reported {
			return nil
		}
		reported = true
		return unix.EIO
	})
	if err := v.Resize(2*mib, false); !errors.Is(err, unix.EIO) {
		t.Errorf("the resize: %v", err)
	}
	flush := volume.Request{Operation: iomsg.OpFlush}
	volumetest.Do(t, queue, &flush)
	if !errors.Is(flush.Err, unix.EIO) {
		t.Errorf("the next flush: %v", flush.Err)
	}
	volumetest.CloseQueue(t, queue)
	if err := v.Close(t.Context()); !errors.Is(err, unix.EIO) {
		t.Errorf("close: %v", err)
	}
}

func TestAFailedVolumeDoesNotGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, mib))
	volume.SetSync(v, func() error { return unix.EIO })
	queue := volumetest.NewQueue(t, v, 1)
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	if err := os.Truncate(path, 2*mib); err != nil {
		t.Fatal(err)
	}
	if err := v.Resize(0, false); err != nil || v.Info().Size != mib {
		t.Errorf("%v, %d bytes", err, v.Info().Size)
	}
	closeFailed(t, v, queue, unix.EIO)
}

func TestWhatCannotBeResizedSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	volumetest.CloseVolume(t, open(t, fileSpec(path, mib)))
	reader := fileSpec(path, 0)
	reader.Backend = volume.FileBackend{Path: path, ReadOnly: true}
	for name, c := range map[string]struct {
		spec volume.Spec
		code status.Code
	}{
		"read-only": {reader, status.NotPermitted},
		"memory": {volume.Spec{Name: "v", BlockSize: 4096,
			Backend: volume.MemoryBackend{Size: mib}}, status.NotSupported},
	} {
		v := open(t, c.spec)
		if err := v.Resize(2*mib, false); !errors.Is(err, c.code) || v.Info().Size != mib {
			t.Errorf("%s: %v, %d bytes", name, err, v.Info().Size)
		}
		volumetest.CloseVolume(t, v)
	}
}
