// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestReleasesDifferInFunctions(t *testing.T) {
	for _, test := range []struct {
		name    string
		release libdoca.Release // that brought it
	}{
		{"doca_pe_create", libdoca.Release2_6},
		{"doca_task_submit_ex", libdoca.Release2_9},
		{"doca_ctx_flush_tasks", libdoca.Release2_9},
		{"doca_task_batch_submit", libdoca.Release2_7},
		{"doca_buf_set_data_len", libdoca.Release2_7},
		{"doca_comch_server_get_device_rep", libdoca.Release2_9},
		{"doca_buf_chain_list_tail", libdoca.Release3_0},
		{"doca_buf_inventory_expand", libdoca.Release3_0},
		{"doca_devinfo_get_active_rate", libdoca.Release3_0},
		{"doca_ctx_set_completion_vector", libdoca.Release3_0},
		{"doca_sync_event_wait_gt_yield", libdoca.Release2_6},
		{"doca_sync_event_export_to_remote_pci", libdoca.Release2_9},
		{"doca_pe_set_event_mode", libdoca.Release3_0},
		{"doca_mmap_enable_thread_safety", libdoca.Release3_0},
		{"doca_rdma_bridge_get_mmap_mkey_from_pd", libdoca.Release3_0},
		{"doca_devinfo_get_pci_func_type", libdoca.Release3_1},
		{"doca_mmap_get_mkey", libdoca.Release3_2},
		{"doca_buf_inventory_buf_reuse_by_args", libdoca.Release3_2},
	} {
		for _, release := range []libdoca.Release{libdoca.Release2_6, libdoca.Release2_9,
			libdoca.Release2_10, libdoca.Release3_0, libdoca.Release3_1, libdoca.Release3_3} {
			configure(t, libdoca.Config{Release: release})
			found := libdoca.Lookup(test.name) != nil
			if want := release >= test.release; found != want {
				t.Errorf("release %d has %s: %v, expected %v", release, test.name, found, want)
			}
		}
	}
	if libdoca.Lookup("doca_no_such_function") != nil {
		t.Error("found a function that does not exist")
	}
	if libdoca.LookupIn("comch", "doca_pe_create") != nil ||
		libdoca.LookupIn("common", "doca_pe_create") == nil {
		t.Error("doca_pe_create does not belong to common alone")
	}
	configure(t, libdoca.Config{})
}

func TestReleasesDifferInErrors(t *testing.T) {
	for release, want := range map[libdoca.Release]string{
		libdoca.Release3_0: "DOCA_ERROR_UNKNOWN",
		libdoca.Release3_3: "DOCA_ERROR_DEVICE_FATAL_ERROR",
	} {
		configure(t, libdoca.Config{Release: release})
		if got := docatest.StringOf(docatest.Pointer("doca_error_get_name", 31)); got != want {
			t.Errorf("release %d names error 31 %s, expected %s", release, got, want)
		}
		for code := range status.CodeCount {
			name := docatest.StringOf(docatest.Pointer("doca_error_get_name", code))
			short := strings.TrimPrefix(strings.TrimPrefix(name, "DOCA_"), "ERROR_")
			if short != status.Code(code).String() {
				t.Errorf("error %d is %s, expected %v", code, name, status.Code(code))
			}
			if docatest.StringOf(docatest.Pointer("doca_error_get_descr", code)) == "" {
				t.Errorf("error %d has no description", code)
			}
		}
		version := docatest.StringOf(docatest.Pointer("doca_version_runtime"))
		if !strings.HasPrefix(version, "3.") {
			t.Errorf("release %d has version %q", release, version)
		}
	}
}

// A real libdoca that is loaded later must not bind to the emulation, and the other way around.
func TestNoSymbolHasADOCAName(t *testing.T) {
	out, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}",
		"github.com/zc-relay/zc-relay/libdoca").Output()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	emulated := make(map[string]bool)
	for _, object := range objects(t, archive) {
		symbols, err := object.Symbols()
		if err != nil {
			continue // an object without symbols
		}
		for _, s := range symbols {
			if strings.HasPrefix(s.Name, "doca_") {
				t.Errorf("symbol %s", s.Name)
			}
			if strings.HasPrefix(s.Name, "emu_doca_") && s.Section != elf.SHN_UNDEF {
				emulated[s.Name] = true
			}
		}
	}
	if len(emulated) != len(libdoca.Functions()) {
		t.Errorf("%d functions are in the archive, expected %d", len(emulated),
			len(libdoca.Functions()))
	}
}

// objects returns the ELF files in an archive of ar.
func objects(t *testing.T, archive []byte) (all []*elf.File) {
	t.Helper()
	const magic, header = "!<arch>\n", 60
	archive, found := bytes.CutPrefix(archive, []byte(magic))
	if !found {
		t.Fatal("the package is no archive")
	}
	for len(archive) >= header {
		size, err := strconv.Atoi(strings.TrimSpace(string(archive[48:58])))
		if err != nil {
			t.Fatal(err)
		}
		if file, err := elf.NewFile(bytes.NewReader(archive[header:][:size])); err == nil {
			all = append(all, file)
		}
		archive = archive[header+size+size%2:]
	}
	return all
}

func TestNoProgramLinksTheEmulation(t *testing.T) {
	for _, tags := range []string{"", "verbs"} {
		out, err := exec.Command("go", "list", "-deps", "-tags", tags,
			"github.com/zc-relay/zc-relay/cmd/...").CombinedOutput()
		if err != nil {
			t.Fatalf("list dependencies: %v\n%s", err, out)
		}
		if strings.Contains(string(out), "zc-relay/libdoca") {
			t.Errorf("with tags %q, a program depends on libdoca", tags)
		}
		if !strings.Contains(string(out), "zc-relay/pkg/comch/emulated") {
			t.Error("the list of dependencies is not one")
		}
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	r := configure(t, libdoca.Config{})
	for name, config := range map[string]libdoca.Config{
		"release": {Release: 999},
		"address": {Devices: []libdoca.Device{{PCI: "nonsense"}}},
		"representors of a host": {Devices: []libdoca.Device{{PCI: "03:00.0", Role: libdoca.Host,
			Representors: []libdoca.Representor{{PCI: "b1:00.0"}}}}},
	} {
		if err := libdoca.Configure(config); status.CodeOf(err) != status.InvalidValue {
			t.Errorf("%s: %v", name, err)
		}
	}
	dev := openDevice(t, dpuDevice)
	if err := libdoca.Configure(libdoca.Config{}); status.CodeOf(err) != status.InUse {
		t.Errorf("configured while a device was open: %v", err)
	}
	ok(t, call("doca_dev_close", dev))
	_ = r
}

func TestDevicesAreThoseConfigured(t *testing.T) {
	configure(t, libdoca.Config{Devices: []libdoca.Device{
		{PCI: "03:00.0", IBDevice: "mlx5_7", Interface: "p7",
			IPv4: netip.MustParseAddr("192.0.2.7"),
			Representors: []libdoca.Representor{{PCI: "b1:00.0", VUID: "one"},
				{PCI: "0000:b1:00.1", VUID: "two"}}},
		{PCI: "0001:b1:00.0", Role: libdoca.Host, Type: libdoca.SubFunction, SFIndex: 4},
	}})
	list, count := devices(t)
	if count != 2 {
		t.Fatalf("%d devices, expected 2", count)
	}
	dpu, host := docatest.Load(list), docatest.Load(docatest.At(list, 8))
	for _, test := range []struct {
		function   string
		info       P
		size       int
		want       string
		sizePassed bool
	}{
		{"doca_devinfo_get_pci_addr_str", dpu, 13, "0000:03:00.0", false},
		{"doca_devinfo_get_pci_addr_str", host, 13, "0001:b1:00.0", false},
		{"doca_devinfo_get_ibdev_name", dpu, 64, "mlx5_7", true},
		{"doca_devinfo_get_iface_name", dpu, 256, "p7", true},
	} {
		text, code := docatest.Text(test.function, test.info, test.size, test.sizePassed)
		if code != status.Success || text != test.want {
			t.Errorf("%s: %q, %v", test.function, text, code)
		}
	}
	address, code := docatest.Get("doca_devinfo_get_pci_func_type", host)
	if code != status.Success || address.Uint32() != uint32(libdoca.SubFunction) {
		t.Errorf("the host's function has type %d, %v", address.Uint32(), code)
	}
	cell := docatest.NewCell()
	defer cell.Free()
	ok(t, call("doca_devinfo_get_ipv4_addr", dpu, cell, 4))
	is(t, call("doca_devinfo_get_ipv4_addr", host, cell, 4), status.NotFound)
	ok(t, call("doca_devinfo_get_sf_index", host, cell))
	is(t, call("doca_devinfo_get_sf_index", dpu, cell), status.NotSupported)

	opened := create(t, "doca_dev_open", dpu)
	if again := create(t, "doca_dev_open", dpu); again != opened {
		t.Error("opening a device twice gave two devices")
	}
	ok(t, call("doca_dev_close", opened))
	hostDev := create(t, "doca_dev_open", host)
	ok(t, call("doca_devinfo_destroy_list", list))

	reps := docatest.NewCell()
	defer reps.Free()
	is(t, call("doca_devinfo_rep_create_list", hostDev, 2, reps, cell), status.NotSupported)
	ok(t, call("doca_devinfo_rep_create_list", opened, 2, reps, cell))
	if n := cell.Result().Uint32(); n != 2 {
		t.Fatalf("%d representors, expected 2", n)
	}
	second := docatest.Load(docatest.At(reps.Result().Pointer(), 8))
	text, code := docatest.Text("doca_devinfo_rep_get_vuid", second, 128, true)
	if code != status.Success || text != "two" {
		t.Errorf("the second representor has VUID %q, %v", text, code)
	}
	equal, code := docatest.Get("doca_devinfo_rep_is_equal_pci_addr", second, "b1:00.1")
	if code != status.Success || equal.Uint8() != 1 {
		t.Errorf("the second representor is not b1:00.1: %v", code)
	}
	rep := create(t, "doca_dev_rep_open", second)
	ok(t, call("doca_devinfo_rep_destroy_list", reps.Result().Pointer()))
	ok(t, call("doca_dev_rep_close", rep))
	ok(t, call("doca_dev_close", opened))
	ok(t, call("doca_dev_close", hostDev))
}

// openFirst lists the devices, and opens the first.
func openFirst(t *testing.T) (infos []P, dev P, closeAll func()) {
	t.Helper()
	list, count := devices(t)
	for i := range count {
		infos = append(infos, docatest.Load(docatest.At(list, 8*i)))
	}
	dev = create(t, "doca_dev_open", infos[0])
	return infos, dev, func() {
		t.Helper()
		ok(t, call("doca_devinfo_destroy_list", list))
		ok(t, call("doca_dev_close", dev))
	}
}

// address returns an address that a function stores.
func address(name string, info P, size int) (string, status.Code) {
	buffer := docatest.Alloc(size)
	defer docatest.Free(buffer)
	code := call(name, info, buffer, size)
	return fmt.Sprintf("%x", docatest.Bytes(buffer, size)), code
}

// What is not configured is the same in every process, and differs between devices.
func TestPortsByDefault(t *testing.T) {
	configure(t, libdoca.Config{Devices: []libdoca.Device{
		{PCI: "03:00.1", Representors: []libdoca.Representor{{PCI: "0001:b1:02.1"},
			{PCI: "b1:00.2", Type: libdoca.VirtualFunction},
			{PCI: "b1:00.3", Type: libdoca.VirtualFunction},
			{PCI: "b1:00.0", Type: libdoca.SubFunction}}},
		{PCI: "0001:b1:02.1", Role: libdoca.Host},
		{PCI: "03:00.1", Type: libdoca.SubFunction, SFIndex: 4},
	}})
	infos, dev, closeAll := openFirst(t)
	for i, want := range []struct {
		mac, ipv6 string
		vhca      uint16
	}{
		{"020000000301", "fe80000000000000000000fffe000301", 0x301},
		{"02000001b111", "fe80000000000000000000fffe01b111", 0xb110},
		{"020500000301", "fe80000000000000000500fffe000301", 0x385},
	} {
		mac, code := address("doca_devinfo_get_mac_addr", infos[i], 6)
		if code != status.Success || mac != want.mac {
			t.Errorf("device %d has MAC address %s, expected %s: %v", i, mac, want.mac, code)
		}
		ipv6, code := address("doca_devinfo_get_ipv6_addr", infos[i], 16)
		if code != status.Success || ipv6 != want.ipv6 {
			t.Errorf("device %d has IPv6 address %s, expected %s: %v", i, ipv6, want.ipv6, code)
		}
		vhca, code := docatest.Get("doca_devinfo_get_vhca_id", infos[i])
		if code != status.Success || vhca.Uint16() != want.vhca {
			t.Errorf("device %d is VHCA %#x, expected %#x: %v", i, vhca.Uint16(), want.vhca, code)
		}
		rate, code := docatest.Get("doca_devinfo_get_active_rate", infos[i])
		if code != status.Success || rate.Uint64() != 200e9 {
			t.Errorf("device %d has a rate of %d, %v", i, rate.Uint64(), code)
		}
		_, code = docatest.Get("doca_devinfo_get_lid", infos[i])
		is(t, code, status.NotSupported)
		for _, capability := range []string{"hotplug_manager", "notification_moderation",
			"accelerate_resource_reclaim"} {
			can, code := docatest.Get("doca_devinfo_cap_is_"+capability+"_supported", infos[i])
			if code != status.Success || can.Uint8() != 0 {
				t.Errorf("device %d supports %s: %d, %v", i, capability, can.Uint8(), code)
			}
		}
		for _, filter := range []string{"all", "net", "emulated"} {
			can, code := docatest.Get("doca_devinfo_rep_cap_is_filter_"+filter+"_supported",
				infos[i])
			if code != status.Success || (can.Uint8() == 1) != (i != 1) {
				t.Errorf("device %d filters %s: %d, %v", i, filter, can.Uint8(), code)
			}
		}
	}
	reps, count := representors(t, dev)
	if count != 4 {
		t.Fatalf("%d representors, expected 4", count)
	}
	for i, want := range []struct {
		name string
		kind libdoca.FunctionType
		vhca uint16
	}{
		{"pf1hpf", libdoca.PhysicalFunction, 0xb110}, // as the host's device says
		{"pf0vf0", libdoca.VirtualFunction, 0xb102},
		{"pf0vf1", libdoca.VirtualFunction, 0xb103},
		{"pf0sf0", libdoca.SubFunction, 0xb180},
	} {
		expectRepresentor(t, docatest.Load(docatest.At(reps, 8*i)), want.name, want.kind, want.vhca,
			false)
	}
	ok(t, call("doca_devinfo_rep_destroy_list", reps))
	closeAll()
}

// representors lists those of a device. The caller destroys the list.
func representors(t *testing.T, dev P) (list P, count int) {
	t.Helper()
	first, second := docatest.NewCell(), docatest.NewCell()
	defer first.Free()
	defer second.Free()
	ok(t, call("doca_devinfo_rep_create_list", dev, 0, first, second))
	return first.Result().Pointer(), int(second.Result().Uint32())
}

func expectRepresentor(t *testing.T, info P, name string, kind libdoca.FunctionType, vhca uint16,
	hotplug bool) {
	t.Helper()
	gotName, code := docatest.Text("doca_devinfo_rep_get_iface_name", info, 256, true)
	if code != status.Success || gotName != name {
		t.Errorf("the representor is named %s, expected %s: %v", gotName, name, code)
	}
	gotKind, code := docatest.Get("doca_devinfo_rep_get_pci_func_type", info)
	if code != status.Success || libdoca.FunctionType(gotKind.Uint32()) != kind {
		t.Errorf("%s is of type %d, expected %d: %v", name, gotKind.Uint32(), kind, code)
	}
	gotVHCA, code := docatest.Get("doca_devinfo_rep_get_vhca_id", info)
	if code != status.Success || gotVHCA.Uint16() != vhca {
		t.Errorf("%s is VHCA %#x, expected %#x: %v", name, gotVHCA.Uint16(), vhca, code)
	}
	gotHotplug, code := docatest.Get("doca_devinfo_rep_get_is_hotplug", info)
	if code != status.Success || (gotHotplug.Uint8() == 1) != hotplug {
		t.Errorf("%s has been plugged in: %d, %v", name, gotHotplug.Uint8(), code)
	}
}

func TestPortsThatAreConfigured(t *testing.T) {
	seven := uint16(7)
	r := configure(t, libdoca.Config{Devices: []libdoca.Device{
		{PCI: "03:00.0", MAC: [6]byte{0xb8, 0x3f, 0xd2, 1, 2, 3}, ActiveRate: 400e9,
			IPv6: netip.MustParseAddr("2001:db8::7"), VHCA: &seven,
			Representors: []libdoca.Representor{{PCI: "b1:00.0", Interface: "host0", Hotplug: true,
				Type: libdoca.VirtualFunction}}},
		{PCI: "b1:00.0", Role: libdoca.Host, LID: 21, VHCA: &seven},
	}})
	infos, dev, closeAll := openFirst(t)
	mac, code := address("doca_devinfo_get_mac_addr", infos[0], 6)
	if code != status.Success || mac != "b83fd2010203" {
		t.Errorf("the MAC address is %s, %v", mac, code)
	}
	ipv6, code := address("doca_devinfo_get_ipv6_addr", infos[0], 16)
	if code != status.Success || ipv6 != "20010db8000000000000000000000007" {
		t.Errorf("the IPv6 address is %s, %v", ipv6, code)
	}
	rate, code := docatest.Get("doca_devinfo_get_active_rate", infos[0])
	if code != status.Success || rate.Uint64() != 400e9 {
		t.Errorf("the rate is %d, %v", rate.Uint64(), code)
	}
	for name, size := range map[string]int{"mac": 6, "ipv4": 4, "ipv6": 16} {
		name = "doca_devinfo_get_" + name + "_addr"
		_, code := address(name, infos[0], size-1)
		is(t, code, status.InvalidValue)
		r.expectMisuse(name, "must be")
	}

	// A port of InfiniBand has a LID, and no MAC address.
	lid, code := docatest.Get("doca_devinfo_get_lid", infos[1])
	if code != status.Success || lid.Uint16() != 21 {
		t.Errorf("the LID is %d, %v", lid.Uint16(), code)
	}
	_, code = address("doca_devinfo_get_mac_addr", infos[1], 6)
	is(t, code, status.NotSupported)
	_, code = address("doca_devinfo_get_ipv6_addr", infos[1], 16)
	is(t, code, status.NotFound)

	// An open representor describes itself.
	list, _ := representors(t, dev)
	rep := create(t, "doca_dev_rep_open", docatest.Load(list))
	ok(t, call("doca_devinfo_rep_destroy_list", list))
	info := docatest.Pointer("doca_dev_rep_as_devinfo", rep)
	expectRepresentor(t, info, "host0", libdoca.VirtualFunction, 7, true)
	equal, code := docatest.Get("doca_devinfo_rep_is_equal_pci_addr", info, "b1:00.0")
	if code != status.Success || equal.Uint8() != 1 {
		t.Errorf("the open representor has another address: %v", code)
	}
	ok(t, call("doca_dev_rep_close", rep))
	_, code = docatest.Get("doca_devinfo_rep_get_vhca_id", info)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_devinfo_rep_get_vhca_id", "has been destroyed")
	if docatest.Pointer("doca_dev_rep_as_devinfo", dev) != nil {
		t.Error("a device has a representor's description")
	}
	r.expectMisuse("doca_dev_rep_as_devinfo", "the dev_rep is a dev")
	closeAll()
}

func TestMisuseOfDevices(t *testing.T) {
	r := configure(t, libdoca.Config{})
	list, _ := devices(t)
	info := docatest.Load(list)
	dev := create(t, "doca_dev_open", info)
	ok(t, call("doca_devinfo_destroy_list", list))
	cell := docatest.NewCell()
	defer cell.Free()

	is(t, call("doca_dev_open", info, cell), status.InvalidValue)
	r.expectMisuse("doca_dev_open", "has been destroyed")
	is(t, call("doca_dev_open", dev, cell), status.InvalidValue)
	r.expectMisuse("doca_dev_open", "the devinfo is a dev")
	is(t, call("doca_dev_open", nil, cell), status.InvalidValue)
	r.expectMisuse("doca_dev_open", "NULL")
	is(t, call("doca_dev_open", cell, cell), status.InvalidValue)
	r.expectMisuse("doca_dev_open", "is no devinfo")
	own := docatest.Pointer("doca_dev_as_devinfo", dev)
	is(t, call("doca_devinfo_is_equal_pci_addr", own, "3:0.0", cell), status.InvalidValue)
	r.expectMisuse("doca_devinfo_is_equal_pci_addr", "no PCI address")
	_, code := docatest.Text("doca_devinfo_get_ibdev_name", own, 63, true)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_devinfo_get_ibdev_name", "must be 64")

	mmap := create(t, "doca_mmap_create")
	ok(t, call("doca_mmap_add_dev", mmap, dev))
	is(t, call("doca_dev_close", dev), status.InUse)
	r.expectMisuse("doca_dev_close", "close it last")
	ok(t, call("doca_mmap_destroy", mmap))
	ok(t, call("doca_dev_close", dev))
	is(t, call("doca_dev_close", dev), status.InvalidValue)
	r.expectMisuse("doca_dev_close", "has been destroyed")
}
