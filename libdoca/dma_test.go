// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// copier is a DMA context, running on an engine.
type copier struct {
	*rig
	dev, pe, dma, ctx P
	memory            *memory
}

const ctxData = 77

func newCopier(t testing.TB, config libdoca.Config, tasks int) *copier {
	t.Helper()
	c := &copier{rig: configure(t, config), dev: openDevice(t, dpuDevice)}
	c.pe = create(t, "doca_pe_create")
	c.dma = create(t, "doca_dma_create", c.dev)
	c.ctx = docatest.Pointer("doca_dma_as_ctx", c.dma)
	ok(t, call("doca_dma_task_memcpy_set_conf", c.dma, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), tasks))
	ok(t, call("doca_ctx_set_user_data", c.ctx, ctxData))
	ok(t, call("doca_ctx_set_state_changed_cb", c.ctx, docatest.Callback(docatest.State)))
	ok(t, call("doca_pe_connect_ctx", c.pe, c.ctx))
	c.memory = newMemory(t, c.dev, 4096, localReadWrite)
	return c
}

func (c *copier) start() {
	c.t.Helper()
	ok(c.t, call("doca_ctx_start", c.ctx))
	events := docatest.Take()
	expectKinds(c.t, events, docatest.State)
	if e := events[0]; e.Object != c.ctx || e.A != idle || e.B != running || e.UserData != ctxData {
		c.t.Fatalf("start reported %+v", e)
	}
}

func (c *copier) task(src, dst P, userData int) P {
	c.t.Helper()
	return create(c.t, "doca_dma_task_memcpy_alloc_init", c.dma, src, dst, userData)
}

func (c *copier) destroy() {
	c.t.Helper()
	ok(c.t, call("doca_dma_destroy", c.dma))
	ok(c.t, call("doca_pe_destroy", c.pe))
	c.memory.destroy()
	ok(c.t, call("doca_dev_close", c.dev))
}

func TestDMACopiesAndAppends(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	c.start()
	copy(c.memory.bytes, "0123456789")
	src, dst := c.memory.buf(0, 10, 10), c.memory.buf(100, 25, 5)
	task := c.task(src, dst, 1)
	for i, want := range []string{"0123456789", "01234567890123456789"} {
		ok(t, call("doca_task_submit", task))
		if inflight(t, c.ctx) != 1 {
			t.Fatalf("%d tasks are in flight, expected 1", inflight(t, c.ctx))
		}
		if n := drain(c.pe); n != 1 {
			t.Fatalf("progress did %d things, expected 1", n)
		}
		events := docatest.Take()
		expectKinds(t, events, docatest.Completed)
		if e := events[0]; e.Object != task || e.A != 1 || e.B != ctxData {
			t.Fatalf("copy %d completed as %+v", i, e)
		}
		ok(t, call("doca_task_get_status", task))
		length, _ := docatest.Get("doca_buf_get_data_len", dst)
		if length.Uint64() != uint64(5+len(want)) ||
			!bytes.Equal(c.memory.bytes[105:105+len(want)], []byte(want)) {
			t.Fatalf("copy %d left %d bytes: %q", i, length.Uint64(), c.memory.bytes[100:130])
		}
	}
	is(t, call("doca_task_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_submit", "room of 0")
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx)) // nothing is left: idle at once
	expectKinds(t, docatest.Take(), docatest.State)
	c.destroy()
}

func TestDMACopiesLists(t *testing.T) {
	c := newCopier(t, libdoca.Config{Limits: libdoca.Limits{MaxDMAList: 3}}, 4)
	c.start()
	copy(c.memory.bytes, "abcdefghij")
	src, dst := c.memory.buf(0, 4, 4), c.memory.buf(1000, 3, 0)
	for i := 4; i < 10; i += 3 {
		ok(t, call("doca_buf_chain_list", src, c.memory.buf(i, 3, 3)))
	}
	for i := range 2 {
		ok(t, call("doca_buf_chain_list", dst, c.memory.buf(1100+100*i, 4, 0)))
	}
	task := c.task(src, dst, 0)
	ok(t, call("doca_task_submit", task))
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Completed)
	got := string(c.memory.bytes[1000:1003]) + string(c.memory.bytes[1100:1104]) +
		string(c.memory.bytes[1200:1203])
	if got != "abcdefghij" {
		t.Errorf("the copy is %q", got)
	}
	ok(t, call("doca_buf_chain_list", src, c.memory.buf(0, 1, 1)))
	is(t, call("doca_task_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_submit", "capability of 3")
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

// Nothing checks the length of a copy when it is submitted. The device rejects a copy of nothing,
// which ends the context.
func TestACopyOfNothingEndsTheContext(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	c.start()
	src, empty, dst := c.memory.buf(0, 1, 1), c.memory.buf(10, 1, 0), c.memory.buf(100, 100, 0)
	dst2, dst3 := c.memory.buf(200, 100, 0), c.memory.buf(300, 100, 0)
	tasks := []P{c.task(src, dst, 1), c.task(empty, dst2, 2), c.task(src, dst3, 3)}
	for _, task := range tasks {
		ok(t, call("doca_task_submit", task))
	}
	drain(c.pe)
	events := docatest.Take()
	expectKinds(t, events, docatest.Completed, docatest.Failed, docatest.Failed, docatest.State)
	is(t, call("doca_task_get_status", tasks[1]), status.IOFailed)
	is(t, call("doca_task_get_status", tasks[2]), status.Shutdown)
	if e := events[3]; e.A != running || e.B != stopping {
		t.Errorf("the context went from state %d to %d", e.A, e.B)
	}
	ok(t, call("doca_task_submit", tasks[0]))
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Failed)
	is(t, call("doca_ctx_stop", c.ctx), status.InProgress)
	for _, task := range tasks {
		call("doca_task_free", task)
	}
	drain(c.pe)
	if stateOf(t, c.ctx) != idle {
		t.Errorf("the context is in state %d", stateOf(t, c.ctx))
	}
	docatest.Take()
	c.start() // again
	ok(t, call("doca_ctx_stop", c.ctx))
	release(t, src, empty, dst, dst2, dst3)
	c.destroy()
}

// One engine counts the tasks of all its contexts.
func TestEnginesCountTasks(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	other := create(t, "doca_dma_create", c.dev)
	otherCtx := docatest.Pointer("doca_dma_as_ctx", other)
	ok(t, call("doca_dma_task_memcpy_set_conf", other, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), 1))
	ok(t, call("doca_pe_connect_ctx", c.pe, otherCtx))
	ok(t, call("doca_ctx_start", otherCtx))
	c.start()
	expect := func(want uint64) {
		t.Helper()
		n, code := docatest.Get("doca_pe_get_num_inflight_tasks", c.pe)
		if code != status.Success || n.Uint64() != want {
			t.Errorf("%d tasks are in flight, expected %d: %v", n.Uint64(), want, code)
		}
	}
	src, dst, dst2 := c.memory.buf(0, 1, 1), c.memory.buf(100, 9, 0), c.memory.buf(200, 9, 0)
	first := c.task(src, dst, 0)
	second := create(t, "doca_dma_task_memcpy_alloc_init", other, src, dst2, 0)
	for task, ctx := range map[P]P{first: c.ctx, second: otherCtx} {
		if got := docatest.Pointer("doca_task_get_ctx", task); got != ctx {
			t.Errorf("a task belongs to %p, expected %p", got, ctx)
		}
	}
	expect(0)
	ok(t, call("doca_task_submit_ex", first, 0)) // held back, but in flight
	ok(t, call("doca_task_try_submit", second))
	expect(2)
	docatest.Raw("doca_ctx_flush_tasks", c.ctx)
	for n := range uint64(2) {
		if !docatest.Progress(c.pe) {
			t.Fatal("progress did nothing")
		}
		expect(1 - n)
	}
	ok(t, call("doca_task_try_submit", second))
	is(t, call("doca_ctx_stop", otherCtx), status.InProgress)
	expect(1) // until its callback
	drain(c.pe)
	expect(0)
	for _, task := range []P{first, second} {
		call("doca_task_free", task)
	}
	drain(c.pe)
	docatest.Take()
	release(t, src, dst, dst2)
	ok(t, call("doca_dma_destroy", other))
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

// doca_task_try_submit rejects a task that is wrong, and leaves it to the application.
func TestTryingToSubmit(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 1)
	c.start()
	src, dst := c.memory.buf(0, 10, 10), c.memory.buf(100, 5, 0)
	task := c.task(src, dst, 0)
	is(t, call("doca_task_try_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_try_submit", "room of 5")
	if inflight(t, c.ctx) != 0 {
		t.Error("the task is in flight")
	}
	ok(t, call("doca_buf_set_data_len", src, 5))
	ok(t, call("doca_task_try_submit", task))
	is(t, call("doca_task_try_submit", task), status.BadState)
	c.expectMisuse("doca_task_try_submit", "is submitted")

	// Lists cannot change under a task, whichever of their bufs it was given.
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Completed)
	more := c.memory.buf(200, 5, 0)
	ok(t, call("doca_buf_chain_list", dst, more))
	call("doca_dma_task_memcpy_set_dst", task, more)
	ok(t, call("doca_task_submit", task))
	last := c.memory.buf(300, 5, 0)
	is(t, call("doca_buf_chain_list", dst, last), status.InUse)
	c.expectMisuse("doca_buf_chain_list", "submitted uses the buf")
	is(t, call("doca_buf_unchain_list", dst, more), status.InUse)
	c.expectMisuse("doca_buf_unchain_list", "submitted uses the buf")
	drain(c.pe)
	ok(t, call("doca_buf_unchain_list", dst, more))
	call("doca_task_free", task)
	release(t, src, dst, more, last)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
	is(t, call("doca_task_try_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_try_submit", "has been destroyed")
}

// No context allocates batches, so nothing is one.
func TestNothingIsABatch(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 1)
	c.start()
	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 5, 0)
	task := c.task(src, dst, 0)
	const invalid = uint32(status.InvalidValue)
	for name, want := range map[string]uint32{"submit": invalid, "try_submit": invalid,
		"get_status": invalid, "get_tasks_num": 0, "get_ctx": 0, "get_ctx_user_data": 0,
		"get_user_data": 0} {
		for text, pointer := range map[string]P{"NULL": nil, "is a task": task} {
			if got := uint32(docatest.Raw("doca_task_batch_"+name, pointer)); got != want {
				t.Errorf("%s of what %s returns %d, expected %d", name, text, got, want)
			}
			c.expectMisuse("doca_task_batch_"+name, text)
		}
	}
	for _, name := range []string{"free", "set_user_data"} {
		docatest.Raw("doca_task_batch_"+name, task, 1)
		c.expectMisuse("doca_task_batch_"+name, "is a task")
	}
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

func TestCompletionVectors(t *testing.T) {
	c := newCopier(t, libdoca.Config{Limits: libdoca.Limits{CompletionVectors: 3}}, 1)
	count, code := docatest.Get("doca_ctx_cap_get_num_completion_vectors",
		docatest.Pointer("doca_dev_as_devinfo", c.dev))
	if code != status.Success || count.Uint32() != 3 {
		t.Errorf("there are %d vectors, %v", count.Uint32(), code)
	}
	ok(t, call("doca_ctx_set_completion_vector", c.ctx, 2))
	is(t, call("doca_ctx_set_completion_vector", c.ctx, 3), status.InvalidValue)
	c.expectMisuse("doca_ctx_set_completion_vector", "capability of 3")
	c.start()
	is(t, call("doca_ctx_set_completion_vector", c.ctx, 0), status.BadState)
	c.expectMisuse("doca_ctx_set_completion_vector", "must be idle")
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

// Stopping fails the tasks in flight: one progress each, and then the task is the application's
// again. The context is idle once all tasks are freed.
func TestStoppingFlushesTasks(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 8)
	c.start()
	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
	dst2 := c.memory.buf(200, 100, 0)
	first, second := c.task(src, dst, 1), c.task(src, dst2, 2)
	held := c.task(src, dst2, 3)
	ok(t, call("doca_task_submit", first))
	ok(t, call("doca_task_submit_ex", second, 0)) // held back
	is(t, call("doca_ctx_stop", c.ctx), status.InProgress)
	is(t, call("doca_ctx_stop", c.ctx), status.InProgress)
	expectKinds(t, docatest.Take(), docatest.State)
	for flushed := inflight(t, c.ctx); flushed > 0; flushed-- {
		if !docatest.Progress(c.pe) {
			t.Fatal("progress did nothing")
		}
		expectKinds(t, docatest.Take(), docatest.Failed)
	}
	is(t, call("doca_task_get_status", first), status.Shutdown)
	if inflight(t, c.ctx) != 0 || docatest.Progress(c.pe) {
		t.Fatal("progress did more than flush")
	}
	// Tasks that are submitted while stopping fail, too.
	ok(t, call("doca_task_submit", held))
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Failed)
	is(t, call("doca_dma_destroy", c.dma), status.BadState)
	c.expectMisuse("doca_dma_destroy", "must be idle")
	for _, task := range []P{first, second, held} {
		call("doca_task_free", task)
	}
	if stateOf(t, c.ctx) != stopping || drain(c.pe) != 1 || stateOf(t, c.ctx) != idle {
		t.Fatalf("the context is in state %d", stateOf(t, c.ctx))
	}
	expectKinds(t, docatest.Take(), docatest.State)
	ok(t, call("doca_ctx_stop", c.ctx)) // it is idle
	c.start()                           // again
	ok(t, call("doca_ctx_stop", c.ctx))
	release(t, src, dst, dst2)
	c.destroy()
}

func TestMisuseOfTasks(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 1)
	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
	_, code := docatest.Get("doca_dma_task_memcpy_alloc_init", c.dma, src, dst, 0)
	is(t, code, status.BadState)
	c.expectMisuse("doca_dma_task_memcpy_alloc_init", "must be running")
	c.start()
	task := c.task(src, dst, 0)
	_, code = docatest.Get("doca_dma_task_memcpy_alloc_init", c.dma, src, dst, 0)
	is(t, code, status.NoMemory)
	is(t, call("doca_task_submit_ex", task, 4), status.InvalidValue)
	c.expectMisuse("doca_task_submit_ex", "unknown bits")
	ok(t, call("doca_task_submit", task))

	is(t, call("doca_task_submit", task), status.BadState)
	c.expectMisuse("doca_task_submit", "is submitted")
	is(t, call("doca_task_get_status", task), status.BadState)
	c.expectMisuse("doca_task_get_status", "is submitted")
	call("doca_task_free", task)
	c.expectMisuse("doca_task_free", "is submitted")
	call("doca_task_set_user_data", task, 1)
	c.expectMisuse("doca_task_set_user_data", "is submitted")
	call("doca_dma_task_memcpy_set_src", task, dst)
	c.expectMisuse("doca_dma_task_memcpy_set_src", "is submitted")
	is(t, call("doca_buf_dec_refcount", src, nil), status.InUse)
	c.expectMisuse("doca_buf_dec_refcount", "no reference of its own")
	is(t, call("doca_buf_reset_data_len", dst), status.InUse)
	c.expectMisuse("doca_buf_reset_data_len", "submitted uses the buf")
	drain(c.pe)

	call("doca_task_free", task)
	call("doca_task_free", task)
	c.expectMisuse("doca_task_free", "has been freed")
	is(t, call("doca_task_submit", task), status.BadState)
	c.expectMisuse("doca_task_submit", "has been freed")
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
	is(t, call("doca_task_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_submit", "has been destroyed")
}

func TestRightsToCopy(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	c.start()
	host := openDevice(t, hostDevice)
	shared := newMemory(t, host, 4096, localReadWrite|pciReadOnly)
	imported, code := importMap(export(t, "doca_mmap_export_pci", shared.mmap, host), c.dev)
	ok(t, code)
	copy(shared.bytes, "from the host")
	remote := create(t, "doca_buf_inventory_buf_get_by_args", c.memory.inventory, imported,
		shared.base, 13, shared.base, 13)
	local := c.memory.buf(0, 100, 0)
	task := c.task(remote, local, 0)
	ok(t, call("doca_task_submit", task))
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Completed)
	if !bytes.HasPrefix(c.memory.bytes, []byte("from the host")) {
		t.Errorf("read %q", c.memory.bytes[:13])
	}

	ok(t, call("doca_buf_set_data", remote, shared.base, 0))
	call("doca_dma_task_memcpy_set_src", task, local)
	call("doca_dma_task_memcpy_set_dst", task, remote)
	is(t, call("doca_task_submit", task), status.NotPermitted)
	c.expectMisuse("doca_task_submit", "no right to write")

	own := shared.buf(0, 10, 10) // in a map that does not have the context's device
	call("doca_dma_task_memcpy_set_src", task, own)
	is(t, call("doca_task_submit", task), status.InvalidValue)
	c.expectMisuse("doca_task_submit", "does not have the device")
	release(t, own)

	// When the exporter ends the map, accesses fail.
	ok(t, call("doca_buf_set_data", remote, shared.base, 13))
	call("doca_dma_task_memcpy_set_src", task, remote)
	call("doca_dma_task_memcpy_set_dst", task, local)
	ok(t, call("doca_task_submit", task))
	shared.destroy()
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Failed)
	is(t, call("doca_task_get_status", task), status.IOFailed)
	call("doca_task_free", task)
	release(t, remote, local)
	ok(t, call("doca_mmap_destroy", imported))
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

// Memory that the application unmaps while a task uses it fails the task, not the process.
func TestMemoryThatVanishes(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	c.start()
	region, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	mmap := create(t, "doca_mmap_create")
	ok(t, call("doca_mmap_add_dev", mmap, c.dev))
	ok(t, call("doca_mmap_set_memrange", mmap, P(&region[0]), 4096))
	ok(t, call("doca_mmap_start", mmap))
	src := create(t, "doca_buf_inventory_buf_get_by_args", c.memory.inventory, mmap, P(&region[0]),
		10, P(&region[0]), 10)
	dst := c.memory.buf(0, 10, 0)
	task := c.task(src, dst, 0)
	ok(t, call("doca_task_submit", task))
	if err := unix.Munmap(region); err != nil {
		t.Fatal(err)
	}
	drain(c.pe)
	expectKinds(t, docatest.Take(), docatest.Failed)
	is(t, call("doca_task_get_status", task), status.IOFailed)
	length, _ := docatest.Get("doca_buf_get_data_len", dst)
	if length.Uint64() != 0 {
		t.Errorf("the destination has %d bytes, expected none", length.Uint64())
	}
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_mmap_destroy", mmap))
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

func TestMisuseOfEngines(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	is(t, call("doca_pe_connect_ctx", c.pe, c.ctx), status.NotPermitted)
	c.expectMisuse("doca_pe_connect_ctx", "already")
	is(t, call("doca_pe_destroy", c.pe), status.InUse)
	c.expectMisuse("doca_pe_destroy", "1 contexts")
	lonely := create(t, "doca_dma_create", c.dev)
	lonelyCtx := docatest.Pointer("doca_dma_as_ctx", lonely)
	is(t, call("doca_ctx_start", lonelyCtx), status.NotConnected)
	c.expectMisuse("doca_ctx_start", "not connected")
	ok(t, call("doca_pe_connect_ctx", c.pe, lonelyCtx))
	is(t, call("doca_ctx_start", lonelyCtx), status.BadState)
	c.expectMisuse("doca_ctx_start", "set_conf has not been called")
	ok(t, call("doca_dma_destroy", lonely))
	c.start()
	is(t, call("doca_ctx_start", c.ctx), status.BadState)
	c.expectMisuse("doca_ctx_start", "is running, but must be idle")
	is(t, call("doca_dma_task_memcpy_set_conf", c.dma, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), 1), status.BadState)
	c.expectMisuse("doca_dma_task_memcpy_set_conf", "must be idle")

	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
	task := c.task(src, dst, 0)
	docatest.OnEvent(func(docatest.Event) {
		docatest.Progress(c.pe)
		call("doca_pe_set_event_mode", c.pe, 1)
		call("doca_pe_destroy", c.pe)
	})
	ok(t, call("doca_task_submit", task))
	drain(c.pe)
	docatest.OnEvent(nil)
	misuses := c.takeMisuses()
	if len(misuses) != 3 || misuses[0].Function != "doca_pe_progress" ||
		misuses[1].Function != "doca_pe_set_event_mode" ||
		misuses[2].Function != "doca_pe_destroy" {
		t.Errorf("misuses in a callback: %q", misuses)
	}
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

func TestAnEngineBelongsToOneThreadAtATime(t *testing.T) {
	c := newCopier(t, libdoca.Config{}, 4)
	c.start()
	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
	task := c.task(src, dst, 0)
	ok(t, call("doca_task_submit", task))

	inside, leave := make(chan struct{}), make(chan struct{})
	docatest.OnEvent(func(docatest.Event) {
		close(inside)
		<-leave
	})
	done := make(chan bool)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- docatest.Progress(c.pe)
	}()
	<-inside
	if docatest.Progress(c.pe) {
		t.Error("a second thread made progress")
	}
	c.expectMisuse("doca_pe_progress", "another thread is inside this pe")
	is(t, call("doca_ctx_stop", c.ctx), status.BadState)
	c.expectMisuse("doca_ctx_stop", "another thread")
	call("doca_task_free", task)
	c.expectMisuse("doca_task_free", "another thread")
	close(leave)
	if !<-done {
		t.Error("the first thread made no progress")
	}
	docatest.OnEvent(nil)
	call("doca_task_free", task) // another thread than that of progress, but not at the same time
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}

// readable reports whether a descriptor is readable now.
func readable(t testing.TB, pe P) bool {
	t.Helper()
	handle, code := docatest.Get("doca_pe_get_notification_handle", pe)
	ok(t, code)
	fds := []unix.PollFd{{Fd: int32(handle.Uint32()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

func TestNotifications(t *testing.T) {
	const selective, all = 0, 1
	for _, mode := range []int{selective, all} {
		c := newCopier(t, libdoca.Config{}, 4)
		ok(t, call("doca_pe_set_event_mode", c.pe, mode))
		c.start()
		src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
		task := c.task(src, dst, 0)

		// What happens before the engine is armed does not signal.
		ok(t, call("doca_task_submit", task))
		ok(t, call("doca_pe_request_notification", c.pe))
		if readable(t, c.pe) {
			t.Errorf("mode %d: readable because of what was before", mode)
		}
		if got := docatest.Progress(c.pe); got != (mode == all) {
			t.Errorf("mode %d: an armed engine progressed: %v", mode, got)
		}
		ok(t, call("doca_pe_clear_notification", c.pe, 0))
		if got := docatest.Progress(c.pe); got != (mode == selective) {
			t.Errorf("mode %d: a cleared engine progressed: %v", mode, got)
		}

		// What happens afterwards does.
		ok(t, call("doca_pe_request_notification", c.pe))
		ok(t, call("doca_task_submit", task))
		if !readable(t, c.pe) {
			t.Errorf("mode %d: not readable", mode)
		}
		if mode == selective {
			ok(t, call("doca_pe_clear_notification", c.pe, 0))
			if readable(t, c.pe) {
				t.Error("readable after it was cleared")
			}
		}
		if drain(c.pe) != 1 {
			t.Errorf("mode %d: nothing to do after the wake-up", mode)
		}
		ok(t, call("doca_pe_request_notification", c.pe)) // clears, too
		if readable(t, c.pe) {
			t.Errorf("mode %d: readable after it was armed again", mode)
		}
		ok(t, call("doca_pe_clear_notification", c.pe, 0))
		call("doca_task_free", task)
		release(t, src, dst)
		ok(t, call("doca_ctx_stop", c.ctx))
		c.destroy()
	}
}

func TestPendingWorkSignalsOnRequest(t *testing.T) {
	c := newCopier(t, libdoca.Config{SignalPending: true}, 4)
	c.start()
	src, dst := c.memory.buf(0, 1, 1), c.memory.buf(100, 100, 0)
	task := c.task(src, dst, 0)
	ok(t, call("doca_task_submit", task))
	ok(t, call("doca_pe_request_notification", c.pe))
	if !readable(t, c.pe) {
		t.Error("not readable although a completion is pending")
	}
	ok(t, call("doca_pe_clear_notification", c.pe, 0))
	drain(c.pe)
	call("doca_task_free", task)
	release(t, src, dst)
	ok(t, call("doca_ctx_stop", c.ctx))
	c.destroy()
}
