// SPDX-License-Identifier: Apache-2.0

// Package iouring drives io_uring as far as drivers' commands (IORING_OP_URING_CMD) need it: a ring
// whose entries are submitted and reaped by one thread, with entries of 64 or 128 bytes.
//
// The layout of what a ring shares with the kernel is that of include/uapi/linux/io_uring.h of
// Linux 6.12, with names of its own, because older systems' headers lack a part of it.
package iouring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Numbers of the interface.
const (
	setupLargeEntries = 1 << 10 // IORING_SETUP_SQE128, Linux 5.19
	setupCooperative  = 1 << 8  // IORING_SETUP_COOP_TASKRUN, 5.19
	setupTaskRunFlag  = 1 << 9  // IORING_SETUP_TASKRUN_FLAG, 5.19

	featureSingleMapping = 1 << 0 // IORING_FEAT_SINGLE_MMAP, 5.4

	offsetRings   = 0          // IORING_OFF_SQ_RING
	offsetEntries = 0x10000000 // IORING_OFF_SQES

	enterGetEvents = 1 << 0 // IORING_ENTER_GETEVENTS

	statusTaskRun = 1 << 2 // IORING_SQ_TASKRUN

	operationNop     = 0  // IORING_OP_NOP
	operationCommand = 46 // IORING_OP_URING_CMD, 5.19

	paramsSize     = 120 // sizeof(struct io_uring_params)
	completionSize = 16  // sizeof(struct io_uring_cqe)
)

// MaxEntries bounds Config.Entries (IORING_MAX_ENTRIES).
const MaxEntries = 32768

// CommandSize is the room that a driver's command has in an entry of 64 bytes, and
// LargeCommandSize in one of 128.
const (
	CommandSize      = 16
	LargeCommandSize = 80
)

// Config configures a ring.
type Config struct {
	// Entries is the least number of entries that can be pushed before Enter, from 1 to MaxEntries.
	Entries int
	// LargeEntries makes entries 128 bytes long.
	LargeEntries bool
	// Cooperative makes the kernel finish commands when the thread enters the kernel anyway,
	// instead of interrupting it. HasWork tells that there is some to finish.
	Cooperative bool
}

// Ring is an io_uring. One thread may use it at a time; drivers may demand that it is always the
// same.
type Ring struct {
	descriptor int
	rings      []byte // what both sides share
	entries    []byte
	entrySize  int

	// In rings. The kernel moves submittedHead and completedTail.
	submittedHead, submittedTail *atomic.Uint32
	status                       *atomic.Uint32
	completedHead, completedTail *atomic.Uint32
	completions                  []byte
	submissionMask               uint32
	completionMask               uint32
	pushed                       uint32 // tail, with what has not been submitted
}

// Completion is the outcome of an entry.
type Completion struct {
	UserData uint64
	Result   int32
}

// New makes a ring. Its error says what the kernel lacks.
func New(config Config) (*Ring, error) {
	r, err := newRing(config)
	if err != nil {
		return nil, fmt.Errorf("set up an io_uring: %w", err)
	}
	return r, nil
}

func newRing(config Config) (*Ring, error) {
	if config.Entries < 1 || config.Entries > MaxEntries {
		return nil, status.Errorf(status.InvalidValue,
			"%d entries are not between 1 and %d", config.Entries, MaxEntries)
	}
	var flags uint32
	r := &Ring{entrySize: 64}
	if config.LargeEntries {
		flags |= setupLargeEntries
		r.entrySize = 128
	}
	if config.Cooperative {
		flags |= setupCooperative | setupTaskRunFlag
	}
	var params [paramsSize]byte
	binary.NativeEndian.PutUint32(params[8:], flags)
	descriptor, errno := setup(uint32(config.Entries), &params)
	if errno != 0 {
		return nil, explain(errno)
	}
	r.descriptor = descriptor
	if err := r.mapRings(&params); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// explain says what an error of the setup means.
func explain(errno unix.Errno) error {
	code := status.NotSupported
	meaning := ""
	switch errno {
	case unix.ENOSYS:
		meaning = "this kernel has no io_uring (Linux 5.1, CONFIG_IO_URING), or a filter of " +
			"system calls hides it"
	case unix.EPERM:
		code = status.NotPermitted
		meaning = "io_uring is switched off" + disabled()
	case unix.EINVAL:
		meaning = "this kernel lacks entries of 128 bytes or cooperative completion (Linux 5.19)"
	case unix.ENOMEM:
		code = status.NoMemory
		meaning = "the limit of locked memory is too low (ulimit -l, LimitMEMLOCK=)"
	default:
		code = status.OperatingSystem
		meaning = "the kernel refuses it"
	}
	return status.Errorf(code, "%s: %w", meaning, errno)
}

// disabled quotes the setting that switches io_uring off.
func disabled() string {
	const setting = "/proc/sys/kernel/io_uring_disabled"
	value, err := os.ReadFile(setting)
	if err != nil {
		return " by a filter of system calls"
	}
	return fmt.Sprintf(" (sysctl kernel.io_uring_disabled is %s)", strings.TrimSpace(string(value)))
}

// mapRings maps what the kernel shares. struct io_uring_params ends with the offsets of both rings.
func (r *Ring) mapRings(params *[paramsSize]byte) error {
	field := func(offset int) uint32 { return binary.NativeEndian.Uint32(params[offset:]) }
	if field(20)&featureSingleMapping == 0 {
		return status.Errorf(status.NotSupported, "this kernel maps the rings apart (Linux 5.4)")
	}
	const submission, completion = 40, 80 // struct io_sqring_offsets, struct io_cqring_offsets
	submissions, completions := field(0), field(4)
	array, cqes := field(submission+24), field(completion+20)
	size := max(array+submissions*4, cqes+completions*completionSize)
	var err error
	if r.rings, err = mapShared(r.descriptor, offsetRings, int(size)); err != nil {
		return fmt.Errorf("map the rings: %w", err)
	}
	length := int(submissions) * r.entrySize
	if r.entries, err = mapShared(r.descriptor, offsetEntries, length); err != nil {
		return fmt.Errorf("map the entries: %w", err)
	}
	r.submittedHead = word(r.rings, field(submission))
	r.submittedTail = word(r.rings, field(submission+4))
	r.status = word(r.rings, field(submission+16))
	r.completedHead = word(r.rings, field(completion))
	r.completedTail = word(r.rings, field(completion+4))
	r.submissionMask, r.completionMask = submissions-1, completions-1
	r.completions = r.rings[cqes:][:completions*completionSize]
	r.pushed = r.submittedTail.Load()
	for i := range submissions { // entry i is always at place i
		binary.NativeEndian.PutUint32(r.rings[array+4*i:], i)
	}
	return nil
}

// Descriptor returns the ring's descriptor, which is readable while there are completions.
func (r *Ring) Descriptor() int { return r.descriptor }

// Close closes the ring, which cancels the commands in progress.
func (r *Ring) Close() error {
	var errs []error
	for _, mapping := range [][]byte{r.entries, r.rings} {
		if mapping != nil {
			errs = append(errs, unix.Munmap(mapping))
		}
	}
	r.entries, r.rings = nil, nil
	return errors.Join(append(errs, unix.Close(r.descriptor))...)
}

// push returns the next entry, cleared, or nil if there is no room until Enter.
func (r *Ring) push(operation uint8, userData uint64) []byte {
	if r.pushed-r.submittedHead.Load() > r.submissionMask {
		return nil
	}
	entry := r.entries[int(r.pushed&r.submissionMask)*r.entrySize:][:r.entrySize]
	clear(entry)
	entry[0] = operation
	binary.NativeEndian.PutUint64(entry[32:], userData)
	r.pushed++
	return entry
}

// PushCommand pushes a command to the driver of an open file, and returns the command's place in
// the entry, which the caller fills, or nil if there is no room until Enter.
func (r *Ring) PushCommand(descriptor int, operation uint32, userData uint64) []byte {
	entry := r.push(operationCommand, userData)
	if entry == nil {
		return nil
	}
	binary.NativeEndian.PutUint32(entry[4:], uint32(descriptor))
	binary.NativeEndian.PutUint32(entry[8:], operation)
	return entry[48:]
}

// PushNop pushes an entry that does nothing. It returns false if there is no room until Enter.
func (r *Ring) PushNop(userData uint64) bool { return r.push(operationNop, userData) != nil }

// Enter submits what was pushed, finishes what the kernel has to finish on this thread, and waits
// until there are at least wait completions. When it returns nil, the kernel has read all entries.
func (r *Ring) Enter(wait int) error {
	r.submittedTail.Store(r.pushed)
	for {
		errno := enter(r.descriptor, r.pushed-r.submittedHead.Load(), uint32(wait), enterGetEvents)
		switch {
		case errno == unix.EINTR || errno == unix.EAGAIN:
			continue
		case errno != 0:
			return fmt.Errorf("enter an io_uring: %w", errno)
		case r.submittedHead.Load() == r.pushed:
			return nil
		}
	}
}

// Reap removes completions from the ring, as many as there are and fit.
func (r *Ring) Reap(completions []Completion) int {
	head, tail := r.completedHead.Load(), r.completedTail.Load()
	n := 0
	for ; head != tail && n < len(completions); head++ {
		c := r.completions[int(head&r.completionMask)*completionSize:][:completionSize]
		completions[n] = Completion{UserData: binary.NativeEndian.Uint64(c),
			Result: int32(binary.NativeEndian.Uint32(c[8:]))}
		n++
	}
	r.completedHead.Store(head)
	return n
}

// HasCompletions reports whether Reap would find any.
func (r *Ring) HasCompletions() bool { return r.completedHead.Load() != r.completedTail.Load() }

// MustEnter reports that the kernel has something to finish on this thread, which Enter does. Only
// a cooperative ring tells.
func (r *Ring) MustEnter() bool { return r.status.Load()&statusTaskRun != 0 }
