//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"crypto/rand"
	"sync"

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

// accessWindow reads or writes memory for a peer, which may do what permissions say.
func accessWindow(operation link.Operation, key link.Key, address uint64, data []byte,
	permissions uint32) error {
	windows.mu.RLock()
	w := windows.byKey[key]
	windows.mu.RUnlock()
	if w == nil {
		return status.Errorf(status.NotPermitted, "no memory is exported with this key")
	}
	right := uint32(C.DOCA_ACCESS_FLAG_RDMA_READ)
	if operation == link.Write {
		right = C.DOCA_ACCESS_FLAG_RDMA_WRITE
	}
	if w.number != 0 {
		permissions |= right // the export of a sync event permits both
	}
	offset := address - uint64(w.address)
	switch {
	case w.access&permissions&right == 0:
		return status.Errorf(status.NotPermitted, "the memory or the context does not grant it")
	case offset > uint64(w.length) || uint64(len(data)) > uint64(w.length)-offset:
		return status.Errorf(status.InvalidValue, "%d bytes at %#x are outside the memory",
			len(data), address)
	case len(data) == 0:
		return nil
	}
	w.using.RLock()
	defer w.using.RUnlock()
	if w.closed {
		return errRevoked
	}
	return w.withMemory(func() error {
		if operation == link.Write {
			return w.store(uintptr(address), data)
		}
		return w.load(data, uintptr(address))
	})
}
