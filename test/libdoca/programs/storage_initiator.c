/* An initiator in the shape of those of the DOCA storage applications, in their protocol of 2.10 and
 * of 3.2: each thread keeps a number of transactions going, of which each writes a block, reads it
 * back into cleared memory, and compares. OPERATIONS is the number of writes per thread. */

#include "program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	THREADS = 2,
	COUNT = 16, /* transactions per thread */
	BLOCK = 4096,
	MESSAGE = 64,
	REGION = THREADS * COUNT * BLOCK,
	ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE,
};

/* Types of IO messages. */
enum { RESULT, READ, WRITE, STOP };

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
	int written;
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

static bool is_2_10;
static int operations;
static struct worker workers[THREADS];
static uint32_t requests; /* sent so far */
static uint64_t storage_size;

static void put(uint8_t **at, uint64_t value, int length)
{
	for (int i = length; i-- > 0;)
		*(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, int length)
{
	uint64_t value = 0;

	for (int i = 0; i < length; i++)
		value = value << 8 | at[i];
	return value;
}

/* Sends a control message, waits for the reply, and returns its payload. */
static const uint8_t *request(struct control *control, int type, const uint8_t *payload,
			      size_t length, int reply)
{
	uint8_t message[4096], *at = message;
	int messages = control->messages;
	uint32_t id = ++requests;

	if (is_2_10) {
		put(&at, 8 + length, 2);
		put(&at, (uint64_t)type, 2);
	} else {
		put(&at, 12 + length, 4);
		put(&at, (uint64_t)type, 4);
		put(&at, id, 4);
	}
	put(&at, id, 4);
	if (length > 0)
		memcpy(at, payload, length);
	control_send(control, message, (size_t)(at - message) + length);
	UNTIL(control->messages > messages, control->pe);

	const uint8_t *answer = control->last;

	if (is_2_10) {
		CHECK(get(answer, 2) == control->last_length && get(answer + 4, 4) == id);
		if (get(answer + 2, 2) != 0 || get(answer + 8, 4) != 0)
			fail(__FILE__, __LINE__, "request %d failed: %.*s", type,
			     (int)control->last_length - 16, answer + 16);
		return answer + 8;
	}
	CHECK(get(answer, 4) + 4 == control->last_length && get(answer + 8, 4) == id &&
	      get(answer + 12, 4) == id);
	if (get(answer + 4, 4) == 0)
		fail(__FILE__, __LINE__, "request %d failed: %.*s", type,
		     (int)control->last_length - 24, answer + 24);
	CHECK(get(answer + 4, 4) == (uint64_t)reply);
	return answer + 16;
}

static void init_storage(struct control *control, struct memory *region)
{
	uint8_t payload[1024], *at = payload;
	const void *desc;
	size_t length;

	if (!is_2_10) {
		const uint8_t *reply = request(control, 1, NULL, 0, 2);

		storage_size = get(reply, 8);
		CHECK(get(reply + 8, 4) <= BLOCK && storage_size >= REGION);
	}
	OK(doca_mmap_export_pci(region->mmap, control->dev, &desc, &length));
	put(&at, COUNT, 4);
	if (is_2_10) {
		put(&at, BLOCK, 4);
		put(&at, 4, 4); /* the batch size */
	} else {
		put(&at, THREADS, 4);
	}
	put(&at, length, 4);
	CHECK(length < 1000);
	memcpy(at, desc, length);
	(void)request(control, is_2_10 ? 1 : 3, payload, (size_t)(at - payload) + length, 4);
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

	if (is_2_10 && get(message, 4) == STOP) {
		worker->stopped = true;
		return;
	}

	uint64_t index = is_2_10 ? get(message + 4, 4) : get(message + 8, 8);

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
	put(&at, (uint64_t)index, 4);
	put(&at, is_2_10 ? worker->to : (uint64_t)index, 8);
	at += 4; /* the result */
	put(&at, BLOCK, 4);
	put(&at, t->address, 8);
	if (!is_2_10)
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

static void write_block(struct transaction *t, int index)
{
	struct worker *worker = t->worker;

	t->seed = t->seed * 1664525 + 1013904223;
	if (!is_2_10) { /* each transaction has blocks of its own */
		uint64_t rows = storage_size / REGION;
		uint64_t row = (uint64_t)t->written % rows;

		t->storage = (row * THREADS * COUNT + (uint64_t)(worker->index * COUNT + index)) *
			     BLOCK;
	}
	for (int i = 0; i < BLOCK; i++)
		t->data[i] = pattern(t, i);
	t->written++;
	send_message(worker, t, WRITE, index);
}

static void *work(void *context)
{
	struct worker *worker = context;
	double deadline = now() + 120;

	for (int i = 0; i < COUNT; i++)
		write_block(&worker->transactions[i], i);
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
			for (int b = 0; b < BLOCK; b++)
				if (t->data[b] != pattern(t, b))
					fail(__FILE__, __LINE__, "byte %d of block %#lx is %d", b,
					     (unsigned long)t->storage, t->data[b]);
			worker->verified++;
			t->answered = false;
			if (t->written * COUNT < operations)
				write_block(t, i);
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
		t->address = is_2_10 ? (uint64_t)(uintptr_t)t->data : offset;
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
	if (!is_2_10) {
		(void)request(control, 9, NULL, 0, 10);
		return;
	}
	/* The first thread says so on the data path. */
	send_message(&workers[0], &workers[0].transactions[0], STOP, 0);
	UNTIL(workers[0].stopped && workers[0].producer->sent == workers[0].sent,
	      workers[0].consumer->pe, workers[0].producer->pe, control->pe);
}

static void run(void)
{
	struct control *control = control_new(is_2_10 ? "storage_zero_copy_comch" :
							"doca_storage_comch");
	pthread_t threads[THREADS];

	operations = atoi(getenv("OPERATIONS"));
	CHECK(operations >= COUNT && operations % COUNT == 0);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(control->ctx));
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	OK(doca_comch_client_get_connection(control->client, &control->connection));

	uint8_t *bytes = aligned_alloc(4096, REGION);
	struct memory region = memory_over(control->dev, bytes, REGION, ACCESS);

	init_storage(control, &region);
	for (int i = 0; i < THREADS; i++) {
		workers[i].index = i;
		open_worker(&workers[i], control, &region);
	}
	if (is_2_10)
		(void)request(control, 4, NULL, 0, 0);
	UNTIL(control->consumers == THREADS, control->pe);
	for (int i = 0; i < THREADS; i++)
		workers[i].to = control->consumer_ids[i];
	(void)request(control, is_2_10 ? 5 : 7, NULL, 0, 8);
	for (int i = 0; i < THREADS; i++)
		post_receives(&workers[i]);
	double began = now();

	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	printf("verified %d writes and reads, %.0f IO/s\n", THREADS * operations,
	       2 * THREADS * operations / (now() - began));
	stop_storage(control);
	for (int i = 0; i < THREADS; i++)
		close_worker(&workers[i]);
	(void)request(control, is_2_10 ? 6 : 11, NULL, 0, 12);
	UNTIL(control->expired == THREADS, control->pe);
	memory_free(&region);
	free(bytes);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

static void doca_2_10(void)
{
	is_2_10 = true;
	run();
}

static void doca_3_2(void)
{
	run();
}

const struct test tests[] = {
	{"doca_2_10", doca_2_10},
	{"doca_3_2", doca_3_2},
	{NULL, NULL},
};
