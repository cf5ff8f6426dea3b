// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// losses are the ways to take a file away from under a volume. Each returns an error.
var losses = map[string]func(path string) error{
	"removed":                    os.Remove,
	"removed with the directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	"renamed":                    func(path string) error { return os.Rename(path, path+".old") },
	"replaced": func(path string) error {
		return errors.Join(os.WriteFile(path+".new", make([]byte, 1<<20), 0o600),
			os.Rename(path+".new", path))
	},
	"removed, and another one made": func(path string) error {
		return errors.Join(os.Remove(path), os.WriteFile(path, make([]byte, 1<<20), 0o600))
	},
}

// Nobody may be told that something is durable that the next opening does not find.
func TestAVolumeFailsOnceItsFileIsGone(t *testing.T) {
	for kind, create := range storages(t) {
		if kind == "device" {
			continue
		}
		for name, lose := range losses {
			for what, ask := range map[string]*volume.Request{
				"flush":        {Operation: iomsg.OpFlush},
				"forced write": {Operation: iomsg.OpWrite, ForceUnitAccess: true},
				"":             nil, // nobody asks
			} {
				t.Run(kind+" "+name+" "+what, func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "d", "volume")
					if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					if kind != "file" {
						path = filepath.Join(filepath.Dir(create(t)), "d", "volume")
						if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
							t.Fatal(err)
						}
					}
					interval := time.Hour
					if ask == nil {
						interval = time.Millisecond
					}
					v, queue, _ := openLogged(t, volume.FileBackend{Path: path}, interval)
					block := make([]byte, 4096)
					do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
						Buffer: block})
					do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
					if err := lose(path); err != nil {
						t.Fatal(err)
					}
					if ask != nil {
						r := volume.Request{Operation: ask.Operation, Length: 4096, Buffer: block,
							ForceUnitAccess: ask.ForceUnitAccess}
						volumetest.Do(t, queue, &r)
						if !errors.Is(r.Err, status.IOFailed) || !errors.Is(r.Err, unix.ESTALE) {
							t.Errorf("%v returned %v", r.Operation, r.Err)
						}
					}
					testkit.Eventually(t, "the volume has failed",
						func() bool { return v.Status().State == volume.Failed })
					for _, operation := range []iomsg.Operation{iomsg.OpRead, iomsg.OpWrite,
						iomsg.OpFlush} {
						r := volume.Request{Operation: operation, Length: 4096, Buffer: block}
						volumetest.Do(t, queue, &r)
						if !errors.Is(r.Err, unix.ESTALE) {
							t.Errorf("%v returned %v", r.Operation, r.Err)
						}
					}
					closeFailed(t, v, queue, unix.ESTALE)
				})
			}
		}
	}
}

func TestClosingAVolumeWhoseFileIsGoneFails(t *testing.T) {
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			path, directory := storages(t)["file"](t), t.TempDir()
			v := openProven(t, path, directory)
			volume.SetInspectInterval(v, time.Hour)
			writeBlock(t, v)
			if err := lose(path); err != nil {
				t.Fatal(err)
			}
			if err := v.Close(t.Context()); !errors.Is(err, unix.ESTALE) {
				t.Errorf("Close returned %v", err)
			}
			if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
				t.Errorf("the end counts as clean: %v, %v", left, err)
			}
		})
	}
}

// What only keeps the path from leading to the file does not lose anything.
func TestAFileThatIsOutOfReachIsNotGone(t *testing.T) {
	for name, hide := range map[string]func(t *testing.T, path string){
		"something is mounted over its directory": func(t *testing.T, path string) {
			directory := filepath.Dir(path)
			if err := unix.Mount("tmpfs", directory, "tmpfs", 0, ""); err != nil {
				t.Skipf("mount tmpfs: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
		},
		"its directory is renamed": func(t *testing.T, path string) {
			if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+"2"); err != nil {
				t.Fatal(err)
			}
		},
		"a symbolic link to it is removed": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d", "volume")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "a symbolic link to it is removed" {
				if err := os.Symlink(storages(t)["file"](t), path); err != nil {
					t.Fatal(err)
				}
			}
			v, queue, _ := openLogged(t, volume.FileBackend{Path: path}, time.Hour)
			hide(t, path)
			do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
				Buffer: make([]byte, 4096)})
			do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
			volumetest.CloseQueue(t, queue)
			volumetest.CloseVolume(t, v)
		})
	}
}

func TestADirectoryThatMustNotBeSearchedIsNoLoss(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user")
	}
	path := filepath.Join(t.TempDir(), "d", "volume")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	v, queue, _ := openLogged(t, volume.FileBackend{Path: path}, time.Hour)
	checked := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			checked <- err
			return
		}
		_, err := os.Stat(path)
		if !errors.Is(err, unix.EACCES) {
			checked <- errors.Join(errors.New("the directory can be searched"), err)
			return
		}
		checked <- volume.CheckPlace(v)
	}()
	if err := <-checked; err != nil {
		t.Error(err)
	}
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

// The kernel makes an entry in sysfs, a symbolic link, for each device that comes.
func TestAVolumeFailsOnceItsDeviceIsGone(t *testing.T) {
	for name, lose := range map[string]func(entry string) error{
		"detached": os.Remove,
		"replaced": func(entry string) error {
			return errors.Join(os.Symlink("../devices/disk2", entry+".new"),
				os.Rename(entry+".new", entry))
		},
	} {
		t.Run(name, func(t *testing.T) {
			entry := filepath.Join(t.TempDir(), "8:16")
			if err := os.Symlink("../devices/disk1", entry); err != nil {
				t.Fatal(err)
			}
			check, closePlace, err := volume.NewDevicePlace(entry)
			if err != nil {
				t.Fatal(err)
			}
			if err := check(); err != nil {
				t.Error(err)
			}
			if err := lose(entry); err != nil {
				t.Fatal(err)
			}
			if err := check(); !errors.Is(err, unix.ESTALE) {
				t.Errorf("the check returned %v", err)
			}
			if err := closePlace(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestADeviceStaysWhereItIs(t *testing.T) {
	v := open(t, fileSpec(loopDevice(t, 1<<20), 0))
	writeBlock(t, v)
	if err := volume.CheckPlace(v); err != nil {
		t.Error(err)
	}
	volumetest.CloseVolume(t, v)
}

// A file system that hangs delays neither the log nor, beyond its time, Close.
func TestStorageThatDoesNotAnswerDelaysOnlyItsInspection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	release := make(chan struct{})
	defer volume.SetPlaceCheck(func() error {
		<-release
		return nil
	})()
	v, queue, logged := openLogged(t, volume.FileBackend{Path: path}, time.Millisecond)
	testkit.Eventually(t, "a warning is logged", func() bool {
		return logged.FilterMessageSnippet("storage does not answer").Len() == 1
	})
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
		Buffer: make([]byte, 4096)})
	if now := v.Status(); now.State != volume.Serving {
		t.Errorf("the volume is %+v", now)
	}
	volumetest.CloseQueue(t, queue)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Close(ctx); !errors.Is(err, status.TimeOut) {
		t.Errorf("Close returned %v", err)
	}
	close(release)
	volumetest.CloseVolume(t, v)
}

// The kernel sets the size of a device that is detached to 0, before it removes the entry in sysfs.
func TestADeviceWithoutSizeIsGone(t *testing.T) {
	for name, r := range map[string]*volume.Request{
		"read":  {Operation: iomsg.OpRead, Length: 4096, Buffer: make([]byte, 4096)},
		"flush": {Operation: iomsg.OpFlush},
	} {
		t.Run(name, func(t *testing.T) {
			path := storages(t)["file"](t)
			v, queue, _ := openLogged(t, volume.FileBackend{Path: path}, time.Hour)
			volume.TakeForDevice(v)
			volume.SetSync(v, func() error { return unix.EIO })
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			volumetest.Do(t, queue, r)
			if !errors.Is(r.Err, unix.ESTALE) || !strings.Contains(r.Err.Error(), "was detached") {
				t.Errorf("%v returned %v", r.Operation, r.Err)
			}
			closeFailed(t, v, queue, unix.ESTALE)
		})
	}
}
