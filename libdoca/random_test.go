// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
)

// streamVariable makes the test binary run TestRandomCallsInAProcess with the calls of a stream.
const streamVariable = "LIBDOCA_TEST_STREAM"

// Whatever object of whatever kind and state a function gets, the process survives.
func TestRandomCalls(t *testing.T) {
	const processes = 2
	seed := strconv.FormatUint(seedtest.Of(t), 10)
	for stream := range processes {
		command := exec.Command(os.Args[0], "-test.run=^TestRandomCallsInAProcess$")
		command.Env = append(os.Environ(), seedtest.Variable+"="+seed,
			streamVariable+"="+strconv.Itoa(stream))
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("seed %s, stream %d: %v\n%s", seed, stream, err, out)
		}
	}
}

// unfitForRandom reports whether random arguments of a function mean nothing that could be told:
// functions that call, store behind, or walk along their first argument, and those that take
// callbacks.
func unfitForRandom(name string) bool {
	return slices.ContainsFunc([]string{"_log", "_list", "set_conf", "_register", "changed_cb",
		"error_get", "version", "pe_create", "mmap_create", "inventory_create", "create_from_export",
		"callback", "argp_start", "sync_event_wait", "param_create", "cmd_create",
		"sync_event_create",
	}, func(part string) bool { return strings.Contains(name, part) })
}

func TestRandomCallsInAProcess(t *testing.T) {
	stream, err := strconv.ParseUint(os.Getenv(streamVariable), 10, 64)
	if err != nil {
		return // it is not a test by itself
	}
	random := seedtest.Random(t, stream)
	config := libdoca.Config{Directory: t.TempDir(), Report: func(libdoca.Misuse) {}}
	if err := libdoca.Configure(config); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range libdoca.Functions() {
		if !unfitForRandom(f.Name) {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	objects := randomObjects(t)
	for range 5_000 {
		name := names[random.IntN(len(names))]
		if strings.HasSuffix(name, "_destroy") && random.IntN(50) > 0 {
			continue // the objects would not last
		}
		arguments := []any{objects[random.IntN(len(objects))]}
		for range 7 {
			scratch := docatest.Alloc(512) // for results; never freed, because maps may keep it
			if random.IntN(4) == 0 {
				scratch = nil
			}
			arguments = append(arguments, scratch)
		}
		docatest.Raw(name, arguments...)
	}
}

// randomObjects returns objects of all kinds, in many states, some of them destroyed.
func randomObjects(t *testing.T) (objects []P) {
	p := &pair{rig: &rig{t: t}}
	p.server, p.client = newServer(t, 4), newClient(t, 4)
	call("doca_ctx_start", p.server.ctx)
	call("doca_ctx_start", p.client.ctx)
	p.client.connection = create(t, "doca_comch_client_get_connection", p.client.object)
	until(t, "client runs", func() bool { return stateOf(t, p.client.ctx) == running }, p.client.pe)
	p.waitCount(docatest.Connected, nil, 1, p.server.pe)
	p.server.connection = p.last(docatest.Connected).Object
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.client, 4)
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	receive, buf := c.post(0, 100)
	send, source := q.task(0, "message", "", c.id)
	idleConsumer := newConsumer(t, p.client, 4)
	m := newMemory(t, p.server.dev, 4096, localReadWrite|pciReadWrite|rdmaRead)
	dma, ctx, pe := dmaOf(t, p.server.dev)
	copied, _ := docatest.Get("doca_dma_task_memcpy_alloc_init", dma, m.buf(0, 10, 10),
		m.buf(10, 10, 0), 0)
	rdma := create(t, "doca_rdma_create", p.server.dev)
	rdmaCtx, rdmaEngine := docatest.Pointer("doca_rdma_as_ctx", rdma), create(t, "doca_pe_create")
	ok(t, call("doca_rdma_task_send_set_conf", rdma, docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), 4))
	ok(t, call("doca_pe_connect_ctx", rdmaEngine, rdmaCtx))
	ok(t, call("doca_ctx_start", rdmaCtx))
	cells := [2]*docatest.Cell{docatest.NewCell(), docatest.NewCell()}
	connection := create(t, "doca_rdma_export", rdma, cells[0], cells[1])
	sent, _ := docatest.Get("doca_rdma_task_send_allocate_init", rdma, connection,
		m.buf(20, 10, 10), 0)
	event, eventEngine := newEvent(t, p.server.dev), create(t, "doca_pe_create")
	eventCtx := docatest.Pointer("doca_sync_event_as_ctx", event)
	for _, kind := range []string{"notify_add", "wait_eq"} {
		ok(t, call("doca_sync_event_task_"+kind+"_set_conf", event,
			docatest.Callback(docatest.Completed), docatest.Callback(docatest.Failed), 4))
	}
	ok(t, call("doca_pe_connect_ctx", eventEngine, eventCtx))
	ok(t, call("doca_ctx_start", eventCtx))
	adds := create(t, "doca_sync_event_task_notify_add_alloc_init", event, 1, docatest.Alloc(8), 0)
	waits := create(t, "doca_sync_event_task_wait_eq_alloc_init", event, 3, 0xff, 0)
	gone := create(t, "doca_pe_create")
	ok(t, call("doca_pe_destroy", gone))
	return []P{nil, gone, p.server.dev, p.server.rep, p.server.pe, p.server.object,
		p.server.connection, p.client.dev, p.client.pe, p.client.object, p.client.connection,
		p.client.send("message"), c.pe, c.object, c.memory.mmap, c.memory.inventory, receive, buf,
		q.pe, q.object, q.memory.mmap, q.memory.inventory, send, source, idleConsumer.pe,
		idleConsumer.object, m.mmap, m.inventory, dma, ctx, pe, copied.Pointer(),
		rdma, rdmaCtx, rdmaEngine, connection, sent.Pointer(), create(t, "doca_sync_event_create"),
		event, eventCtx, eventEngine, adds, waits,
		docatest.Pointer("doca_dev_as_devinfo", p.server.dev), docatest.Alloc(64)}
}
