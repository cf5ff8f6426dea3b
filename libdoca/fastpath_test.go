// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// consumer is a consumer with an engine and memory of its own.
type consumer struct {
	t               testing.TB
	pe, object, ctx P
	memory          *memory
	id              int
}

func newConsumer(t testing.TB, c *control, tasks int) *consumer {
	t.Helper()
	created := &consumer{t: t, memory: newMemory(t, c.dev, 1<<16, localReadWrite|pciReadWrite)}
	created.object = create(t, "doca_comch_consumer_create", c.connection, created.memory.mmap)
	created.ctx = docatest.Pointer("doca_comch_consumer_as_ctx", created.object)
	ok(t, call("doca_comch_consumer_task_post_recv_set_conf", created.object,
		docatest.Callback(docatest.Completed), docatest.Callback(docatest.Failed), tasks))
	created.pe = connectEngine(t, created.ctx)
	return created
}

// connectEngine gives a context an engine, and lets it report its states.
func connectEngine(t testing.TB, ctx P) P {
	t.Helper()
	pe := create(t, "doca_pe_create")
	ok(t, call("doca_pe_connect_ctx", pe, ctx))
	ok(t, call("doca_ctx_set_state_changed_cb", ctx, docatest.Callback(docatest.State)))
	return pe
}

// start starts the consumer; only its own engine is progressed.
func (c *consumer) start() {
	c.t.Helper()
	is(c.t, call("doca_ctx_start", c.ctx), status.InProgress)
	c.awaitRunning()
}

// awaitRunning waits until a started consumer has its ID.
func (c *consumer) awaitRunning() {
	c.t.Helper()
	until(c.t, "consumer runs", func() bool { return stateOf(c.t, c.ctx) == running }, c.pe)
	id, code := docatest.Get("doca_comch_consumer_get_id", c.object)
	ok(c.t, code)
	c.id = int(id.Uint32())
}

// post submits a receive of length bytes at offset, and returns the task and its buf.
func (c *consumer) post(offset, length int) (task, buf P) {
	c.t.Helper()
	if length > 0 {
		buf = c.memory.buf(offset, length, 0)
	}
	task = create(c.t, "doca_comch_consumer_task_post_recv_alloc_init", c.object, buf)
	ok(c.t, call("doca_task_submit", task))
	return task, buf
}

// received returns what a completed receive holds.
func received(t testing.TB, task P) (data, immediate string) {
	t.Helper()
	if buf := docatest.Pointer("doca_comch_consumer_task_post_recv_get_buf", task); buf != nil {
		start, code := docatest.Get("doca_buf_get_data", buf)
		ok(t, code)
		length, code := docatest.Get("doca_buf_get_data_len", buf)
		ok(t, code)
		data = string(docatest.Bytes(start.Pointer(), int(length.Uint64())))
	}
	n := int(uint32(docatest.Raw("doca_comch_consumer_task_post_recv_get_imm_data_len", task)))
	if p := docatest.Pointer("doca_comch_consumer_task_post_recv_get_imm_data", task); p != nil {
		immediate = string(docatest.Bytes(p, n))
	} else if n != 0 {
		t.Errorf("%d bytes of immediate data at NULL", n)
	}
	return data, immediate
}

func (c *consumer) destroy() {
	c.t.Helper()
	ok(c.t, call("doca_comch_consumer_destroy", c.object))
	ok(c.t, call("doca_pe_destroy", c.pe))
	c.memory.destroy()
}

// producer is a producer with an engine and memory of its own.
type producer struct {
	t               testing.TB
	pe, object, ctx P
	memory          *memory
}

func newProducer(t testing.TB, c *control, tasks int) *producer {
	t.Helper()
	created := &producer{t: t, memory: newMemory(t, c.dev, 1<<16, localReadWrite)}
	created.object = create(t, "doca_comch_producer_create", c.connection)
	created.ctx = docatest.Pointer("doca_comch_producer_as_ctx", created.object)
	ok(t, call("doca_comch_producer_task_send_set_conf", created.object,
		docatest.Callback(docatest.Completed), docatest.Callback(docatest.Failed), tasks))
	created.pe = connectEngine(t, created.ctx)
	return created
}

// task allocates a task for a message at offset of the producer's memory.
func (p *producer) task(offset int, message, immediate string, consumer int) (task, buf P) {
	p.t.Helper()
	if message != "" {
		copy(p.memory.bytes[offset:], message)
		buf = p.memory.buf(offset, len(message), len(message))
	}
	imm := docatest.Alloc(64)
	defer docatest.Free(imm)
	copy(docatest.Bytes(imm, 64), immediate)
	return create(p.t, "doca_comch_producer_task_send_alloc_init", p.object, buf, imm,
		len(immediate), consumer), buf
}

func (p *producer) destroy() {
	p.t.Helper()
	ok(p.t, call("doca_comch_producer_destroy", p.object))
	ok(p.t, call("doca_pe_destroy", p.pe))
	p.memory.destroy()
}

// stop stops a context by progress of its own engine only, frees its tasks after exactly the
// flushed number of progress calls, and waits until it is idle.
func stop(t testing.TB, ctx, pe P, tasks ...P) {
	t.Helper()
	flushed := inflight(t, ctx)
	if code := call("doca_ctx_stop", ctx); code == status.Success {
		if stateOf(t, ctx) != idle {
			t.Fatalf("stop returned SUCCESS in state %d", stateOf(t, ctx))
		}
		return
	} else if code != status.InProgress {
		t.Fatalf("stop returned %v", code)
	}
	flushed = min(flushed, inflight(t, ctx))
	for range flushed {
		if !docatest.Progress(pe) {
			t.Fatal("progress flushed nothing")
		}
	}
	if n := inflight(t, ctx); n != 0 {
		t.Fatalf("%d tasks are in flight after %d were flushed", n, flushed)
	}
	for _, task := range tasks {
		call("doca_task_free", task)
	}
	until(t, "context is idle", func() bool { return stateOf(t, ctx) == idle }, pe)
}

// Applications pair consumers in the order in which the peer announces them, and start several
// before the first one runs.
func TestConsumersAreAnnouncedInTheOrderOfTheirStart(t *testing.T) {
	const count = 24
	p := newPair(t, libdoca.Config{})
	var consumers []*consumer
	for range count {
		consumers = append(consumers, newConsumer(t, p.server, 1))
	}
	for _, c := range consumers {
		is(t, call("doca_ctx_start", c.ctx), status.InProgress)
	}
	p.waitCount(docatest.ConsumerNew, p.client.connection, count, p.client.pe)
	var announced, started []int
	for _, e := range p.log {
		if e.Kind == docatest.ConsumerNew {
			announced = append(announced, int(e.A))
		}
	}
	for _, c := range consumers {
		c.awaitRunning()
		started = append(started, c.id)
	}
	if !slices.Equal(announced, started) {
		t.Errorf("the peer hears of consumers %v, which were started as %v", announced, started)
	}
	for _, c := range consumers {
		stop(t, c.ctx, c.pe)
		c.destroy()
	}
	p.close()
}

func TestFastPath(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	// The host sends to the DPU, and the other way around.
	for _, way := range []struct{ from, to *control }{{p.client, p.server}, {p.server, p.client}} {
		c := newConsumer(t, way.to, 8)
		c.start()
		p.waitCount(docatest.ConsumerNew, way.from.connection, 1, way.from.pe)
		if id := int(p.last(docatest.ConsumerNew).A); id != c.id || id < 1 || id == 0xffff {
			t.Fatalf("the peer heard of consumer %d, which is %d", id, c.id)
		}
		q := newProducer(t, way.from, 8)
		ok(t, call("doca_ctx_start", q.ctx))
		p.collect()
		if e := p.last(docatest.State); e.Object != q.ctx || e.A != idle || e.B != running {
			t.Errorf("the producer's start reported %+v", e)
		}
		producerID, code := docatest.Get("doca_comch_producer_get_id", q.object)
		ok(t, code)

		var receives, bufs []P
		for i := range 4 {
			task, buf := c.post(100*i, 100)
			receives, bufs = append(receives, task), append(bufs, buf)
		}
		immediateOnly, _ := c.post(0, 0)
		receives = append(receives, immediateOnly)
		messages := []struct{ data, immediate string }{{"a message", ""},
			{"with immediate data", "0123456789"}, {string(bytes.Repeat([]byte("x"), 100)), "all"},
			{"", "nothing else"}, {"", "to a receive without a buf"}}
		var sends, sources []P
		for i, m := range messages {
			task, buf := q.task(1000*i, m.data, m.immediate, c.id)
			sends = append(sends, task)
			if buf != nil {
				sources = append(sources, buf)
			}
			ok(t, call("doca_task_submit", task))
		}
		for _, task := range sends {
			p.waitCount(docatest.Completed, task, 1, q.pe)
		}
		for _, task := range receives {
			p.waitCount(docatest.Completed, task, 1, c.pe)
		}
		for i, task := range receives {
			data, immediate := received(t, task)
			if data != messages[i].data || immediate != messages[i].immediate {
				t.Errorf("message %d is %q with %q", i, data, immediate)
			}
			id := uint32(docatest.Raw("doca_comch_consumer_task_post_recv_get_producer_id", task))
			if id != producerID.Uint32() {
				t.Errorf("message %d is from producer %d, expected %d", i, id, producerID.Uint32())
			}
		}

		// A receive that is posted again appends, unless its length is reset.
		ok(t, call("doca_task_submit", receives[0]))
		ok(t, call("doca_task_submit", sends[0]))
		p.waitCount(docatest.Completed, sends[0], 2, q.pe)
		p.waitCount(docatest.Completed, receives[0], 2, c.pe)
		if data, _ := received(t, receives[0]); data != "a messagea message" {
			t.Errorf("the buf holds %q", data)
		}

		stop(t, q.ctx, q.pe, sends...)
		stop(t, c.ctx, c.pe, receives...)
		p.waitCount(docatest.ConsumerExpired, way.from.connection, 1, way.from.pe)
		release(t, sources...)
		release(t, bufs...)
		q.destroy()
		c.destroy()
	}
	p.close()
}

// The peer hears of a consumer from its start, whether or not its engine is progressed.
func TestConsumersAreAnnouncedByTheirStart(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c := newConsumer(t, p.server, 1)
	is(t, call("doca_ctx_start", c.ctx), status.InProgress)
	p.waitCount(docatest.ConsumerNew, p.client.connection, 1, p.client.pe)
	if stateOf(t, c.ctx) != starting {
		t.Errorf("the consumer is in state %d without progress", stateOf(t, c.ctx))
	}
	until(t, "consumer runs", func() bool { return stateOf(t, c.ctx) == running }, c.pe)
	// A start that is stopped at once becomes idle, too.
	stop(t, c.ctx, c.pe)
	is(t, call("doca_ctx_start", c.ctx), status.InProgress)
	is(t, call("doca_ctx_stop", c.ctx), status.InProgress)
	until(t, "consumer is idle", func() bool { return stateOf(t, c.ctx) == idle }, c.pe)
	c.destroy()
	p.close()
}

// Sends wait until the consumer has a receive posted.
func TestSendsWaitForReceives(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.client, 4)
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	first, _ := q.task(0, "", "1", c.id)
	second, _ := q.task(0, "", "2", c.id)
	ok(t, call("doca_task_submit", first))
	ok(t, call("doca_task_submit", second))
	receive, _ := c.post(0, 0)
	p.waitCount(docatest.Completed, first, 1, q.pe)
	p.waitCount(docatest.Completed, receive, 1, c.pe)
	if inflight(t, q.ctx) != 1 {
		t.Errorf("%d sends are in flight, expected 1", inflight(t, q.ctx))
	}
	// The one that is left is flushed.
	stop(t, q.ctx, q.pe, first, second)
	p.waitCount(docatest.Failed, second, 1)
	stop(t, c.ctx, c.pe, receive)
	q.destroy()
	c.destroy()
	p.close()
}

// With Again, a submission fails while no receive is posted, and leaves the task with the
// application.
func TestSubmissionsAskToTryAgain(t *testing.T) {
	p := newPair(t, libdoca.Config{Again: true})
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.client, 4)
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	task, _ := q.task(0, "", "1", c.id)
	receive, _ := c.post(0, 0)
	ok(t, call("doca_task_submit", task)) // opens the way, which takes a while
	p.waitCount(docatest.Completed, task, 1, q.pe)
	p.waitCount(docatest.Completed, receive, 1, c.pe)
	is(t, call("doca_task_submit", task), status.Again)
	is(t, call("doca_task_submit", task), status.Again)
	if inflight(t, q.ctx) != 0 {
		t.Errorf("%d sends are in flight, expected none", inflight(t, q.ctx))
	}
	// It clears without progress of the producer's engine.
	ok(t, call("doca_task_submit", receive))
	ok(t, call("doca_task_submit", task))
	p.waitCount(docatest.Completed, receive, 2, c.pe)
	p.waitCount(docatest.Completed, task, 2, q.pe)
	stop(t, q.ctx, q.pe, task)
	stop(t, c.ctx, c.pe, receive)
	q.destroy()
	c.destroy()
	p.close()
}

// A task without the flush flag waits for others, but only until its engine has nothing else to do.
func TestTasksThatNobodyFlushesGoOut(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	q := newProducer(t, p.client, 16)
	c := newConsumer(t, p.server, 4)
	ok(t, call("doca_ctx_start", q.ctx))
	c.start()
	var receives, sends []P
	for i := range 3 {
		receive, _ := c.post(0, 0)
		send, _ := q.task(0, "", fmt.Sprint(i), c.id)
		receives, sends = append(receives, receive), append(sends, send)
		ok(t, call("doca_task_submit_ex", send, 0))
	}
	for i := range sends {
		p.waitCount(docatest.Completed, sends[i], 1, q.pe)
		p.waitCount(docatest.Completed, receives[i], 1, c.pe)
	}
	// Also for a program that sleeps instead of progressing its engine.
	receive, _ := c.post(0, 0)
	ok(t, call("doca_task_submit_ex", sends[0], 0))
	ok(t, call("doca_pe_request_notification", q.pe))
	p.waitCount(docatest.Completed, receive, 1, c.pe)
	docatest.Raw("doca_pe_clear_notification", q.pe, 0)
	p.waitCount(docatest.Completed, sends[0], 2, q.pe)
	stop(t, q.ctx, q.pe, sends...)
	stop(t, c.ctx, c.pe, append(receives, receive)...)
	q.destroy()
	c.destroy()
	p.close()
}

// One producer sends to several consumers, under one ID.
func TestOneProducerManyConsumers(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	q := newProducer(t, p.client, 16)
	ok(t, call("doca_ctx_start", q.ctx))
	id, _ := docatest.Get("doca_comch_producer_get_id", q.object)
	var consumers []*consumer
	var receives, sends []P
	for i := range 3 {
		c := newConsumer(t, p.server, 4)
		c.start()
		receive, _ := c.post(0, 0)
		send, _ := q.task(0, "", fmt.Sprint(i), c.id)
		consumers, receives, sends = append(consumers, c), append(receives, receive),
			append(sends, send)
		ok(t, call("doca_task_submit_ex", send, 0)) // held back
	}
	if inflight(t, q.ctx) != 3 || docatest.Progress(consumers[0].pe) {
		t.Error("tasks that are held back were sent")
	}
	docatest.Raw("doca_ctx_flush_tasks", q.ctx)
	for i, c := range consumers {
		p.waitCount(docatest.Completed, sends[i], 1, q.pe)
		p.waitCount(docatest.Completed, receives[i], 1, c.pe)
		got := uint32(docatest.Raw("doca_comch_consumer_task_post_recv_get_producer_id", receives[i]))
		if _, immediate := received(t, receives[i]); immediate != fmt.Sprint(i) ||
			got != id.Uint32() {
			t.Errorf("consumer %d received %q from producer %d", i, immediate, got)
		}
	}
	// To a consumer that is gone, or never was, tasks fail.
	stop(t, consumers[0].ctx, consumers[0].pe, receives[0])
	p.waitCount(docatest.ConsumerExpired, nil, 1, p.client.pe)
	ok(t, call("doca_task_submit", sends[0]))
	p.waitCount(docatest.Failed, sends[0], 1, q.pe)
	docatest.Raw("doca_comch_producer_task_send_set_consumer_id", sends[0], 9999)
	ok(t, call("doca_task_submit", sends[0]))
	p.waitCount(docatest.Failed, sends[0], 2, q.pe)
	is(t, call("doca_task_get_status", sends[0]), status.NotFound)

	stop(t, q.ctx, q.pe, sends...)
	q.destroy()
	for i, c := range consumers[1:] {
		stop(t, c.ctx, c.pe, receives[i+1])
	}
	for _, c := range consumers {
		c.destroy()
	}
	p.close()
}

func TestMessagesThatDoNotFit(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.client, 4)
	ok(t, call("doca_comch_consumer_set_imm_data_len", c.object, 4))
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	receive, buf := c.post(0, 10)
	long, source := q.task(0, "eleven byte", "", c.id)
	immediate, _ := q.task(0, "", "12345", c.id)
	for _, task := range []P{long, immediate} {
		ok(t, call("doca_task_submit", task))
		p.waitCount(docatest.Failed, task, 1, q.pe)
		is(t, call("doca_task_get_status", task), status.InvalidValue)
	}
	stop(t, q.ctx, q.pe, long, immediate)
	stop(t, c.ctx, c.pe, receive)
	p.waitCount(docatest.Failed, receive, 1)
	release(t, buf, source)
	q.destroy()
	c.destroy()
	p.close()
}

// A send tells what it will send, to which consumer.
func TestSendsTellWhatTheySend(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 1), newProducer(t, p.client, 2)
	ok(t, call("doca_ctx_start", q.ctx))
	get := func(name string, task P) uint32 {
		return uint32(docatest.Raw("doca_comch_producer_task_send_get_"+name, task))
	}
	task, buf := q.task(0, "data", "12345", 7)
	immediate := docatest.Pointer("doca_comch_producer_task_send_get_imm_data", task)
	if get("consumer_id", task) != 7 || get("imm_data_len", task) != 5 ||
		string(docatest.Bytes(immediate, 5)) != "12345" {
		t.Errorf("%d bytes of immediate data to consumer %d", get("imm_data_len", task),
			get("consumer_id", task))
	}
	docatest.Raw("doca_comch_producer_task_send_set_consumer_id", task, 8)
	docatest.Raw("doca_comch_producer_task_send_set_imm_data", task, q.memory.base, 4)
	if get("consumer_id", task) != 8 || get("imm_data_len", task) != 4 ||
		string(docatest.Bytes(immediate, 4)) != "data" {
		t.Errorf("%d bytes of immediate data to consumer %d", get("imm_data_len", task),
			get("consumer_id", task))
	}
	docatest.Raw("doca_comch_producer_task_send_set_imm_data", task, nil, 0)
	if docatest.Pointer("doca_comch_producer_task_send_get_imm_data", task) != nil {
		t.Error("immediate data of no length is somewhere")
	}

	c.start()
	receive, _ := c.post(0, 0)
	for _, name := range []string{"consumer_id", "imm_data_len", "imm_data"} {
		if docatest.Raw("doca_comch_producer_task_send_get_"+name, receive) != 0 {
			t.Errorf("a receive has a %s to send", name)
		}
		p.expectMisuse("doca_comch_producer_task_send_get_"+name, "belongs to a comch_consumer")
	}
	call("doca_task_free", task)
	release(t, buf)
	stop(t, q.ctx, q.pe)
	stop(t, c.ctx, c.pe, receive)
	q.destroy()
	c.destroy()
	p.close()
}

// The memory behind a consumer is used in a circle, with bufs of any lengths.
func TestManyMessagesOfAnyLength(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 8), newProducer(t, p.client, 8)
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	lengths := []int{1, 1000, 7, 30000, 64, 12345, 2}
	var receives, bufs []P
	offset := 0
	for _, length := range lengths {
		task, buf := c.post(offset, length)
		receives, bufs = append(receives, task), append(bufs, buf)
		offset += length
	}
	var sends, sources []P
	message := func(i int) string {
		return strings.Repeat(string(rune('a'+i)), min(lengths[i], 9000))
	}
	for i := range lengths {
		task, buf := q.task(9000*i, message(i), "", c.id)
		sends, sources = append(sends, task), append(sources, buf)
	}
	for round := 1; round <= 20; round++ {
		for _, task := range sends {
			ok(t, call("doca_task_submit", task))
		}
		for i, task := range receives {
			p.waitCount(docatest.Completed, sends[i], round, q.pe)
			p.waitCount(docatest.Completed, task, round, c.pe)
			if data, _ := received(t, task); data != message(i) {
				t.Fatalf("round %d: message %d has %d bytes", round, i, len(data))
			}
			ok(t, call("doca_buf_reset_data_len", bufs[i]))
		}
		for _, task := range receives {
			ok(t, call("doca_task_submit", task))
		}
	}
	stop(t, q.ctx, q.pe, sends...)
	stop(t, c.ctx, c.pe, receives...)
	release(t, slices.Concat(bufs, sources)...)
	q.destroy()
	c.destroy()
	p.close()
}

// When the connection is lost, everything stops by itself, and tasks fail.
func TestTheLossOfTheConnection(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.server, 4)
	mine := newConsumer(t, p.client, 4)
	mine.start()
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	receive, buf := c.post(0, 10)
	send, _ := q.task(0, "", "1", mine.id)
	ok(t, call("doca_task_submit", send)) // never received
	until(t, "the producer is open", func() bool { return drain(p.server.pe)+drain(q.pe) == 0 })

	is(t, call("doca_ctx_stop", p.client.ctx), status.InUse)
	p.expectMisuse("doca_ctx_stop", "consumers or producers")
	stop(t, mine.ctx, mine.pe)
	mine.destroy()
	p.client.stop()

	p.waitCount(docatest.Disconnected, p.server.connection, 1, p.server.pe)
	p.waitCount(docatest.Failed, receive, 1, c.pe)
	p.waitCount(docatest.Failed, send, 1, q.pe)
	for ctx, pe := range map[P]P{c.ctx: c.pe, q.ctx: q.pe} {
		until(t, "stopping", func() bool { return stateOf(t, ctx) == stopping }, pe)
	}
	_, code := docatest.Get("doca_comch_producer_create", p.server.connection)
	is(t, code, status.BadState)
	p.expectMisuse("doca_comch_producer_create", "has ended")
	call("doca_task_free", receive)
	call("doca_task_free", send)
	for ctx, pe := range map[P]P{c.ctx: c.pe, q.ctx: q.pe} {
		until(t, "idle", func() bool { return stateOf(t, ctx) == idle }, pe)
	}
	release(t, buf)
	c.destroy()
	q.destroy()
	p.server.stop()
	p.client.destroy()
	p.server.destroy()
}

func TestMisuseOfTheFastPath(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	noPCI := newMemory(t, p.server.dev, 4096, localReadWrite)
	_, code := docatest.Get("doca_comch_consumer_create", p.server.connection, noPCI.mmap)
	is(t, code, status.InvalidValue)
	p.expectMisuse("doca_comch_consumer_create", "PCI_READ_WRITE")

	c, q := newConsumer(t, p.server, 4), newProducer(t, p.server, 4)
	_, code = docatest.Get("doca_comch_consumer_get_id", c.object)
	is(t, code, status.BadState)
	p.expectMisuse("doca_comch_consumer_get_id", "before it runs")
	is(t, call("doca_comch_consumer_set_imm_data_len", c.object, 33), status.InvalidValue)
	p.expectMisuse("doca_comch_consumer_set_imm_data_len", "capability of 32")
	is(t, call("doca_comch_server_disconnect", p.server.object, p.server.connection), status.InUse)
	p.expectMisuse("doca_comch_server_disconnect", "destroy them first")
	is(t, call("doca_ctx_stop", p.server.ctx), status.InUse)
	p.expectMisuse("doca_ctx_stop", "consumers or producers")
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))

	foreign := noPCI.buf(0, 10, 0)
	task := create(t, "doca_comch_consumer_task_post_recv_alloc_init", c.object, foreign)
	is(t, call("doca_task_submit", task), status.InvalidValue)
	p.expectMisuse("doca_task_submit", "created with")
	first, second := c.memory.buf(0, 10, 0), c.memory.buf(10, 10, 0)
	ok(t, call("doca_buf_chain_list", first, second))
	docatest.Raw("doca_comch_consumer_task_post_recv_set_buf", task, first)
	is(t, call("doca_task_submit", task), status.InvalidValue)
	p.expectMisuse("doca_task_submit", "part of a list")
	single := c.memory.buf(20, 10, 0)
	docatest.Raw("doca_comch_consumer_task_post_recv_set_buf", task, single)
	ok(t, call("doca_task_submit", task))
	other := create(t, "doca_comch_consumer_task_post_recv_alloc_init", c.object, single)
	is(t, call("doca_task_submit", other), status.InUse)
	p.expectMisuse("doca_task_submit", "another task")

	_, code = docatest.Get("doca_comch_producer_task_send_alloc_init", q.object, nil, nil, 0, 0)
	p.expectMisuse("doca_comch_producer_task_send_alloc_init", "no id")
	is(t, code, status.InvalidValue)
	empty := create(t, "doca_comch_producer_task_send_alloc_init", q.object, nil, nil, 0, 1)
	is(t, call("doca_task_submit", empty), status.InvalidValue)
	p.expectMisuse("doca_task_submit", "neither a buf nor immediate data")
	if got := docatest.Pointer("doca_comch_producer_task_send_as_task", task); got != nil {
		t.Errorf("a receive is send task %p", got)
	}
	p.expectMisuse("doca_comch_producer_task_send_as_task", "belongs to a comch_consumer")

	stop(t, q.ctx, q.pe, empty)
	call("doca_task_free", other)
	stop(t, c.ctx, c.pe, task)
	release(t, foreign, first, single)
	noPCI.destroy()
	q.destroy()
	c.destroy()
	p.close()
}

// An armed engine wakes up for messages, and a producer's for receives that it waits for.
func TestNotificationsOfTheFastPath(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 4), newProducer(t, p.client, 4)
	for _, pe := range []P{c.pe, q.pe, p.server.pe} {
		ok(t, call("doca_pe_set_event_mode", pe, 1))
	}
	c.start()
	ok(t, call("doca_ctx_start", q.ctx))
	send, _ := q.task(0, "", "1", c.id)
	receive, _ := c.post(0, 0)
	ok(t, call("doca_task_submit", send))
	p.waitCount(docatest.Completed, send, 1, q.pe)
	p.waitCount(docatest.Completed, receive, 1, c.pe)

	armed := func(pe P) {
		t.Helper()
		drain(pe)
		ok(t, call("doca_pe_request_notification", pe))
		if docatest.Progress(pe) {
			t.Fatal("there was work left")
		}
		if readable(t, pe) {
			t.Fatal("readable without a reason")
		}
	}
	ok(t, call("doca_task_submit", send)) // waits for a receive
	armed(q.pe)
	armed(c.pe)
	ok(t, call("doca_task_submit", receive))
	until(t, "the producer's engine is signaled", func() bool { return readable(t, q.pe) })
	p.waitCount(docatest.Completed, send, 2, q.pe)
	until(t, "the consumer's engine is signaled", func() bool { return readable(t, c.pe) })
	p.waitCount(docatest.Completed, receive, 2, c.pe)

	armed(p.server.pe)
	task := p.client.send("wake up")
	until(t, "the server's engine is signaled", func() bool { return readable(t, p.server.pe) })
	p.waitCount(docatest.Message, p.server.connection, 1, p.server.pe)
	p.waitCount(docatest.Completed, task, 1, p.client.pe)
	call("doca_task_free", task)

	stop(t, q.ctx, q.pe, send)
	stop(t, c.ctx, c.pe, receive)
	q.destroy()
	c.destroy()
	p.close()
}
