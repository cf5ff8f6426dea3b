// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

const (
	truncatedSize = 8192 + 100
	truncated     = "another program has truncated the volume: " +
		"it fails every request until it is reopened"
)

// openLogged opens a file volume of 1 MiB that is inspected in the given interval, and returns its
// log as well.
func openLogged(
	t *testing.T, backend volume.FileBackend, inspect time.Duration,
) (volume.Volume, volume.Queue, *observer.ObservedLogs) {
	t.Helper()
	core, logged := observer.New(zapcore.InfoLevel)
	backend.Size = 1 << 20
	v := open(t, volume.Spec{Name: "v", BlockSize: 4096, Backend: backend, Logger: zap.New(core)})
	volume.SetInspectInterval(v, inspect)
	return v, volumetest.NewQueue(t, v, 4), logged
}

func closeFailed(t *testing.T, v volume.Volume, queue volume.Queue, want error) {
	t.Helper()
	volumetest.CloseQueue(t, queue)
	if err := v.Close(context.Background()); !errors.Is(err, want) {
		t.Errorf("Close returned %v, want %v", err, want)
	}
}

// Whatever is requested first of a volume whose file has been truncated, it fails, the file keeps
// its new size, and every later request fails as well.
func TestVolumeFailsOnceItsFileIsTruncated(t *testing.T) {
	const last = 1<<20 - 4096
	for name, first := range map[string]volume.Request{
		"read":         {Operation: iomsg.OpRead, Offset: last},
		"partial read": {Operation: iomsg.OpRead, Offset: 8192},
		"write":        {Operation: iomsg.OpWrite, Offset: last},
		"forced write": {Operation: iomsg.OpWrite, Offset: last, ForceUnitAccess: true},
		"flush":        {Operation: iomsg.OpFlush},
		"trim":         {Operation: iomsg.OpTrim, Offset: last},
		"write zeroes": {Operation: iomsg.OpWriteZeroes, Offset: last},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(map[bool]string{false: "cached ", true: "direct "}[direct]+name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "volume")
				v, queue, logged := openLogged(t, volume.FileBackend{Path: path, Direct: direct},
					time.Hour)
				if now := v.Status(); now.State != volume.Serving || now.Reason != nil {
					t.Errorf("the volume is %+v at first", now)
				}
				block := bytes.Repeat([]byte{1}, 4096)
				for _, offset := range []uint64{0, 8192, last} {
					do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: offset,
						Length: 4096, Buffer: block})
				}
				if err := os.Truncate(path, truncatedSize); err != nil {
					t.Fatal(err)
				}
				first.Length, first.Buffer = 4096, block
				requests := []*volume.Request{&first}
				for _, operation := range []iomsg.Operation{iomsg.OpRead, iomsg.OpWrite,
					iomsg.OpFlush, iomsg.OpTrim, iomsg.OpWriteZeroes} {
					requests = append(requests, &volume.Request{Operation: operation, Length: 4096,
						Buffer: block})
				}
				for _, r := range requests {
					volumetest.Do(t, queue, r)
					if status.CodeOf(r.Err) != status.IOFailed {
						t.Errorf("%v at %d: %v", r.Operation, r.Offset, r.Err)
					}
				}
				if now := v.Status(); now.State != volume.Failed ||
					!errors.Is(now.Reason, status.IOFailed) || now.IsReadable {
					t.Errorf("the volume is %+v", now)
				}
				closeFailed(t, v, queue, status.IOFailed)
				if stat, err := os.Stat(path); err != nil || stat.Size() != truncatedSize {
					t.Errorf("the file has %d bytes (%v)", stat.Size(), err)
				}
				want := volume.Failure{Operation: first.Operation, Cause: "truncated", Count: 1}
				if got := v.Failures(); !slices.Contains(got, want) {
					t.Errorf("failures are %+v without %+v", got, want)
				}
				if logged.FilterMessage(truncated).Len() != 1 {
					t.Errorf("logged %v", logged.All())
				}
			})
		}
	}
}

// A write in the middle of the volume that extends the file again does not hide its truncation.
func TestTruncationOfAFileIsNoticedByWritesAnywhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v, queue, logged := openLogged(t, volume.FileBackend{Path: path}, time.Hour)
	if err := os.Truncate(path, truncatedSize); err != nil {
		t.Fatal(err)
	}
	r := volume.Request{Operation: iomsg.OpWrite, Offset: 512 << 10, Length: 4096,
		Buffer: make([]byte, 4096)}
	testkit.Eventually(t, "a request past the end fails", func() bool {
		volumetest.Do(t, queue, &r)
		return r.Err != nil
	})
	if status.CodeOf(r.Err) != status.IOFailed {
		t.Errorf("write: %v", r.Err)
	}
	testkit.Eventually(t, "the truncation is logged",
		func() bool { return logged.FilterMessage(truncated).Len() == 1 })
	closeFailed(t, v, queue, status.IOFailed)
}

func TestTruncationOfAFileIsNoticedWithoutChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v, queue, logged := openLogged(t, volume.FileBackend{Path: path}, time.Millisecond)
	if err := os.Truncate(path, truncatedSize); err != nil {
		t.Fatal(err)
	}
	r := volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: make([]byte, 4096)}
	testkit.Eventually(t, "a request past the end fails", func() bool {
		volumetest.Do(t, queue, &r)
		return r.Err != nil
	})
	if status.CodeOf(r.Err) != status.IOFailed {
		t.Errorf("read: %v", r.Err)
	}
	testkit.Eventually(t, "the truncation is logged",
		func() bool { return logged.FilterMessage(truncated).Len() == 1 })
	completed := make([]*volume.Request, 1)
	if n := testing.AllocsPerRun(100, func() {
		_ = queue.Submit(&r)
		queue.Poll(completed)
	}); n > 0 {
		t.Errorf("rejecting a read takes %v allocations", n)
	}
	closeFailed(t, v, queue, status.IOFailed)
}

func TestFailuresAreLoggedOncePerSeriesAndThenCounted(t *testing.T) {
	path := filepath.Join(mountTmpfs(t, "size=256k"), "volume")
	v, queue, logged := openLogged(t, volume.FileBackend{Path: path}, time.Hour)
	fail := func() {
		t.Helper()
		r := volume.Request{Operation: iomsg.OpWrite, Offset: 4096, Length: 512 << 10,
			Buffer: make([]byte, 512<<10)}
		volumetest.Do(t, queue, &r)
		if !errors.Is(r.Err, unix.ENOSPC) {
			t.Fatalf("write: %v", r.Err)
		}
	}
	first := func() *observer.ObservedLogs { return logged.FilterMessage("volume IO failed") }
	repeated := func() *observer.ObservedLogs {
		return logged.FilterMessage("volume IOs are failing")
	}

	fail()
	testkit.Eventually(t, "the failure is logged", func() bool { return first().Len() == 1 })
	fields := first().All()[0].ContextMap()
	for key, want := range map[string]any{"volume": "v", "operation": "write", "cause": "ENOSPC",
		"offset_bytes": uint64(4096), "length_bytes": uint64(512 << 10)} {
		if fields[key] != want {
			t.Errorf("%s is %v, want %v", key, fields[key], want)
		}
	}
	fail()
	fail()
	volume.LogRepeated(v)
	volume.LogRepeated(v) // none since: the series has ended
	if first().Len() != 1 || repeated().Len() != 1 {
		t.Fatalf("logged %v", logged.All())
	}
	fields = repeated().All()[0].ContextMap()
	if fields["failed"] != uint64(2) || fields["failed_total"] != uint64(3) ||
		fields["cause"] != "ENOSPC" {
		t.Errorf("logged %v", fields)
	}
	fail()
	testkit.Eventually(t, "the failure is logged again", func() bool { return first().Len() == 2 })

	want := []volume.Failure{{Operation: iomsg.OpWrite, Cause: "ENOSPC", Count: 4}}
	if got := v.Failures(); !slices.Equal(got, want) {
		t.Errorf("failures are %+v, want %+v", got, want)
	}
	do(t, queue, &volume.Request{Operation: iomsg.OpTrim, Length: 1 << 20})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}
