// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	zcmemory "github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// hostDirectory makes the test binary run TestHostProcess as the host of another test.
const hostDirectory = "LIBDOCA_TEST_DIRECTORY"

// shared is memory of the host that it exports.
type shared struct {
	mmap   P
	bytes  []byte
	region *zcmemory.Region
}

const sharedLength = 3 * 4096

// TestHostProcess is the host: it does what the DPU's messages say, and answers each.
func TestHostProcess(t *testing.T) {
	directory := os.Getenv(hostDirectory)
	if directory == "" {
		return // it is not a test by itself
	}
	configure(t, libdoca.Config{Directory: directory, Devices: []libdoca.Device{
		{PCI: "b1:00.0", Role: libdoca.Host}}})
	client := newClient(t, 4)
	is(t, call("doca_ctx_start", client.ctx), status.InProgress)
	client.connection = create(t, "doca_comch_client_get_connection", client.object)
	exports := make(map[string]*shared)
	var log []docatest.Event
	until(t, "the DPU is done", func() bool {
		taken := docatest.Take()
		log = append(log, taken...)
		for _, e := range taken {
			switch e.Kind {
			case docatest.Message:
				answer := obey(t, client.dev, exports, string(e.Data))
				client.send(answer + ".")
			case docatest.Completed:
				call("doca_task_free", e.Object)
			}
		}
		return len(log) > 1 && stateOf(t, client.ctx) == idle
	}, client.pe)
	for _, s := range exports {
		s.end(t)
	}
	client.destroy()
}

// obey carries out a command of the DPU: "plain NAME" and "memfd NAME" export memory, "dump NAME"
// returns its beginning, "end NAME" takes it away.
func obey(t *testing.T, dev P, exports map[string]*shared, command string) string {
	verb, name, _ := strings.Cut(command, " ")
	switch verb {
	case "plain", "memfd":
		s := &shared{}
		if verb == "memfd" {
			region, err := zcmemory.Alloc(name, sharedLength)
			if err != nil {
				t.Fatal(err)
			}
			s.region, s.bytes = region, region.Bytes()
		} else {
			s.bytes = docatest.Bytes(docatest.Alloc(sharedLength), sharedLength)
		}
		copy(s.bytes, "memory of the host: "+name)
		s.mmap = create(t, "doca_mmap_create")
		ok(t, call("doca_mmap_add_dev", s.mmap, dev))
		// Neither begins nor ends on a page.
		ok(t, call("doca_mmap_set_memrange", s.mmap, P(&s.bytes[7]), sharedLength-8))
		ok(t, call("doca_mmap_set_permissions", s.mmap, localReadWrite|pciReadWrite))
		ok(t, call("doca_mmap_start", s.mmap))
		exports[name] = s
		return string(export(t, "doca_mmap_export_pci", s.mmap, dev))
	case "dump":
		return string(exports[name].bytes[:64])
	case "end":
		exports[name].end(t)
		delete(exports, name)
		return "ended"
	}
	t.Fatalf("unknown command %q", command)
	return ""
}

func (s *shared) end(t *testing.T) {
	ok(t, call("doca_mmap_destroy", s.mmap))
	if s.region != nil {
		_ = s.region.Close()
	} else {
		docatest.Free(P(&s.bytes[0]))
	}
}

// hostProcess is the host in another process, as the DPU sees it.
type hostProcess struct {
	*pair
	command *exec.Cmd
	output  bytes.Buffer
}

func startHost(t *testing.T) *hostProcess {
	t.Helper()
	directory := t.TempDir()
	h := &hostProcess{pair: &pair{rig: configure(t, libdoca.Config{Directory: directory,
		Devices: []libdoca.Device{{PCI: "03:00.0",
			Representors: []libdoca.Representor{{PCI: "b1:00.0"}}}}})}}
	h.server = newServer(t, 4)
	ok(t, call("doca_ctx_start", h.server.ctx))
	h.command = exec.Command(os.Args[0], "-test.run=^TestHostProcess$", "-test.v")
	h.command.Env = append(os.Environ(), hostDirectory+"="+directory)
	h.command.Stdout, h.command.Stderr = &h.output, &h.output
	if err := h.command.Start(); err != nil {
		t.Fatal(err)
	}
	h.wait("connection", func(e docatest.Event) bool { return e.Kind == docatest.Connected },
		h.server.pe)
	h.server.connection = h.last(docatest.Connected).Object
	return h
}

// tell sends a command and returns the answer.
func (h *hostProcess) tell(command string) string {
	h.t.Helper()
	h.log = nil
	task := h.server.send(command)
	h.waitCount(docatest.Completed, task, 1, h.server.pe)
	call("doca_task_free", task)
	h.waitCount(docatest.Message, nil, 1, h.server.pe)
	return strings.TrimSuffix(string(h.last(docatest.Message).Data), ".")
}

// finish waits for the host's end.
func (h *hostProcess) finish(wantFailure bool) {
	h.t.Helper()
	h.wait("disconnection", func(e docatest.Event) bool { return e.Kind == docatest.Disconnected },
		h.server.pe)
	if err := h.command.Wait(); (err != nil) != wantFailure {
		h.t.Errorf("the host ended: %v\n%s", err, h.output.String())
	}
	h.server.stop()
	h.server.destroy()
}

// dmaOf makes a running DMA context on a device.
func dmaOf(t *testing.T, dev P) (dma, ctx, pe P) {
	t.Helper()
	dma = create(t, "doca_dma_create", dev)
	ctx = docatest.Pointer("doca_dma_as_ctx", dma)
	ok(t, call("doca_dma_task_memcpy_set_conf", dma, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), 4))
	pe = create(t, "doca_pe_create")
	ok(t, call("doca_pe_connect_ctx", pe, ctx))
	ok(t, call("doca_ctx_start", ctx))
	return dma, ctx, pe
}

// A DPU copies from and to memory of another process, until that takes it away.
func TestMemoryOfAnotherProcess(t *testing.T) {
	h := startHost(t)
	dma, ctx, pe := dmaOf(t, h.server.dev)
	local := newMemory(t, h.server.dev, 4096, localReadWrite)
	for _, kind := range []string{"plain", "memfd"} {
		desc := h.tell(kind + " " + kind)
		imported, code := importMap([]byte(desc), h.server.dev)
		ok(t, code)
		forged := []byte(desc)
		forged[35] ^= 1 // the length
		if _, code := importMap(forged, h.server.dev); code != status.InvalidValue {
			t.Errorf("importing a forged descriptor is %v", code)
		}
		address, length := docatest.NewCell(), docatest.NewCell()
		ok(t, call("doca_mmap_get_memrange", imported, address, length))
		base := address.Result().Pointer()
		remote := create(t, "doca_buf_inventory_buf_get_by_args", local.inventory, imported, base,
			100, base, 20)
		buf := local.buf(0, 200, 0)
		task := create(t, "doca_dma_task_memcpy_alloc_init", dma, remote, buf, 0)
		copyOnce := func() status.Code {
			ok(t, call("doca_task_submit", task))
			until(t, "copied", func() bool { return inflight(t, ctx) == 0 }, pe)
			return call("doca_task_get_status", task)
		}
		ok(t, copyOnce())
		want := ("memory of the host: " + kind)[7:]
		if !strings.HasPrefix(string(local.bytes), want) {
			t.Errorf("%s: read %q", kind, local.bytes[:20])
		}

		copy(local.bytes[1000:], "written by the DPU")
		source := local.buf(1000, 18, 18)
		ok(t, call("doca_buf_reset_data_len", remote))
		docatest.Raw("doca_dma_task_memcpy_set_src", task, source)
		docatest.Raw("doca_dma_task_memcpy_set_dst", task, remote)
		ok(t, copyOnce())
		if got := h.tell("dump " + kind); !strings.HasPrefix(got, "memory written by the DPU") {
			t.Errorf("%s: the host has %q", kind, got)
		}

		if got := h.tell("end " + kind); got != "ended" {
			t.Errorf("the host answered %q", got)
		}
		ok(t, call("doca_buf_reset_data_len", remote))
		is(t, copyOnce(), status.IOFailed)
		if _, code := importMap([]byte(desc), h.server.dev); code != status.NotFound {
			t.Errorf("importing memory that has ended is %v", code)
		}
		call("doca_task_free", task)
		release(t, remote, buf, source)
		ok(t, call("doca_mmap_destroy", imported))
		address.Free()
		length.Free()
	}
	ok(t, call("doca_ctx_stop", ctx))
	ok(t, call("doca_dma_destroy", dma))
	ok(t, call("doca_pe_destroy", pe))
	local.destroy()
	ok(t, call("doca_comch_server_disconnect", h.server.object, h.server.connection))
	h.finish(false)
}

// The death of the exporter takes its memory away.
func TestTheDeathOfAnotherProcess(t *testing.T) {
	h := startHost(t)
	imported, code := importMap([]byte(h.tell("memfd doomed")), h.server.dev)
	ok(t, code)
	dma, ctx, pe := dmaOf(t, h.server.dev)
	local := newMemory(t, h.server.dev, 4096, localReadWrite)
	address, length := docatest.NewCell(), docatest.NewCell()
	defer address.Free()
	defer length.Free()
	ok(t, call("doca_mmap_get_memrange", imported, address, length))
	base := address.Result().Pointer()
	remote := create(t, "doca_buf_inventory_buf_get_by_args", local.inventory, imported, base, 10,
		base, 10)
	buf := local.buf(0, 4096, 0)
	task := create(t, "doca_dma_task_memcpy_alloc_init", dma, remote, buf, 0)
	if err := h.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "the memory is revoked", func() bool {
		ok(t, call("doca_buf_reset_data_len", buf))
		ok(t, call("doca_task_submit", task))
		until(t, "copied", func() bool { return inflight(t, ctx) == 0 }, pe)
		return call("doca_task_get_status", task) == status.IOFailed
	}, pe)
	call("doca_task_free", task)
	release(t, remote, buf)
	ok(t, call("doca_ctx_stop", ctx))
	ok(t, call("doca_dma_destroy", dma))
	ok(t, call("doca_pe_destroy", pe))
	ok(t, call("doca_mmap_destroy", imported))
	local.destroy()
	h.finish(true)
}
