package volume

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// doorbell is an eventfd. Both ends belong to this process: a peer could keep
// a shared one from ever being read or written.
type doorbell struct{ fd int }

// newDoorbell makes a doorbell; flags are those of eventfd(2).
func newDoorbell(flags int) (doorbell, error) {
	fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
	if err != nil {
		return doorbell{fd: -1}, fmt.Errorf("create eventfd: %w", err)
	}
	return doorbell{fd: fd}, nil
}

// ring does not block: the count of an eventfd would have to be close to 2^64
// for that.
func (d doorbell) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for {
		if _, err := unix.Write(d.fd, one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait returns when the doorbell has been rung, and at once if it is
// non-blocking. It forgets all rings so far.
func (d doorbell) wait() {
	var count [8]byte
	for {
		if _, err := unix.Read(d.fd, count[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (d doorbell) close() error { return unix.Close(d.fd) }
