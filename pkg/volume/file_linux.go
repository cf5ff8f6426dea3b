package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// FileBackend keeps the content in a regular file or on a block device. A lock keeps the volume
// from being opened twice.
type FileBackend struct {
	Path string
	// Size is the size in bytes of a file that does not exist yet or is empty. Any other file must
	// have exactly this size. 0 accepts a file of any size and ignores an incomplete block at its
	// end.
	Size     uint64
	ReadOnly bool
	// Direct bypasses the page cache (O_DIRECT). It suits devices that are faster than copying, and
	// content that is not worth caching. Writes still become durable only with a flush.
	Direct bool
}

func parseFile(argument string) (Backend, error) {
	path, options, more := strings.Cut(argument, ",")
	b := FileBackend{Path: path}
	for more {
		var option string
		option, options, more = strings.Cut(options, ",")
		if err := b.parseOption(option); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *FileBackend) parseOption(option string) error {
	switch option {
	case "readonly":
		b.ReadOnly = true
		return nil
	case "direct":
		b.Direct = true
		return nil
	}
	text, isSize := strings.CutPrefix(option, "size=")
	if !isSize {
		return status.Errorf(status.InvalidValue,
			"file:%s: unknown option %q: the options are size=SIZE, readonly, and direct "+
				"(a path cannot contain a comma)", b.Path, option)
	}
	bytes, err := size.Parse(text)
	if err != nil {
		return status.Errorf(status.InvalidValue, "file:%s: %w", b.Path, err)
	}
	if bytes == 0 {
		return status.Errorf(status.InvalidValue,
			"file:%s: size=0 leaves no room for data", b.Path)
	}
	b.Size = uint64(bytes)
	return nil
}

// String returns "file:", the path, and the options.
func (b FileBackend) String() string {
	text := "file:" + b.Path
	if b.Size > 0 {
		text += ",size=" + size.Bytes(b.Size).String()
	}
	if b.ReadOnly {
		text += ",readonly"
	}
	if b.Direct {
		text += ",direct"
	}
	return text
}

func (b FileBackend) validate(spec *Spec) error {
	switch {
	case b.Path == "":
		return status.Errorf(status.InvalidValue,
			"file:PATH[,size=SIZE][,readonly][,direct]: the path is empty")
	case b.ReadOnly && b.Size > 0:
		return status.Errorf(status.InvalidValue,
			"file:%s: size= creates a file, which readonly forbids: remove one of them", b.Path)
	case b.Size > 0:
		return spec.checkNewSize(b.Size)
	}
	return nil
}

func (b FileBackend) open(spec *Spec) (Volume, error) {
	file, err := b.openFile()
	if err != nil {
		return nil, err
	}
	v, err := b.newVolume(spec, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return v, nil
}

// newVolume returns a volume on an open file, which it owns on success.
func (b FileBackend) newVolume(spec *Spec, file *os.File) (*storeVolume, error) {
	bytes, err := b.usableSize(spec, file)
	if err != nil {
		return nil, err
	}
	uuid, err := identify(file)
	if err != nil {
		return nil, fmt.Errorf("identify %q: %w", b.Path, err)
	}
	info := Info{
		Name: spec.Name, UUID: uuid, Size: bytes, BlockSize: spec.BlockSize, ReadOnly: b.ReadOnly,
	}
	if !b.ReadOnly {
		info.Capabilities = CanTrim | CanWriteZeroes | CanFUA
	}
	config := fileStoreConfig{
		readOnly: b.ReadOnly, direct: b.Direct,
		writeStep: max(cachedWriteStep, int(spec.BlockSize)), log: spec.Log,
	}
	if b.Direct {
		config.writeStep = math.MaxInt
		if config.alignment, err = b.directAlignment(spec, file); err != nil {
			return nil, err
		}
	}
	s, err := newFileStore(file, config)
	if err != nil {
		return nil, err
	}
	return newStoreVolume(info, s), nil
}

// openFile opens or creates the file and locks it.
func (b FileBackend) openFile() (*os.File, error) {
	stat, err := os.Stat(b.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if b.Size == 0 {
			return nil, status.Errorf(status.NotFound,
				"file %q does not exist: add ,size=SIZE to create it", b.Path)
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
			// For a block device, O_EXCL fails if it is mounted or otherwise in use by the
			// kernel.
			flags |= os.O_EXCL
		}
	default:
		return nil, status.Errorf(status.InvalidValue,
			"%q is neither a regular file nor a block device (%v)", b.Path, mode.Type())
	}
	file, err := os.OpenFile(b.Path, flags|b.openFlags(), 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, status.Errorf(status.InUse, "device %q is mounted or in use: %w", b.Path, err)
	}
	if err != nil {
		return nil, b.explainOpenError(err)
	}
	if err := b.prepare(file, stat); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (b FileBackend) create() (*os.File, error) {
	file, err := os.OpenFile(b.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL|b.openFlags(), 0o600)
	if err != nil {
		return nil, b.explainOpenError(err)
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

// openFlags returns the flags of open(2) beyond read and write.
func (b FileBackend) openFlags() int {
	if b.Direct {
		return unix.O_DIRECT
	}
	return 0
}

// explainOpenError replaces the error of a failed open if the likely cause is known.
func (b FileBackend) explainOpenError(err error) error {
	if b.Direct && errors.Is(err, unix.EINVAL) {
		return errNotDirect(b.Path)
	}
	return err
}

func errNotDirect(path string) error {
	return status.Errorf(status.NotSupported,
		"the file system of %q does not support direct IO: remove the option direct", path)
}

// prepare locks an existing file, and sets its size if it is empty.
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
	// A crash during creation leaves an empty file.
	if b.Size > 0 && stat.Mode().IsRegular() && stat.Size() == 0 {
		return b.extend(file)
	}
	return nil
}

// extend sets the size of an empty file and makes that durable. The file is sparse: blocks take up
// space only once they are written.
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

// lock prevents others from opening the same file, except that several readers may share it.
func (b FileBackend) lock(file *os.File) error {
	how := unix.LOCK_EX
	if b.ReadOnly {
		how = unix.LOCK_SH
	}
	err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return status.Errorf(status.InUse,
			"file %q is locked: another volume or program uses it", b.Path)
	}
	if err != nil {
		return fmt.Errorf("lock file %q: %w", b.Path, err)
	}
	return nil
}

// usableSize returns the size of the volume in bytes.
func (b FileBackend) usableSize(spec *Spec, file *os.File) (uint64, error) {
	// Seeking also finds the size of a block device.
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if b.Size > 0 && uint64(end) != b.Size {
		return 0, status.Errorf(status.InvalidValue,
			"file %q has %v although size=%v was given: remove size= to use it as it is",
			b.Path, size.Bytes(end), size.Bytes(b.Size))
	}
	usable := uint64(end) &^ (uint64(spec.BlockSize) - 1)
	if usable == 0 {
		return 0, status.Errorf(status.InvalidValue,
			"file %q has %v, less than one block of %v",
			b.Path, size.Bytes(end), size.Bytes(spec.BlockSize))
	}
	sector, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET)
	if err == nil && uint32(sector) > spec.BlockSize {
		return 0, status.Errorf(status.InvalidValue,
			"device %q has sectors of %v, more than the block size %v: "+
				"choose a larger block size",
			b.Path, size.Bytes(sector), size.Bytes(spec.BlockSize))
	}
	return usable, nil
}

// defaultAlignment is the alignment of direct IO if the kernel does not report it (before Linux
// 6.1). It is a multiple of every device's sector size.
const defaultAlignment = 4096

// directAlignment returns the alignment in bytes that direct IO on the file requires of buffers. It
// fails if direct IO requires offsets that are multiples of more than the block size.
func (b FileBackend) directAlignment(spec *Spec, file *os.File) (int, error) {
	var stat unix.Statx_t
	err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stat)
	if err != nil {
		return 0, fmt.Errorf("examine %q: %w", b.Path, err)
	}
	if stat.Mask&unix.STATX_DIOALIGN == 0 {
		return defaultAlignment, nil
	}
	switch {
	case stat.Dio_offset_align == 0:
		return 0, errNotDirect(b.Path)
	case stat.Dio_offset_align > spec.BlockSize:
		return 0, status.Errorf(status.InvalidValue,
			"direct IO on %q needs multiples of %v, more than the block size %v: "+
				"choose a larger block size",
			b.Path, size.Bytes(stat.Dio_offset_align), size.Bytes(spec.BlockSize))
	}
	return int(stat.Dio_mem_align), nil
}
