// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// engine is the core of a progress engine. Its thread calls everything except do and close.
type engine struct {
	c       *C.struct_doca_pe
	signal  int // an eventfd
	epoll   int // the descriptor of the application: signal, and those of the sources
	sources []source

	count [8]byte // read from signal; a local array would escape
	// posted is set while inbox may hold something.
	posted atomic.Bool
	mu     sync.Mutex
	inbox  []func()
	armed  bool // what is posted signals
	closed bool
}

// source is a context that an engine polls.
type source interface {
	// poll puts what happened into the ring of the engine.
	poll()
	// arm makes the descriptors readable once something happens. It returns false if something has
	// happened already.
	arm() bool
	disarm()
}

// table gives objects numbers for the skin to hold. Look-ups take no lock.
type table[T any] struct {
	mu      sync.Mutex
	entries atomic.Pointer[[]*T]
}

func (t *table[T]) add(object *T) C.uint32_t {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := []*T{nil} // 0 is nobody's number
	if old := t.entries.Load(); old != nil {
		entries = append([]*T(nil), *old...)
	}
	for i := 1; i < len(entries); i++ {
		if entries[i] == nil {
			entries[i] = object
			t.entries.Store(&entries)
			return C.uint32_t(i)
		}
	}
	entries = append(entries, object)
	t.entries.Store(&entries)
	return C.uint32_t(len(entries) - 1)
}

func (t *table[T]) get(number C.uint32_t) *T { return (*t.entries.Load())[number] }

func (t *table[T]) remove(number C.uint32_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := append([]*T(nil), *t.entries.Load()...)
	entries[number] = nil
	t.entries.Store(&entries)
}

var engines table[engine]

//export emuOpenEngine
func emuOpenEngine(pe *C.struct_doca_pe) C.int {
	e := &engine{c: pe}
	var err error
	if e.signal, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return failed("create engine", status.Errorf(status.OperatingSystem, "eventfd: %w", err))
	}
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		_ = unix.Close(e.signal)
		return failed("create engine", status.Errorf(status.OperatingSystem, "epoll: %w", err))
	}
	if err := e.watch(e.signal); err != nil {
		_, _ = unix.Close(e.signal), unix.Close(e.epoll)
		return failed("create engine", err)
	}
	pe.descriptor = C.int(e.epoll)
	pe.core = engines.add(e)
	return C.DOCA_SUCCESS
}

//export emuCloseEngine
func emuCloseEngine(number C.uint32_t) {
	e := engines.get(number)
	engines.remove(number)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.inbox = nil
	_, _ = unix.Close(e.signal), unix.Close(e.epoll)
}

// watch adds a descriptor to that of the engine.
func (e *engine) watch(descriptor int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(descriptor)}
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, descriptor, &event); err != nil {
		return status.Errorf(status.OperatingSystem, "epoll_ctl: %w", err)
	}
	return nil
}

func (e *engine) unwatch(descriptor int) {
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, descriptor, nil)
}

// do runs f on the engine's thread, in its next poll. Any goroutine may call it. It returns false
// if the engine is closed.
func (e *engine) do(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.inbox = append(e.inbox, f)
	e.posted.Store(true)
	if e.armed {
		e.ring()
	}
	return true
}

// ring makes the descriptor readable.
func (e *engine) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(e.signal, one[:]) // fails only if it is readable already
}

func (e *engine) silence() {
	_, _ = unix.Read(e.signal, e.count[:])
}

// runPosted runs what other goroutines have posted.
func (e *engine) runPosted() {
	if !e.posted.Load() {
		return
	}
	e.mu.Lock()
	inbox := e.inbox
	e.inbox = nil
	e.posted.Store(false)
	e.mu.Unlock()
	for _, f := range inbox {
		f()
	}
}

func (e *engine) poll() {
	e.runPosted()
	for _, s := range e.sources {
		s.poll()
	}
}

// armAttempts bounds how often arm collects from a source that has work each time.
const armAttempts = 16

func (e *engine) arm() {
	e.disarm()
	e.mu.Lock()
	e.armed = true
	e.mu.Unlock()
	e.runPosted()
	for _, s := range e.sources {
		attempts := 0
		for ; attempts < armAttempts && !s.arm(); attempts++ {
			s.poll()
		}
		if attempts == armAttempts {
			e.ring() // the rest counts as having come later
		}
	}
}

func (e *engine) disarm() {
	e.mu.Lock()
	e.armed = false
	e.silence()
	e.mu.Unlock()
	for _, s := range e.sources {
		s.disarm()
	}
}

func (e *engine) add(s source) { e.sources = append(e.sources, s) }

func (e *engine) remove(s source) {
	for i := range e.sources {
		if e.sources[i] == s {
			// A new slice: poll may be walking the old one.
			e.sources = append(append([]source(nil), e.sources[:i]...), e.sources[i+1:]...)
			return
		}
	}
}

// push puts an entry into the ring (emu_push, without the crossing).
func (e *engine) push(entry C.struct_emu_entry) {
	pe := e.c
	if pe.tail-pe.head == pe.capacity {
		C.emu_ring_grow(pe)
	}
	slot := uintptr(pe.tail&(pe.capacity-1)) * C.sizeof_struct_emu_entry
	*(*C.struct_emu_entry)(unsafe.Add(unsafe.Pointer(pe.ring), slot)) = entry
	pe.tail++
	if pe.armed && !pe.collecting {
		e.ring()
	}
}

// complete puts a completed task into the ring.
func (e *engine) complete(task *C.struct_doca_task, code status.Code) {
	task.status = C.doca_error_t(code)
	e.push(C.struct_emu_entry{kind: C.EMU_ENTRY_TASK, ctx: task.ctx,
		object: unsafe.Pointer(task)})
}

// enter puts a change of a context's state into the ring.
func (e *engine) enter(ctx *C.struct_doca_ctx, state C.enum_doca_ctx_states) {
	e.push(C.struct_emu_entry{kind: C.EMU_ENTRY_STATE, ctx: ctx, value: C.uint64_t(state)})
}

// finish tells the skin that the core has nothing left of a stopping context.
func (e *engine) finish(ctx *C.struct_doca_ctx) {
	e.push(C.struct_emu_entry{kind: C.EMU_ENTRY_CORE_IDLE, ctx: ctx})
}

//export emuPoll
func emuPoll(number C.uint32_t) { engines.get(number).poll() }

//export emuRing
func emuRing(number C.uint32_t) { engines.get(number).ring() }

//export emuArm
func emuArm(number C.uint32_t) C.int {
	engines.get(number).arm()
	return C.DOCA_SUCCESS
}

//export emuDisarm
func emuDisarm(number C.uint32_t) { engines.get(number).disarm() }
