// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// FileBackend keeps the content in a regular file or on a block device. A lock keeps the volume
// from being opened twice.
type FileBackend struct {
	Path string
	// Size is the size in bytes of a file that does not exist yet or is empty. Any other file must
	// have at least this size, because it may have grown. 0 accepts a file of any number of blocks.
	// Of a device, it ignores an incomplete block at the end.
	Size     uint64
	ReadOnly bool
	// Direct bypasses the page cache (O_DIRECT). It suits devices that are faster than copying, and
	// content that is not worth caching. Writes still become durable only with a flush.
	Direct bool
	// FencedByOperator promises that a target that has had the content open cannot write any more
	// when its lock is free: because the lock ends with its process, or because the operator, or
	// the storage that he has chosen, makes sure of it. A target that finds the lock taken is a
	// stand-by.
	FencedByOperator bool
	// Beneath, if not empty, is a directory around Path: a file that a symbolic link would put
	// elsewhere, and a device, are not opened.
	Beneath string
}

// fencedByOperator is the option of FileBackend.FencedByOperator.
const fencedByOperator = "shared=fenced-by-operator"

func parseFile(argument string) (Backend, error) {
	path, options := CutOptions(argument)
	b := FileBackend{Path: path}
	for _, option := range options {
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
	case fencedByOperator:
		b.FencedByOperator = true
		return nil
	}
	text, isSize := strings.CutPrefix(option, "size=")
	if !isSize {
		return UnknownOption("file:"+b.Path, option, "size=SIZE", "readonly", "direct",
			fencedByOperator, "exclusive")
	}
	if b.Size > 0 {
		return status.Errorf(status.InvalidValue, "file:%s: size= is given twice: leave one of them",
			b.Path)
	}
	var err error
	b.Size, err = ParseSize("file:"+b.Path, "size", text)
	return err
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
	if b.FencedByOperator {
		text += "," + fencedByOperator
	}
	return text
}

// Validate checks path and size.
func (b FileBackend) Validate(spec *Spec) error {
	switch {
	case b.Path == "":
		return status.Errorf(status.InvalidValue,
			"file:PATH: the path is empty")
	case strings.ContainsAny(b.Path[:1], "\"'"):
		return status.Errorf(status.InvalidValue, "file:%s: the path begins with a quotation mark, "+
			"which would be a part of the name: leave it out", b.Path)
	case strings.HasPrefix(b.Path, "~/"):
		return status.Errorf(status.InvalidValue, "file:%s: only shells know what ~ is: write the "+
			"path from / on", b.Path)
	case b.ReadOnly && b.Size > 0:
		return status.Errorf(status.InvalidValue,
			"file:%s: size= creates a file, which readonly forbids: remove one of them", b.Path)
	case b.Size > 0:
		return spec.CheckNewSize(b.Size)
	}
	return nil
}

// Open opens the file or device, or creates the file.
func (b FileBackend) Open(spec *Spec) (Volume, error) {
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

// Contends reports whether a target waits for the lock.
func (b FileBackend) Contends() bool { return b.FencedByOperator && !b.ReadOnly }

// Prepare does nothing: attempts have nothing in common.
func (b FileBackend) Prepare() (release func(), err error) { return func() {}, nil }

// Contend opens the file or device if its lock is free. A stand-by neither creates nor fills the
// file: what has become of the content that it has waited for is for the operator to find out.
func (b FileBackend) Contend(spec *Spec, o *Ownership) (Owned, error) {
	open := b.openFile
	if isStandBy, _ := o.State(); isStandBy != nil {
		open = b.openContent
	}
	file, err := open()
	if err != nil {
		return nil, err
	}
	v, err := b.newVolume(spec, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return v, nil
}

// openContent opens and locks a file that exists and has content.
func (b FileBackend) openContent() (*os.File, error) {
	b.Size = 0
	file, err := b.openExisting()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(status.NotFound, "file %q does not exist any more: put it back, or "+
			"start the target again if it is to create another one", b.Path)
	}
	return file, err
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
		Fenced: b.FencedByOperator,
	}
	var w witness
	end := &cleanEnd{}
	if !b.ReadOnly {
		end, w = newCleanEnd(spec, file, uuid)
		info.WriteVerifier = end.verifier
		info.Capabilities = CanTrim | CanWriteZeroes | CanFUA
		info.Sole = lockedHere(file)
	}
	config := fileStoreConfig{
		readOnly: b.ReadOnly, direct: b.Direct, blockSize: spec.BlockSize,
		writeStep: max(cachedWriteStep, int(spec.BlockSize)), health: newHealth(spec),
		witness: w, end: end,
	}
	if b.Direct {
		config.writeStep = math.MaxInt
		if config.alignment, err = b.directAlignment(spec, file); err != nil {
			return nil, err
		}
	}
	stat, err := file.Stat()
	if err != nil {
		return nil, err
	}
	config.size, config.regular = new(atomic.Uint64), stat.Mode().IsRegular()
	config.size.Store(bytes)
	if config.regular && canFindExtents(int(file.Fd())) {
		info.Capabilities |= CanReportExtents
	}
	if config.place, err = newPlace(file, b.Path); err != nil {
		return nil, fmt.Errorf("find the directory of %q: %w", b.Path, err)
	}
	if err := config.place.check(); err != nil {
		return nil, errors.Join(err, config.place.close())
	}
	s, err := newFileStore(file, config)
	if err != nil {
		return nil, errors.Join(err, config.place.close())
	}
	v := newStoreVolume(info, s, config.health)
	v.size = config.size
	return v.watched(), nil
}

// openFile opens the file, or creates it if a size was given, and locks it.
func (b FileBackend) openFile() (*os.File, error) {
	file, err := b.openExisting()
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if b.Size == 0 {
		return nil, b.errMissing()
	}
	file, err = b.create()
	if errors.Is(err, fs.ErrExist) {
		return b.openExisting() // another program has just created it
	}
	return file, err
}

// openExisting opens and locks a file that exists; otherwise the error is fs.ErrNotExist.
func (b FileBackend) openExisting() (*os.File, error) {
	file, expected, err := b.openUnlocked()
	if err != nil {
		return nil, err
	}
	if err := b.prepare(file, expected); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// openUnlocked opens a file that exists; otherwise the error is fs.ErrNotExist. expected is what
// the path referred to before.
func (b FileBackend) openUnlocked() (file *os.File, expected fs.FileInfo, err error) {
	expected, err = os.Stat(b.Path)
	if err != nil {
		if destination, linkErr := os.Readlink(b.Path); linkErr == nil && os.IsNotExist(err) {
			return nil, nil, status.Errorf(status.InvalidValue,
				"%q is a symbolic link to %q, which does not exist: "+
					"remove the link or give the path of a file", b.Path, destination)
		}
		return nil, nil, b.explainPath(err)
	}
	flags := unix.O_RDWR
	if b.ReadOnly {
		flags = unix.O_RDONLY
	}
	switch mode := expected.Mode(); {
	case mode.IsRegular():
	case b.Beneath != "":
		return nil, nil, status.Errorf(status.NotPermitted, "%q is not a regular file (%v)", b.Path,
			mode.Type())
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		if !b.ReadOnly {
			// For a block device, O_EXCL fails if it is mounted or otherwise in use by the
			// kernel.
			flags |= unix.O_EXCL
		}
	default:
		return nil, nil, status.Errorf(status.BadConfig,
			"%q is neither a regular file nor a block device, but %s: name one of these", b.Path,
			kindOf(mode))
	}
	if file, err = b.openAs(b.Path, flags); err != nil {
		return nil, nil, b.explain("open", err)
	}
	return file, expected, nil
}

// Check returns why Open would fail. A file that another program has locked passes.
func (b FileBackend) Check(spec *Spec) error {
	file, about, err := b.openUnlocked()
	switch {
	case errors.Is(err, fs.ErrNotExist) && b.Size == 0:
		return b.errMissing()
	case errors.Is(err, fs.ErrNotExist):
		if err := files.CheckCreatable(b.Path); err != nil {
			return b.explain("create", err)
		}
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = file.Close() }()
	if b.Size > 0 && about.Mode().IsRegular() && about.Size() == 0 {
		return nil // Open sets the size
	}
	if _, err := b.usableSize(spec, file); err != nil {
		return err
	}
	if b.Direct {
		_, err = b.directAlignment(spec, file)
	}
	return err
}

func (b FileBackend) errMissing() error {
	if strings.HasPrefix(filepath.Clean(b.Path), "/dev/") {
		return status.Errorf(status.NotFound,
			"device %q does not exist: lsblk lists those that there are", b.Path)
	}
	return status.Errorf(status.NotFound, "file %q does not exist: add ,size=SIZE to create it",
		b.Path)
}

// create makes a file of the given size. Until the file is locked and complete it has a temporary
// name, so no other program opens it half made, and no name but the temporary one is ever removed.
// A crash may leave the temporary file behind. If the path exists in the end, the error is
// fs.ErrExist.
func (b FileBackend) create() (*os.File, error) {
	directory := filepath.Dir(b.Path)
	temporary := filepath.Join(directory, ".zc-relay-"+rand.Text()+".new")
	file, err := b.openAs(temporary, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, b.explain("create", err)
	}
	err = b.lock(file)
	if err == nil {
		err = b.extend(file)
	}
	if err == nil {
		err = renameNew(temporary, b.Path)
	}
	if err != nil {
		return nil, errors.Join(b.explain("create", err), file.Close(), os.Remove(temporary))
	}
	if err := syncDirectory(directory); err != nil {
		return nil, errors.Join(b.explain("create", err), file.Close())
	}
	return file, nil
}

// renameNew renames a file unless the new name exists, in which case the error is fs.ErrExist.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// NFS, for one, cannot do this, but has hard links.
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// openAs opens the file at path, as b says, under the name b.Path. It never waits: if a FIFO has
// taken the place of the file, O_NONBLOCK makes open(2) return.
func (b FileBackend) openAs(path string, flags int) (*os.File, error) {
	flags |= unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	if b.Direct {
		flags |= unix.O_DIRECT
	}
	fd := -1
	err := retryInterrupted(func() (err error) {
		fd, err = b.openPath(path, flags)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), b.Path), nil
}

// openPath opens a path, which must not leave Beneath.
func (b FileBackend) openPath(path string, flags int) (int, error) {
	const mode = 0o600 // of a new file
	if b.Beneath == "" {
		return unix.Open(path, flags, mode)
	}
	inside, err := filepath.Rel(b.Beneath, path)
	if err != nil {
		return -1, err
	}
	directory, err := unix.Open(b.Beneath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(directory) }()
	how := unix.OpenHow{Flags: uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = mode
	}
	return unix.Openat2(directory, inside, &how)
}

// explainPath describes what is wrong with a path that leads nowhere.
func (b FileBackend) explainPath(err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.ENOTDIR):
		hint = "a part of the path before the last is a file: correct the path"
	case errors.Is(err, unix.ELOOP):
		hint = "symbolic links lead to one another: remove one of them, or correct the path"
	case errors.Is(err, unix.ENAMETOOLONG):
		hint = "the path, or a part of it, is longer than the system allows: shorten it"
	default:
		return err
	}
	return status.Errorf(status.BadConfig, "%w: %s", err, hint)
}

// explain describes why a file cannot be opened or created, and names the likely cause and remedy.
func (b FileBackend) explain(verb string, err error) error {
	hint := ""
	switch {
	case b.Direct && errors.Is(err, unix.EINVAL):
		return errNotDirect(b.Path)
	case b.Beneath != "" && errors.Is(err, unix.EXDEV):
		return status.Errorf(status.NotPermitted, "%s %q: a symbolic link leads out of %q", verb,
			b.Path, b.Beneath)
	case b.Beneath != "" && errors.Is(err, unix.ENOSYS):
		hint = ": volumes that administrators add need Linux 5.6"
	case errors.Is(err, unix.EBUSY):
		return status.Errorf(status.InUse, "device %q is mounted or in use: %w", b.Path, err)
	case errors.Is(err, unix.EROFS):
		hint = ": add ,readonly to serve an existing file, or choose a path that the system, and " +
			"the unit's ReadWritePaths, let the target write to"
	case errors.Is(err, unix.EFBIG):
		hint = fmt.Sprintf(": the file system, or a limit of the process, allows no file of %v",
			size.Bytes(b.Size))
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		hint = ": free space or inodes (df, df -i), or choose another file system"
	case errors.Is(err, fs.ErrPermission):
		hint = ": the target's user needs the right to write to the file, or to its directory if it " +
			"is new"
	case errors.Is(err, fs.ErrNotExist) && verb == "create":
		hint = ": create the directory first"
	}
	return fmt.Errorf("%s %q: %w%s", verb, b.Path, err, hint)
}

func errNotDirect(path string) error {
	return status.Errorf(status.NotSupported,
		"the file system of %q does not support direct IO: remove the option direct", path)
}

// prepare locks an existing file, and sets its size if it is empty. The path must have referred to
// this file before the file was opened, and must still do so once it is locked.
func (b FileBackend) prepare(file *os.File, expected fs.FileInfo) error {
	if err := b.lock(file); err != nil {
		return err
	}
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(b.Path); err != nil || !os.SameFile(opened, expected) ||
		!os.SameFile(opened, now) {
		return status.Errorf(status.Again,
			"file %q was replaced or removed while it was being opened: start again", b.Path)
	}
	if b.Size == 0 || !opened.Mode().IsRegular() || opened.Size() > 0 {
		return nil
	}
	if err := b.extend(file); err != nil {
		return b.explain("extend", err)
	}
	return nil
}

// extend sets the size of an empty file and makes that durable. The file is sparse: blocks take up
// space only once they are written.
func (b FileBackend) extend(file *os.File) error {
	err := retryInterrupted(func() error { return unix.Ftruncate(int(file.Fd()), int64(b.Size)) })
	if err != nil {
		return err
	}
	return file.Sync()
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
			"file %q is locked: another volume or program uses it (\"fuser %s\" shows which)",
			b.Path, b.Path)
	}
	if err != nil {
		return fmt.Errorf("lock file %q: %w", b.Path, err)
	}
	return nil
}

// kindOf returns the words for what a file is that holds no volume.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeCharDevice != 0:
		return "a character device"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "another kind of file"
}

// usableSize returns the size of the volume in bytes.
func (b FileBackend) usableSize(spec *Spec, file *os.File) (uint64, error) {
	// Seeking also finds the size of a block device.
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, status.Errorf(status.BadConfig, "file %q has no size, as those in /proc and /sys: "+
			"name a file that holds data, or a block device: %w", b.Path, err)
	}
	if b.Size > 0 && uint64(end) < b.Size {
		return 0, status.Errorf(status.InvalidValue,
			"file %q has the size %v, although size=%v was given: remove size= to use it as it is, or extend "+
				"the file (truncate -s %d FILE)",
			b.Path, size.Bytes(end), size.Bytes(b.Size), b.Size)
	}
	usable := uint64(end) &^ (uint64(spec.BlockSize) - 1)
	if usable == 0 {
		return 0, status.Errorf(status.InvalidValue,
			"file %q has %d bytes, less than one block of %v: extend it (truncate -s 1GiB FILE), or "+
				"name another", b.Path, end, size.Bytes(spec.BlockSize))
	}
	if about, err := file.Stat(); err != nil {
		return 0, err
	} else if about.Mode().IsRegular() && usable != uint64(end) {
		remedy := fmt.Sprintf("extend the file (truncate -s %%%d FILE)", spec.BlockSize)
		if fits := uint64(end) & -uint64(end); fits >= MinBlockSize {
			remedy = fmt.Sprintf("use --block-size %v, or %s", size.Bytes(fits), remedy)
		}
		return 0, status.Errorf(status.InvalidValue,
			"file %q has %d bytes, which are no multiple of the block size %v: %s",
			b.Path, end, size.Bytes(spec.BlockSize), remedy)
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
