package volume

import (
	"errors"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// zeroes is what write zeroes writes where the file system has no better way.
var zeroes [1 << 20]byte

var errShrunk = errors.New("the file has become shorter than the volume")

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
			err = errShrunk
		}
		if err != nil {
			return s.failure("read", offset, uint64(len(buffer)), err)
		}
		done += n
	}
	return nil
}

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
			return s.failure("write", offset, uint64(len(buffer)), err)
		}
		done += n
	}
	return nil
}

// trim gives blocks back. It is advice, so a file system that cannot take it
// is no error.
func (s *fileStore) trim(offset, length uint64) error {
	_, err := s.allocate(&s.noPunchHole, unix.FALLOC_FL_PUNCH_HOLE, offset, length)
	if err != nil {
		return s.failure("trim", offset, length, err)
	}
	return nil
}

func (s *fileStore) writeZeroes(offset, length uint64) error {
	done, err := s.allocate(&s.noZeroRange, unix.FALLOC_FL_ZERO_RANGE, offset, length)
	if !done && err == nil {
		done, err = s.allocate(&s.noPunchHole, unix.FALLOC_FL_PUNCH_HOLE, offset, length)
	}
	if err != nil {
		return s.failure("write zeroes", offset, length, err)
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

// allocate is fallocate(2) in the given mode. It does nothing if the file
// system has turned out not to support that.
func (s *fileStore) allocate(unsupported *atomic.Bool, mode uint32, offset, length uint64) (done bool, err error) {
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

func (s *fileStore) failure(operation string, offset, length uint64, cause error) error {
	return status.Errorf(status.IOFailed, "%s %d bytes at offset %d of %q: %w", operation, length, offset, s.file.Name(), cause)
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
