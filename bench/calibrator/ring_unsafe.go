// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// messageSize is the size of an IO message in bytes.
const messageSize = 64

// ringSlots is the capacity of a ring, larger than any depth.
const ringSlots = 1024

// ring is a single-producer, single-consumer queue of messages. A message is valid once its
// sequence number is; the two share no cache line.
type ring struct {
	slots [ringSlots]struct {
		sequence atomic.Uint64
		_        [56]byte
		message  [messageSize]byte
	}
}

// shared is the memory that client and middle share; the data follows it.
type shared struct {
	requests ring
	answers  ring
}

const sharedSize = int(unsafe.Sizeof(shared{}))

// mapShared maps a session's file, which the client creates.
func mapShared(p *parameters, session int, create bool) (*shared, []byte, error) {
	return mapFile(p.sharedFile(session), p.depth*p.blockSize, create)
}

// mapFile maps a file with a pair of rings and that many bytes of data.
func mapFile(path string, data int, create bool) (*shared, []byte, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	size := sharedSize + data
	if create {
		if err := file.Truncate(int64(size)); err != nil {
			return nil, nil, err
		}
	}
	b, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, err
	}
	return (*shared)(unsafe.Pointer(unsafe.SliceData(b))), b[sharedSize:], nil
}

// put appends a message; the ring is never full.
func (r *ring) put(index uint64, message *[messageSize]byte) {
	slot := &r.slots[index%ringSlots]
	slot.message = *message
	slot.sequence.Store(index + 1)
}

// get returns the message with the given index, if available.
func (r *ring) get(index uint64, message *[messageSize]byte) bool {
	slot := &r.slots[index%ringSlots]
	if slot.sequence.Load() != index+1 {
		return false
	}
	*message = slot.message
	return true
}

func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
