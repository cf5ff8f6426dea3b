//go:build faultinject

package volume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// FaultBackend wraps another backend and injects faults. Except for NoSpaceAfter, which requests
// fail depends only on the seed, the order in which queues are opened, and the order of requests on
// each queue.
type FaultBackend struct {
	// EIO is the probability that a request fails.
	EIO float64
	// Corrupt is the probability that one bit of the data read or written is inverted.
	Corrupt float64
	// If LimitSpace is set, NoSpaceAfter is how many bytes can be written before every further
	// write fails for lack of space.
	NoSpaceAfter uint64
	LimitSpace   bool
	// Delay postpones every completion.
	Delay time.Duration
	Seed  uint64
	Inner Backend
}

const faultSyntax = "fault:FAULT[,FAULT...]:BACKEND, " +
	"where FAULT is eio=P, corrupt=P, enospc-after=SIZE, delay=TIME, or seed=N"

func parseFault(argument string) (Backend, error) {
	faults, inner, found := strings.Cut(argument, ":")
	if !found {
		return nil, status.Errorf(status.InvalidValue,
			"a fault has no backend: the syntax is %s", faultSyntax)
	}
	var b FaultBackend
	for fault := range strings.SplitSeq(faults, ",") {
		key, value, _ := strings.Cut(fault, "=")
		if err := b.set(key, value); err != nil {
			return nil, status.Errorf(status.InvalidValue,
				"fault %q: %w; the syntax is %s", fault, err, faultSyntax)
		}
	}
	var err error
	if b.Inner, err = parseBackend(inner); err != nil {
		return nil, fmt.Errorf("backend of a fault: %w", err)
	}
	return b, nil
}

func (b *FaultBackend) set(key, value string) (err error) {
	switch key {
	case "eio":
		b.EIO, err = parseProbability(value)
	case "corrupt":
		b.Corrupt, err = parseProbability(value)
	case "enospc-after":
		b.LimitSpace = true
		err = (*size.Bytes)(&b.NoSpaceAfter).Set(value)
	case "delay":
		if b.Delay, err = time.ParseDuration(value); err == nil && b.Delay < 0 {
			err = fmt.Errorf("delay is negative")
		}
	case "seed":
		b.Seed, err = strconv.ParseUint(value, 10, 64)
	default:
		err = fmt.Errorf("unknown fault")
	}
	return err
}

func parseProbability(text string) (float64, error) {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("%q is not a probability from 0 to 1", text)
	}
	return p, nil
}

// String returns the text form with every fault and the inner backend.
func (b FaultBackend) String() string {
	text := fmt.Sprintf("fault:eio=%v,corrupt=%v,delay=%v,seed=%d",
		b.EIO, b.Corrupt, b.Delay, b.Seed)
	if b.LimitSpace {
		text += ",enospc-after=" + size.Bytes(b.NoSpaceAfter).String()
	}
	return text + ":" + b.Inner.String()
}

func (b FaultBackend) validate(spec *Spec) error { return b.Inner.validate(spec) }

func (b FaultBackend) open(spec *Spec) (Volume, error) {
	inner, err := b.Inner.open(spec)
	if err != nil {
		return nil, err
	}
	return &faultVolume{Volume: inner, backend: b}, nil
}

// faultVolume is the volume of a FaultBackend.
type faultVolume struct {
	Volume
	backend FaultBackend
	written atomic.Uint64 // bytes, on all queues
	queues  atomic.Uint64 // opened so far
}

// Memory hides the content so that no read can bypass the faults.
func (v *faultVolume) Memory() *memory.Region { return nil }

// NewQueue opens a queue, seeded by the backend's seed and the number of queues before it.
func (v *faultVolume) NewQueue(depth int) (Queue, error) {
	inner, err := v.Volume.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	wait, err := newFaultWait(inner)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	q := &faultQueue{
		volume: v, inner: inner, wait: wait, info: v.Info(),
		random: rand.New(rand.NewPCG(v.backend.Seed, v.queues.Add(1))),
		slots:  make([]faultSlot, depth), completed: make([]*Request, depth),
		free: make([]*faultSlot, 0, depth), delayed: fifo.New[*faultSlot](depth),
	}
	for i := range q.slots {
		q.slots[i].inner.UserData = uint64(i)
		q.free = append(q.free, &q.slots[i])
	}
	return q, nil
}

// isOutOfSpace counts the bytes of a write and reports whether they exceed the space.
func (v *faultVolume) isOutOfSpace(r *Request) bool {
	if r.Operation != iomsg.OpWrite || !v.backend.LimitSpace {
		return false
	}
	return v.written.Add(r.Length) > v.backend.NoSpaceAfter
}

// errInjected distinguishes injected failures from real ones.
var errInjected = errors.New("injected fault")

func injectedError(r *Request, cause error) error {
	return status.Errorf(status.IOFailed,
		"%v %d bytes at offset %d: %w: %w", r.Operation, r.Length, r.Offset, errInjected, cause)
}

// faultQueue decides for each request what goes wrong.
type faultQueue struct {
	volume *faultVolume
	inner  Queue
	wait   *faultWait
	info   Info
	random *rand.Rand
	closed bool

	slots     []faultSlot
	free      []*faultSlot
	delayed   fifo.Queue[*faultSlot] // completed, in the order in which they become due
	completed []*Request             // scratch for polling the inner queue
}

// faultSlot holds a request in flight. On the inner queue, its UserData is the index of the slot.
type faultSlot struct {
	inner     Request
	outer     *Request
	corrupted int // index of the byte whose lowest bit is inverted, or notCorrupted
	due       time.Time
}

const notCorrupted = -1

// Submit fails, corrupts, or forwards a request.
func (q *faultQueue) Submit(r *Request) error {
	if err := q.info.Check(r); err != nil {
		return err
	}
	if len(q.free) == 0 {
		return status.Full
	}
	s := q.free[len(q.free)-1]
	s.outer, s.corrupted = r, notCorrupted
	index := s.inner.UserData
	s.inner = *r
	s.inner.UserData = index
	r.Err = q.pickFailure(r)
	if r.Err == nil {
		q.corrupt(s)
		if err := q.inner.Submit(&s.inner); err != nil {
			return err
		}
	}
	q.free = q.free[:len(q.free)-1]
	if r.Err != nil {
		q.delay(s)
	}
	return nil
}

// pickFailure returns the error of a request that is to fail without being carried out, or nil for
// other requests.
func (q *faultQueue) pickFailure(r *Request) error {
	if q.random.Float64() < q.volume.backend.EIO {
		return injectedError(r, unix.EIO)
	}
	if q.volume.isOutOfSpace(r) {
		return injectedError(r, unix.ENOSPC)
	}
	return nil
}

// corrupt decides whether to corrupt the data of a request, and where. Data to be written stays
// corrupted until the write completes.
func (q *faultQueue) corrupt(s *faultSlot) {
	if q.random.Float64() >= q.volume.backend.Corrupt || len(s.inner.Buffer) == 0 {
		return
	}
	s.corrupted = q.random.IntN(len(s.inner.Buffer))
	if s.inner.Operation == iomsg.OpWrite {
		s.invert()
	}
}

func (s *faultSlot) invert() { s.inner.Buffer[s.corrupted] ^= 1 }

// delay holds a completed request back until it is due.
func (q *faultQueue) delay(s *faultSlot) {
	s.due = time.Now().Add(q.volume.backend.Delay)
	*q.delayed.Push() = s
}

// Poll returns completed requests that are due.
func (q *faultQueue) Poll(completed []*Request) int {
	for _, r := range q.completed[:q.inner.Poll(q.completed)] {
		s := &q.slots[r.UserData]
		s.outer.Err = s.inner.Err
		if s.corrupted != notCorrupted {
			s.invert()
		}
		q.delay(s)
	}
	n := 0
	for n < len(completed) && q.isDue() {
		s := q.delayed.Pop()
		completed[n] = s.outer
		q.free = append(q.free, s)
		n++
	}
	return n
}

func (q *faultQueue) isDue() bool {
	return q.delayed.Len() > 0 && !time.Now().Before((*q.delayed.Front()).due)
}

// Close closes the inner queue as well.
func (q *faultQueue) Close() error {
	if q.closed {
		return nil
	}
	if running := len(q.slots) - len(q.free); running > 0 {
		return status.Errorf(status.InUse,
			"close queue of volume %q: %d requests are in flight", q.info.Name, running)
	}
	if err := q.inner.Close(); err != nil {
		return err
	}
	q.closed = true
	return q.wait.close()
}

// faultWait is an epoll set of the inner queue's descriptor and a timer, so that a thread can sleep
// on both.
type faultWait struct{ epoll, timer int }

func newFaultWait(inner Queue) (*faultWait, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create timer: %w", err), unix.Close(epoll))
	}
	w := &faultWait{epoll: epoll, timer: timer}
	for _, fd := range []int{timer, inner.Descriptor()} {
		err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch descriptor %d: %w", fd, err), w.close())
		}
	}
	return w, nil
}

func (w *faultWait) close() error { return errors.Join(unix.Close(w.epoll), unix.Close(w.timer)) }

// Descriptor returns the epoll set.
func (q *faultQueue) Descriptor() int { return q.wait.epoll }

// Arm prepares for sleep until the inner queue has work or the next request is due.
func (q *faultQueue) Arm() bool {
	if q.isDue() {
		q.inner.Disarm() // it may have been armed before
		return false
	}
	if q.delayed.Len() > 0 {
		// 0 would disarm the timer.
		d := max(time.Until((*q.delayed.Front()).due), 1)
		// This fails only for invalid arguments.
		_ = unix.TimerfdSettime(q.wait.timer, 0,
			&unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil)
	}
	return q.inner.Arm()
}

// Disarm cancels Arm.
func (q *faultQueue) Disarm() { q.inner.Disarm() }

// Drain clears the timer and the inner queue's descriptor.
func (q *faultQueue) Drain() {
	q.inner.Drain()
	var count [8]byte
	_, _ = unix.Read(q.wait.timer, count[:]) // EAGAIN if the other descriptor was readable
}
