package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openFile opens the file, or creates it, and locks it.
func (b FileBackend) openFile() (*os.File, error) {
	stat, err := os.Stat(b.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if b.Size == 0 {
			return nil, status.Errorf(status.NotFound, "file %q does not exist: add ,size=SIZE to create it", b.Path)
		}
		return b.create()
	}
	if err != nil {
		return nil, err
	}
	flags := os.O_RDWR
	if b.ReadOnly {
		flags = os.O_RDONLY
	}
	switch mode := stat.Mode(); {
	case mode.IsRegular():
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		if !b.ReadOnly {
			// On a block device this refuses what is mounted or in use by
			// the kernel.
			flags |= os.O_EXCL
		}
	default:
		return nil, status.Errorf(status.InvalidValue, "%q is neither a regular file nor a block device (%v)", b.Path, mode.Type())
	}
	file, err := os.OpenFile(b.Path, flags|b.openFlags(), 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, status.Errorf(status.InUse, "device %q is mounted or in use: %w", b.Path, err)
	}
	if err != nil {
		return nil, b.explained(err)
	}
	if err := b.prepare(file, stat); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// prepare locks an existing file and gives it its size if it is empty.
func (b FileBackend) prepare(file *os.File, expected fs.FileInfo) error {
	if err := b.lock(file); err != nil {
		return err
	}
	stat, err := file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(stat, expected) {
		return status.Errorf(status.Again, "file %q was replaced while it was being opened", b.Path)
	}
	// A crash during creation leaves an empty file behind.
	if b.Size > 0 && stat.Mode().IsRegular() && stat.Size() == 0 {
		return b.extend(file)
	}
	return nil
}

func (b FileBackend) create() (*os.File, error) {
	file, err := os.OpenFile(b.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL|b.openFlags(), 0o600)
	if err != nil {
		return nil, b.explained(err)
	}
	err = b.lock(file)
	if err == nil {
		err = b.extend(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(b.Path))
	}
	return file, nil
}

// extend gives an empty file its size and makes that durable. The file is
// sparse: blocks take space when they are written.
func (b FileBackend) extend(file *os.File) error {
	if err := file.Truncate(int64(b.Size)); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	directory, err := os.Open(filepath.Dir(b.Path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// lock excludes other openings of the same file, except that several may
// read.
func (b FileBackend) lock(file *os.File) error {
	how := unix.LOCK_EX
	if b.ReadOnly {
		how = unix.LOCK_SH
	}
	err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return status.Errorf(status.InUse, "file %q is locked: another volume or program uses it", b.Path)
	}
	if err != nil {
		return fmt.Errorf("lock file %q: %w", b.Path, err)
	}
	return nil
}

// usableSize is the size of the volume in bytes.
func (b FileBackend) usableSize(spec *Spec, file *os.File) (uint64, error) {
	// Also tells the size of a block device.
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if b.Size > 0 && uint64(end) != b.Size {
		return 0, status.Errorf(status.InvalidValue, "file %q has %v although size=%v was given: leave size= out to use it as it is",
			b.Path, size.Bytes(end), size.Bytes(b.Size))
	}
	usable := uint64(end) &^ (uint64(spec.BlockSize) - 1)
	if usable == 0 {
		return 0, status.Errorf(status.InvalidValue, "file %q has %v, less than one block of %v", b.Path, size.Bytes(end), size.Bytes(spec.BlockSize))
	}
	sector, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET)
	if err == nil && uint32(sector) > spec.BlockSize {
		return 0, status.Errorf(status.InvalidValue, "device %q has sectors of %v, more than the block size %v: choose a larger one",
			b.Path, size.Bytes(sector), size.Bytes(spec.BlockSize))
	}
	return usable, nil
}
