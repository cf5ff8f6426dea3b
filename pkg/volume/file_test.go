// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestFileVolumeKeepsContentAndUUIDAcrossReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, 1<<20))
	queue := volumetest.NewQueue(t, v, 1)
	content := bytes.Repeat([]byte("zc"), 4096)
	do(t, queue,
		&volume.Request{Operation: iomsg.OpWrite, Offset: 8192, Length: 8192, Buffer: content})
	uuid := v.Info().UUID
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)

	renamed := path + "2"
	if err := os.Rename(path, renamed); err != nil {
		t.Fatal(err)
	}
	v = open(t, fileSpec(renamed, 1<<20))
	defer volumetest.CloseVolume(t, v)
	queue = volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	got := make([]byte, 8192)
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Offset: 8192, Length: 8192, Buffer: got})
	if !bytes.Equal(got, content) {
		t.Error("reopening changed the content")
	}
	if v.Info().UUID != uuid {
		t.Errorf("reopening changed the UUID from %v to %v", uuid, v.Info().UUID)
	}
	file, err := os.ReadFile(renamed)
	if err != nil || len(file) != 1<<20 || !bytes.Equal(file[8192:16384], content) {
		t.Errorf("the file has %d bytes or different content (%v)", len(file), err)
	}
}

func uuidOf(t *testing.T, path string) volume.UUID {
	t.Helper()
	v := open(t, fileSpec(path, 1<<20))
	defer volumetest.CloseVolume(t, v)
	return v.Info().UUID
}

func TestReplacedFileHasAnotherUUID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	before, other := uuidOf(t, path), uuidOf(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if after := uuidOf(t, path); after == before || after != other {
		t.Errorf("UUID was %v and is %v; that of the new file was %v", before, after, other)
	}
}

func TestReusedInodeHasAnotherUUID(t *testing.T) {
	directory := t.TempDir()
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil {
		t.Fatal(err)
	}
	if system.Type != unix.EXT4_SUPER_MAGIC {
		t.Skip("not ext4: inodes may not be reused or have no generations")
	}
	path := filepath.Join(directory, "volume")
	seen := map[volume.UUID]bool{}
	for range 8 {
		uuid := uuidOf(t, path)
		if seen[uuid] {
			t.Errorf("UUID %v was used twice", uuid)
		}
		seen[uuid] = true
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileIsOpenedByOneWriterOrSeveralReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	readOnly := volume.Spec{Name: "v", BlockSize: 4096,
		Backend: volume.FileBackend{Path: path, ReadOnly: true}}
	writer := open(t, fileSpec(path, 1<<20))
	for _, spec := range []volume.Spec{fileSpec(path, 0), readOnly} {
		if _, err := volume.Open(spec); !errors.Is(err, status.InUse) {
			t.Errorf("opening %v while a writer has it open returned %v", spec.Backend, err)
		}
	}
	volumetest.CloseVolume(t, writer)
	first, second := open(t, readOnly), open(t, readOnly)
	if _, err := volume.Open(fileSpec(path, 0)); !errors.Is(err, status.InUse) {
		t.Errorf("opening a writer while readers have it open returned %v", err)
	}
	volumetest.CloseVolume(t, first)
	volumetest.CloseVolume(t, second)
}

func TestReadOnlyFileVolumeOnlyReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, bytes.Repeat([]byte{7}, 8192), 0o400); err != nil {
		t.Fatal(err)
	}
	v := open(t,
		volume.Spec{Name: "v", BlockSize: 4096,
			Backend: volume.FileBackend{Path: path, ReadOnly: true}})
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 2)
	defer volumetest.CloseQueue(t, queue)
	got := make([]byte, 8192)
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Length: 8192, Buffer: got})
	do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	if got[8191] != 7 || !v.Info().ReadOnly {
		t.Errorf("read %d, read-only %v", got[8191], v.Info().ReadOnly)
	}
	for _, operation := range []iomsg.Operation{iomsg.OpWrite, iomsg.OpTrim, iomsg.OpWriteZeroes} {
		r := volume.Request{Operation: operation, Length: 4096, Buffer: got[:4096]}
		if err := queue.Submit(&r); !errors.Is(err, status.NotPermitted) {
			t.Errorf("%v returned %v", operation, err)
		}
	}
}

func TestUnsuitableFilesAreRejectedWithTheReason(t *testing.T) {
	directory := t.TempDir()
	path := func(name string, bytes int) string {
		p := filepath.Join(directory, name)
		if err := os.WriteFile(p, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	fifo := filepath.Join(directory, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(directory, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		backend volume.FileBackend
		code    status.Code
		want    string
	}{
		{volume.FileBackend{Path: filepath.Join(directory, "none")}, status.NotFound,
			"add ,size=SIZE to create it"},
		{volume.FileBackend{Path: filepath.Join(directory, "no", "folder"), Size: 4096},
			status.NotFound, "no such file"},
		{volume.FileBackend{Path: directory}, status.BadConfig,
			"neither a regular file nor a block device"},
		{volume.FileBackend{Path: fifo}, status.BadConfig,
			"neither a regular file nor a block device"},
		{volume.FileBackend{Path: "/dev/null"}, status.BadConfig,
			"neither a regular file nor a block device"},
		{volume.FileBackend{Path: filepath.Join(fifo, "x"), Size: 4096}, status.BadConfig,
			"a part of the path before the last is a file"},
		{volume.FileBackend{Path: loop}, status.BadConfig, "symbolic links lead to one another"},
		{volume.FileBackend{Path: filepath.Join(directory, strings.Repeat("x", 256)), Size: 4096},
			status.BadConfig, "shorten it"},
		{volume.FileBackend{Path: "/proc/version", ReadOnly: true}, status.BadConfig, "has no size"},
		{volume.FileBackend{Path: path("small", 4095)}, status.InvalidValue, "less than one block"},
		{volume.FileBackend{Path: path("empty", 0)}, status.InvalidValue, "less than one block"},
		{volume.FileBackend{Path: path("other", 8192), Size: 16384}, status.InvalidValue,
			"has the size 8KiB, although size=16KiB was given"},
		{volume.FileBackend{Path: "", Size: 4096}, status.InvalidValue, "the path is empty"},
	} {
		_, err := volume.Open(volume.Spec{Name: "v", BlockSize: 4096, Backend: c.backend})
		if status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %v with %q", c.backend, err, c.code, c.want)
		}
		if volume.IsMisconfigured(err) != (c.code == status.BadConfig) {
			t.Errorf("%v: IsMisconfigured is %v", err, volume.IsMisconfigured(err))
		}
		err = volume.Check(volume.Spec{Name: "v", BlockSize: 4096, Backend: c.backend})
		if status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: checked: got %v, want %v with %q", c.backend, err, c.code, c.want)
		}
	}
	if entries, err := os.ReadDir(directory); err != nil || len(entries) != 5 {
		t.Errorf("%d files exist (%v): a rejected volume left one behind", len(entries), err)
	}
}

func TestACheckChangesNothingAndPassesALockedFile(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "volume")
	spec := fileSpec(path, 1<<20)
	if err := volume.Check(spec); err != nil {
		t.Errorf("a file that is to be created: %v", err)
	}
	if entries, err := os.ReadDir(directory); err != nil || len(entries) > 0 {
		t.Errorf("the check has created %v (%v)", entries, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := volume.Check(spec); err != nil {
		t.Errorf("an empty file that is to be filled: %v", err)
	}
	v, err := volume.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer volumetest.CloseVolume(t, v)
	if err := volume.Check(spec); err != nil {
		t.Errorf("a file in use: %v", err)
	}
	spec.BlockSize = 3
	if err := volume.Check(spec); status.CodeOf(err) != status.InvalidValue {
		t.Errorf("a wrong block size: %v", err)
	}
}

func TestAFileWithAnIncompleteBlockIsRefused(t *testing.T) {
	for bytes, want := range map[int64]string{
		3*4096 + 17:   "has 12305 bytes, which are no multiple of the block size 4KiB: extend the file",
		3*4096 + 1024: "the block size 4KiB: use --block-size 1KiB, or extend the file",
	} {
		path := filepath.Join(t.TempDir(), "volume")
		if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := volume.Open(fileSpec(path, 0))
		if status.CodeOf(err) != status.InvalidValue || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v", err)
		}
		if stat, err := os.Stat(path); err != nil || stat.Size() != bytes {
			t.Errorf("the size of the file changed: %v, %v", stat, err)
		}
	}
}

func TestEmptyFileGetsTheConfiguredSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	v := open(t, fileSpec(path, 1<<20))
	defer volumetest.CloseVolume(t, v)
	if v.Info().Size != 1<<20 {
		t.Errorf("size is %d", v.Info().Size)
	}
}

func TestOnlyWhatMayBeAHoleReleasesItsSpace(t *testing.T) {
	const size = 1 << 20
	clear := map[string]volume.Request{
		"trim":         {Operation: iomsg.OpTrim},
		"deallocate":   {Operation: iomsg.OpWriteZeroes, Deallocate: true},
		"write zeroes": {Operation: iomsg.OpWriteZeroes},
	}
	tmpfs, err := os.MkdirTemp("/dev/shm", "zc-relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmpfs) })
	for file, directory := range map[string]string{"file": t.TempDir(), "file on tmpfs": tmpfs} {
		for operation, r := range clear {
			t.Run(operation+" in a "+file, func(t *testing.T) {
				path := filepath.Join(directory, operation)
				v := open(t, fileSpec(path, size))
				defer volumetest.CloseVolume(t, v)
				queue := volumetest.NewQueue(t, v, 1)
				defer volumetest.CloseQueue(t, queue)
				do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: size,
					Buffer: bytes.Repeat([]byte{1}, size)})
				do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
				r.Length = size
				do(t, queue, &r)
				do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
				var stat unix.Stat_t
				if err := unix.Stat(path, &stat); err != nil {
					t.Fatal(err)
				}
				allocated := stat.Blocks * 512
				if hole := operation != "write zeroes"; stat.Size != size ||
					hole && allocated > 64<<10 || !hole && allocated < size {
					t.Errorf("the file has %d bytes and uses %d on the disk", stat.Size, allocated)
				}
				content, err := os.ReadFile(path)
				if err != nil || bytes.ContainsFunc(content, func(r rune) bool { return r != 0 }) {
					t.Errorf("the file holds something else than zeroes, error %v", err)
				}
			})
		}
	}
}

// A file system without support is given zeroes in several pieces.
func TestZeroesCoverTheWholeRangeWithoutFileSystemSupport(t *testing.T) {
	const size, block = 3 << 20, 4096
	path := filepath.Join(t.TempDir(), "volume")
	v := volume.WithoutFileSystemSupport(open(t, fileSpec(path, size)))
	queue := volumetest.NewQueue(t, v, 1)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: size,
		Buffer: bytes.Repeat([]byte{1}, size)})
	do(t, queue, &volume.Request{Operation: iomsg.OpWriteZeroes, Offset: block,
		Length: size - 2*block})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
	edge := bytes.Repeat([]byte{1}, block)
	want := slices.Concat(edge, make([]byte, size-2*block), edge)
	if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, want) {
		t.Errorf("the file holds something else than zeroes between its edges, error %v", err)
	}
}

func TestDirectVolumeAcceptsUnalignedBuffers(t *testing.T) {
	v := volumetest.MustOpen(t, openDirect(1<<20))
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	content := append(make([]byte, 0, 8193), bytes.Repeat([]byte{1, 2, 3}, 2731)...)
	got := make([]byte, 8193)
	do(t, queue,
		&volume.Request{Operation: iomsg.OpWrite, Offset: 4096, Length: 8192,
			Buffer: content[1:8193]})
	do(t, queue,
		&volume.Request{Operation: iomsg.OpRead, Offset: 4096, Length: 8192, Buffer: got[1:]})
	if !bytes.Equal(got[1:], content[1:8193]) {
		t.Error("the data read differs from the data written")
	}
}
