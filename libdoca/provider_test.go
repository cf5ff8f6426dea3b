// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The DOCA providers find all functions that they cannot do without from release 2.9 on, and the
// others in the newest one.
func TestEveryFunctionOfTheProvidersIsThere(t *testing.T) {
	required, optional := docatest.ProviderFunctions()
	if len(required) < 100 || len(optional) == 0 {
		t.Fatalf("the providers use %d and %d functions", len(required), len(optional))
	}
	for _, release := range []libdoca.Release{libdoca.Release2_9, libdoca.Release2_10,
		libdoca.Release3_0, libdoca.Release3_3} {
		configure(t, libdoca.Config{Release: release})
		wanted := required
		if release == libdoca.Release3_3 {
			wanted = slices.Concat(required, optional)
		}
		for _, name := range wanted {
			if libdoca.Lookup(name) == nil {
				t.Errorf("release %d lacks %s", release, name)
			}
		}
	}
}

// bridge hands out made-up keys.
type bridge struct {
	pd         *[1]byte
	registered map[uint32]int // bytes, by key
	addresses  []uint64
}

func (b *bridge) ProtectionDomain(device string) (unsafe.Pointer, error) {
	if device != "mlx5_0" {
		return nil, status.Errorf(status.NotFound, "no device %s", device)
	}
	return unsafe.Pointer(b.pd), nil
}

func (b *bridge) Register(_ string, memory []byte, address uint64, access uint32,
) (uint32, func(), error) {
	key := uint32(0xa000 + access)
	b.registered[key] = len(memory)
	b.addresses = append(b.addresses, address)
	return key, func() { delete(b.registered, key) }, nil
}

func TestTheBridgeToVerbs(t *testing.T) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	b := &bridge{pd: new([1]byte), registered: make(map[uint32]int)}
	pinned.Pin(b.pd)
	r := configure(t, libdoca.Config{Bridge: b})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	m := newMemory(t, host, 4096, localReadWrite|rdmaRead|pciReadWrite)
	imported, code := importMap(export(t, "doca_mmap_export_pci", m.mmap, host), dpu)
	ok(t, code)

	pd, code := docatest.Get("doca_rdma_bridge_get_dev_pd", dpu)
	if code != status.Success || pd.Pointer() != unsafe.Pointer(b.pd) {
		t.Errorf("the protection domain is %p, %v", pd.Pointer(), code)
	}
	_, code = docatest.Get("doca_rdma_bridge_get_dev_pd", host)
	is(t, code, status.NotFound)

	again, code := docatest.Get("doca_rdma_bridge_open_dev_from_pd", unsafe.Pointer(b.pd))
	ok(t, code)
	if again.Pointer() != dpu {
		t.Error("the device of the protection domain is another one")
	}
	ok(t, call("doca_dev_close", dpu))
	_, code = docatest.Get("doca_rdma_bridge_open_dev_from_pd", m.base)
	is(t, code, status.NotFound)

	// All ways to the key of imported memory lead to the same one, registered at the exporter's
	// address.
	want := uint32(0xa000 + localReadWrite + rdmaRead + pciReadWrite)
	buf := create(t, "doca_buf_inventory_buf_get_by_args", m.inventory, imported, m.base, 10,
		m.base, 0)
	for name, arguments := range map[string][]any{
		"doca_mmap_get_mkey":                     {imported, dpu},
		"doca_rdma_bridge_get_buf_mkey":          {buf, dpu},
		"doca_rdma_bridge_get_mmap_mkey_from_pd": {imported, unsafe.Pointer(b.pd)},
	} {
		key, code := docatest.Get(name, arguments...)
		if code != status.Success || key.Uint32() != want {
			t.Errorf("%s is %#x, %v", name, key.Uint32(), code)
		}
	}
	if len(b.addresses) != 1 || b.addresses[0] != uint64(uintptr(m.base)) ||
		b.registered[want] != 4096 {
		t.Errorf("registered %v at %#x", b.registered, b.addresses)
	}
	_, code = docatest.Get("doca_mmap_get_mkey", imported, host)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_mmap_get_mkey", "does not have the device")
	_, code = docatest.Get("doca_rdma_bridge_get_mmap_mkey_from_pd", imported, m.base)
	is(t, code, status.NotFound)
	release(t, buf)
	ok(t, call("doca_mmap_destroy", imported))
	if len(b.registered) != 0 {
		t.Errorf("still registered: %v", b.registered)
	}

	m.destroy()
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}

func TestWithoutABridge(t *testing.T) {
	configure(t, libdoca.Config{})
	dpu := openDevice(t, dpuDevice)
	m := newMemory(t, dpu, 4096, localReadWrite)
	_, code := docatest.Get("doca_rdma_bridge_get_dev_pd", dpu)
	is(t, code, status.NotSupported)
	_, code = docatest.Get("doca_mmap_get_mkey", m.mmap, dpu)
	is(t, code, status.NotSupported)
	_, code = docatest.Get("doca_rdma_bridge_get_mmap_mkey_from_pd", m.mmap, m.base)
	is(t, code, status.NotSupported)
	m.destroy()
	ok(t, call("doca_dev_close", dpu))
}

// A client on libdoca meets a server on the emulated provider, such as the relay's.
func TestMeetsTheEmulatedProvider(t *testing.T) {
	directory := t.TempDir()
	r := configure(t, libdoca.Config{Directory: directory})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := emulated.New(emulated.Options{Directory: directory}).Listen(ctx,
		comch.ServerConfig{Device: dpuDevice, Representor: "b1:00.0", Name: channelName})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{rig: r, client: newClient(t, 4)}
	is(t, call("doca_ctx_start", p.client.ctx), status.InProgress)
	p.client.connection = create(t, "doca_comch_client_get_connection", p.client.object)
	until(t, "client runs", func() bool { return stateOf(t, p.client.ctx) == running }, p.client.pe)
	peer, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}

	task := p.client.send("from libdoca")
	p.waitCount(docatest.Completed, task, 1, p.client.pe)
	call("doca_task_free", task)
	if message, err := peer.Receive(ctx); err != nil || string(message) != "from libdoca" {
		t.Errorf("the peer received %q, %v", message, err)
	}
	if err := peer.Send(ctx, []byte("to libdoca")); err != nil {
		t.Fatal(err)
	}
	p.waitCount(docatest.Message, nil, 1, p.client.pe)

	theirs, err := peer.NewConsumer(ctx, comch.ConsumerConfig{Receives: 4, MemorySize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	p.waitCount(docatest.ConsumerNew, nil, 1, p.client.pe)
	mine, q := newConsumer(t, p.client, 4), newProducer(t, p.client, 4)
	mine.start()
	ok(t, call("doca_ctx_start", q.ctx))
	event, err := peer.NextConsumerEvent(ctx)
	if err != nil || int(event.ID) != mine.id {
		t.Fatalf("the peer heard of consumer %d, which is %d: %v", event.ID, mine.id, err)
	}
	if err := theirs.PostReceive(0, 100, 7); err != nil {
		t.Fatal(err)
	}
	theirs.Flush()
	send, source := q.task(0, "fast", "path", int(theirs.ID()))
	ok(t, call("doca_task_submit", send))
	p.waitCount(docatest.Completed, send, 1, q.pe)
	var completed [1]comch.Received
	until(t, "the peer receives", func() bool { return theirs.Poll(completed[:]) == 1 })
	if got := string(theirs.Memory()[:completed[0].Length]); got != "fast" ||
		string(completed[0].Immediate[:4]) != "path" {
		t.Errorf("the peer received %q", got)
	}

	producer, err := peer.NewProducer(ctx, event.ID)
	if err != nil {
		t.Fatal(err)
	}
	receive, buf := mine.post(0, 100)
	until(t, "the peer sends", func() bool {
		return producer.Send([]byte("and back"), nil) == nil
	}, mine.pe)
	producer.Flush()
	p.waitCount(docatest.Completed, receive, 1, mine.pe)
	if data, _ := received(t, receive); data != "and back" {
		t.Errorf("received %q", data)
	}

	stop(t, q.ctx, q.pe, send)
	stop(t, mine.ctx, mine.pe, receive)
	release(t, source, buf)
	q.destroy()
	mine.destroy()
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if err := producer.Close(); err != nil {
		t.Error(err)
	}
	if err := peer.Close(); err != nil {
		t.Error(err)
	}
	until(t, "client is idle", func() bool { return stateOf(t, p.client.ctx) == idle }, p.client.pe)
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	p.client.destroy()
}
