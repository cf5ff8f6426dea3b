// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) {
	if os.Getenv(streamVariable) != "" {
		os.Exit(m.Run()) // it leaves its objects as they are
	}
	goleak.VerifyTestMain(m)
}

// P and call save the tests some length.
type P = docatest.P

var call = docatest.Call

// rig is a configured library. At the end of the test, no object may exist, and no misuse may have
// been reported but what the test expects.
type rig struct {
	t  testing.TB
	mu sync.Mutex

	misuses []libdoca.Misuse
}

func configure(t testing.TB, config libdoca.Config) *rig {
	t.Helper()
	r := &rig{t: t}
	config.Report = func(m libdoca.Misuse) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.misuses = append(r.misuses, m)
	}
	if config.Directory == "" {
		config.Directory = t.TempDir()
	}
	if err := libdoca.Configure(config); err != nil {
		t.Fatal(err)
	}
	docatest.Take()
	t.Cleanup(func() {
		docatest.OnEvent(nil)
		if live := libdoca.Objects(); len(live) > 0 {
			t.Errorf("objects exist: %v", live)
		}
		for _, m := range r.takeMisuses() {
			t.Errorf("misuse: %s: %s", m.Function, m.Rule)
		}
	})
	return r
}

func (r *rig) takeMisuses() []libdoca.Misuse {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.misuses
	r.misuses = nil
	return taken
}

// expectMisuse checks that exactly one misuse has been reported, of function, whose rule contains
// text.
func (r *rig) expectMisuse(function, text string) {
	r.t.Helper()
	misuses := r.takeMisuses()
	if len(misuses) != 1 || misuses[0].Function != function ||
		!strings.Contains(misuses[0].Rule, text) {
		r.t.Errorf("misuses are %q, expected one of %s: %q", misuses, function, text)
	}
}

// is checks the result of a call.
func is(t testing.TB, got, want status.Code) {
	t.Helper()
	if got != want {
		t.Fatalf("the result is %v, expected %v", got, want)
	}
}

// ok checks that a call succeeded.
func ok(t testing.TB, got status.Code) {
	t.Helper()
	is(t, got, status.Success)
}

// create calls a function whose last argument is where it stores an object.
func create(t testing.TB, name string, arguments ...any) P {
	t.Helper()
	result, code := docatest.Get(name, arguments...)
	if code != status.Success {
		t.Fatalf("%s: %v", name, code)
	}
	return result.Pointer()
}

// openDevice opens the device with the given address.
func openDevice(t testing.TB, pci string) P {
	t.Helper()
	list, count := devices(t)
	defer call("doca_devinfo_destroy_list", list)
	for i := range count {
		info := docatest.Load(docatest.At(list, 8*i))
		equal, code := docatest.Get("doca_devinfo_is_equal_pci_addr", info, pci)
		ok(t, code)
		if equal.Uint8() == 1 {
			return create(t, "doca_dev_open", info)
		}
	}
	t.Fatalf("no device has the address %s", pci)
	return nil
}

// devices lists the devices. The caller destroys the list.
func devices(t testing.TB) (list P, count int) {
	t.Helper()
	first, second := docatest.NewCell(), docatest.NewCell()
	defer first.Free()
	defer second.Free()
	ok(t, call("doca_devinfo_create_list", first, second))
	return first.Result().Pointer(), int(second.Result().Uint32())
}

// The addresses of the devices that Configure makes by default.
const (
	dpuDevice  = "03:00.0"
	hostDevice = "0000:b1:00.0"
)

// The values of doca_access_flag and of the states.
const (
	localReadWrite = 1
	rdmaRead       = 2
	pciReadOnly    = 16
	pciReadWrite   = 32

	idle     = 0
	starting = 1
	running  = 2
	stopping = 3
)

// memory is a started map of size bytes of C memory, and an inventory.
type memory struct {
	t               testing.TB
	bytes           []byte
	base            P
	mmap, inventory P
}

func newMemory(t testing.TB, dev P, size int, access int) *memory {
	t.Helper()
	base := docatest.Alloc(size)
	m := &memory{t: t, base: base, bytes: docatest.Bytes(base, size)}
	m.mmap = create(t, "doca_mmap_create")
	ok(t, call("doca_mmap_add_dev", m.mmap, dev))
	ok(t, call("doca_mmap_set_memrange", m.mmap, base, size))
	ok(t, call("doca_mmap_set_permissions", m.mmap, access))
	ok(t, call("doca_mmap_start", m.mmap))
	m.inventory = create(t, "doca_buf_inventory_create", 16)
	ok(t, call("doca_buf_inventory_start", m.inventory))
	return m
}

func (m *memory) destroy() {
	m.t.Helper()
	ok(m.t, call("doca_buf_inventory_destroy", m.inventory))
	ok(m.t, call("doca_mmap_destroy", m.mmap))
	docatest.Free(m.base)
}

// buf takes a buf for length bytes at offset, of which data are valid.
func (m *memory) buf(offset, length, data int) P {
	m.t.Helper()
	at := docatest.At(m.base, offset)
	return create(m.t, "doca_buf_inventory_buf_get_by_args", m.inventory, m.mmap, at, length, at,
		data)
}

func release(t testing.TB, bufs ...P) {
	t.Helper()
	for _, buf := range bufs {
		ok(t, call("doca_buf_dec_refcount", buf, nil))
	}
}

// stateOf returns the state of a context.
func stateOf(t testing.TB, ctx P) int {
	t.Helper()
	state, code := docatest.Get("doca_ctx_get_state", ctx)
	ok(t, code)
	return int(state.Uint32())
}

func inflight(t testing.TB, ctx P) int {
	t.Helper()
	count, code := docatest.Get("doca_ctx_get_num_inflight_tasks", ctx)
	ok(t, code)
	return int(count.Uint64())
}

// kinds returns the kinds of events, in order.
func kinds(events []docatest.Event) (all []docatest.Kind) {
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return all
}

func expectKinds(t testing.TB, events []docatest.Event, want ...docatest.Kind) {
	t.Helper()
	if got := kinds(events); !slices.Equal(got, want) {
		t.Fatalf("the events are %v, expected %v", got, want)
	}
}

// drain progresses an engine until nothing happens, and returns how often something did.
func drain(pe P) (n int) {
	for docatest.Progress(pe) {
		n++
	}
	return n
}
