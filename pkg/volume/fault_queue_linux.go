//go:build faultinject

package volume

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// faultQueue decides, request by request, what goes wrong.
type faultQueue struct {
	volume *faultVolume
	inner  Queue
	wait   *faultWait
	info   Info
	random *rand.Rand
	closed bool

	slots     []faultSlot
	free      []*faultSlot
	delayed   []*faultSlot // done, in the order in which they become due
	completed []*Request   // what a poll of the inner queue gets
}

// faultSlot is a request on its way through the inner queue, where its UserData
// is the number of the slot.
type faultSlot struct {
	inner     Request
	outer     *Request
	corrupted int // byte of the buffer whose lowest bit is inverted, or notCorrupted
	due       time.Time
}

const notCorrupted = -1

// Submit implements Queue.
func (l *faultQueue) Submit(r *Request) error {
	if err := l.info.Check(r); err != nil {
		return err
	}
	if len(l.free) == 0 {
		return status.Full
	}
	s := l.free[len(l.free)-1]
	s.outer, s.corrupted = r, notCorrupted
	index := s.inner.UserData
	s.inner = *r
	s.inner.UserData = index
	r.Err = l.failure(r)
	if r.Err == nil {
		l.corrupt(s)
		if err := l.inner.Submit(&s.inner); err != nil {
			return err
		}
	}
	l.free = l.free[:len(l.free)-1]
	if r.Err != nil {
		l.delay(s)
	}
	return nil
}

// failure decides whether a request fails without being carried out.
func (l *faultQueue) failure(r *Request) error {
	if l.random.Float64() < l.volume.backend.EIO {
		return injected(r, unix.EIO)
	}
	if l.volume.outOfSpace(r) {
		return injected(r, unix.ENOSPC)
	}
	return nil
}

// corrupt decides whether data is to be corrupted and where. Data to be
// written is corrupted until the write is done.
func (l *faultQueue) corrupt(s *faultSlot) {
	if l.random.Float64() >= l.volume.backend.Corrupt || len(s.inner.Buffer) == 0 {
		return
	}
	s.corrupted = l.random.IntN(len(s.inner.Buffer))
	if s.inner.Operation == iomsg.OpWrite {
		s.invert()
	}
}

func (s *faultSlot) invert() { s.inner.Buffer[s.corrupted] ^= 1 }

// delay queues what is done until it is due.
func (l *faultQueue) delay(s *faultSlot) {
	s.due = time.Now().Add(l.volume.backend.Delay)
	l.delayed = append(l.delayed, s)
}

// Poll implements Queue.
func (l *faultQueue) Poll(completed []*Request) int {
	for _, r := range l.completed[:l.inner.Poll(l.completed)] {
		l.finish(&l.slots[r.UserData])
	}
	n := 0
	for n < len(completed) && l.isDue() {
		completed[n] = l.delayed[0].outer
		l.free = append(l.free, l.delayed[0])
		l.delayed = slices.Delete(l.delayed, 0, 1)
		n++
	}
	return n
}

func (l *faultQueue) finish(s *faultSlot) {
	s.outer.Err = s.inner.Err
	if s.corrupted != notCorrupted {
		s.invert()
	}
	l.delay(s)
}

func (l *faultQueue) isDue() bool {
	return len(l.delayed) > 0 && !time.Now().Before(l.delayed[0].due)
}

// Close implements Queue.
func (l *faultQueue) Close() error {
	if l.closed {
		return nil
	}
	if running := len(l.slots) - len(l.free); running > 0 {
		return status.Errorf(status.InUse, "close queue of volume %q: %d requests are running", l.info.Name, running)
	}
	if err := l.inner.Close(); err != nil {
		return err
	}
	l.closed = true
	return l.wait.close()
}
