// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"encoding/binary"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The number of a sync event is eight bytes that all its users change atomically. Over RDMA, peers
// reach it through a window, like memory. Over PCI, an importer in another process maps the page
// that holds it; if that is not possible, it asks the exporter's process over the connection that
// the import keeps open. Writing the exporter's memory by system calls would not be atomic.

const eventSize = 8

// Exports.

var (
	eventWindows table[window]
	eventExports table[exported]
)

//export emuEventExport
func emuEventExport(event *C.struct_doca_sync_event, kind C.int) C.int {
	if kind == C.EMU_EVENT_TO_NET {
		w := openWindow(eventView(event), uintptr(unsafe.Pointer(event.number)), eventSize,
			C.DOCA_ACCESS_FLAG_RDMA_READ|C.DOCA_ACCESS_FLAG_RDMA_WRITE|
				C.DOCA_ACCESS_FLAG_RDMA_ATOMIC)
		w.number = eventWindows.add(w)
		event.exports[kind] = w.number
		describe(event, kind, w.descriptor(exportEvent))
		return C.DOCA_SUCCESS
	}
	x := newEventExport(event)
	if err := exports.Add(x.Export); err != nil {
		x.pages.release()
		return failed("export sync event", err)
	}
	event.exports[kind] = eventExports.add(x)
	describe(event, kind, &x.Descriptor)
	return C.DOCA_SUCCESS
}

func describe(event *C.struct_doca_sync_event, kind C.int, d *broker.Descriptor) {
	b := d.Encode()
	event.desc[kind], event.desc_size[kind] = C.CBytes(b), C.size_t(len(b))
}

// eventView returns the memory behind the number of an event.
func eventView(event *C.struct_doca_sync_event) view {
	address := uintptr(unsafe.Pointer(event.number))
	v := view{base: address, mapped: address}
	if event.foreign != 0 {
		v.origin = foreignNumbers.get(event.foreign).origin
	}
	return v
}

func newEventExport(event *C.struct_doca_sync_event) *exported {
	address := uintptr(unsafe.Pointer(event.number))
	x := &exported{Export: &broker.Export{Descriptor: broker.Descriptor{Kind: exportEventPCI,
		Access: broker.PCIReadWrite, Address: uint64(address), Length: eventSize}},
		number: (*uint64)(event.number)}
	x.Source = x
	if uintptr(event.page) == address && !active.Load().KeepPages {
		x.pages = sharePages(address, uintptr(os.Getpagesize()))
	} else {
		x.pages = useShared(address, eventSize)
	}
	return x
}

// emuEventUnexport returns when no peer reaches the number any more.
//
//export emuEventUnexport
func emuEventUnexport(kind C.int, number C.uint32_t) {
	if kind == C.EMU_EVENT_TO_NET {
		eventWindows.get(number).close()
		eventWindows.remove(number)
		return
	}
	x := eventExports.get(number)
	eventExports.remove(number)
	exports.Remove(x.Export)
	x.revoke()
	x.pages.release()
}

// Imports.

// foreignNumber is the number of an event in memory that this process has imported.
type foreignNumber struct {
	origin *exported
	number *uint64 // nil if only the exporter's process can change it
	// isImport is set if the event itself has been imported, not the memory that it lies in.
	isImport bool
}

var foreignNumbers table[foreignNumber]

//export emuEventImport
func emuEventImport(event *C.struct_doca_sync_event, data unsafe.Pointer, length C.size_t) C.int {
	said, err := parse(data, length)
	if err == nil && (said.Kind != exportEventPCI || said.Length != eventSize) {
		err = status.Errorf(status.InvalidValue,
			"the descriptor is not that of a sync event exported over PCI")
	}
	if err != nil {
		return failed("create sync event from export", err)
	}
	origin, local, err := importMemory(&said)
	if err != nil {
		return failed("create sync event from export", err)
	}
	event.foreign = foreignNumbers.add(&foreignNumber{origin: origin,
		number: (*uint64)(pointer(local)), isImport: true})
	return C.DOCA_SUCCESS
}

//export emuEventOfMap
func emuEventOfMap(m *C.struct_doca_mmap, address C.uintptr_t) C.uint32_t {
	return foreignNumbers.add(&foreignNumber{origin: mappings.get(m.core).origin,
		number: (*uint64)(pointer(uintptr(address)))})
}

//export emuEventForget
func emuEventForget(number C.uint32_t) {
	f := foreignNumbers.get(number)
	foreignNumbers.remove(number)
	if f.isImport && f.origin.remote != nil {
		f.origin.remote.close()
	}
}

//export emuSyncEventImport
func emuSyncEventImport(event *C.struct_doca_sync_event_remote_net, data unsafe.Pointer,
	length C.size_t) C.int {
	said, err := parse(data, length)
	if err == nil && (said.Kind != exportEvent || said.Length != eventSize) {
		err = status.Errorf(status.InvalidValue,
			"the descriptor is not that of a sync event exported over RDMA")
	}
	if err != nil {
		return failed("create sync event from export", err)
	}
	*(*broker.ID)(unsafe.Pointer(&event.key)) = said.ID
	event.addr = C.uint64_t(said.Address)
	return C.DOCA_SUCCESS
}

// Operations.

// eventRequest is what is done to a number.
type eventRequest struct {
	operation byte // of emu_event_operation
	value     uint64
}

// eventReply is what an exporter answers.
type eventReply struct {
	code status.Code
	read uint64 // what the number was before
}

// Messages between an importer and the broker, after those of an import. Each has another length,
// and none has that of a revocation. Numbers are little-endian.
const (
	requestSize = 1 + 8
	replySize   = 4 + 8
	maxMessage  = replySize + 1
)

func (r eventRequest) encode() []byte {
	return binary.LittleEndian.AppendUint64([]byte{r.operation}, r.value)
}

func decodeRequest(b []byte) (r eventRequest, ok bool) {
	if len(b) != requestSize || b[0] > C.EMU_EVENT_ADD {
		return r, false
	}
	return eventRequest{b[0], binary.LittleEndian.Uint64(b[1:])}, true
}

func (r eventReply) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, replySize), uint32(r.code))
	return binary.LittleEndian.AppendUint64(b, r.read)
}

func decodeReply(b []byte) (r eventReply, ok bool) {
	if len(b) != replySize {
		return r, false
	}
	return eventReply{status.Code(binary.LittleEndian.Uint32(b)),
		binary.LittleEndian.Uint64(b[4:])}, true
}

// operate changes a number of this process, and returns what it was. Memory that is not there
// becomes an IOFailed error.
func operate(number *uint64, r eventRequest) (read uint64, err error) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			err = faultError(fault)
		}
	}()
	switch r.operation {
	case C.EMU_EVENT_SET:
		return atomic.SwapUint64(number, r.value), nil
	case C.EMU_EVENT_ADD:
		return atomic.AddUint64(number, r.value) - r.value, nil
	default:
		return atomic.LoadUint64(number), nil
	}
}

// guarded does it unless the exporter has taken the memory away.
func (x *exported) guarded(number *uint64, r eventRequest) (uint64, error) {
	x.copying.RLock()
	defer x.copying.RUnlock()
	if x.revoked {
		return 0, errRevoked
	}
	return operate(number, r)
}

// serve does it for an importer that cannot map the number.
func (x *exported) serve(r eventRequest) eventReply {
	read, err := x.guarded(x.number, r)
	return eventReply{status.CodeOf(err), read}
}

func (f *foreignNumber) operate(r eventRequest) (uint64, error) {
	if f.number != nil {
		return f.origin.guarded(f.number, r)
	}
	return f.origin.remote.operate(r)
}

// operate lets the exporter's process do it. An exporter that does not answer loses the importer.
func (r *remoteMemory) operate(request eventRequest) (uint64, error) {
	r.operating.Lock()
	defer r.operating.Unlock()
	select {
	case <-r.watched:
		return 0, errRevoked
	default:
	}
	_ = r.socket.SetWriteDeadline(time.Now().Add(broker.Timeout))
	if _, err := r.socket.Write(request.encode()); err != nil {
		return 0, errRevoked
	}
	patience := time.NewTimer(broker.Timeout)
	defer patience.Stop()
	select {
	case <-patience.C:
		_ = r.socket.SetReadDeadline(time.Unix(0, 1)) // watch ends the import
		return 0, status.Errorf(status.IOFailed, "the exporter has not answered for %v",
			broker.Timeout)
	case reply := <-r.replies:
		if reply.code != status.Success {
			return 0, status.Errorf(reply.code, "the exporter cannot use the number")
		}
		return reply.read, nil
	case <-r.watched:
		return 0, errRevoked
	}
}

//export emuEventOperate
func emuEventOperate(number C.uint32_t, operation C.int, value C.uint64_t, read *C.uint64_t) C.int {
	got, err := foreignNumbers.get(number).operate(eventRequest{byte(operation), uint64(value)})
	if err != nil {
		return failed("use sync event", err)
	}
	if read != nil {
		*read = C.uint64_t(got)
	}
	return C.DOCA_SUCCESS
}

// operator returns what does something to the number of an event. It does not need the event, which
// must not be destroyed as long as it is used.
func operator(event *C.struct_doca_sync_event) func(eventRequest) (uint64, error) {
	if event.foreign != 0 {
		return foreignNumbers.get(event.foreign).operate
	}
	number := (*uint64)(event.number)
	return func(r eventRequest) (uint64, error) { return operate(number, r) }
}

// Contexts.

// eventCore carries out the tasks of a sync event, while its engine is progressed.
type eventCore struct {
	engine  *engine
	ctx     *C.struct_doca_ctx
	operate func(eventRequest) (uint64, error)
	queue   []*C.struct_doca_task
	watcher *eventWatcher // while the engine is armed and tasks wait, or nil
}

func (c *eventCore) event() *C.struct_doca_sync_event {
	return (*C.struct_doca_sync_event)(unsafe.Pointer(c.ctx))
}

func (c *eventCore) start() (status.Code, error) {
	if code := status.Code(C.emu_event_open(c.event())); code != status.Success {
		return code, status.Errorf(code, "there is no memory for the number")
	}
	c.operate = operator(c.event())
	c.engine.add(c)
	return status.Success, nil
}

func (c *eventCore) flush() status.Code {
	for task := takeSubmitted(c.ctx); task != nil; task = takeSubmitted(c.ctx) {
		c.queue = append(c.queue, task)
	}
	if bool(c.engine.c.armed) && !c.arm() {
		c.engine.ring()
	}
	return status.Success
}

// eventWait is what a task waits for.
type eventWait struct {
	value, mask uint64
	equal       bool
}

func (w eventWait) fits(number uint64) bool { return (number&w.mask == w.value) == w.equal }

// waitOf returns what a task waits for. It returns false if the task does not wait.
func waitOf(task *C.struct_doca_task) (w eventWait, ok bool) {
	if task.pool != C.EMU_EVENT_POOL_WAIT_EQ && task.pool != C.EMU_EVENT_POOL_WAIT_NEQ {
		return w, false
	}
	waiting := (*C.struct_emu_event_task)(unsafe.Pointer(task))
	return eventWait{value: uint64(waiting.value), mask: uint64(waiting.mask),
		equal: task.pool == C.EMU_EVENT_POOL_WAIT_EQ}, true
}

// poll carries out all tasks, except those that wait for another number. A task that waits does not
// hold up those behind it.
func (c *eventCore) poll() {
	c.queue = slices.DeleteFunc(c.queue, func(task *C.struct_doca_task) bool {
		done, err := c.carryOut(task)
		if done {
			if err != nil {
				_ = failed("use sync event", err)
			}
			c.engine.complete(task, status.CodeOf(err))
		}
		return done
	})
}

func (c *eventCore) carryOut(task *C.struct_doca_task) (done bool, err error) {
	wanted := (*C.struct_emu_event_task)(unsafe.Pointer(task))
	if w, waits := waitOf(task); waits {
		number, err := c.operate(eventRequest{operation: C.EMU_EVENT_GET})
		return err != nil || w.fits(number), err
	}
	request := eventRequest{operation: C.EMU_EVENT_GET}
	switch task.pool {
	case C.EMU_EVENT_POOL_SET:
		request = eventRequest{C.EMU_EVENT_SET, uint64(wanted.value)}
	case C.EMU_EVENT_POOL_ADD:
		request = eventRequest{C.EMU_EVENT_ADD, uint64(wanted.value)}
	}
	read, err := c.operate(request)
	if err == nil && wanted.result != nil {
		*wanted.result = C.uint64_t(read)
	}
	return true, err
}

// eventWatcher looks at a number that anyone may change, so that an armed engine signals that.
type eventWatcher struct {
	stop, stopped chan struct{}
}

// watchInterval is how long a change may wait for an armed engine.
const watchInterval = 100 * time.Microsecond

// watch begins to look. found is called once, when any of the waits is over or cannot be.
func watch(operate func(eventRequest) (uint64, error), waits []eventWait,
	found func()) *eventWatcher {
	w := &eventWatcher{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(w.stopped)
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		for !isOver(operate, waits) {
			select {
			case <-w.stop:
				return
			case <-ticker.C:
			}
		}
		found()
	}()
	return w
}

func isOver(operate func(eventRequest) (uint64, error), waits []eventWait) bool {
	number, err := operate(eventRequest{operation: C.EMU_EVENT_GET})
	return err != nil ||
		slices.ContainsFunc(waits, func(w eventWait) bool { return w.fits(number) })
}

func (w *eventWatcher) end() {
	close(w.stop)
	<-w.stopped
}

func (c *eventCore) arm() bool {
	c.disarm()
	var waits []eventWait
	for _, task := range c.queue {
		w, ok := waitOf(task)
		if !ok {
			return false
		}
		waits = append(waits, w)
	}
	if len(waits) == 0 {
		return true
	}
	if isOver(c.operate, waits) {
		return false
	}
	// Without anything to do on the engine's thread: poll looks for itself.
	c.watcher = watch(c.operate, waits, func() { c.engine.do(func() {}) })
	return true
}

func (c *eventCore) disarm() {
	if c.watcher != nil {
		c.watcher.end()
		c.watcher = nil
	}
}

func (c *eventCore) stop() status.Code {
	c.disarm()
	for _, task := range c.queue {
		c.engine.complete(task, status.Shutdown)
	}
	c.queue = nil
	c.engine.remove(c)
	C.emu_event_close(c.event())
	return status.Success
}

func (c *eventCore) end() {}
