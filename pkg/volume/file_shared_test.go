// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// openShared opens a file as one of several targets does.
func openShared(t *testing.T, backend volume.FileBackend) volume.Volume {
	t.Helper()
	backend.FencedByOperator = true
	v, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 4096, Backend: backend})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestATargetStandsByWhileAnotherHasTheFile(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	backend := volume.FileBackend{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20}
	owner := openShared(t, backend)
	standBys := []volume.Volume{openShared(t, backend), openShared(t, backend)}
	if now := owner.Status(); now.State != volume.Serving || standBy(owner) != nil {
		t.Errorf("the owner is %+v", now)
	}
	for _, v := range standBys {
		now := v.Status()
		if now.State != volume.StandBy || !errors.Is(now.Reason, status.NoLock) ||
			!strings.Contains(now.Reason.Error(), "is locked") {
			t.Errorf("the stand-by is %+v", now)
		}
		if _, err := v.NewQueue(1); !errors.Is(err, status.NoLock) {
			t.Errorf("a queue of a stand-by: %v", err)
		}
		if info := v.Info(); !info.Fenced || info.Size != 0 {
			t.Errorf("the stand-by is described as %+v", info)
		}
	}
	want := bytes.Repeat([]byte{0xa1}, 4096)
	queue := volumetest.NewQueue(t, owner, 1)
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: want})
	volumetest.CloseQueue(t, queue)
	uuid := owner.Info().UUID
	volumetest.CloseVolume(t, owner)
	var next volume.Volume
	testkit.Eventually(t, "a stand-by takes over", func() bool {
		for _, v := range standBys {
			if v.Status().State == volume.Serving {
				next = v
			}
		}
		return next != nil
	})
	if info := next.Info(); info.UUID != uuid || info.Size != 1<<20 || !info.Fenced {
		t.Errorf("the volume that was taken over is %+v", info)
	}
	got := make([]byte, 4096)
	queue = volumetest.NewQueue(t, next, 1)
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: got})
	volumetest.CloseQueue(t, queue)
	if !bytes.Equal(got, want) {
		t.Error("the volume that was taken over has other content")
	}
	for _, v := range standBys {
		volumetest.CloseVolume(t, v)
	}
}

// What a stand-by waits for is the content that the owner has. It makes no other.
func TestAStandByCreatesNoFile(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	backend := volume.FileBackend{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20}
	for text, spoil := range map[string]func() error{
		"does not exist any more": func() error { return os.Remove(backend.Path) },
		"although size=":          func() error { return os.Truncate(backend.Path, 0) },
	} {
		owner, waiting := openShared(t, backend), openShared(t, backend)
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		_ = owner.Close(t.Context()) // says that the file is gone
		testkit.Eventually(t, "the stand-by says that the file "+text, func() bool {
			now := waiting.Status()
			return now.State == volume.StandBy && strings.Contains(now.Reason.Error(), text)
		})
		if about, err := os.Stat(backend.Path); err == nil && about.Size() > 0 {
			t.Errorf("the stand-by has made a file of %d bytes", about.Size())
		}
		volumetest.CloseVolume(t, waiting)
	}
}

func TestReadersOfASharedFileDoNotWait(t *testing.T) {
	backend := volume.FileBackend{Path: filepath.Join(t.TempDir(), "disk")}
	if err := os.WriteFile(backend.Path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	backend.ReadOnly = true
	for range 2 {
		v := openShared(t, backend)
		defer volumetest.CloseVolume(t, v)
		if v.Ownership() != nil || v.Status().State != volume.Serving {
			t.Errorf("a reader is %+v", v.Status())
		}
	}
}
