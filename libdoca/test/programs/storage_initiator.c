// SPDX-License-Identifier: Apache-2.0

/* An initiator in the shape of those of the DOCA storage applications, in their protocols of 2.10 to
 * 3.2: each thread keeps a number of transactions going, of which each writes a block, reads it
 * back into cleared memory, and compares. OPERATIONS is the number of writes per thread. With
 * STRATEGY=read it only reads, as fast as it can. */

#include "storage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	THREADS = 2,
	COUNT = 16, /* transactions per thread */
	BLOCK = 4096,
	REGION = THREADS * COUNT * BLOCK,
	ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE,
	/* of the data, which a relay exports again */
	DATA_ACCESS = ACCESS | DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE,
};

struct transaction {
	struct worker *worker;
	struct doca_buf *message;
	uint8_t *bytes; /* of the message */
	uint8_t *data;
	uint64_t address;   /* of the data, as the protocol counts it */
	uint64_t storage;   /* of the block */
	int type, position; /* of the last message that was sent, among the thread's */
	bool answered;
	uint32_t seed;
	int begun;
};

struct worker {
	struct memory memory;
	struct consumer *consumer;
	struct producer *producer;
	struct doca_buf *receives[2 * COUNT];
	struct transaction transactions[COUNT];
	uint32_t to; /* the relay's consumer */
	int index, sent, verified;
	bool stopped;
};

static int operations;
static bool only_reads;
static struct worker workers[THREADS];
static uint32_t requests; /* sent so far */
static uint64_t storage_size;

/* Sends a control message, waits for the reply, and returns its payload. */
static const uint8_t *request(struct control *control, uint32_t type, const uint8_t *payload,
			      size_t length)
{
	struct control_message message = {type, requests, requests, payload, length}, reply;
	uint8_t bytes[CONTROL_MESSAGE];
	int messages = control->messages;

	requests++;
	control_send(control, bytes, encode_control(bytes, &message));
	UNTIL(control->messages > messages, control->pe);
	reply = decode_control(control->last, control->last_length);
	CHECK(reply.correlation == message.correlation &&
	      (dialect == DOCA_2_10 || reply.id == message.id));
	if (reply.type == RESPONSE && get(reply.payload, 4) != 0)
		fail(__FILE__, __LINE__, "request %u failed: %.*s", type, (int)reply.length - 8,
		     reply.payload + 8);
	CHECK(reply.type == (dialect == DOCA_2_10 ? RESPONSE : type + 1));
	return reply.payload;
}

static void init_storage(struct control *control, struct memory *region)
{
	struct init_storage init = {.count = COUNT, .buffer_size = BLOCK, .queues = THREADS};
	uint8_t payload[CONTROL_MESSAGE];
	const void *desc;

	if (dialect != DOCA_2_10) {
		const uint8_t *reply = request(control, QUERY_STORAGE, NULL, 0);

		storage_size = get(reply, 8);
		CHECK(get(reply + 8, 4) <= BLOCK && storage_size >= REGION);
	}
	OK(doca_mmap_export_pci(region->mmap, control->dev, &desc, &init.length));
	init.export = desc;
	(void)request(control, INIT_STORAGE, payload, encode_init(payload, &init));
}

/* Results. */

static void on_result(struct consumer *consumer, struct doca_buf *buf)
{
	struct worker *worker = consumer->context;
	size_t length;
	void *data;

	OK(doca_buf_get_data(buf, &data));
	OK(doca_buf_get_data_len(buf, &length));
	CHECK(length == MESSAGE);

	const uint8_t *message = data;

	if (dialect == DOCA_2_10 && get(message, 4) == STOP) {
		worker->stopped = true;
		return;
	}

	uint64_t index = dialect == DOCA_3_2 ? get(message + 8, 8) : get(message + 4, 4);

	CHECK(get(message, 4) == RESULT && index < COUNT);

	struct transaction *t = &worker->transactions[index];

	if (get(message + 16, 4) != 0)
		fail(__FILE__, __LINE__, "IO %d at %#lx has result %d", t->type,
		     (unsigned long)t->storage, (int)get(message + 16, 4));
	CHECK(!t->answered && get(message + 20, 4) == BLOCK && get(message + 24, 8) == t->address);
	t->answered = true;
}

static void post_receives(struct worker *worker)
{
	for (int i = 0; i < 2 * COUNT; i++)
		(void)consumer_post(worker->consumer, worker->receives[i]);
}

static void send_message(struct worker *worker, struct transaction *t, int type, int index)
{
	uint8_t *at = t->bytes;

	memset(at, 0xee, MESSAGE); /* what is not set is not initialized */
	put(&at, (uint64_t)type, 4);
	put(&at, dialect == DOCA_3_2 ? 0xeeeeeeee : (uint64_t)index, 4);
	put(&at, dialect == DOCA_3_2 ? (uint64_t)index : worker->to, 8);
	at += 4; /* the result */
	put(&at, BLOCK, 4);
	put(&at, t->address, 8);
	if (dialect == DOCA_3_0)
		put(&at, 0, 4); /* how far the data is behind the block's place in the memory */
	else if (dialect > DOCA_3_0)
		put(&at, t->storage, 8);
	t->type = type;
	t->answered = false;
	(void)producer_send(worker->producer, t->message, worker->to, NULL, 0);
	t->position = ++worker->sent;
}

static uint8_t pattern(const struct transaction *t, int i)
{
	return (uint8_t)((t->seed + (uint32_t)i * 7) >> (i % 3));
}

static void begin_block(struct transaction *t, int index)
{
	struct worker *worker = t->worker;

	t->seed = t->seed * 1664525 + 1013904223;
	if (dialect > DOCA_3_0) { /* each transaction has blocks of its own */
		uint64_t rows = storage_size / REGION;
		uint64_t row = (uint64_t)t->begun % rows;

		t->storage = (row * THREADS * COUNT + (uint64_t)(worker->index * COUNT + index)) *
			     BLOCK;
	}
	t->begun++;
	if (only_reads) {
		send_message(worker, t, READ, index);
		return;
	}
	for (int i = 0; i < BLOCK; i++)
		t->data[i] = pattern(t, i);
	send_message(worker, t, WRITE, index);
}

static void *work(void *context)
{
	struct worker *worker = context;
	double deadline = now() + 120;

	for (int i = 0; i < COUNT; i++)
		begin_block(&worker->transactions[i], i);
	while (worker->verified < operations) {
		struct doca_pe *const engines[] = {worker->consumer->pe, worker->producer->pe};
		int before = worker->verified;

		progress_each(engines, 2);
		for (int i = 0; i < COUNT; i++) {
			struct transaction *t = &worker->transactions[i];

			if (!t->answered || worker->producer->sent < t->position)
				continue;
			if (t->type == WRITE) {
				memset(t->data, 0, BLOCK);
				send_message(worker, t, READ, i);
				continue;
			}
			for (int b = 0; b < BLOCK && !only_reads; b++)
				if (t->data[b] != pattern(t, b))
					fail(__FILE__, __LINE__, "byte %d of block %#lx is %d", b,
					     (unsigned long)t->storage, t->data[b]);
			worker->verified++;
			t->answered = false;
			if (t->begun * COUNT < operations)
				begin_block(t, i);
		}
		if (worker->verified > before)
			deadline = now() + 120;
		if (now() > deadline)
			fail(__FILE__, __LINE__, "two minutes without a result");
	}
	return NULL;
}

static void open_worker(struct worker *worker, struct control *control, struct memory *region)
{
	size_t message = 0;

	worker->memory = memory_new(control->dev, 4 * COUNT * MESSAGE, ACCESS);
	for (int i = 0; i < COUNT; i++) {
		struct transaction *t = &worker->transactions[i];

		t->worker = worker;
		t->message = memory_buf(&worker->memory, message, MESSAGE, MESSAGE);
		t->bytes = worker->memory.bytes + message;
		message += MESSAGE;

		size_t offset = (size_t)(worker->index * COUNT + i) * BLOCK;

		t->data = region->bytes + offset;
		t->address = dialect <= DOCA_3_0 ? (uint64_t)(uintptr_t)t->data : offset;
		t->storage = offset;
		t->seed = (uint32_t)offset + 1;
	}
	for (int i = 0; i < 2 * COUNT; i++) {
		worker->receives[i] = memory_buf(&worker->memory, message, MESSAGE, 0);
		message += MESSAGE;
	}
	worker->consumer = consumer_new(control, &worker->memory, 2 * COUNT);
	worker->consumer->on_message = on_result;
	worker->consumer->context = worker;
	worker->consumer->repost = true;
	worker->producer = producer_new(control, COUNT);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(worker->consumer->ctx));
	OK(doca_ctx_start(worker->producer->ctx));
	UNTIL(state_of(worker->consumer->ctx) == DOCA_CTX_STATE_RUNNING, worker->consumer->pe,
	      control->pe);
}

static void close_worker(struct worker *worker)
{
	worker->consumer->repost = false;
	stop(worker->consumer->ctx, worker->consumer->pe);
	stop(worker->producer->ctx, worker->producer->pe);
	consumer_destroy(worker->consumer);
	producer_destroy(worker->producer);
	for (int i = 0; i < COUNT; i++)
		release(worker->transactions[i].message);
	for (int i = 0; i < 2 * COUNT; i++)
		release(worker->receives[i]);
	memory_free(&worker->memory);
}

static void stop_storage(struct control *control)
{
	if (dialect != DOCA_2_10) {
		(void)request(control, STOP_STORAGE, NULL, 0);
		return;
	}
	/* The first thread says so on the data path. */
	send_message(&workers[0], &workers[0].transactions[0], STOP, 0);
	UNTIL(workers[0].stopped && workers[0].producer->sent == workers[0].sent,
	      workers[0].consumer->pe, workers[0].producer->pe, control->pe);
}

static void run(void)
{
	struct control *control = control_new(
		dialect == DOCA_2_10 ? "storage_zero_copy_comch" : "doca_storage_comch");
	pthread_t threads[THREADS];

	const char *strategy = getenv("STRATEGY");

	only_reads = strategy != NULL && strcmp(strategy, "read") == 0;
	operations = atoi(getenv("OPERATIONS"));
	CHECK(operations >= COUNT && operations % COUNT == 0);
	requests = dialect == DOCA_2_10 ? 1 : 0;
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(control->ctx));
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	OK(doca_comch_client_get_connection(control->client, &control->connection));

	uint8_t *bytes = aligned_alloc(4096, REGION);
	struct memory region = memory_over(control->dev, bytes, REGION, DATA_ACCESS);

	init_storage(control, &region);
	for (int i = 0; i < THREADS; i++) {
		workers[i].index = i;
		open_worker(&workers[i], control, &region);
	}
	if (dialect == DOCA_2_10)
		(void)request(control, START_CONNECTIONS, NULL, 0);
	UNTIL(control->consumers == THREADS, control->pe);
	for (int i = 0; i < THREADS; i++)
		workers[i].to = control->consumer_ids[i];
	(void)request(control, START_STORAGE, NULL, 0);
	for (int i = 0; i < THREADS; i++)
		post_receives(&workers[i]);
	double began = now();

	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	double rate = THREADS * operations / (now() - began);

	if (only_reads)
		printf("%d reads, %.0f IO/s\n", THREADS * operations, rate);
	else
		printf("verified %d writes and reads, %.0f IO/s\n", THREADS * operations, 2 * rate);
	stop_storage(control);
	for (int i = 0; i < THREADS; i++)
		close_worker(&workers[i]);
	(void)request(control, SHUTDOWN, NULL, 0);
	UNTIL(control->expired == THREADS, control->pe);
	memory_free(&region);
	free(bytes);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

static void doca_2_10(void)
{
	dialect = DOCA_2_10;
	run();
}

static void doca_3_0(void)
{
	dialect = DOCA_3_0;
	run();
}

static void doca_3_1(void)
{
	dialect = DOCA_3_1;
	run();
}

static void doca_3_2(void)
{
	dialect = DOCA_3_2;
	run();
}

const struct test tests[] = {
	{"doca_2_10", doca_2_10},
	{"doca_3_0", doca_3_0},
	{"doca_3_1", doca_3_1},
	{"doca_3_2", doca_3_2},
	{NULL, NULL},
};
