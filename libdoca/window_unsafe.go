// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"crypto/rand"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/libdoca/internal/link"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// window is memory that peers can reach over RDMA: that of a map, which may itself be imported, or
// a sync event.
type window struct {
	view
	key             link.Key
	address, length uintptr
	access          uint32
	number          C.uint32_t // of a sync event

	using  sync.RWMutex // held for reading while a peer reads or writes
	closed bool
}

var windows = windowTable{byKey: make(map[link.Key]*window)}

type windowTable struct {
	mu    sync.RWMutex
	byKey map[link.Key]*window
}

// openWindow lets peers that learn its key reach memory.
func openWindow(v view, address, length uintptr, access uint32) *window {
	w := &window{view: v, address: address, length: length, access: access}
	_, _ = rand.Read(w.key[:]) // never fails
	windows.mu.Lock()
	defer windows.mu.Unlock()
	windows.byKey[w.key] = w
	return w
}

// close returns when no peer reaches the memory any more.
func (w *window) close() {
	windows.mu.Lock()
	delete(windows.byKey, w.key)
	windows.mu.Unlock()
	w.using.Lock()
	defer w.using.Unlock()
	w.closed = true
}

func (w *window) descriptor(kind byte) *broker.Descriptor {
	return &broker.Descriptor{Kind: kind, ID: broker.ID(w.key), Access: w.access,
		Address: uint64(w.address), Length: uint64(w.length)}
}

// useWindow calls access for memory that a peer wants to use, if permissions, which are those of
// the context, and the memory grant the right to.
func useWindow(key link.Key, address, length uint64, right, permissions uint32,
	access func(*window) error) error {
	windows.mu.RLock()
	w := windows.byKey[key]
	windows.mu.RUnlock()
	if w == nil {
		return status.Errorf(status.NotPermitted, "no memory is exported with this key")
	}
	if w.number != 0 {
		permissions |= right // the export of a sync event permits everything
	}
	offset := address - uint64(w.address)
	switch {
	case w.access&permissions&right == 0:
		return status.Errorf(status.NotPermitted, "the memory or the context does not grant it")
	case offset > uint64(w.length) || length > uint64(w.length)-offset:
		return status.Errorf(status.InvalidValue, "%d bytes at %#x are outside the memory",
			length, address)
	case length == 0:
		return nil
	}
	w.using.RLock()
	defer w.using.RUnlock()
	if w.closed {
		return errRevoked
	}
	return w.withMemory(func() error { return access(w) })
}

// accessWindow reads or writes memory for a peer, which may do what permissions say.
func accessWindow(operation link.Operation, key link.Key, address uint64, data []byte,
	permissions uint32) error {
	length := uint64(len(data))
	if operation == link.Write {
		return useWindow(key, address, length, C.DOCA_ACCESS_FLAG_RDMA_WRITE, permissions,
			func(w *window) error { return w.store(uintptr(address), data) })
	}
	return useWindow(key, address, length, C.DOCA_ACCESS_FLAG_RDMA_READ, permissions,
		func(w *window) error { return w.load(data, uintptr(address)) })
}

// changeWindow carries out an atomic for a peer, which may do what permissions say. It returns what
// the word was before.
func changeWindow(operation link.Operation, key link.Key, address uint64, operands [2]uint64,
	permissions uint32) (before uint64, err error) {
	if address%link.WordSize != 0 {
		return 0, status.Errorf(status.InvalidValue, "%#x is not aligned to %d bytes", address,
			link.WordSize)
	}
	err = useWindow(key, address, link.WordSize, C.DOCA_ACCESS_FLAG_RDMA_ATOMIC, permissions,
		func(w *window) (err error) {
			before, err = w.change(operation, uintptr(address), operands)
			return err
		})
	return before, err
}

// change carries out an atomic. It is one instruction of the CPU, so it is atomic in relation to
// those that other processes carry out on the same memory.
func (v *view) change(operation link.Operation, address uintptr, operands [2]uint64) (
	before uint64, err error) {
	if v.mapped == 0 {
		return 0, status.Errorf(status.NotSupported,
			"atomics need memory that this process can map: whole pages, or a memfd")
	}
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			err = faultError(fault)
		}
	}()
	word := (*uint64)(pointer(v.mapped + address - v.base))
	if operation == link.FetchAdd {
		return atomic.AddUint64(word, operands[0]) - operands[0], nil
	}
	for {
		before = atomic.LoadUint64(word)
		if before != operands[0] || atomic.CompareAndSwapUint64(word, before, operands[1]) {
			return before, nil
		}
	}
}
