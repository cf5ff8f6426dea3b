// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// readAtOnce is the most bytes that a queue reads from the page cache on its own thread. A
	// larger read justifies waking another core.
	readAtOnce = 256 << 10
	// readers is how many reads of one volume may wait for the device at a time. Each occupies a
	// thread.
	readers = 16
	// changeBatchSize is the most writes, or flushes, in a batch.
	changeBatchSize = 64
	// cachedWriteStep is how many bytes one system call writes to the page cache, unless blocks are
	// larger. A file system that keeps state per block, as ext4 does, walks the state of a whole
	// folio on every write into it, and makes a folio as large as the first write: after writes of
	// 1 MiB, a write of 4 KiB takes twenty times as long.
	cachedWriteStep = 16 << 10
	// directMembers is how many requests of each kind direct IO submits to the device at a time. A
	// device handles many at once. While more requests wait, the goroutines find the next one
	// without sleeping and being woken.
	directMembers = 16
)

// fileStore is the store of a volume on a file or block device. The file is never mapped: a page
// fault would block the queue's thread, and a device error would kill the process.
//
// One goroutine makes all changes to the page cache: a file system admits only one writer per file
// there, and more would contend for the inode. Direct writes to existing blocks run in parallel.
// One goroutine at a time makes changes durable; see makeDurable.
type fileStore struct {
	fileStoreConfig
	file *os.File
	fd   int

	reads   *pool
	changes *pool
	flushes *pool

	syncFile func() error // fdatasync(2)

	syncing  sync.Mutex // serializes makeDurable
	resizing sync.Mutex // serializes changes of the size

	opened      time.Time
	sizeChecked atomic.Int64 // when checkSize was last called, in ns since opened

	// Set once the file system turns out not to support an operation.
	noNowait    atomic.Bool
	noZeroRange atomic.Bool
	noPunchHole atomic.Bool
	noAllocate  atomic.Bool
}

// checkPlace is replaced by tests.
var checkPlace = (*place).check

// fileStoreConfig describes how a file was opened.
type fileStoreConfig struct {
	readOnly  bool
	direct    bool
	alignment int            // required of buffers, in bytes; 0 means none
	writeStep int            // the most bytes that one system call writes
	size      *atomic.Uint64 // the volume's, in bytes; the file must never become shorter
	blockSize uint32
	regular   bool // a file, which a write beyond its end extends, and not a block device
	witness   witness
	end       *cleanEnd
	place     *place
	*health
}

// newFileStore starts a store's goroutines. On success it owns file.
func newFileStore(file *os.File, config fileStoreConfig) (*fileStore, error) {
	s := &fileStore{fileStoreConfig: config, file: file, fd: int(file.Fd()), opened: time.Now()}
	readMembers, changeMembers, changes := readers, 1, changeBatchSize
	if config.direct {
		readMembers, changeMembers, changes = directMembers, directMembers, 1
	}
	s.syncFile = func() error {
		return retryInterrupted(func() error { return unix.Fdatasync(s.fd) })
	}
	for _, p := range []struct {
		pool            **pool
		size, batchSize int
		handle          func(*requestList)
	}{
		{&s.reads, readMembers, 1, s.readBatch},
		{&s.changes, changeMembers, changes, s.changeBatch},
		{&s.flushes, 1, changeBatchSize, s.flushBatch},
	} {
		started, err := startPool(p.size, p.batchSize, p.handle)
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		*p.pool = started
	}
	return s, nil
}

// start reads from the page cache and leaves everything else to the pools.
func (s *fileStore) start(r *Request) carrier {
	if r.Err = s.rejection(r.Operation.FillsMemory()); r.Err != nil {
		return nil
	}
	switch {
	case r.Operation == iomsg.OpRead && !s.direct && s.readCached(r):
		return nil
	case r.Operation.FillsMemory():
		return s.reads
	case r.Operation == iomsg.OpFlush && s.readOnly:
		return nil
	case r.Operation == iomsg.OpFlush:
		return s.flushes
	}
	return s.changes
}

// readCached tries to read without blocking and reports whether it has read everything.
func (s *fileStore) readCached(r *Request) bool {
	if r.Length > readAtOnce || s.noNowait.Load() {
		return false
	}
	n, errno := readNowait(s.fd, r.Buffer, r.Offset)
	if errno == unix.EOPNOTSUPP || errno == unix.ENOSYS {
		s.noNowait.Store(true)
	}
	return errno == 0 && n == len(r.Buffer)
}

// readBatch carries out reads that may wait for the device, and searches for holes.
func (s *fileStore) readBatch(batch *requestList) {
	for r := batch.pop(); r != nil; r = batch.pop() {
		if r.Operation == iomsg.OpExtents {
			r.Err = s.findExtents(r)
		} else {
			r.Err = s.readAt(r.Buffer, r.Offset)
		}
		r.queue.complete(r)
	}
}

// readAt fills buffer.
func (s *fileStore) readAt(buffer []byte, offset uint64) error {
	if misalignment(buffer, s.alignment) > 0 {
		aligned := s.aligned(len(buffer))
		err := s.readAt(aligned, offset)
		copy(buffer, aligned)
		return err
	}
	for done := 0; done < len(buffer); {
		n, err := unix.Pread(s.fd, buffer[done:], int64(offset)+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return s.failShrunk()
		}
		if err != nil {
			return s.ioError("read", offset, uint64(len(buffer)), err)
		}
		done += n
	}
	return nil
}

// findExtents describes the range of a request by its extents.
func (s *fileStore) findExtents(r *Request) error {
	// What another program has cut off would look like a hole.
	if err := s.checkSize(); err != nil {
		return err
	}
	if err := findExtents(s.fd, r); err != nil {
		return s.ioError("find extents in", r.Offset, r.Length, err)
	}
	return s.checkSize()
}

// aligned returns a new buffer that is aligned for direct IO.
func (s *fileStore) aligned(length int) []byte {
	buffer := make([]byte, length+s.alignment)
	if m := misalignment(buffer, s.alignment); m > 0 {
		buffer = buffer[s.alignment-m:]
	}
	return buffer[:length]
}

// changeBatch carries out writes, trims, and write zeroes.
func (s *fileStore) changeBatch(batch *requestList) {
	err := s.checkSizeSometimes()
	if err == nil {
		err = s.end.withdraw()
	}
	for r := batch.pop(); r != nil; r = batch.pop() {
		if r.Err = err; err == nil {
			r.Err = s.change(r)
		}
		if r.Err == nil && r.ForceUnitAccess {
			s.flushes.submit(r)
			continue
		}
		r.queue.complete(r)
	}
}

func (s *fileStore) change(r *Request) error {
	if err := s.rejection(false); err != nil {
		return err
	}
	// A write up to the end of the volume would hide a truncation from every later comparison.
	if r.Offset+r.Length == s.size.Load() {
		if err := s.checkSize(); err != nil {
			return err
		}
	}
	switch r.Operation {
	case iomsg.OpTrim:
		return s.trim(r.Offset, r.Length)
	case iomsg.OpWriteZeroes:
		return s.writeZeroes(r.Offset, r.Length, r.Deallocate)
	}
	return s.writeAt(r.Buffer, r.Offset)
}

// writeAt writes all of buffer.
func (s *fileStore) writeAt(buffer []byte, offset uint64) error {
	if misalignment(buffer, s.alignment) > 0 {
		aligned := s.aligned(len(buffer))
		copy(aligned, buffer)
		buffer = aligned
	}
	for done := 0; done < len(buffer); {
		rest := buffer[done:]
		n, err := unix.Pwrite(s.fd, rest[:min(len(rest), s.writeStep)], int64(offset)+int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return s.ioError("write", offset, uint64(len(buffer)), err)
		}
		done += n
	}
	return nil
}

// trim deallocates blocks. A trim is only advice, so it succeeds even if the file system does not
// support it.
func (s *fileStore) trim(offset, length uint64) error {
	_, err := s.allocate(&s.noPunchHole, unix.FALLOC_FL_PUNCH_HOLE, offset, length)
	if err != nil {
		return s.ioError("trim", offset, length, err)
	}
	return nil
}

// writeZeroes uses the best way that the file system supports. deallocate prefers holes; without
// it, no hole is left.
func (s *fileStore) writeZeroes(offset, length uint64, deallocate bool) error {
	var done bool
	var err error
	if !deallocate || s.noPunchHole.Load() {
		done, err = s.allocate(&s.noZeroRange, unix.FALLOC_FL_ZERO_RANGE, offset, length)
	}
	if !done && err == nil {
		done, err = s.allocate(&s.noPunchHole, unix.FALLOC_FL_PUNCH_HOLE, offset, length)
		if done && !deallocate { // as on tmpfs, which has no ZERO_RANGE
			done, err = s.allocate(&s.noAllocate, unix.FALLOC_FL_ALLOCATE_RANGE, offset, length)
		}
	}
	if err != nil {
		return s.ioError("write zeroes", offset, length, err)
	}
	for !done && length > 0 {
		n := min(length, uint64(len(zeroes)))
		if err := s.writeAt(zeroes[:n], offset); err != nil {
			return err
		}
		offset, length = offset+n, length-n
	}
	return nil
}

// zeroes is what writeZeroes writes if the file system has no better way.
var zeroes [1 << 20]byte

// allocate calls fallocate(2) in the given mode. It reports false if the file system does not
// support the mode, and remembers that in unsupported.
func (s *fileStore) allocate(
	unsupported *atomic.Bool, mode uint32, offset, length uint64,
) (done bool, err error) {
	if length == 0 {
		return true, nil
	}
	if unsupported.Load() {
		return false, nil
	}
	err = retryInterrupted(func() error {
		return unix.Fallocate(s.fd, mode|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(length))
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		unsupported.Store(true)
		return false, nil
	}
	return err == nil, err
}

// flushBatch completes a batch of requests once everything written before is durable.
func (s *fileStore) flushBatch(batch *requestList) {
	err := s.makeDurable()
	for r := batch.pop(); r != nil; r = batch.pop() {
		r.Err = err
		r.queue.complete(r)
	}
}

// makeDurable makes everything written so far durable, the file's size included. Nothing else may
// call fsync(2) or fdatasync(2) on the file: the kernel reports a failed write-back once per open
// file, so whoever gets the error must remember it. Of two concurrent calls, the one that does not
// get it would report lost data as durable.
//
// Once it has failed it fails forever: the kernel marks pages that it could not write as clean, so
// the next fdatasync(2) succeeds without them.
func (s *fileStore) makeDurable() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.rejection(false); err != nil {
		return err
	}
	cause := s.syncFile()
	if cause == nil {
		cause = readNothing(s.fd)
	}
	if cause == nil {
		return errors.Join(s.checkPlace(), s.checkSize())
	}
	if err := s.checkDetached(); err != nil {
		return err
	}
	return s.fail(&failure{
		rejects: rejectChanges,
		message: "flush failed: the volume accepts no more writes until it is reopened",
		err: status.Errorf(status.IOFailed,
			"flush of %q failed: the volume accepts no more writes until it is reopened: %w",
			s.file.Name(), cause),
	})
}

// fail makes the volume reject requests. A restart must not hide that content is lost.
func (s *fileStore) fail(f *failure) error {
	s.witness.renounce()
	if err := s.end.withdraw(); err != nil {
		s.log.Error("a loss of writes may stay unnoticed", zap.Error(err))
	}
	return s.health.fail(f)
}

// readNothing returns an error if the file system has shut itself down, as XFS does after an
// error in its metadata, and ext4 and XFS do when their device disappears. The file system then
// gives up the writes that are under way, and an fdatasync(2) that waits for them may return 0. But
// before it gives up anything, it begins to reject reads, even of no bytes. So if this read
// succeeds, what fdatasync(2) returned before is true.
func readNothing(fd int) error {
	return retryInterrupted(func() error {
		_, err := unix.Pread(fd, nil, 0)
		return err
	})
}

// inspect notices a file that is gone or truncated even if nobody uses the volume, and one that has
// grown.
func (s *fileStore) inspect() {
	if s.checkPlace() == nil && s.checkSize() == nil {
		_ = s.follow()
	}
}

// checkPlace fails the volume if its file or device has been removed or replaced.
func (s *fileStore) checkPlace() error {
	if err := s.rejection(true); err != nil {
		return err
	}
	if gone := checkPlace(s.place); gone != nil {
		return s.failGone(gone)
	}
	return nil
}

// checkDetached fails the volume if its device was detached. The kernel takes away the size of such
// a device, before its entry in sysfs: reads then find nothing, and writes no space.
func (s *fileStore) checkDetached() error {
	if s.regular {
		return nil
	}
	if end, err := unix.Seek(s.fd, 0, io.SeekEnd); err != nil || end > 0 {
		return nil
	}
	return s.failGone(errGone(s.file.Name(), detached))
}

func (s *fileStore) failGone(gone error) error {
	return s.fail(&failure{
		rejects: rejectAll,
		message: "the volume's file or device is gone: it fails every request until it is reopened",
		err:     gone,
	})
}

// follow makes the volume as large as the file or device is, if that has grown.
func (s *fileStore) follow() error {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	end, err := unix.Seek(s.fd, 0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("find the size of %q: %w", s.file.Name(), err)
	}
	usable := uint64(end) &^ (uint64(s.blockSize) - 1)
	if before := s.size.Load(); usable > before && s.rejection(false) == nil {
		s.size.Store(usable)
		s.log.Info("the volume has grown", zap.Uint64("before_bytes", before),
			zap.Uint64("after_bytes", usable))
	}
	return nil
}

// resize changes the size of the file, durably. New blocks are holes.
func (s *fileStore) resize(bytes uint64) error {
	before := s.size.Load()
	switch {
	case bytes == 0 || bytes == before:
		return s.follow()
	case !s.regular:
		return status.Errorf(status.NotSupported, "%q is a device: resize it (lvextend, for "+
			"instance), and the volume follows", s.file.Name())
	case s.readOnly:
		return status.Errorf(status.NotPermitted, "%q is open for reading only", s.file.Name())
	}
	if err := s.rejection(false); err != nil {
		return err
	}
	s.resizing.Lock()
	defer s.resizing.Unlock()
	end, err := unix.Seek(s.fd, 0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("find the size of %q: %w", s.file.Name(), err)
	}
	if uint64(end) > max(bytes, before) {
		return status.Errorf(status.InvalidValue, "%q already has %v: something else has extended it",
			s.file.Name(), size.Bytes(end))
	}
	if err := s.end.withdraw(); err != nil {
		return err
	}
	// A file that is shorter than the volume would count as truncated.
	s.size.Store(min(before, bytes))
	err = retryInterrupted(func() error { return unix.Ftruncate(s.fd, int64(bytes)) })
	if err == nil {
		err = s.makeDurable()
	}
	if err != nil {
		return fmt.Errorf("change the size of %q to %v: %w", s.file.Name(), size.Bytes(bytes), err)
	}
	s.size.Store(bytes)
	s.log.Info("the volume has been resized", zap.Uint64("before_bytes", before),
		zap.Uint64("after_bytes", bytes))
	return nil
}

// sizeCheckInterval is how long changes may go on without a comparison of the sizes, which costs
// half as much as a small write.
const sizeCheckInterval = time.Millisecond

// checkSizeSometimes calls checkSize if nobody has for sizeCheckInterval.
func (s *fileStore) checkSizeSometimes() error {
	if !s.regular || int64(time.Since(s.opened))-s.sizeChecked.Load() <
		int64(sizeCheckInterval) {
		return nil
	}
	return s.checkSize()
}

// checkSize fails the volume if its file has become shorter. Writes would silently extend the file
// again, and what another program has cut off would read as zeroes.
func (s *fileStore) checkSize() error {
	if !s.regular {
		return nil
	}
	// The cheapest way to get the size. Nothing uses the position.
	end, err := unix.Seek(s.fd, 0, io.SeekEnd)
	s.sizeChecked.Store(int64(time.Since(s.opened)))
	if err != nil || uint64(end) >= s.size.Load() {
		return nil // a file system that cannot say fails the request that follows
	}
	return s.failShrunk()
}

var errShrunk = errors.New("the file or device has become shorter than the volume")

func (s *fileStore) failShrunk() error {
	if err := s.rejection(true); err != nil {
		return err
	}
	if err := s.checkDetached(); err != nil {
		return err
	}
	now := "fewer bytes"
	if end, err := unix.Seek(s.fd, 0, io.SeekEnd); err == nil {
		now = fmt.Sprintf("%d bytes", end)
	}
	return s.fail(&failure{
		rejects: rejectAll,
		message: "another program has truncated the volume: it fails every request until it is reopened",
		err: status.Errorf(status.IOFailed, "%q: %w: it had %s instead of at least %d: "+
			"find out what truncated it, restore the content, and reopen the volume "+
			"(target volume remove, target volume add) or restart the target",
			s.file.Name(), errShrunk, now, s.size.Load()),
	})
}

// ioError describes a failed system call, or what has become of the file or device that caused it.
func (s *fileStore) ioError(operation string, offset, length uint64, cause error) error {
	if err := s.checkDetached(); err != nil {
		return err
	}
	if err := s.checkSize(); err != nil {
		return err
	}
	return status.Errorf(status.IOFailed,
		"%s %d bytes at offset %d of %q: %w", operation, length, offset, s.file.Name(), cause)
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// close makes everything durable, keeps the proof of that, unlocks the file, and closes it.
func (s *fileStore) close() error {
	err := s.stop()
	if !s.readOnly {
		err = errors.Join(err, s.makeDurable())
		if err == nil {
			err = s.end.prove(s.file, s.log)
		}
	}
	return errors.Join(err, s.place.close(), s.file.Close())
}

// stop ends the goroutines that were started. Changes may still be passed on to the flush pool, so
// it stops last.
func (s *fileStore) stop() error {
	var errs []error
	for _, p := range []*pool{s.reads, s.changes, s.flushes} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}
