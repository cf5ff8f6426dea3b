// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	rdmaWrite  = 4
	rdmaAtomic = 8

	allBits = uint64(math.MaxUint64)
)

// newEvent creates an event that the CPU uses alone.
func newEvent(t testing.TB, dev P) P {
	t.Helper()
	event := create(t, "doca_sync_event_create")
	ok(t, call("doca_sync_event_add_publisher_location_cpu", event, dev))
	ok(t, call("doca_sync_event_add_subscriber_location_cpu", event, dev))
	return event
}

func valueOf(t testing.TB, event P) uint64 {
	t.Helper()
	value, code := docatest.Get("doca_sync_event_get", event)
	ok(t, code)
	return value.Uint64()
}

// eventTasks is an event that is used as a context.
type eventTasks struct {
	*rig
	dev, event, ctx, pe P
}

func newEventTasks(t testing.TB, tasks int) *eventTasks {
	t.Helper()
	e := &eventTasks{rig: configure(t, libdoca.Config{}), dev: openDevice(t, dpuDevice)}
	e.event = newEvent(t, e.dev)
	e.pe = create(t, "doca_pe_create")
	e.ctx = docatest.Pointer("doca_sync_event_as_ctx", e.event)
	for _, kind := range []string{"get", "notify_set", "notify_add", "wait_eq", "wait_neq"} {
		ok(t, call("doca_sync_event_task_"+kind+"_set_conf", e.event,
			docatest.Callback(docatest.Completed), docatest.Callback(docatest.Failed), tasks))
	}
	ok(t, call("doca_pe_connect_ctx", e.pe, e.ctx))
	ok(t, call("doca_ctx_start", e.ctx))
	return e
}

// task allocates a task of a kind, and returns it as what doca_task_submit takes.
func (e *eventTasks) task(kind string, arguments ...any) P {
	e.t.Helper()
	task := create(e.t, "doca_sync_event_task_"+kind+"_alloc_init",
		append([]any{e.event}, arguments...)...)
	if as := docatest.Pointer("doca_sync_event_task_"+kind+"_as_doca_task", task); as != task {
		e.t.Errorf("task %p is task %p", task, as)
	}
	return task
}

func (e *eventTasks) destroy() {
	e.t.Helper()
	ok(e.t, call("doca_sync_event_destroy", e.event))
	ok(e.t, call("doca_pe_destroy", e.pe))
	ok(e.t, call("doca_dev_close", e.dev))
}

func TestTasksOfSyncEvents(t *testing.T) {
	e := newEventTasks(t, 4)
	read, fetched := docatest.NewCell(), docatest.NewCell()
	defer read.Free()
	defer fetched.Free()
	wait := e.task("wait_eq", 0x1200, 0xff00, 1)
	set := e.task("notify_set", 0x1234, 2)
	add := e.task("notify_add", 6, fetched, 3)
	get := e.task("get", read, 4)
	neq := e.task("wait_neq", 0x34, 0xff, 5)
	// The task that waits does not hold up the one that it waits for.
	for _, task := range []P{wait, set, add, get, neq} {
		ok(t, call("doca_task_submit", task))
	}
	if n := drain(e.pe); n != 5 {
		t.Fatalf("progress did %d things, expected 5", n)
	}
	var order []uint64
	for _, event := range docatest.Take() {
		order = append(order, event.A)
		if event.Kind != docatest.Completed {
			t.Errorf("task %d failed: %v", event.A, call("doca_task_get_status", event.Object))
		}
	}
	want := []uint64{2, 3, 4, 5, 1}
	if len(order) != len(want) {
		t.Fatalf("the tasks %v completed, expected %v", order, want)
	}
	for i := range want {
		if order[i] != want[i] {
			t.Fatalf("the tasks completed in the order %v, expected %v", order, want)
		}
	}
	if f, r := fetched.Result().Uint64(), read.Result().Uint64(); f != 0x1234 || r != 0x123a {
		t.Errorf("add fetched %#x, and get read %#x", f, r)
	}
	if value := valueOf(t, e.event); value != 0x123a {
		t.Errorf("the number is %#x", value)
	}

	// Tasks are changed, and say what they are.
	docatest.Raw("doca_sync_event_task_notify_set_set_set_val", set, 7)
	docatest.Raw("doca_sync_event_task_notify_add_set_inc_val", add, 8)
	docatest.Raw("doca_sync_event_task_notify_add_set_fetched_val_ptr", add, read)
	docatest.Raw("doca_sync_event_task_get_set_ret_val_ptr", get, fetched)
	docatest.Raw("doca_sync_event_task_wait_eq_set_wait_val", wait, 15)
	docatest.Raw("doca_sync_event_task_wait_eq_set_mask", wait, allBits)
	docatest.Raw("doca_sync_event_task_wait_neq_set_wait_val", neq, 9)
	docatest.Raw("doca_sync_event_task_wait_neq_set_mask", neq, 0xff00)
	for name, want := range map[string]uint64{
		"notify_set_get_set_val": 7, "notify_add_get_inc_val": 8,
		"notify_add_get_fetched_val_ptr": uint64(uintptr(P(read))),
		"get_get_ret_val_ptr":            uint64(uintptr(P(fetched))),
		"wait_eq_get_wait_val":           15, "wait_eq_get_mask": allBits,
		"wait_neq_get_wait_val": 9, "wait_neq_get_mask": 0xff00,
	} {
		task := map[byte]P{'s': set, 'a': add, 'g': get, 'e': wait, 'n': neq}
		key := name[0]
		switch key {
		case 'n':
			key = name[len("notify_")]
		case 'w':
			key = name[len("wait_")]
		}
		if got := docatest.Raw("doca_sync_event_task_"+name, task[key]); got != want {
			t.Errorf("%s is %#x, expected %#x", name, got, want)
		}
	}
	for _, task := range []P{wait, set, add, get, neq} {
		ok(t, call("doca_task_submit", task))
	}
	if n := drain(e.pe); n != 5 {
		t.Errorf("progress did %d things, expected 5", n)
	}
	if f, r := fetched.Result().Uint64(), read.Result().Uint64(); f != 15 || r != 7 {
		t.Errorf("get read %d, and add fetched %d", f, r)
	}
	for _, task := range []P{wait, set, add, get, neq} {
		docatest.Raw("doca_task_free", task)
	}
	ok(t, call("doca_ctx_stop", e.ctx))
	e.destroy()
}

func TestMisuseOfTasksOfSyncEvents(t *testing.T) {
	e := newEventTasks(t, 2)
	get := e.task("get", nil, 0)
	is(t, call("doca_task_submit", get), status.InvalidValue)
	e.expectMisuse("doca_task_submit", "nowhere to store")
	wait := e.task("wait_neq", 0, 0, 0)
	for mask, code := range map[uint64]status.Code{
		0: status.Success, 0xff: status.Success, 0xff00: status.Success,
		0xffff0000: status.Success, 0xffffffff: status.Success, allBits: status.Success,
		1: status.InvalidValue, 0xff0: status.InvalidValue, 0xff00ff: status.InvalidValue,
		0xffffff: status.InvalidValue, allBits - 1: status.InvalidValue,
		allBits &^ 0xff: status.InvalidValue,
	} {
		docatest.Raw("doca_sync_event_task_wait_neq_set_mask", wait, mask)
		docatest.Raw("doca_sync_event_task_wait_neq_set_wait_val", wait, 1)
		if got := call("doca_task_submit", wait); got != code {
			t.Errorf("with mask %#x the result is %v, expected %v", mask, got, code)
		}
		if code == status.Success {
			drain(e.pe)
		} else {
			e.expectMisuse("doca_task_submit", "in a row")
		}
	}
	docatest.Raw("doca_sync_event_task_wait_eq_set_mask", wait, 0)
	e.expectMisuse("doca_sync_event_task_wait_eq_set_mask", "of another type")
	docatest.Raw("doca_sync_event_task_wait_neq_set_mask", wait, allBits)
	docatest.Raw("doca_sync_event_task_wait_neq_set_wait_val", wait, 0)
	ok(t, call("doca_task_submit", wait))
	docatest.Raw("doca_sync_event_task_wait_neq_set_mask", wait, 0)
	e.expectMisuse("doca_sync_event_task_wait_neq_set_mask", "the task is submitted")
	is(t, call("doca_sync_event_task_get_set_conf", e.event, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), 4), status.NotPermitted)
	e.expectMisuse("doca_sync_event_task_get_set_conf", "must be idle")
	second, code := docatest.Get("doca_sync_event_task_get_alloc_init", e.event, e.pe, 0)
	ok(t, code)
	_, code = docatest.Get("doca_sync_event_task_get_alloc_init", e.event, e.pe, 0)
	is(t, code, status.NoMemory)
	is(t, call("doca_sync_event_destroy", e.event), status.BadState)
	e.expectMisuse("doca_sync_event_destroy", "must be idle")

	// Stopping flushes the task that waits; the event can be used no more.
	docatest.Take()
	is(t, call("doca_ctx_stop", e.ctx), status.InProgress)
	if !docatest.Progress(e.pe) || docatest.Progress(e.pe) {
		t.Error("progress did not do one thing")
	}
	expectKinds(t, docatest.Take(), docatest.Failed)
	is(t, call("doca_task_get_status", wait), status.Shutdown)
	is(t, call("doca_sync_event_update_set", e.event, 1), status.BadState)
	e.expectMisuse("doca_sync_event_update_set", "not started")
	for _, task := range []P{wait, get} {
		docatest.Raw("doca_task_free", task)
	}
	if drain(e.pe) != 0 || stateOf(t, e.ctx) != stopping {
		t.Errorf("the state is %d although a task is out", stateOf(t, e.ctx))
	}
	docatest.Raw("doca_task_free", second.Pointer())
	if drain(e.pe) != 1 || stateOf(t, e.ctx) != idle {
		t.Errorf("the state is %d although all tasks are free", stateOf(t, e.ctx))
	}
	e.destroy()
}

// An armed engine signals that a number has changed, whoever has changed it.
func TestArmedEnginesNoticeSyncEvents(t *testing.T) {
	e := newEventTasks(t, 2)
	wait := e.task("wait_eq", 5, allBits, 0)
	ok(t, call("doca_task_submit", wait))
	ok(t, call("doca_pe_request_notification", e.pe))
	ok(t, call("doca_sync_event_update_set", e.event, 4))
	time.Sleep(5 * time.Millisecond)
	if readable(t, e.pe) {
		t.Error("readable because of another number")
	}
	ok(t, call("doca_sync_event_update_set", e.event, 5))
	for deadline := time.Now().Add(time.Minute); !readable(t, e.pe); {
		if time.Now().After(deadline) {
			t.Fatal("not readable for a minute")
		}
		time.Sleep(100 * time.Microsecond)
	}
	ok(t, call("doca_pe_clear_notification", e.pe, 0))
	if drain(e.pe) != 1 {
		t.Error("progress did not do one thing")
	}

	// So does a task that is submitted while the engine is armed, if it is over.
	ok(t, call("doca_pe_request_notification", e.pe))
	ok(t, call("doca_task_submit", wait))
	if !readable(t, e.pe) {
		t.Error("not readable although a task can complete")
	}
	ok(t, call("doca_pe_clear_notification", e.pe, 0))
	if drain(e.pe) != 1 {
		t.Error("progress did not do one thing")
	}
	docatest.Raw("doca_task_free", wait)
	ok(t, call("doca_ctx_stop", e.ctx))
	e.destroy()
}

func TestWaitsForSyncEvents(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	event := newEvent(t, dev)
	ok(t, call("doca_sync_event_start", event))
	for _, test := range []struct {
		name              string
		value, mask, then uint64
	}{
		{"gt", 4, allBits, 5}, {"gt_yield", 0xff, 0xff00, 0x100},
		{"eq", 0x1200, 0xff00, 0x12ff}, {"eq_yield", 3, allBits, 3},
		{"neq", 0, allBits, 1}, {"neq_yield", 0, 1, 3},
	} {
		ok(t, call("doca_sync_event_update_set", event, 0))
		ended := make(chan status.Code)
		go func() {
			ended <- call("doca_sync_event_wait_"+test.name, event, test.value, test.mask)
		}()
		select {
		case code := <-ended:
			t.Fatalf("%s returned %v at once", test.name, code)
		case <-time.After(2 * time.Millisecond):
		}
		ok(t, call("doca_sync_event_update_set", event, test.then))
		ok(t, <-ended)
	}
	// A stop ends all waits.
	ended := make(chan status.Code)
	names := []string{"gt", "gt_yield", "eq", "eq_yield", "neq", "neq_yield"}
	value := map[string]uint64{"gt": 9, "gt_yield": 9, "eq": 9, "eq_yield": 9}
	ok(t, call("doca_sync_event_update_set", event, 0))
	for _, name := range names {
		go func() { ended <- call("doca_sync_event_wait_"+name, event, value[name], allBits) }()
	}
	time.Sleep(2 * time.Millisecond)
	ok(t, call("doca_sync_event_stop", event))
	for range names {
		is(t, <-ended, status.BadState)
	}
	_ = r.takeMisuses() // of waits that had not begun yet
	ok(t, call("doca_sync_event_destroy", event))
	ok(t, call("doca_dev_close", dev))
}

func TestMisuseOfSyncEvents(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	event := create(t, "doca_sync_event_create")
	data, size := docatest.NewCell(), docatest.NewCell()
	defer data.Free()
	defer size.Free()

	is(t, call("doca_sync_event_start", event), status.BadState)
	r.expectMisuse("doca_sync_event_start", "no subscriber")
	is(t, call("doca_sync_event_add_subscriber_location_cpu", event, nil), status.InvalidValue)
	r.expectMisuse("doca_sync_event_add_subscriber_location_cpu", "NULL")
	ok(t, call("doca_sync_event_add_subscriber_location_remote_pci", event))
	is(t, call("doca_sync_event_add_subscriber_location_cpu", event, dev), status.BadState)
	r.expectMisuse("doca_sync_event_add_subscriber_location_cpu", "has a subscriber")
	is(t, call("doca_sync_event_start", event), status.BadState)
	r.expectMisuse("doca_sync_event_start", "no publisher")
	ok(t, call("doca_sync_event_add_publisher_location_remote_net", event))
	is(t, call("doca_sync_event_add_publisher_location_remote_pci", event), status.BadState)
	r.expectMisuse("doca_sync_event_add_publisher_location_remote_pci", "has a publisher")
	is(t, call("doca_sync_event_set_addr", event, nil), status.InvalidValue)
	r.expectMisuse("doca_sync_event_set_addr", "NULL")
	is(t, call("doca_sync_event_set_addr", event, docatest.At(P(data), 4)), status.InvalidValue)
	r.expectMisuse("doca_sync_event_set_addr", "not aligned")
	is(t, call("doca_sync_event_export_to_remote_pci", event, dev, data, size), status.BadState)
	r.expectMisuse("doca_sync_event_export_to_remote_pci", "not started")

	ok(t, call("doca_sync_event_start", event))
	is(t, call("doca_sync_event_start", event), status.BadState)
	r.expectMisuse("doca_sync_event_start", "is started")
	is(t, call("doca_sync_event_set_addr", event, data), status.BadState)
	r.expectMisuse("doca_sync_event_set_addr", "is started")
	is(t, call("doca_sync_event_export_to_remote_pci", event, dev, data, size),
		status.NotPermitted)
	r.expectMisuse("doca_sync_event_export_to_remote_pci", "a peer over RDMA")
	if docatest.Pointer("doca_sync_event_as_ctx", event) != nil {
		t.Error("an event that is started became a context")
	}
	r.expectMisuse("doca_sync_event_as_ctx", "cannot become a context")
	ok(t, call("doca_sync_event_stop", event))
	is(t, call("doca_sync_event_wait_eq", event, 0, allBits), status.BadState)
	r.expectMisuse("doca_sync_event_wait_eq", "not started")
	ok(t, call("doca_sync_event_destroy", event))
	is(t, call("doca_sync_event_get", event, data), status.InvalidValue)
	r.expectMisuse("doca_sync_event_get", "destroyed")

	// An event that has become a context is started as one.
	event = newEvent(t, dev)
	ctx := docatest.Pointer("doca_sync_event_as_ctx", event)
	is(t, call("doca_sync_event_start", event), status.BadState)
	r.expectMisuse("doca_sync_event_start", "call doca_ctx_start")
	pe := create(t, "doca_pe_create")
	ok(t, call("doca_pe_connect_ctx", pe, ctx))
	ok(t, call("doca_ctx_start", ctx))
	is(t, call("doca_sync_event_stop", event), status.BadState)
	r.expectMisuse("doca_sync_event_stop", "call doca_ctx_stop")
	is(t, call("doca_sync_event_export_to_remote_net", event, data, size), status.BadState)
	r.expectMisuse("doca_sync_event_export_to_remote_net", "not a peer over RDMA")
	ok(t, call("doca_ctx_stop", ctx))
	ok(t, call("doca_sync_event_destroy", event))
	ok(t, call("doca_pe_destroy", pe))
	ok(t, call("doca_dev_close", dev))
}

func TestSyncEventsInBufs(t *testing.T) {
	const rights = localReadWrite | rdmaRead | rdmaWrite | rdmaAtomic
	r := configure(t, libdoca.Config{})
	host := openDevice(t, hostDevice)
	m, weak := newMemory(t, host, 4096, rights), newMemory(t, host, 4096, localReadWrite)
	event := create(t, "doca_sync_event_create")
	ok(t, call("doca_sync_event_add_publisher_location_remote_pci", event))
	ok(t, call("doca_sync_event_add_subscriber_location_cpu", event, host))
	first, second := m.buf(0, 8, 8), m.buf(8, 8, 8)
	for _, test := range []struct {
		buf  P
		code status.Code
		rule string
	}{
		{m.buf(16, 16, 9), status.NotPermitted, "9 bytes instead of 8"},
		{m.buf(20, 8, 8), status.InvalidValue, "not aligned"},
		{weak.buf(0, 8, 8), status.NotPermitted, "rights"},
		{nil, status.InvalidValue, "NULL"},
	} {
		is(t, call("doca_sync_event_set_doca_buf", event, test.buf), test.code)
		r.expectMisuse("doca_sync_event_set_doca_buf", test.rule)
		if test.buf != nil {
			release(t, test.buf)
		}
	}
	ok(t, call("doca_buf_chain_list", first, second))
	is(t, call("doca_sync_event_set_doca_buf", event, first), status.InvalidValue)
	r.expectMisuse("doca_sync_event_set_doca_buf", "in a list")
	release(t, first)

	first, second = m.buf(0, 8, 8), m.buf(8, 8, 8)
	ok(t, call("doca_sync_event_set_doca_buf", event, first))
	ok(t, call("doca_sync_event_set_doca_buf", event, second))
	release(t, first) // the event has let it go
	ok(t, call("doca_sync_event_start", event))
	ok(t, call("doca_sync_event_update_set", event, 77))
	if got := binary.NativeEndian.Uint64(m.bytes[8:]); got != 77 {
		t.Errorf("the buf holds %d", got)
	}
	cells := [2]*docatest.Cell{docatest.NewCell(), docatest.NewCell()}
	is(t, call("doca_sync_event_export_to_remote_pci", event, host, cells[0], cells[1]),
		status.NotPermitted)
	r.expectMisuse("doca_sync_event_export_to_remote_pci", "no PCI_READ_WRITE")
	cells[0].Free()
	cells[1].Free()
	ok(t, call("doca_sync_event_destroy", event))
	release(t, second)
	m.destroy()
	weak.destroy()
	ok(t, call("doca_dev_close", host))
}

// Both sides of PCI may be in one process.
func TestSyncEventsOfOneProcess(t *testing.T) {
	r := configure(t, libdoca.Config{})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	for _, sides := range [][2]P{{host, dpu}, {dpu, host}} {
		owned := newEvent(t, sides[0])
		ok(t, call("doca_sync_event_start", owned))
		data, size := docatest.NewCell(), docatest.NewCell()
		ok(t, call("doca_sync_event_export_to_remote_pci", owned, sides[0], data, size))
		desc := bytes.Clone(docatest.Bytes(data.Result().Pointer(), int(size.Result().Uint64())))
		blob := docatest.Alloc(len(desc))
		copy(docatest.Bytes(blob, len(desc)), desc)
		imported := create(t, "doca_sync_event_create_from_export", sides[1], blob, len(desc))
		is(t, call("doca_sync_event_add_publisher_location_remote_pci", imported),
			status.NotPermitted)
		r.expectMisuse("doca_sync_event_add_publisher_location_remote_pci", "is imported")
		ok(t, call("doca_sync_event_start", imported))
		is(t, call("doca_sync_event_export_to_remote_pci", imported, sides[1], data, size),
			status.NotPermitted)
		r.expectMisuse("doca_sync_event_export_to_remote_pci", "only its owner")
		ok(t, call("doca_sync_event_update_set", imported, 40))
		fetched, code := docatest.Get("doca_sync_event_update_add", owned, 2)
		ok(t, code)
		if got := valueOf(t, imported); got != 42 || fetched.Uint64() != 40 {
			t.Errorf("the number is %d, and was %d", got, fetched.Uint64())
		}
		ok(t, call("doca_sync_event_stop", owned))
		is(t, call("doca_sync_event_update_set", imported, 1), status.IOFailed)
		_, code = docatest.Get("doca_sync_event_create_from_export", sides[1], blob, len(desc))
		is(t, code, status.NotFound)
		ok(t, call("doca_sync_event_destroy", imported))
		ok(t, call("doca_sync_event_destroy", owned))
		data.Free()
		size.Free()
		docatest.Free(blob)
	}
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}

func TestCapabilitiesOfSyncEvents(t *testing.T) {
	r := configure(t, libdoca.Config{Devices: []libdoca.Device{{PCI: dpuDevice},
		{PCI: hostDevice, Role: libdoca.Host, NoExport: true}}})
	dpu, host := openDevice(t, dpuDevice), openDevice(t, hostDevice)
	const yes, no = status.Success, status.NotSupported
	for name, want := range map[string][2]status.Code{
		"task_get_is": {yes, yes}, "task_notify_set_is": {yes, yes},
		"task_notify_add_is": {yes, yes}, "task_wait_eq_is": {yes, yes},
		"task_wait_neq_is": {yes, yes}, "is_export_to_remote_pci": {yes, no},
		"is_create_from_export": {yes, no}, "is_export_to_remote_net": {yes, yes},
		"remote_net_is_create_from_export": {yes, yes}, "is_export_to_dpa": {no, no},
		"is_export_to_gpu": {no, no}, "remote_net_is_export_to_dpa": {no, no},
		"remote_net_is_export_to_gpu": {no, no},
	} {
		function := "doca_sync_event_cap_" + name + "_supported"
		for i, dev := range []P{dpu, host} {
			info := docatest.Pointer("doca_dev_as_devinfo", dev)
			if got := call(function, info); got != want[i] {
				t.Errorf("%s of device %d is %v, expected %v", name, i, got, want[i])
			}
		}
		is(t, call(function, dpu), status.InvalidValue)
		r.expectMisuse(function, "the devinfo is a dev")
	}
	event := newEvent(t, host)
	ok(t, call("doca_sync_event_start", event))
	cells := [2]*docatest.Cell{docatest.NewCell(), docatest.NewCell()}
	is(t, call("doca_sync_event_export_to_remote_pci", event, host, cells[0], cells[1]), no)
	_, code := docatest.Get("doca_sync_event_create_from_export", host, cells[0], 8)
	is(t, code, no)
	cells[0].Free()
	cells[1].Free()
	for _, name := range []string{"add_publisher_location_dpa", "add_publisher_location_gpu",
		"add_subscriber_location_dpa", "add_subscriber_location_gpu", "get_dpa_handle",
		"get_gpu_handle", "remote_net_get_dpa_handle", "remote_net_get_gpu_handle"} {
		is(t, call("doca_sync_event_"+name, event, event, event), no)
	}
	ok(t, call("doca_sync_event_destroy", event))
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}
