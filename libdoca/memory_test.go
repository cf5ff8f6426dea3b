// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMisuseOfMaps(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, hostDevice)
	base := docatest.Alloc(4096)
	defer docatest.Free(base)
	cell := docatest.NewCell()
	defer cell.Free()
	mmap := create(t, "doca_mmap_create")

	for _, test := range []struct {
		function  string
		arguments []any
		want      status.Code
		rule      string
	}{
		{"doca_mmap_get_memrange", []any{mmap, cell, cell}, status.BadState, "no range"},
		{"doca_mmap_start", []any{mmap}, status.InvalidValue, "no range"},
		{"doca_mmap_stop", []any{mmap}, status.BadState, "not started"},
		{"doca_mmap_set_memrange", []any{mmap, base, 0}, status.InvalidValue, "no range"},
		{"doca_mmap_set_memrange", []any{mmap, base, ^uint64(0)}, status.InvalidValue, "no range"},
		{"doca_mmap_set_memrange", []any{mmap, base, 4096}, status.Success, ""},
		{"doca_mmap_set_memrange", []any{mmap, base, 4096}, status.NotPermitted, "once"},
		{"doca_mmap_set_permissions", []any{mmap, 48}, status.InvalidValue, "exclude"},
		{"doca_mmap_set_permissions", []any{mmap, 128}, status.InvalidValue, "unknown bits"},
		{"doca_mmap_start", []any{mmap}, status.InvalidValue, "no device"},
		{"doca_mmap_add_dev", []any{mmap, dev}, status.Success, ""},
		{"doca_mmap_add_dev", []any{mmap, dev}, status.AlreadyExist, "already"},
		{"doca_mmap_export_pci", []any{mmap, dev, cell, cell}, status.NotPermitted, "no PCI_"},
		{"doca_mmap_set_permissions", []any{mmap, localReadWrite | pciReadOnly}, status.Success, ""},
		{"doca_mmap_export_pci", []any{mmap, dev, cell, cell}, status.BadState, "not started"},
		{"doca_mmap_start", []any{mmap}, status.Success, ""},
		{"doca_mmap_start", []any{mmap}, status.BadState, "is started"},
		{"doca_mmap_set_permissions", []any{mmap, 0}, status.BadState, "is started"},
		{"doca_mmap_add_dev", []any{mmap, dev}, status.BadState, "is started"},
		{"doca_mmap_enable_thread_safety", []any{mmap}, status.BadState, "call it before"},
		{"doca_mmap_export_rdma", []any{mmap, dev, cell, cell}, status.NotPermitted, "no RDMA_"},
		{"doca_mmap_export_pci", []any{mmap, nil, cell, cell}, status.InvalidValue, "NULL"},
		{"doca_mmap_stop", []any{mmap}, status.Success, ""},
		{"doca_mmap_set_permissions", []any{mmap, 0}, status.Success, ""},
		{"doca_mmap_destroy", []any{mmap}, status.Success, ""},
		{"doca_mmap_destroy", []any{mmap}, status.InvalidValue, "has been destroyed"},
	} {
		if got := call(test.function, test.arguments...); got != test.want {
			t.Errorf("%s is %v, expected %v", test.function, got, test.want)
		}
		if test.rule != "" {
			r.expectMisuse(test.function, test.rule)
		}
	}
	ok(t, call("doca_dev_close", dev))
}

func TestAMapNeedsMemoryThatIsThere(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, hostDevice)
	region, err := unix.Mmap(-1, 0, 3*4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(region)
	start := unsafe.Pointer(&region[0])
	if err := unix.MunmapPtr(unsafe.Add(start, 4096), 4096); err != nil {
		t.Fatal(err)
	}
	for length, want := range map[int]status.Code{
		4096: status.Success, 17: status.Success, 4097: status.InvalidValue,
		3 * 4096: status.InvalidValue,
	} {
		mmap := create(t, "doca_mmap_create")
		ok(t, call("doca_mmap_add_dev", mmap, dev))
		ok(t, call("doca_mmap_set_memrange", mmap, start, length))
		if got := call("doca_mmap_start", mmap); got != want {
			t.Errorf("start with %d bytes is %v, expected %v", length, got, want)
		}
		if want != status.Success {
			r.expectMisuse("doca_mmap_start", "not all mapped")
		}
		ok(t, call("doca_mmap_destroy", mmap))
	}
	ok(t, call("doca_dev_close", dev))
}

func TestWindowsOfBufs(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	buf := m.buf(100, 200, 50)

	window := func(wantOffset, wantLength int) {
		t.Helper()
		data, code := docatest.Get("doca_buf_get_data", buf)
		ok(t, code)
		length, code := docatest.Get("doca_buf_get_data_len", buf)
		ok(t, code)
		if data.Pointer() != docatest.At(m.base, wantOffset) ||
			length.Uint64() != uint64(wantLength) {
			t.Errorf("the window is %d bytes at %p", length.Uint64(), data.Pointer())
		}
	}
	window(100, 50)
	ok(t, call("doca_buf_set_data", buf, docatest.At(m.base, 110), 190))
	window(110, 190)
	ok(t, call("doca_buf_reset_data_len", buf))
	window(110, 0)
	ok(t, call("doca_buf_set_data_len", buf, 190))
	window(110, 190)
	ok(t, call("doca_buf_inventory_buf_reuse_by_args", buf, m.base, 4096, m.base, 7))
	window(0, 7)

	for _, test := range []struct {
		function  string
		arguments []any
		rule      string
	}{
		{"doca_buf_set_data", []any{buf, m.base, 4097}, "outside the buf"},
		{"doca_buf_set_data", []any{buf, docatest.At(m.base, 4096), 1}, "outside the buf"},
		{"doca_buf_set_data", []any{buf, docatest.At(m.base, -1), 1}, "outside the buf"},
		{"doca_buf_set_data", []any{buf, m.base, ^uint64(0)}, "outside the buf"},
		{"doca_buf_set_data_len", []any{buf, 4097}, "outside the buf"},
		{"doca_buf_inventory_buf_reuse_by_args", []any{buf, m.base, 4097, m.base, 0},
			"outside the map"},
		{"doca_buf_inventory_buf_get_by_args", []any{m.inventory, m.mmap, docatest.At(m.base, 1),
			4096, m.base, 0, m.base}, "outside the map"},
		{"doca_buf_inventory_buf_get_by_args", []any{m.inventory, m.mmap, m.base, 10, m.base, 11,
			m.base}, "outside the buf"},
	} {
		is(t, call(test.function, test.arguments...), status.InvalidValue)
		r.expectMisuse(test.function, test.rule)
	}
	window(0, 7)
	release(t, buf)
	m.destroy()
	ok(t, call("doca_dev_close", dev))
}

func TestReferencesOfBufs(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	bufs := make([]P, 0, 16)
	for i := range 16 {
		bufs = append(bufs, m.buf(16*i, 16, 0))
	}
	_, code := docatest.Get("doca_buf_inventory_buf_get_by_args", m.inventory, m.mmap, m.base, 1,
		m.base, 0)
	is(t, code, status.NoMemory)

	is(t, call("doca_buf_inventory_destroy", m.inventory), status.InUse)
	r.expectMisuse("doca_buf_inventory_destroy", "16 bufs are out")
	is(t, call("doca_mmap_destroy", m.mmap), status.NotPermitted)
	r.expectMisuse("doca_mmap_destroy", "16 bufs refer to the map")
	is(t, call("doca_mmap_stop", m.mmap), status.NotPermitted)
	r.expectMisuse("doca_mmap_stop", "16 bufs")

	count, code := docatest.Get("doca_buf_inc_refcount", bufs[0])
	if code != status.Success || count.Uint32() != 1 {
		t.Errorf("the first buf had %d references, %v", count.Uint32(), code)
	}
	release(t, bufs[0], bufs[0])
	is(t, call("doca_buf_dec_refcount", bufs[0], nil), status.BadState)
	r.expectMisuse("doca_buf_dec_refcount", "returned to its inventory")
	if again := m.buf(0, 16, 0); again != bufs[0] {
		t.Error("the inventory had another buf")
	}

	ok(t, call("doca_buf_chain_list", bufs[0], bufs[1]))
	ok(t, call("doca_buf_chain_list", bufs[0], bufs[2]))
	next, code := docatest.Get("doca_buf_get_next_in_list", bufs[1])
	if code != status.Success || next.Pointer() != bufs[2] {
		t.Errorf("the third buf does not follow the second: %v", code)
	}
	is(t, call("doca_buf_chain_list", bufs[0], bufs[1]), status.InvalidValue)
	r.expectMisuse("doca_buf_chain_list", "heads")
	is(t, call("doca_buf_dec_refcount", bufs[1], nil), status.NotPermitted)
	r.expectMisuse("doca_buf_dec_refcount", "not the head")
	release(t, bufs[0]) // and those chained to it
	release(t, bufs[3:]...)
	m.destroy()
	is(t, call("doca_buf_dec_refcount", bufs[0], nil), status.InvalidValue)
	r.expectMisuse("doca_buf_dec_refcount", "has been destroyed")
	ok(t, call("doca_dev_close", dev))
}

func TestPropertiesOfMaps(t *testing.T) {
	r := configure(t, libdoca.Config{})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	base := docatest.Alloc(4096)
	mmap := create(t, "doca_mmap_create")
	property := func(function string, mmap P, want uint64) {
		t.Helper()
		got, code := docatest.Get(function, mmap)
		if code != status.Success || got.Uint64() != want {
			t.Errorf("%s is %d, expected %d: %v", function, got.Uint64(), want, code)
		}
	}
	misuse := func(want status.Code, rule, function string, arguments ...any) {
		t.Helper()
		is(t, call(function, arguments...), want)
		r.expectMisuse(function, rule)
	}
	property("doca_mmap_get_user_data", mmap, 0)
	property("doca_mmap_get_max_num_devices", mmap, 64)
	ok(t, call("doca_mmap_set_user_data", mmap, 77))
	ok(t, call("doca_mmap_set_max_num_devices", mmap, 1))
	misuse(status.InvalidValue, "65 devices", "doca_mmap_set_max_num_devices", mmap, 65)
	misuse(status.InvalidValue, "0 devices", "doca_mmap_set_max_num_devices", mmap, 0)
	is(t, call("doca_mmap_rm_dev", mmap, host), status.NotFound)
	ok(t, call("doca_mmap_add_dev", mmap, host))
	is(t, call("doca_mmap_add_dev", mmap, dpu), status.NoMemory)
	ok(t, call("doca_mmap_rm_dev", mmap, host))
	ok(t, call("doca_mmap_add_dev", mmap, dpu))
	ok(t, call("doca_mmap_set_max_num_devices", mmap, 2))
	ok(t, call("doca_mmap_add_dev", mmap, host))
	misuse(status.InvalidValue, "1 devices", "doca_mmap_set_max_num_devices", mmap, 1)
	is(t, call("doca_mmap_set_dmabuf_memrange", mmap, 0, base, 0, 4096), status.NotSupported)
	ok(t, call("doca_mmap_set_memrange", mmap, base, 4096))
	ok(t, call("doca_mmap_set_permissions", mmap, localReadWrite|pciReadOnly|rdmaRead))
	ok(t, call("doca_mmap_start", mmap))

	misuse(status.BadState, "is started", "doca_mmap_rm_dev", mmap, dpu)
	misuse(status.BadState, "is started", "doca_mmap_set_user_data", mmap, 1)
	misuse(status.NotPermitted, "is started", "doca_mmap_set_max_num_devices", mmap, 3)
	property("doca_mmap_get_user_data", mmap, 77)
	property("doca_mmap_get_max_num_devices", mmap, 2)
	property("doca_mmap_get_from_export", mmap, 0)

	ok(t, call("doca_mmap_stop", mmap))
	misuse(status.NotPermitted, "first start", "doca_mmap_set_max_num_devices", mmap, 3)
	ok(t, call("doca_mmap_rm_dev", mmap, dpu))
	ok(t, call("doca_dev_close", dpu)) // the map does not use it any more
	dpu = openDevice(t, dpuDevice)
	ok(t, call("doca_mmap_add_dev", mmap, dpu))
	ok(t, call("doca_mmap_start", mmap))

	property("doca_mmap_get_exported", mmap, 0)
	desc := export(t, "doca_mmap_export_pci", mmap, host)
	property("doca_mmap_get_exported", mmap, 1)
	imported, code := importMap(desc, dpu)
	ok(t, code)
	property("doca_mmap_get_from_export", imported, 1)
	property("doca_mmap_get_exported", imported, 0)
	misuse(status.NotPermitted, "is imported", "doca_mmap_rm_dev", imported, dpu)
	ok(t, call("doca_mmap_destroy", imported))

	inventory := create(t, "doca_buf_inventory_create", 2)
	ok(t, call("doca_buf_inventory_start", inventory))
	buf := create(t, "doca_buf_inventory_buf_get_by_args", inventory, mmap, base, 1, base, 0)
	property("doca_mmap_get_num_bufs", mmap, 1)
	release(t, buf)
	property("doca_mmap_get_num_bufs", mmap, 0)
	ok(t, call("doca_buf_inventory_destroy", inventory))

	misuse(status.NotPermitted, "has been exported", "doca_mmap_stop", mmap)
	ok(t, call("doca_mmap_destroy", mmap))
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
	docatest.Free(base)

	// A map that threads share does not tell the number of its bufs, but has it.
	dpu = openDevice(t, dpuDevice)
	shared := newMemory(t, dpu, 4096, localReadWrite)
	ok(t, call("doca_mmap_stop", shared.mmap))
	ok(t, call("doca_mmap_enable_thread_safety", shared.mmap))
	ok(t, call("doca_mmap_start", shared.mmap))
	buf = shared.buf(0, 8, 8)
	_, code = docatest.Get("doca_mmap_get_num_bufs", shared.mmap)
	is(t, code, status.NotSupported)
	misuse(status.NotPermitted, "1 bufs", "doca_mmap_stop", shared.mmap)
	misuse(status.NotPermitted, "1 bufs", "doca_mmap_destroy", shared.mmap)
	release(t, buf)
	shared.destroy()
	ok(t, call("doca_dev_close", dpu))
}

// The callback that frees memory is called by the end of a map that has been started with it, when
// nothing uses the memory any more.
func TestMemoryIsFreedWithItsMap(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, hostDevice)
	base := docatest.Alloc(4096)
	defer docatest.Free(base)
	callback := docatest.Callback(docatest.Freed)
	for _, test := range []struct {
		name  string
		use   func(mmap P)
		freed bool
	}{
		{"never started", func(P) {}, false},
		{"started", func(mmap P) {
			ok(t, call("doca_mmap_start", mmap))
			is(t, call("doca_mmap_set_free_cb", mmap, callback, nil), status.BadState)
			r.expectMisuse("doca_mmap_set_free_cb", "is started")
		}, true},
		{"exported", func(mmap P) {
			ok(t, call("doca_mmap_start", mmap))
			export(t, "doca_mmap_export_pci", mmap, dev)
		}, true},
		{"stopped", func(mmap P) {
			ok(t, call("doca_mmap_start", mmap))
			ok(t, call("doca_mmap_stop", mmap))
		}, true},
		{"changed later", func(mmap P) {
			ok(t, call("doca_mmap_start", mmap))
			ok(t, call("doca_mmap_stop", mmap))
			ok(t, call("doca_mmap_set_free_cb", mmap, callback, 2))
		}, false},
	} {
		mmap := create(t, "doca_mmap_create")
		is(t, call("doca_mmap_set_free_cb", mmap, nil, nil), status.InvalidValue)
		r.expectMisuse("doca_mmap_set_free_cb", "NULL")
		ok(t, call("doca_mmap_set_free_cb", mmap, callback, 1))
		ok(t, call("doca_mmap_add_dev", mmap, dev))
		ok(t, call("doca_mmap_set_memrange", mmap, base, 4096))
		ok(t, call("doca_mmap_set_permissions", mmap, pciReadOnly))
		test.use(mmap)
		if events := docatest.Take(); len(events) > 0 {
			t.Errorf("%s: called back too early: %+v", test.name, events)
		}
		docatest.OnEvent(func(docatest.Event) {
			if live := libdoca.Objects()["mmap"]; live != 0 {
				t.Errorf("%s: called back while %d maps exist", test.name, live)
			}
		})
		ok(t, call("doca_mmap_destroy", mmap))
		docatest.OnEvent(nil)
		events := docatest.Take()
		if len(events) != map[bool]int{true: 1}[test.freed] {
			t.Errorf("%s: the events are %+v", test.name, events)
			continue
		}
		if test.freed && (events[0].Object != base || events[0].A != 4096 || events[0].B != 1) {
			t.Errorf("%s: freed %+v", test.name, events[0])
		}
	}
	ok(t, call("doca_dev_close", dev))
}

// export returns a copy of what exports a map.
func export(t testing.TB, function string, mmap, dev P) []byte {
	t.Helper()
	desc, length := docatest.NewCell(), docatest.NewCell()
	defer desc.Free()
	defer length.Free()
	ok(t, call(function, mmap, dev, desc, length))
	return bytes.Clone(docatest.Bytes(desc.Result().Pointer(), int(length.Result().Uint64())))
}

// importMap calls doca_mmap_create_from_export.
func importMap(desc []byte, dev P) (P, status.Code) {
	buffer := docatest.Alloc(len(desc) + 1)
	defer docatest.Free(buffer)
	copy(docatest.Bytes(buffer, len(desc)), desc)
	mmap, code := docatest.Get("doca_mmap_create_from_export", nil, buffer, len(desc), dev)
	return mmap.Pointer(), code
}

func TestImportedMaps(t *testing.T) {
	r := configure(t, libdoca.Config{})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	m := newMemory(t, host, 8192, localReadWrite|pciReadWrite|rdmaRead)
	desc := export(t, "doca_mmap_export_pci", m.mmap, host)
	if again := export(t, "doca_mmap_export_pci", m.mmap, host); !bytes.Equal(again, desc) {
		t.Error("exporting twice gave two descriptors")
	}

	_, code := importMap(desc, host)
	is(t, code, status.NotSupported) // it is the host's own
	for i := range desc {
		forged := bytes.Clone(desc)
		forged[i] ^= 0x40
		if _, code := importMap(forged, dpu); code == status.Success {
			t.Errorf("imported a descriptor whose byte %d is wrong", i)
		}
	}
	for _, length := range []int{0, 1, len(desc) - 1} {
		_, code := importMap(desc[:length], dpu)
		is(t, code, status.InvalidValue)
	}
	imported, code := importMap(desc, dpu)
	ok(t, code)
	address, length := docatest.NewCell(), docatest.NewCell()
	defer address.Free()
	defer length.Free()
	ok(t, call("doca_mmap_get_memrange", imported, address, length))
	if address.Result().Pointer() != m.base || length.Result().Uint64() != 8192 {
		t.Errorf("the imported map has %d bytes at %p", length.Result().Uint64(),
			address.Result().Pointer())
	}

	is(t, call("doca_mmap_set_permissions", imported, 0), status.NotPermitted)
	r.expectMisuse("doca_mmap_set_permissions", "is imported")
	is(t, call("doca_mmap_export_pci", imported, dpu, address, length), status.NotSupported)

	// A PCI import is exported for RDMA, with the address of the first exporter.
	third, code := importMap(export(t, "doca_mmap_export_rdma", imported, dpu), dpu)
	ok(t, code)
	ok(t, call("doca_mmap_get_memrange", third, address, length))
	if address.Result().Pointer() != m.base {
		t.Errorf("the second import has address %p", address.Result().Pointer())
	}
	ok(t, call("doca_mmap_destroy", third))

	// An import is stopped like any map, but not as long as a buf needs it. An exported map is not:
	// only its end takes the memory away from peers.
	inventory := create(t, "doca_buf_inventory_create", 1)
	ok(t, call("doca_buf_inventory_start", inventory))
	buf := create(t, "doca_buf_inventory_buf_get_by_args", inventory, imported, m.base, 8, m.base, 0)
	is(t, call("doca_mmap_stop", imported), status.NotPermitted)
	r.expectMisuse("doca_mmap_stop", "1 bufs")
	release(t, buf)
	ok(t, call("doca_buf_inventory_destroy", inventory))
	ok(t, call("doca_mmap_stop", imported))
	is(t, call("doca_mmap_stop", imported), status.BadState)
	r.expectMisuse("doca_mmap_stop", "not started")
	ok(t, call("doca_mmap_destroy", imported))
	is(t, call("doca_mmap_stop", m.mmap), status.NotPermitted)
	r.expectMisuse("doca_mmap_stop", "has been exported")
	imported, code = importMap(desc, dpu)
	ok(t, code)
	ok(t, call("doca_mmap_destroy", imported))

	ok(t, call("doca_mmap_destroy", m.mmap))
	_, code = importMap(desc, dpu)
	is(t, code, status.NotFound)
	ok(t, call("doca_buf_inventory_destroy", m.inventory))
	docatest.Free(m.base)
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}
