// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A progress call does one thing. So a client that turns RUNNING can be given its user data before
// the first message or consumer event, even if those were waiting.
func TestProgressDoesOneThing(t *testing.T) {
	p := &pair{rig: configure(t, libdoca.Config{})}
	p.server, p.client = newServer(t, 64), newClient(t, 64)
	ok(t, call("doca_ctx_start", p.server.ctx))
	is(t, call("doca_ctx_start", p.client.ctx), status.InProgress)
	p.client.connection = create(t, "doca_comch_client_get_connection", p.client.object)
	// The server hears of the client, sends to it, and starts a consumer, before the client has
	// progressed at all.
	p.waitCount(docatest.Connected, nil, 1, p.server.pe)
	p.server.connection = p.last(docatest.Connected).Object
	task := p.server.send("early")
	p.waitCount(docatest.Completed, task, 1, p.server.pe)
	call("doca_task_free", task)
	c := newConsumer(t, p.server, 1)
	c.start()

	docatest.Take()
	p.log = nil
	for p.count(docatest.Message, nil)+p.count(docatest.ConsumerNew, nil) < 2 {
		if !docatest.Progress(p.client.pe) {
			runtime.Gosched()
		}
		taken := docatest.Take()
		if len(taken) > 1 {
			t.Fatalf("one progress call made %d callbacks: %v", len(taken), kinds(taken))
		}
		p.log = append(p.log, taken...)
	}
	if first := p.log[0]; first.Kind != docatest.State || first.B != running {
		t.Errorf("the first event of the client is %+v", first)
	}
	stop(t, c.ctx, c.pe)
	c.destroy()
	p.close()
}

func TestServersHaveManyClients(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	var others []*control
	for range 3 {
		other := newClient(t, 4)
		is(t, call("doca_ctx_start", other.ctx), status.InProgress)
		other.connection = create(t, "doca_comch_client_get_connection", other.object)
		until(t, "client runs", func() bool { return stateOf(t, other.ctx) == running }, other.pe)
		others = append(others, other)
	}
	p.waitCount(docatest.Connected, nil, 4, p.server.pe)
	for i, other := range others {
		task := other.send(fmt.Sprint("client ", i))
		p.waitCount(docatest.Completed, task, 1, other.pe)
		call("doca_task_free", task)
	}
	p.waitCount(docatest.Message, nil, 3, p.server.pe)
	// The server's stop disconnects them all, and it is idle only after it has said so.
	p.server.stop()
	p.waitCount(docatest.Disconnected, nil, 4)
	for _, other := range append(others, p.client) {
		until(t, "client is idle", func() bool { return stateOf(t, other.ctx) == idle }, other.pe)
		other.destroy()
	}
	p.server.destroy()
}

// Consumers and producers come and go on threads of their own, while the thread of the server
// progresses its engine.
func TestWorkersOfOneConnection(t *testing.T) {
	const workers, rounds = 4, 8
	p := newPair(t, libdoca.Config{})
	done := make(chan struct{})
	var engines, running sync.WaitGroup
	for _, pe := range p.both() {
		engines.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for {
				select {
				case <-done:
					return
				default:
					if !docatest.Progress(pe) {
						runtime.Gosched()
					}
				}
			}
		})
	}
	for worker := range workers {
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for round := range rounds {
				exchange(t, p, fmt.Sprintf("worker %d round %d", worker, round))
			}
		})
	}
	running.Wait()
	close(done)
	engines.Wait()
	p.close()
}

// exchange sends one message from a new producer of the client to a new consumer of the server.
func exchange(t *testing.T, p *pair, message string) {
	c, q := newConsumer(t, p.server, 2), newProducer(t, p.client, 2)
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	receive, buf := c.post(0, 100)
	send, source := q.task(0, message, "", c.id)
	ok(t, call("doca_task_submit", send))
	until(t, "sent and received", func() bool {
		return inflight(t, c.ctx)+inflight(t, q.ctx) == 0
	}, c.pe, q.pe)
	if data, _ := received(t, receive); data != message {
		t.Errorf("received %q, expected %q", data, message)
	}
	stop(t, q.ctx, q.pe, send)
	stop(t, c.ctx, c.pe, receive)
	release(t, buf, source)
	q.destroy()
	c.destroy()
}

// Maps cover memory of any alignment, and several of them share a page.
func TestMapsShareAPage(t *testing.T) {
	configure(t, libdoca.Config{})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	base := docatest.Alloc(4096)
	var maps []P
	for i := range 3 {
		mmap := create(t, "doca_mmap_create")
		ok(t, call("doca_mmap_add_dev", mmap, host))
		ok(t, call("doca_mmap_set_memrange", mmap, docatest.At(base, 3+17*i), 17))
		ok(t, call("doca_mmap_set_permissions", mmap, pciReadOnly))
		ok(t, call("doca_mmap_start", mmap))
		imported, code := importMap(export(t, "doca_mmap_export_pci", mmap, host), dpu)
		ok(t, code)
		maps = append(maps, mmap, imported)
	}
	for _, mmap := range maps {
		ok(t, call("doca_mmap_destroy", mmap))
	}
	docatest.Free(base)
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}

// The threads of one map need enable_thread_safety only while they are inside it at the same time;
// one inventory serves one thread.
func TestMapsThatThreadsShare(t *testing.T) {
	configure(t, libdoca.Config{})
	dev := openDevice(t, dpuDevice)
	base := docatest.Alloc(4096)
	mmap := create(t, "doca_mmap_create")
	ok(t, call("doca_mmap_add_dev", mmap, dev))
	ok(t, call("doca_mmap_set_memrange", mmap, base, 4096))
	ok(t, call("doca_mmap_enable_thread_safety", mmap))
	ok(t, call("doca_mmap_start", mmap))
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			inventory := create(t, "doca_buf_inventory_create", 4)
			ok(t, call("doca_buf_inventory_start", inventory))
			for range 200 {
				release(t, create(t, "doca_buf_inventory_buf_get_by_args", inventory, mmap, base, 16,
					base, 0))
			}
			ok(t, call("doca_buf_inventory_destroy", inventory))
		})
	}
	running.Wait()
	ok(t, call("doca_mmap_destroy", mmap))
	docatest.Free(base)
	ok(t, call("doca_dev_close", dev))
}

// The library's own log tells why something failed, at the level that the application asks for.
func TestTheLibraryLogs(t *testing.T) {
	configure(t, libdoca.Config{})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	descriptor := int(writer.Fd())
	backend := create(t, "doca_log_backend_create_with_fd_sdk", descriptor)
	fail := func() {
		dpu := openDevice(t, dpuDevice)
		_, code := importMap([]byte("nonsense"), dpu)
		is(t, code, status.InvalidValue)
		ok(t, call("doca_dev_close", dpu))
	}
	const disable, errors = 10, 30
	ok(t, call("doca_log_backend_set_sdk_level", backend, disable))
	fail()
	ok(t, call("doca_log_backend_set_sdk_level", backend, errors))
	fail()
	ok(t, call("doca_log_backend_set_sdk_level", backend, disable))
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 4096)
	n, err := reader.Read(text)
	if err != nil || strings.Count(string(text[:n]), "\n") != 1 ||
		!strings.Contains(string(text[:n]), "[ERR]") ||
		!strings.Contains(string(text[:n]), "create mmap from export") {
		t.Errorf("the log is %q, %v", text[:n], err)
	}

	var source int32
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&source)
	ok(t, call("doca_log_register_source", "TEST::SOURCE", unsafe.Pointer(&source)))
	ok(t, call("doca_log_backend_create_standard"))
	ok(t, call("doca_log", 60, 0, "file.c", 1, "function", "a debug message, which is not shown"))
}
