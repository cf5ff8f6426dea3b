// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/libdoca/internal/link"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// rdmaCore is an RDMA context. Goroutines of its connections serve the peers, whether or not the
// engine is progressed.
type rdmaCore struct {
	engine      *engine
	ctx         *C.struct_doca_ctx
	rdma        *C.struct_doca_rdma
	permissions uint32
	address     netip.Addr // where peers reach it

	context context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines

	mu          sync.Mutex
	posted      *sync.Cond // receives, or stopped, has changed
	receives    []*rdmaReceive
	connections map[link.Key]*rdmaConnection // all, by their tokens
	listeners   map[uint16]net.Listener      // by port; that of 0 is for connections by details
}

func newRDMA(e *engine, ctx *C.struct_doca_ctx) *rdmaCore {
	rdma := (*C.struct_doca_rdma)(unsafe.Pointer(ctx))
	c := &rdmaCore{engine: e, ctx: ctx, rdma: rdma, permissions: uint32(rdma.permissions),
		connections: make(map[link.Key]*rdmaConnection), listeners: make(map[uint16]net.Listener)}
	c.posted = sync.NewCond(&c.mu)
	c.context, c.cancel = context.WithCancel(context.Background())
	c.address = rdmaAddress(int(ctx.dev.device.index))
	return c
}

// rdmaAddress returns where peers reach the contexts of a device.
func rdmaAddress(device int) netip.Addr {
	config := active.Load()
	if address := config.Devices[device].IPv4; address.IsValid() {
		return address
	}
	if config.RDMAAddress.IsValid() {
		return config.RDMAAddress
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// firstEmptyGID is how many entries of the GID table have the address of a device whose
// configuration names none.
const firstEmptyGID = 4

// emuRdmaGID fills in an entry of a device's GID table: the device's address as an IPv6 address, or
// the link-local one in the entries before it. An entry of nothing stays as it is.
//
//export emuRdmaGID
func emuRdmaGID(device, index C.uint32_t, gid *C.struct_doca_rdma_gid) {
	config := &active.Load().Devices[device]
	var address netip.Addr
	switch only := C.uint32_t(config.GIDIndex); {
	case only == 0 && index >= firstEmptyGID, only > 0 && index > only:
		return
	case only > 0 && index < only:
		address = linkLocal(macOf(config))
	default:
		address = rdmaAddress(int(device))
	}
	*(*[C.DOCA_GID_BYTE_LENGTH]byte)(unsafe.Pointer(gid)) = address.As16()
}

// checkGID fails unless the context's GID is the address of its device.
func (c *rdmaCore) checkGID() error {
	want := active.Load().Devices[c.ctx.dev.device.index].GIDIndex
	if got := uint32(c.rdma.gid_index); want > 0 && got != want {
		return status.Errorf(status.TimeOut, "GID %d of the device is not its address, which is GID "+
			"%d: nobody answers", got, want)
	}
	return nil
}

func (c *rdmaCore) start() (status.Code, error) { return status.Success, nil }

// stop ends all connections, waits until nothing uses the memory of tasks any more, and completes
// them.
func (c *rdmaCore) stop() status.Code {
	c.cancel()
	c.mu.Lock()
	for _, listener := range c.listeners {
		_ = listener.Close()
	}
	connections := c.connections
	c.connections = nil
	c.mu.Unlock()
	for _, connection := range connections {
		connection.end(errStopped)
	}
	c.running.Wait()
	c.engine.runPosted() // what has completed before
	for _, receive := range c.receives {
		c.engine.complete(&receive.task.task, status.Shutdown)
	}
	c.receives = nil
	return status.Success
}

var errStopped = status.Errorf(status.Shutdown, "the context has been stopped")

func (c *rdmaCore) end() { c.cancel() }

// flush passes tasks on.
func (c *rdmaCore) flush() status.Code {
	for base := takeSubmitted(c.ctx); base != nil; base = takeSubmitted(c.ctx) {
		task := (*C.struct_emu_rdma_task)(unsafe.Pointer(base))
		if base.pool == C.EMU_RDMA_RECEIVE {
			c.mu.Lock()
			c.receives = append(c.receives, newReceive(c, task))
			c.mu.Unlock()
			c.posted.Broadcast()
			continue
		}
		rdmaConnections.get(task.connection.core).submit(c.request(task))
	}
	return status.Success
}

// request returns what a task asks for.
func (c *rdmaCore) request(task *C.struct_emu_rdma_task) *link.Request {
	r := &link.Request{Immediate: immediateOf(task)}
	switch task.task.pool {
	case C.EMU_RDMA_SEND, C.EMU_RDMA_SEND_IMM:
		r.Operation = link.Send
	case C.EMU_RDMA_READ, C.EMU_RDMA_EVENT_GET:
		r.Operation = link.Read
	case C.EMU_RDMA_COMPARE_SWAP:
		r.Operation = link.CompareSwap
	case C.EMU_RDMA_FETCH_ADD, C.EMU_RDMA_EVENT_ADD:
		r.Operation = link.FetchAdd
	default:
		r.Operation = link.Write
	}
	r.HasImmediate = task.task.pool == C.EMU_RDMA_SEND_IMM || task.task.pool == C.EMU_RDMA_WRITE_IMM
	local, remote := task.src, (*C.struct_doca_buf)(nil)
	isLocalWritten := false
	switch r.Operation {
	case link.Read:
		local, remote, isLocalWritten = task.dst, task.src, true
	case link.Write:
		remote = task.dst
	case link.CompareSwap, link.FetchAdd:
		local, remote, isLocalWritten = task.result, task.dst, true
		r.Operands = [2]uint64{uint64(task.operands[0]), uint64(task.operands[1])}
		r.Length = link.WordSize
	}
	if task.src != nil {
		r.Length = uint64(task.src.data_len)
	}
	if task.event != nil {
		r.Key = *(*link.Key)(unsafe.Pointer(&task.event.key))
		r.Address, r.Length = uint64(task.event.addr), eventSize
		remote = nil
	}
	if local != nil {
		start := uintptr(local.data)
		if isLocalWritten {
			start += uintptr(local.data_len)
		}
		r.Local = &localMemory{viewOf(local.mmap), start}
	}
	if remote != nil {
		r.Key = mappings.get(remote.mmap.core).peer
		r.Address = uint64(remote.data)
		if r.Operation == link.Write {
			r.Address += uint64(remote.data_len)
		}
	}
	r.Done = func(err error) { c.engine.do(func() { c.done(task, r.Length, err) }) }
	return r
}

// done completes a task, on the engine's thread.
func (c *rdmaCore) done(task *C.struct_emu_rdma_task, length uint64, err error) {
	if err != nil {
		if !errors.Is(err, status.Shutdown) {
			failed("carry out task of rdma", err)
		}
	} else if task.result != nil {
		task.result.data_len += C.size_t(length)
	} else if task.dst != nil {
		task.dst.data_len += C.size_t(length)
	}
	task.result_len = C.uint32_t(length)
	c.engine.complete(&task.task, status.CodeOf(err))
}

func immediateOf(task *C.struct_emu_rdma_task) [4]byte {
	return *(*[4]byte)(unsafe.Pointer(&task.immediate))
}

// localMemory is the memory of a buf from an address on.
type localMemory struct {
	view
	start uintptr
}

// Load implements link.Memory.
func (m *localMemory) Load(to []byte, offset uint64) error {
	return m.withMemory(func() error { return m.load(to, m.start+uintptr(offset)) })
}

// Store implements link.Memory.
func (m *localMemory) Store(from []byte, offset uint64) error {
	return m.withMemory(func() error { return m.store(m.start+uintptr(offset), from) })
}

// rdmaReceive is a posted receive.
type rdmaReceive struct {
	core   *rdmaCore
	task   *C.struct_emu_rdma_task
	memory localMemory
	room   uint64
	from   *rdmaConnection // that has taken it
}

func newReceive(c *rdmaCore, task *C.struct_emu_rdma_task) *rdmaReceive {
	r := &rdmaReceive{core: c, task: task}
	if buf := task.dst; buf != nil {
		r.memory = localMemory{viewOf(buf.mmap), uintptr(buf.data) + uintptr(buf.data_len)}
		r.room = uint64(buf.len) - uint64(buf.data-buf.head) - uint64(buf.data_len)
	}
	return r
}

// takeReceive waits for a receive, until ctx ends.
func (c *rdmaCore) takeReceive(ctx context.Context, from *rdmaConnection) (link.Receive, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock() // or the waiter could be between its test and its wait
		defer c.mu.Unlock()
		c.posted.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.receives) == 0 && ctx.Err() == nil {
		c.posted.Wait()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r := c.receives[0]
	c.receives = c.receives[1:]
	r.from = from
	return r, nil
}

// Store implements link.Receive.
func (r *rdmaReceive) Store(from []byte, offset uint64) error {
	if offset+uint64(len(from)) > r.room {
		return status.Errorf(status.TooBig, "the message does not fit into the receive of %d bytes",
			r.room)
	}
	if len(from) == 0 {
		return nil
	}
	return r.memory.Store(from, offset)
}

// Complete implements link.Receive. The end of a connection does not take a receive away from the
// others.
func (r *rdmaReceive) Complete(m link.Message) {
	c := r.core
	if errors.Is(m.Err, status.NotConnected) {
		c.mu.Lock()
		c.receives = append([]*rdmaReceive{r}, c.receives...)
		c.mu.Unlock()
		c.posted.Broadcast()
		return
	}
	c.engine.do(func() {
		task := r.task
		if m.Err == nil {
			task.result_len = C.uint32_t(m.Length)
			task.result_opcode = opcodeOf(m)
			task.result_connection = r.from.c
			*(*[4]byte)(unsafe.Pointer(&task.immediate)) = m.Immediate
			if task.dst != nil && !m.IsWrite {
				task.dst.data_len += C.size_t(m.Length)
			}
		} else {
			failed("receive by rdma", m.Err)
		}
		c.engine.complete(&task.task, status.CodeOf(m.Err))
	})
}

func opcodeOf(m link.Message) C.enum_doca_rdma_opcode {
	switch {
	case m.IsWrite:
		return C.DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM
	case m.HasImmediate:
		return C.DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM
	}
	return C.DOCA_RDMA_OPCODE_RECV_SEND
}
