package volume

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// doorbell is an eventfd. Both ends belong to this process: a peer could keep
// a shared one from ever being read or written.
type doorbell struct {
	fd int
	// count takes what wait reads. It is here because a local variable would
	// be allocated for each wait in builds with the race detector.
	count *[8]byte
}

// oneRing is what is written to an eventfd to add 1 to its count.
var oneRing = binary.NativeEndian.AppendUint64(nil, 1)

// newDoorbell makes a doorbell; flags are those of eventfd(2).
func newDoorbell(flags int) (doorbell, error) {
	fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
	if err != nil {
		return doorbell{fd: -1}, fmt.Errorf("create eventfd: %w", err)
	}
	return doorbell{fd: fd, count: new([8]byte)}, nil
}

// ring does not block: the count of an eventfd would have to be close to 2^64
// for that.
func (d doorbell) ring() {
	for {
		if _, err := unix.Write(d.fd, oneRing); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait returns when the doorbell has been rung, and at once if it is
// non-blocking. It forgets all rings so far. Only one thread waits.
func (d doorbell) wait() {
	for {
		if _, err := unix.Read(d.fd, d.count[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (d doorbell) close() error { return unix.Close(d.fd) }
