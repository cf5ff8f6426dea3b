package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// defaultAlignment is what direct IO needs if the kernel does not tell, which
// it does since Linux 6.1: a multiple of the sector size of every device.
const defaultAlignment = 4096

// directAlignment asks what direct IO demands of a file that was opened for
// it: the result is that of buffers in memory. Offsets must be multiples of no
// more than the volume's block size.
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
		return 0, status.Errorf(status.InvalidValue, "direct IO on %q needs multiples of %v, more than the block size %v: choose a larger one",
			b.Path, size.Bytes(stat.Dio_offset_align), size.Bytes(spec.BlockSize))
	}
	return int(stat.Dio_mem_align), nil
}

func errNotDirect(path string) error {
	return status.Errorf(status.NotSupported, "the file system of %q cannot do direct IO: leave direct out", path)
}

// openFlags are those of open(2) beyond read and write.
func (b FileBackend) openFlags() int {
	if b.Direct {
		return unix.O_DIRECT
	}
	return 0
}

// explained adds what the failure of an open means, if that is known.
func (b FileBackend) explained(err error) error {
	if b.Direct && errors.Is(err, unix.EINVAL) {
		return errNotDirect(b.Path)
	}
	return err
}

// aligned returns a new buffer that direct IO can use.
func (s *fileStore) aligned(length int) []byte {
	buffer := make([]byte, length+s.alignment)
	if m := misalignment(buffer, s.alignment); m > 0 {
		buffer = buffer[s.alignment-m:]
	}
	return buffer[:length]
}
