// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeKernel is a driver in this process, with the rules of drivers/block/ublk_drv.c as far as this
// package depends on them, and with switches that break them.
type fakeKernel struct {
	mu      sync.Mutex
	devices map[uint32]*fakeDevice
	living  map[int32]bool

	features   feature // what it knows
	processors uint16
	inUse      bool              // the device is in exclusive use
	errors     map[operation]int // error numbers of control commands
	calls      []operation
	paths      []bool // whether each had a path
	released   int
	closed     int

	// hostile, if not nil, may change what a ring is about to report.
	hostile func(c *completion)
	// copyLater is how many copies are first reported as not made.
	copyLater int
	// copyLess makes the next copy a partial one.
	copyLess bool
}

// fakeDevice is a device.
type fakeDevice struct {
	kernel     *fakeKernel
	info       deviceInfo
	parameters []byte
	isOpen     bool
	queues     []*fakeRing
	requeued   []*fakeRequest
	ready      int
}

// fakeRequest is a request of a user of the device.
type fakeRequest struct {
	operation uint8
	flags     uint32
	start     uint64
	sectors   uint32
	data      []byte // of a write, or for what is read
	done      chan int32
}

// fakeTag is a tag of a ring.
type fakeTag struct {
	isHere   bool // the kernel has it
	needsGet bool
	request  *fakeRequest
	sectors  uint32 // in the descriptor
}

// fakeRing is a queue's ring, and its queue in the kernel.
type fakeRing struct {
	device  *fakeDevice
	wake    int // eventfd
	thread  int // that has fetched
	tags    []fakeTag
	pushed  []func()
	reports []completion
	closed  bool
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{devices: map[uint32]*fakeDevice{}, living: map[int32]bool{},
		features: 0x1fe, processors: 64, errors: map[operation]int{}}
}

func (k *fakeKernel) control(_ context.Context, o operation, c control) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls, k.paths = append(k.calls, o), append(k.paths, c.withPath)
	if number := k.errors[o]; number != 0 {
		return fmt.Errorf("%v: %w", o, syscall.Errno(number))
	}
	d := k.devices[uint32(int32(c.id))]
	if d == nil && o != addDevice && o != getFeatures {
		return fmt.Errorf("%v: %w", o, syscall.ENODEV)
	}
	if d != nil && d.info.features&featureUnprivileged != 0 && !c.withPath {
		return fmt.Errorf("%v: %w", o, syscall.EINVAL)
	}
	if number := k.carryOut(o, &c, d); number != 0 {
		return fmt.Errorf("%v: %w", o, number)
	}
	return nil
}

func (k *fakeKernel) carryOut(o operation, c *control, d *fakeDevice) syscall.Errno {
	switch o {
	case getFeatures:
		binary.NativeEndian.PutUint64(c.buffer, uint64(k.features))
	case addDevice:
		return k.add(c)
	case getInfo:
		copy(c.buffer, d.info.encode())
	case setParameters:
		if d.info.state != stateDead || d.ready > 0 {
			return syscall.EACCES
		}
		d.parameters = bytes.Clone(c.buffer)
	case getParameters:
		copy(c.buffer, d.parameters)
	case startDevice:
		if d.parameters == nil || d.ready != int(d.info.queues) {
			return syscall.EINVAL
		}
		d.info.state, d.info.process = stateLive, int32(c.data)
		k.living[int32(c.data)] = true
	case startRecovery:
		if d.isOpen || d.info.state != stateQuiesced {
			return syscall.EBUSY
		}
		d.ready, d.queues = 0, make([]*fakeRing, d.info.queues)
	case endRecovery:
		if d.ready != int(d.info.queues) {
			return syscall.EBUSY
		}
		d.info.state, d.info.process = stateLive, int32(c.data)
		k.living[int32(c.data)] = true
		for _, r := range d.requeued {
			d.queues[0].give(r)
		}
		d.requeued = nil
	case stopDevice:
		d.info.state = stateDead
		for _, q := range d.queues {
			q.abort()
		}
		for _, r := range d.requeued {
			r.done <- -int32(syscall.EIO)
		}
	case deleteDevice, deleteLater:
		if o == deleteDevice && (d.isOpen || k.inUse) {
			return syscall.EBUSY // the kernel would wait
		}
		delete(k.devices, d.info.id)
	case updateSize:
		if d.info.features&featureUpdateSize == 0 {
			return syscall.EOPNOTSUPP
		}
		binary.NativeEndian.PutUint64(d.parameters[24:], c.data)
	default:
		return syscall.EINVAL
	}
	return 0
}

func (k *fakeKernel) add(c *control) syscall.Errno {
	info := decodeInfo(c.buffer)
	if info.id == ^uint32(0) {
		info.id = 5
	}
	if k.devices[info.id] != nil {
		return syscall.EEXIST
	}
	info.features &= k.features
	info.queues = min(info.queues, k.processors)
	k.devices[info.id] = &fakeDevice{kernel: k, info: info, queues: make([]*fakeRing, info.queues)}
	copy(c.buffer, info.encode())
	return 0
}

func (k *fakeKernel) open(id int) (server, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.devices[uint32(id)]
	if d.isOpen {
		return nil, status.Errorf(status.InUse, "open: %w", syscall.EBUSY)
	}
	d.isOpen = true
	return d, nil
}

func (k *fakeKernel) isAlive(process int32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.living[process]
}

func (k *fakeKernel) hold(id int) (func(), error) {
	if err := k.checkUnused(id); err != nil {
		return nil, err
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.released++
	}, nil
}

func (k *fakeKernel) checkUnused(int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inUse {
		return status.Errorf(status.InUse, "in exclusive use")
	}
	return nil
}

func (k *fakeKernel) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed++
	return nil
}

func (d *fakeDevice) queue(index, depth, _ int) (ring, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	q := &fakeRing{device: d, wake: wake, thread: unix.Gettid(), tags: make([]fakeTag, depth)}
	d.queues[index] = q
	return q, nil
}

// close is the end of the server's file: the server has gone.
func (d *fakeDevice) close() error {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	d.isOpen = false
	if d.info.state == stateLive {
		d.info.state = stateQuiesced
	}
	return nil
}

// submit gives a request to queue q, and returns its result.
func (d *fakeDevice) submit(q int, r *fakeRequest) chan int32 {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	r.done = make(chan int32, 1)
	if d.info.state == stateQuiesced {
		d.requeued = append(d.requeued, r)
		return r.done
	}
	d.queues[q].give(r)
	return r.done
}

// give reports a request with a free tag. There has to be one.
func (q *fakeRing) give(r *fakeRequest) {
	for i := range q.tags {
		t := &q.tags[i]
		if t.isHere && t.request == nil {
			t.request, t.sectors = r, r.sectors
			result := int32(resultOK)
			if r.operation == 1 {
				result, t.needsGet = resultNeedGetData, true
			}
			q.report(uint64(i), result)
			return
		}
	}
	panic("the test has more requests than the queue has tags")
}

// report reports something about a tag, which the server then has.
func (q *fakeRing) report(tag uint64, result int32) {
	c := completion{tag: tag, result: result}
	if hostile := q.device.kernel.hostile; hostile != nil {
		hostile(&c)
	}
	if tag < uint64(len(q.tags)) {
		q.tags[tag].isHere = false
	}
	q.reports = append(q.reports, c)
	_, _ = unix.Write(q.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// abort takes back all tags.
func (q *fakeRing) abort() {
	for i := range q.tags {
		if t := &q.tags[i]; t.isHere && t.request == nil {
			q.report(uint64(i), resultAborted)
		}
	}
}

func (q *fakeRing) push(command func()) { q.pushed = append(q.pushed, command) }

// accepts applies the driver's rules for every command.
func (q *fakeRing) accepts(tag uint16, isGet bool) bool {
	t := &q.tags[tag]
	switch {
	case unix.Gettid() != q.thread:
		q.report(uint64(tag), -int32(syscall.EINVAL))
	case t.isHere:
		q.report(uint64(tag), -int32(syscall.EBUSY))
	case t.needsGet != isGet:
		q.report(uint64(tag), -int32(syscall.EINVAL))
	default:
		return true
	}
	return false
}

func (q *fakeRing) fetch(tag uint16) {
	q.push(func() {
		if !q.accepts(tag, false) {
			return
		}
		q.tags[tag].isHere = true
		for i := range q.tags {
			if !q.tags[i].isHere {
				return
			}
		}
		q.device.ready++
	})
}

func (q *fakeRing) getData(tag uint16, data []byte) {
	q.push(func() {
		t := &q.tags[tag]
		if !q.accepts(tag, true) {
			return
		}
		k := q.device.kernel
		if k.copyLater > 0 {
			k.copyLater--
			q.report(uint64(tag), resultNeedGetData)
			return
		}
		t.needsGet = false
		n := len(t.request.data)
		if data != nil {
			copy(data[:n], t.request.data)
		}
		if k.copyLess {
			k.copyLess = false
			t.sectors = uint32(n/sectorSize) - 1
		}
		q.report(uint64(tag), resultOK)
	})
}

func (q *fakeRing) commit(tag uint16, result int32, data []byte) {
	q.push(func() {
		t := &q.tags[tag]
		if !q.accepts(tag, false) {
			return
		}
		r := t.request
		if r.operation == 0 && result > 0 {
			copy(r.data[:result], data)
		}
		*t = fakeTag{isHere: true}
		r.done <- result
		if q.device.info.state == stateDead {
			q.report(uint64(tag), resultAborted)
		}
	})
}

func (q *fakeRing) submit(wait int) error {
	q.device.kernel.mu.Lock()
	defer q.device.kernel.mu.Unlock()
	for _, command := range q.pushed {
		command()
	}
	q.pushed = nil
	if len(q.reports) < wait {
		return status.Errorf(status.Unexpected, "the real kernel would wait for ever")
	}
	return nil
}

func (q *fakeRing) reap(completions []completion) int {
	q.device.kernel.mu.Lock()
	defer q.device.kernel.mu.Unlock()
	n := copy(completions, q.reports)
	q.reports = q.reports[n:]
	return n
}

func (q *fakeRing) descriptor(tag uint16) descriptor {
	q.device.kernel.mu.Lock()
	defer q.device.kernel.mu.Unlock()
	t := &q.tags[tag]
	if t.request == nil {
		return descriptor{}
	}
	return descriptor{flags: uint32(t.request.operation) | t.request.flags, sectors: t.sectors,
		start: t.request.start}
}

// close takes back all tags, and keeps the requests of those that the server had for the next one.
func (q *fakeRing) close() error {
	q.device.kernel.mu.Lock()
	defer q.device.kernel.mu.Unlock()
	q.closed = true
	for i := range q.tags {
		if r := q.tags[i].request; r != nil {
			q.device.requeued = append(q.device.requeued, r)
		}
	}
	return unix.Close(q.wake)
}

func (q *fakeRing) Descriptor() int { return q.wake }

func (q *fakeRing) Arm() bool {
	q.device.kernel.mu.Lock()
	defer q.device.kernel.mu.Unlock()
	return len(q.reports) == 0
}

func (q *fakeRing) Disarm() {}

func (q *fakeRing) Clear() {
	var b [8]byte
	_, _ = unix.Read(q.wake, b[:])
}
