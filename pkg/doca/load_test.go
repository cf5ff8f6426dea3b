// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// stub describes a libdoca of which every function returns DOCA_SUCCESS and does nothing.
type stub struct {
	version string          // in file names; "" for none
	string  string          // what doca_version_runtime returns; "" if there is no such function
	without []string        // functions that it lacks
	absent  []part          // parts that are not installed
	other   map[part]string // versions of parts that differ from version
	cc      bool            // Comch has the names of 2.6
	// undefined is a function that Comch uses and no library has.
	undefined string
}

// build compiles the stub with the C compiler and returns its directory.
func (s stub) build(t *testing.T) string {
	t.Helper()
	compiler := cmp.Or(os.Getenv("CC"), "cc")
	testkit.RequireTools(t, compiler)
	directory := t.TempDir()
	for p, name := range partNames {
		if slices.Contains(s.absent, part(p)) {
			continue
		}
		source := filepath.Join(directory, name+".c")
		if err := os.WriteFile(source, []byte(s.source(part(p))), 0o600); err != nil {
			t.Fatal(err)
		}
		version := s.version
		if other, ok := s.other[part(p)]; ok {
			version = other
		}
		file := name + ".so.2"
		if version != "" {
			file = name + ".so." + version
			if err := os.Symlink(file, filepath.Join(directory, name+".so.2")); err != nil {
				t.Fatal(err)
			}
		}
		output, err := exec.Command(compiler, "-shared", "-fPIC", "-o",
			filepath.Join(directory, file), source).CombinedOutput()
		if err != nil {
			t.Fatalf("compile stub: %v\n%s", err, output)
		}
	}
	return directory
}

func (s stub) source(p part) string {
	var text strings.Builder
	for _, f := range functions() {
		name := f.name
		if f.part != p || slices.Contains(s.without, name) {
			continue
		}
		if s.cc {
			name = strings.Replace(name, "doca_comch_", "doca_cc_", 1)
		}
		switch name {
		case "doca_version_runtime":
			if s.string != "" {
				fmt.Fprintf(&text, "const char *%s(void) { return %q; }\n", name, s.string)
			}
		case "doca_devinfo_create_list":
			fmt.Fprintf(&text,
				"int %s(void **list, unsigned *count) { *list = 0; *count = 0; return 0; }\n", name)
		default:
			fmt.Fprintf(&text, "int %s(void) { return 0; }\n", name)
		}
	}
	if s.undefined != "" && p == comch {
		fmt.Fprintf(&text, "void %s(void);\nvoid *uses = %s;\n", s.undefined, s.undefined)
	}
	return text.String()
}

// comchOf opens libdoca and its Comch in a directory.
func comchOf(directory string) (*Library, error) {
	library, err := (&Loader{find: sharedObjects{directory}}).Library()
	if err == nil {
		err = library.NeedComch()
	}
	return library, err
}

func TestReleasesAreAcceptedOrRejectedByTheirSymbols(t *testing.T) {
	// What 3.0 has and 2.9 need not.
	since30 := []string{"doca_pe_set_event_mode", "doca_mmap_enable_thread_safety",
		"doca_rdma_bridge_get_mmap_mkey_from_pd"}
	since32 := []string{"doca_mmap_get_mkey"}
	// What the other parts have from 2.9 on.
	commonSince29 := []string{"doca_task_submit_ex", "doca_ctx_flush_tasks"}
	const changed = "doca_comch_server_event_connection_status_changed_register"
	for name, test := range map[string]struct {
		stub stub
		want string // the whole error; "" for none. DIR is the directory.
	}{
		"3.3": {stub{version: "3.3.0109", string: "3.3.0109"}, ""},
		"3.0": {stub{version: "3.0.0058", string: "3.0.0058", without: since32}, ""},
		"2.10": {stub{version: "2.10.0087", string: "2.10.0087",
			without: append(since30, since32...)}, ""},
		"2.9, without a version in its file names": {stub{string: "2.9.0072",
			without: append(since30, since32...)}, ""},
		"2.7": {stub{version: "2.7.0085", string: "2.7.0085", without: []string{changed}},
			"DOCA ≥ 2.9 is needed (found 2.7-style Comch) [NOT_SUPPORTED]"},
		"2.6, with Comch of other names": {stub{version: "2.6.0058", string: "2.6.0058", cc: true},
			"DOCA ≥ 2.9 is needed (found 2.6.0058; it has no doca_comch_*) [NOT_SUPPORTED]"},
		"2.6, with Comch in another library": {stub{version: "2.6.0058", string: "2.6.0058",
			absent: []part{comch}, without: commonSince29},
			"DOCA ≥ 2.9 is needed (found 2.6.0058; it has no doca_comch_*): libdoca_comch.so.2 " +
				"not found (looked in DIR): install doca-sdk-comch, or set DOCA_SDK_LIB_PATH " +
				"[NOT_SUPPORTED]"},
		"2.5, which does not tell its version": {stub{version: "2.5.0108", absent: []part{comch},
			without: commonSince29},
			"DOCA ≥ 2.9 is needed (found DIR/libdoca_common.so.2.5.0108; it has no doca_comch_*): " +
				"libdoca_comch.so.2 not found (looked in DIR): install doca-sdk-comch, or set " +
				"DOCA_SDK_LIB_PATH [NOT_SUPPORTED]"},
		"absent": {stub{absent: []part{common, comch, dma}},
			"libdoca_common.so.2 not found (looked in DIR): install doca-sdk-common, or set " +
				"DOCA_SDK_LIB_PATH [NOT_SUPPORTED]"},
		"Comch is not installed": {stub{version: "3.3.0109", string: "3.3.0109",
			absent: []part{comch}},
			"libdoca_comch.so.2 not found (looked in DIR): install doca-sdk-comch, or set " +
				"DOCA_SDK_LIB_PATH [NOT_SUPPORTED]"},
		"mixed, with a Comch that needs more than the other parts have": {stub{version: "3.3.0109",
			string: "3.3.0109", without: commonSince29, undefined: "doca_of_another_release"},
			"libdoca_comch cannot be loaded: DIR/libdoca_comch.so.2: undefined symbol: " +
				"doca_of_another_release [NOT_SUPPORTED]"},
		"a common function missing": {stub{version: "3.3.0", without: []string{"doca_pe_progress"}},
			"symbol doca_pe_progress missing in DIR/libdoca_common.so.3.3.0: is the installation of " +
				"DOCA complete? [NOT_SUPPORTED]"},
		"a Comch function missing": {stub{version: "3.3.0",
			without: []string{"doca_comch_producer_get_id"}},
			"symbol doca_comch_producer_get_id missing in DIR/libdoca_comch.so.3.3.0: is the " +
				"installation of DOCA complete? [NOT_SUPPORTED]"},
		"mixed": {stub{version: "2.10.0087", other: map[part]string{comch: "2.9.0072"}},
			"DIR/libdoca_common.so.2.10.0087 and DIR/libdoca_comch.so.2.9.0072 are of different " +
				"releases: remove one of them, or set DOCA_SDK_LIB_PATH [NOT_SUPPORTED]"},
	} {
		t.Run(name, func(t *testing.T) {
			directory := test.stub.build(t)
			library, err := comchOf(directory)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if got := library.Version(); got != test.stub.string {
					t.Errorf("version is %q", got)
				}
				wait := !slices.Contains(test.stub.without, "doca_pe_set_event_mode")
				if library.CanWait() != wait {
					t.Errorf("CanWait is %v", library.CanWait())
				}
				return
			}
			want := strings.ReplaceAll(test.want, "DIR", directory)
			if err == nil || err.Error() != want || !errors.Is(err, status.NotSupported) {
				t.Errorf("got error\n%v, want\n%s", err, want)
			}
		})
	}
}

func TestEachRequiredFunctionIsMissed(t *testing.T) {
	all := resolverOf(t, stub{string: "3.3.0"})
	for _, f := range functions() {
		loader := Resolved(without(all, f.name))
		library, err := loader.Library()
		if err == nil && f.part != common {
			if err = library.NeedComch(); err == nil {
				err = errors.Join(library.NeedDMA(), library.NeedRDMA())
			}
		}
		if f.required != (err != nil) {
			t.Errorf("without %s: %v", f.name, err)
		}
		again, errAgain := loader.Library()
		if again != library {
			t.Errorf("loaded twice: %v", errAgain)
		}
	}
}

func TestDMANeedsNoComch(t *testing.T) {
	directory := stub{version: "3.3.0", absent: []part{comch}}.build(t)
	library, err := (&Loader{find: sharedObjects{directory}}).Library()
	if err != nil {
		t.Fatal(err)
	}
	if err := library.NeedDMA(); err != nil {
		t.Error(err)
	}
	if err := library.NeedComch(); !errors.Is(err, status.NotSupported) {
		t.Errorf("Comch without its library: %v", err)
	}
}

func TestALibraryThatCannotBeLoadedIsReported(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "libdoca_common.so.2")
	if err := os.WriteFile(path, []byte("no ELF file"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := comchOf(directory)
	if !errors.Is(err, status.NotSupported) ||
		!strings.HasPrefix(err.Error(), "libdoca_common cannot be loaded: "+path) {
		t.Errorf("got %v", err)
	}
}

func TestAMachineWithoutACardHasNoDevice(t *testing.T) {
	library, err := comchOf(stub{version: "3.3.0", string: "3.3.0"}.build(t))
	if err != nil {
		t.Fatal(err)
	}
	if devices, err := library.Devices(); err != nil || len(devices) != 0 {
		t.Errorf("got %v, %v", devices, err)
	}
	const want = "no DOCA device: libdoca 3.3.0 is installed, but finds no BlueField or " +
		"ConnectX [NOT_FOUND]"
	for what, f := range map[string]func() error{
		"open":         func() error { _, err := library.OpenDevice("03:00.0"); return err },
		"capabilities": func() error { _, err := library.ComchCapabilities("03:00.0"); return err },
	} {
		if err := f(); err == nil || err.Error() != want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestDirectoriesAreSearchedInOrder(t *testing.T) {
	t.Setenv("ZC_DOCA_LIB_PATH", "/first:/second")
	t.Setenv("DOCA_SDK_LIB_PATH", "/third")
	want := append([]string{"/first", "/second", "/third", ""}, installed()...)
	if got := directories(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	t.Setenv("ZC_DOCA_LIB_PATH", "")
	t.Setenv("DOCA_SDK_LIB_PATH", "")
	_, err := sharedObjects(nil).open(part(comch))
	if err == nil {
		t.Skip("libdoca_comch is installed")
	}
	if !strings.Contains(err.Error(), "looked in the directories of ld.so, /opt/mellanox/doca/lib") {
		t.Errorf("got %v", err)
	}
}

func TestPCIAddressesHaveTwoNotations(t *testing.T) {
	device := DeviceInfo{PCIAddress: "0000:B1:00.0", IBName: "mlx5_0", InterfaceName: "p0"}
	for name, want := range map[string]bool{
		"b1:00.0": true, "0000:b1:00.0": true, "B1:00.0": true, "mlx5_0": true, "p0": true,
		"b1:00.1": false, "0001:b1:00.0": false, "mlx5_1": false, "": false,
	} {
		if device.Is(name) != want {
			t.Errorf("device is %q: %v", name, !want)
		}
	}
}
