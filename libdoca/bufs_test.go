// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// expectList checks that bufs are one list, in this order.
func expectList(t *testing.T, bufs ...P) {
	t.Helper()
	count, code := docatest.Get("doca_buf_get_list_len", bufs[0])
	if code != status.Success || int(count.Uint32()) != len(bufs) {
		t.Errorf("the list has %d bufs, expected %d: %v", count.Uint32(), len(bufs), code)
	}
	for i, buf := range bufs {
		var next P
		if i+1 < len(bufs) {
			next = bufs[i+1]
		}
		for _, test := range []struct {
			function string
			want     bool
		}{
			{"doca_buf_is_first_in_list", i == 0},
			{"doca_buf_is_last_in_list", next == nil},
			{"doca_buf_is_in_list", len(bufs) > 1},
		} {
			got, code := docatest.Get(test.function, buf)
			if code != status.Success || (got.Uint8() == 1) != test.want {
				t.Errorf("%s of buf %d is %d, %v", test.function, i, got.Uint8(), code)
			}
		}
		got, code := docatest.Get("doca_buf_get_next_in_list", buf)
		if code != status.Success || got.Pointer() != next {
			t.Errorf("buf %d is not followed by the next one: %v", i, code)
		}
		got, code = docatest.Get("doca_buf_get_last_in_list", buf)
		if code != status.Success || got.Pointer() != bufs[len(bufs)-1] {
			t.Errorf("the last buf behind buf %d is another: %v", i, code)
		}
	}
}

func TestListsOfBufs(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	var bufs []P
	for i := range 6 {
		bufs = append(bufs, m.buf(16*i, 16, i))
	}
	expectList(t, bufs[0])
	ok(t, call("doca_buf_chain_list_tail", bufs[0], bufs[0], bufs[1]))
	ok(t, call("doca_buf_chain_list_tail", bufs[0], bufs[1], bufs[2]))
	ok(t, call("doca_buf_chain_list", bufs[3], bufs[4]))
	ok(t, call("doca_buf_chain_list_tail", bufs[0], bufs[2], bufs[3]))
	expectList(t, bufs[:5]...)

	for _, test := range []struct {
		function  string
		arguments []any
		want      status.Code
		rule      string
	}{
		{"doca_buf_chain_list_tail", []any{bufs[0], bufs[3], bufs[5]}, status.InvalidValue,
			"not the last"},
		{"doca_buf_chain_list_tail", []any{bufs[5], bufs[4], bufs[0]}, status.InvalidValue,
			"not the last"},
		{"doca_buf_chain_list_tail", []any{bufs[0], bufs[4], bufs[0]}, status.InvalidValue,
			"different lists"},
		{"doca_buf_chain_list_tail", []any{bufs[0], nil, bufs[5]}, status.InvalidValue, "NULL"},
		{"doca_buf_get_list_len", []any{bufs[1], m.base}, status.NotPermitted, "not the head"},
		{"doca_buf_unchain_list", []any{bufs[0], bufs[0]}, status.InvalidValue, "behind"},
		{"doca_buf_unchain_list", []any{bufs[2], bufs[1]}, status.InvalidValue, "behind"},
		{"doca_buf_unchain_list", []any{bufs[0], bufs[5]}, status.InvalidValue, "behind"},
	} {
		is(t, call(test.function, test.arguments...), test.want)
		r.expectMisuse(test.function, test.rule)
	}
	expectList(t, bufs[:5]...)

	// A list is taken apart from any buf before the cut.
	ok(t, call("doca_buf_unchain_list", bufs[1], bufs[3]))
	expectList(t, bufs[:3]...)
	expectList(t, bufs[3:5]...)
	ok(t, call("doca_buf_unchain_list", bufs[0], bufs[1]))
	expectList(t, bufs[0])
	expectList(t, bufs[1:3]...)

	// Only a list with one reference can be appended.
	_, code := docatest.Get("doca_buf_inc_refcount", bufs[3])
	ok(t, code)
	is(t, call("doca_buf_chain_list", bufs[1], bufs[3]), status.NotPermitted)
	r.expectMisuse("doca_buf_chain_list", "2 references")
	release(t, bufs[0], bufs[1], bufs[3], bufs[3], bufs[5])
	is(t, call("doca_buf_unchain_list", bufs[3], bufs[4]), status.BadState)
	r.expectMisuse("doca_buf_unchain_list", "returned to its inventory")
	m.destroy() // all of them have been returned
	ok(t, call("doca_dev_close", dev))
}

// expectElements checks how many bufs an inventory has, and how many of them are free.
func expectElements(t *testing.T, inventory P, all, free uint32) {
	t.Helper()
	gotAll, code := docatest.Get("doca_buf_inventory_get_num_elements", inventory)
	ok(t, code)
	gotFree, code := docatest.Get("doca_buf_inventory_get_num_free_elements", inventory)
	ok(t, code)
	if gotAll.Uint32() != all || gotFree.Uint32() != free {
		t.Errorf("%d of %d bufs are free, expected %d of %d", gotFree.Uint32(), gotAll.Uint32(),
			free, all)
	}
}

func TestInventoriesGrow(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	inventory := create(t, "doca_buf_inventory_create", 1)
	expectElements(t, inventory, 1, 1)
	is(t, call("doca_buf_inventory_expand", inventory, 1), status.BadState)
	r.expectMisuse("doca_buf_inventory_expand", "not started")
	ok(t, call("doca_buf_inventory_start", inventory))
	is(t, call("doca_buf_inventory_expand", inventory, 0), status.InvalidValue)
	r.expectMisuse("doca_buf_inventory_expand", "0 bufs")

	take := func() P {
		return create(t, "doca_buf_inventory_buf_get_by_args", inventory, m.mmap, m.base, 16,
			m.base, 0)
	}
	bufs := []P{take()}
	is(t, call("doca_buf_inventory_expand", inventory, 1<<32-1), status.NoMemory)
	ok(t, call("doca_buf_inventory_expand", inventory, 3))
	expectElements(t, inventory, 4, 3)
	for range 3 {
		bufs = append(bufs, take()) // the first one stays where it is
	}
	expectElements(t, inventory, 4, 0)
	_, code := docatest.Get("doca_buf_inventory_buf_get_by_args", inventory, m.mmap, m.base, 16,
		m.base, 0)
	is(t, code, status.NoMemory)
	release(t, bufs...)
	expectElements(t, inventory, 4, 4)

	ok(t, call("doca_buf_inventory_set_user_data", inventory, 77))
	data, code := docatest.Get("doca_buf_inventory_get_user_data", inventory)
	if code != status.Success || data.Uint64() != 77 {
		t.Errorf("the user data is %d, %v", data.Uint64(), code)
	}
	ok(t, call("doca_buf_inventory_destroy", inventory))
	is(t, call("doca_buf_dec_refcount", bufs[3], nil), status.InvalidValue)
	r.expectMisuse("doca_buf_dec_refcount", "has been destroyed")
	m.destroy()
	ok(t, call("doca_dev_close", dev))
}

func TestDuplicatesOfBufs(t *testing.T) {
	r := configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	inventory := create(t, "doca_buf_inventory_create", 2)
	list := []P{m.buf(0, 100, 10), m.buf(100, 50, 5), m.buf(200, 1, 1)}
	ok(t, call("doca_buf_chain_list", list[0], list[1]))
	_, code := docatest.Get("doca_buf_inventory_buf_dup", inventory, list[0])
	is(t, code, status.BadState)
	r.expectMisuse("doca_buf_inventory_buf_dup", "inventory is not started")
	ok(t, call("doca_buf_inventory_start", inventory))
	_, code = docatest.Get("doca_buf_inventory_buf_dup", inventory, list[1])
	is(t, code, status.NotPermitted)
	r.expectMisuse("doca_buf_inventory_buf_dup", "not the head")

	// The duplicate has the ranges, and a life of its own.
	copied := create(t, "doca_buf_inventory_buf_dup", inventory, list[0])
	next, code := docatest.Get("doca_buf_get_next_in_list", copied)
	ok(t, code)
	expectList(t, copied, next.Pointer())
	for function, want := range map[string]uint64{"doca_buf_get_len": 50,
		"doca_buf_get_data_len": 5} {
		if got, code := docatest.Get(function, next.Pointer()); got.Uint64() != want {
			t.Errorf("%s of the duplicate is %d, expected %d: %v", function, got.Uint64(), want,
				code)
		}
	}
	ok(t, call("doca_buf_reset_data_len", copied))
	length, _ := docatest.Get("doca_buf_get_data_len", list[0])
	if length.Uint64() != 10 {
		t.Errorf("the original has %d bytes, expected 10", length.Uint64())
	}
	release(t, copied)

	// One that does not fit takes nothing.
	ok(t, call("doca_buf_chain_list", list[0], list[2]))
	_, code = docatest.Get("doca_buf_inventory_buf_dup", inventory, list[0])
	is(t, code, status.NoMemory)
	expectElements(t, inventory, 2, 2)
	ok(t, call("doca_buf_inventory_destroy", inventory))
	release(t, list[0])
	m.destroy()
	ok(t, call("doca_dev_close", dev))
}
