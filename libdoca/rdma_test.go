// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// remote is an RDMA context with a connection by details.
type remote struct {
	t                              testing.TB
	dev, rdma, ctx, pe, connection P
	details, detailsLength         *docatest.Cell
}

// newRemote creates a context that has not started.
func newRemote(t testing.TB) *remote {
	t.Helper()
	r := &remote{t: t, dev: openDevice(t, dpuDevice)}
	r.rdma = create(t, "doca_rdma_create", r.dev)
	r.ctx, r.pe = docatest.Pointer("doca_rdma_as_ctx", r.rdma), create(t, "doca_pe_create")
	ok(t, call("doca_pe_connect_ctx", r.pe, r.ctx))
	return r
}

// tasks configures tasks of a type.
func (r *remote) tasks(kind string, count int) {
	r.t.Helper()
	ok(r.t, call("doca_rdma_task_"+kind+"_set_conf", r.rdma, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), count))
}

// start starts the context, and exports a connection.
func (r *remote) start() {
	r.t.Helper()
	ok(r.t, call("doca_ctx_start", r.ctx))
	r.details, r.detailsLength = docatest.NewCell(), docatest.NewCell()
	r.connection = create(r.t, "doca_rdma_export", r.rdma, r.details, r.detailsLength)
}

// destroy stops the context, frees the tasks, and destroys it.
func (r *remote) destroy(tasks ...P) {
	r.t.Helper()
	if r.details != nil {
		r.details.Free()
		r.detailsLength.Free()
		stop(r.t, r.ctx, r.pe, tasks...)
	}
	ok(r.t, call("doca_rdma_destroy", r.rdma))
	ok(r.t, call("doca_pe_destroy", r.pe))
	ok(r.t, call("doca_dev_close", r.dev))
}

// get returns what a getter of a context stores.
func (r *remote) get(name string) int {
	r.t.Helper()
	value, code := docatest.Get("doca_rdma_"+name, r.rdma)
	ok(r.t, code)
	return int(value.Uint32())
}

func TestPropertiesOfRDMA(t *testing.T) {
	rig := configure(t, libdoca.Config{})
	r := newRemote(t)
	for _, property := range []struct {
		name           string
		initial        int
		set, want      int
		isWrong, isNot []int // numbers that are misuse, and that are not supported
	}{
		{"gid_index", 0, 255, 255, []int{256}, nil},
		{"grh_enabled", 1, 0, 0, []int{2}, nil},
		{"mtu", 2, 4, 4, []int{6}, []int{5}},
		{"send_queue_size", 65536, 5, 8, []int{0, 65537}, nil},
		{"recv_queue_size", 65536, 64, 64, []int{0, 65537}, nil},
		{"rnr_retry_count", 7, 0, 0, []int{8}, nil},
		{"sl", 0, 15, 15, []int{16}, nil},
		{"connection_request_timeout", 30000, 65535, 65535, []int{0}, nil},
		{"max_num_connections", 16, 4096, 4096, []int{0, 4097}, nil},
		{"max_send_buf_list_len", 1, 1, 1, []int{0, 2}, nil},
		{"transport_type", 0, 0, 0, nil, []int{1}},
		{"task_receive_%s_dst_buf_list_len", 1, 1, 1, []int{0, 2}, nil},
	} {
		setter, getter := "set_"+property.name, "get_"+property.name
		if strings.Contains(property.name, "%s") {
			setter = strings.Replace(property.name, "%s", "set", 1)
			getter = strings.Replace(property.name, "%s", "get", 1)
		}
		if got := r.get(getter); got != property.initial {
			t.Errorf("%s is %d before it is set, expected %d", getter, got, property.initial)
		}
		ok(t, call("doca_rdma_"+setter, r.rdma, property.set))
		for _, value := range property.isWrong {
			is(t, call("doca_rdma_"+setter, r.rdma, value), status.InvalidValue)
			rig.expectMisuse("doca_rdma_"+setter, "not between")
		}
		for _, value := range property.isNot {
			is(t, call("doca_rdma_"+setter, r.rdma, value), status.NotSupported)
		}
		if got := r.get(getter); got != property.want {
			t.Errorf("%s is %d, expected %d", getter, got, property.want)
		}
		is(t, call("doca_rdma_"+getter, r.rdma, nil), status.InvalidValue)
		rig.expectMisuse("doca_rdma_"+getter, "is NULL")
	}
	r.start()
	is(t, call("doca_rdma_set_mtu", r.rdma, 1), status.BadState)
	rig.expectMisuse("doca_rdma_set_mtu", "idle")
	r.destroy()
}

// A queue takes as many tasks as its size says, and more once some have come back.
func TestSizesOfQueues(t *testing.T) {
	configure(t, libdoca.Config{})
	r := newRemote(t)
	r.tasks("receive", 5)
	r.tasks("send", 5)
	ok(t, call("doca_rdma_set_recv_queue_size", r.rdma, 3)) // it becomes 4
	ok(t, call("doca_rdma_set_send_queue_size", r.rdma, 2))
	r.start()
	other := newRemote(t)
	other.start()
	ok(t, call("doca_rdma_connect", r.rdma, other.details.Result().Pointer(),
		other.detailsLength.Result().Uint64(), r.connection))
	ok(t, call("doca_rdma_connect", other.rdma, r.details.Result().Pointer(),
		r.detailsLength.Result().Uint64(), other.connection))
	var tasks []P
	for i := range 5 {
		receive := create(t, "doca_rdma_task_receive_allocate_init", r.rdma, nil, 0)
		want := status.Success
		if i == 4 {
			want = status.Again
		}
		is(t, call("doca_task_submit", receive), want)
		tasks = append(tasks, receive)
	}
	for i := range 3 { // nobody receives them
		send := create(t, "doca_rdma_task_send_allocate_init", r.rdma, r.connection, nil, 0)
		want := status.Success
		if i == 2 {
			want = status.Again
		}
		is(t, call("doca_task_submit", send), want)
		tasks = append(tasks, send)
	}
	other.destroy() // the sends fail, and leave the queue
	until(t, "sends fail", func() bool { return inflight(t, r.ctx) == 4 }, r.pe)
	r.destroy(tasks...)
}

func TestGIDs(t *testing.T) {
	rig := configure(t, libdoca.Config{Devices: []libdoca.Device{
		{PCI: "0000:03:00.0", IBDevice: "mlx5_0", Role: libdoca.DPU,
			IPv4: netip.MustParseAddr("192.0.2.7")}}})
	dev := openDevice(t, dpuDevice)
	info := docatest.Pointer("doca_dev_as_devinfo", dev)
	size, code := docatest.Get("doca_rdma_cap_get_gid_table_size", info)
	ok(t, code)
	gids := docatest.Alloc(16 * 8)
	defer docatest.Free(gids)
	ok(t, call("doca_rdma_cap_get_gid", info, 2, 4, gids))
	want := netip.MustParseAddr("::ffff:192.0.2.7").As16()
	for i, expected := range [][16]byte{want, want, {}, {}} {
		if got := [16]byte(docatest.Bytes(docatest.At(gids, 16*i), 16)); got != expected {
			t.Errorf("GID %d is %x, expected %x", 2+i, got, expected)
		}
	}
	ok(t, call("doca_rdma_cap_get_gid", info, size.Uint32()-1, 1, gids))
	for _, start := range []uint32{size.Uint32(), 1<<32 - 1} {
		is(t, call("doca_rdma_cap_get_gid", info, start, 1, gids), status.InvalidValue)
		rig.expectMisuse("doca_rdma_cap_get_gid", "exceed the table")
	}
	ok(t, call("doca_dev_close", dev))
}

// TestTheGIDOfAnAddress is a device that has its address for one version of RoCE in one entry.
func TestTheGIDOfAnAddress(t *testing.T) {
	configure(t, libdoca.Config{Devices: []libdoca.Device{{PCI: dpuDevice, Role: libdoca.DPU,
		IPv4: netip.MustParseAddr("127.0.0.1"), GIDIndex: 3}}})
	dev := openDevice(t, dpuDevice)
	gids := docatest.Alloc(16 * 8)
	defer docatest.Free(gids)
	ok(t, call("doca_rdma_cap_get_gid", docatest.Pointer("doca_dev_as_devinfo", dev), 2, 3, gids))
	linkLocal := netip.MustParseAddr("fe80::ff:fe00:300").As16() // of 02:00:00:00:03:00
	want := netip.MustParseAddr("::ffff:127.0.0.1").As16()
	for i, expected := range [][16]byte{linkLocal, want, {}} {
		if got := [16]byte(docatest.Bytes(docatest.At(gids, 16*i), 16)); got != expected {
			t.Errorf("GID %d is %x, expected %x", 2+i, got, expected)
		}
	}
	ok(t, call("doca_dev_close", dev))
}

func TestCapabilitiesOfRDMA(t *testing.T) {
	configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	info := docatest.Pointer("doca_dev_as_devinfo", dev)
	for _, kind := range []string{"atomic_cmp_swp", "atomic_fetch_add",
		"remote_net_sync_event_notify_add"} {
		ok(t, call("doca_rdma_cap_task_"+kind+"_is_supported", info))
	}
	const reliable, dynamic = 0, 1
	const name = "doca_rdma_cap_task_receive_get_max_dst_buf_list_len"
	length, code := docatest.Get(name, info, reliable)
	ok(t, code)
	if length.Uint32() != 1 {
		t.Errorf("lists have up to %d bufs", length.Uint32())
	}
	_, code = docatest.Get(name, info, dynamic)
	is(t, code, status.NotSupported)
	ok(t, call("doca_dev_close", dev))
}

// Each setter of a task changes what its getter returns, and nothing else.
func TestPropertiesOfRDMATasks(t *testing.T) {
	rig := configure(t, libdoca.Config{})
	r := newRemote(t)
	kinds := []struct {
		name       string
		properties []string
		allocate   func(local, remote, event P) []any
	}{
		{"remote_net_sync_event_get", []string{"sync_event", "dst_buf", "rdma_connection"},
			func(local, _, event P) []any { return []any{event, local} }},
		{"remote_net_sync_event_notify_set", []string{"sync_event", "src_buf", "rdma_connection"},
			func(local, _, event P) []any { return []any{event, local} }},
		{"remote_net_sync_event_notify_add",
			[]string{"sync_event", "result_buf", "add_data", "rdma_connection"},
			func(local, _, event P) []any { return []any{event, local, 7} }},
		{"atomic_cmp_swp",
			[]string{"dst_buf", "result_buf", "cmp_data", "swap_data", "rdma_connection"},
			func(local, remote, _ P) []any { return []any{remote, local, 7, 8} }},
		{"atomic_fetch_add", []string{"dst_buf", "result_buf", "add_data", "rdma_connection"},
			func(local, remote, _ P) []any { return []any{remote, local, 7} }},
	}
	for _, kind := range kinds {
		r.tasks(kind.name, 1)
	}
	r.start()
	m := newMemory(t, r.dev, 64, localReadWrite)
	local, remote := m.buf(0, 8, 0), m.buf(8, 8, 0)
	event := newRemoteEvent(t, r.dev)
	for _, kind := range kinds {
		prefix := "doca_rdma_task_" + kind.name
		arguments := kind.allocate(local, remote, event)
		task := create(t, prefix+"_allocate_init",
			append(append([]any{r.rdma, r.connection}, arguments...), 0)...)
		want := append(arguments, r.connection)
		check := func() {
			t.Helper()
			for i, property := range kind.properties {
				got := docatest.Raw(prefix+"_get_"+property, task)
				if got != wordOf(want[i]) {
					t.Errorf("%s: %s is %#x, expected %#x", kind.name, property, got,
						wordOf(want[i]))
				}
			}
		}
		check()
		for i, property := range kind.properties {
			want[i] = 1<<63 | uint64(1000*i+5) // neither buf nor connection is looked at
			docatest.Raw(prefix+"_set_"+property, task, want[i])
			check()
		}
		docatest.Raw(prefix+"_set_"+kind.properties[0], r.ctx, 0)
		rig.expectMisuse(prefix+"_set_"+kind.properties[0], "is a ctx")
		call("doca_task_free", task)
	}
	ok(t, call("doca_sync_event_remote_net_destroy", event))
	release(t, local, remote)
	m.destroy()
	r.destroy()
}

func wordOf(value any) uint64 {
	switch v := value.(type) {
	case P:
		return uint64(uintptr(v))
	case int:
		return uint64(v)
	default:
		return v.(uint64)
	}
}

// newRemoteEvent exports a sync event, and returns its import.
func newRemoteEvent(t testing.TB, dev P) P {
	t.Helper()
	event := create(t, "doca_sync_event_create")
	ok(t, call("doca_sync_event_add_subscriber_location_cpu", event, dev))
	ok(t, call("doca_sync_event_add_publisher_location_remote_net", event))
	ok(t, call("doca_sync_event_start", event))
	data, size := docatest.NewCell(), docatest.NewCell()
	defer data.Free()
	defer size.Free()
	ok(t, call("doca_sync_event_export_to_remote_net", event, data, size))
	imported := create(t, "doca_sync_event_remote_net_create_from_export", dev,
		data.Result().Pointer(), size.Result().Uint64())
	ok(t, call("doca_sync_event_stop", event))
	ok(t, call("doca_sync_event_destroy", event))
	return imported
}

func TestAddressesOfRDMA(t *testing.T) {
	rig := configure(t, libdoca.Config{})
	const ipv6 = 1
	addr := create(t, "doca_rdma_addr_create", ipv6, "2001:db8::1", 7470)
	kind, text, port := docatest.NewCell(), docatest.NewCell(), docatest.NewCell()
	defer kind.Free()
	defer text.Free()
	defer port.Free()
	ok(t, call("doca_rdma_addr_get_params", addr, kind, text, port))
	if kind.Result().Uint32() != ipv6 || port.Result().Uint64() != 7470 ||
		docatest.StringOf(text.Result().Pointer()) != "2001:db8::1" {
		t.Errorf("type %d, %q, port %d", kind.Result().Uint32(),
			docatest.StringOf(text.Result().Pointer()), port.Result().Uint64())
	}
	is(t, call("doca_rdma_addr_get_params", addr, kind, nil, port), status.InvalidValue)
	rig.expectMisuse("doca_rdma_addr_get_params", "address is NULL")
	ok(t, call("doca_rdma_addr_destroy", addr))

	r := newRemote(t)
	r.start()
	_, code := docatest.Get("doca_rdma_connection_get_addr", r.connection)
	is(t, code, status.InvalidValue)
	rig.expectMisuse("doca_rdma_connection_get_addr", "by details")
	r.destroy()
}

// What the emulation does not have answers NOT_SUPPORTED, and the log says why.
func TestWhatRDMADoesNotHave(t *testing.T) {
	rig := configure(t, libdoca.Config{})
	var reasons []string
	text := logged(t, func() {
		r := newRemote(t)
		r.start()
		scratch := docatest.Alloc(8)
		defer docatest.Free(scratch)
		for _, absent := range []struct {
			name, reason string
			arguments    []any
		}{
			{"doca_rdma_get_dpa_handle", "there is no DPA", []any{r.rdma, scratch}},
			{"doca_rdma_dpa_completion_attach", "there is no DPA", []any{r.rdma, scratch}},
			{"doca_rdma_get_gpu_handle", "there is no GPU", []any{r.rdma, scratch}},
			{"doca_rdma_bridge_prepare_connection", "rdma_cm_id", []any{r.rdma, scratch, scratch}},
			{"doca_rdma_bridge_accept", "rdma_cm_id", []any{r.rdma, nil, 0, r.connection}},
			{"doca_rdma_bridge_established", "rdma_cm_id", []any{r.rdma, r.connection}},
			{"doca_rdma_bridge_open_dev_from_pd", "no bridge", []any{scratch, scratch}},
		} {
			is(t, call(absent.name, absent.arguments...), status.NotSupported)
			reasons = append(reasons, absent.name+" is not supported: ", absent.reason)
			absent.arguments[0] = nil
			is(t, call(absent.name, absent.arguments...), status.InvalidValue)
			rig.expectMisuse(absent.name, "NULL")
		}
		r.destroy()
	})
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range len(reasons) / 2 {
		if i >= len(lines) || !strings.Contains(lines[i], reasons[2*i]) ||
			!strings.Contains(lines[i], reasons[2*i+1]) {
			t.Errorf("no line says %q, %q: %q", reasons[2*i], reasons[2*i+1], lines)
		}
	}
}

// TestAPortWithoutRDMA is a port of a BlueField in DPU mode: its sub-function has RDMA.
func TestAPortWithoutRDMA(t *testing.T) {
	configure(t, libdoca.Config{Devices: []libdoca.Device{
		{PCI: dpuDevice, IBDevice: "mlx5_0", NoRDMA: true},
		{PCI: dpuDevice, IBDevice: "mlx5_2", NoComch: true, Type: libdoca.SubFunction}}})
	list, _ := devices(t)
	defer call("doca_devinfo_destroy_list", list)
	for i, want := range []status.Code{status.NotSupported, status.Success} {
		info := docatest.Load(docatest.At(list, 8*i))
		for _, kind := range []string{"receive", "send", "write", "read"} {
			is(t, call("doca_rdma_cap_task_"+kind+"_is_supported", info), want)
		}
		dev := create(t, "doca_dev_open", info)
		rdma, code := docatest.Get("doca_rdma_create", dev)
		is(t, code, want)
		if code == status.Success {
			ok(t, call("doca_rdma_destroy", rdma.Pointer()))
		}
		ok(t, call("doca_dev_close", dev))
	}
}
