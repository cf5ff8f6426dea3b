// SPDX-License-Identifier: Apache-2.0

/* The fast path: threads with a consumer and a producer each on one connection, in both directions,
 * while the main thread progresses the control path. */

#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, DEPTH = 16, MESSAGE = 256, MESSAGES = 20000 };

struct worker {
	pthread_t thread;
	struct control *control;
	uint32_t index;
	atomic_uint peer; /* the consumer of the peer, once it is known */
	atomic_bool ready, done;
	struct memory memory;
	struct consumer *consumer;
	struct producer *producer;
	struct doca_buf *sends[DEPTH], *receives[DEPTH];
	uint32_t next_sent, next_received;
};

/* One thread at a time creates and destroys what belongs to the connection. */
static pthread_mutex_t connection_lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t byte_of(uint32_t number, uint32_t i)
{
	return (uint8_t)(number * 31 + i);
}

static void check_message(struct consumer *consumer, struct doca_buf *buf)
{
	struct worker *worker = consumer->context;
	uint32_t number = worker->next_received++;
	uint8_t *data;
	size_t length;

	CHECK(consumer->last_immediate_length == 4);
	CHECK(memcmp(consumer->last_immediate, &number, 4) == 0);
	OK(doca_buf_get_data(buf, (void **)&data));
	OK(doca_buf_get_data_len(buf, &length));
	CHECK(length == 1 + number % MESSAGE);
	for (uint32_t i = 0; i < length; i++)
		CHECK(data[i] == byte_of(number, i));
}

/* Sends what the free send bufs allow. */
static void send_more(struct worker *worker)
{
	while (worker->next_sent < MESSAGES &&
	       worker->next_sent - (uint32_t)worker->producer->sent < DEPTH) {
		uint32_t number = worker->next_sent++, length = 1 + number % MESSAGE;
		struct doca_buf *buf = worker->sends[number % DEPTH];
		uint8_t *data;

		OK(doca_buf_get_data(buf, (void **)&data));
		for (uint32_t i = 0; i < length; i++)
			data[i] = byte_of(number, i);
		OK(doca_buf_set_data(buf, data, length));
		(void)producer_send(worker->producer, buf, worker->peer, &number, 4);
	}
}

static void *work(void *context)
{
	struct worker *worker = context;

	pthread_mutex_lock(&connection_lock);
	worker->memory = memory_new(worker->control->dev, 2 * DEPTH * MESSAGE,
				    DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
					    DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	worker->consumer = consumer_new(worker->control, &worker->memory, DEPTH);
	worker->consumer->context = worker;
	worker->consumer->on_message = check_message;
	worker->consumer->repost = true;
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(worker->consumer->ctx));
	worker->producer = producer_new(worker->control, DEPTH);
	OK(doca_ctx_start(worker->producer->ctx));
	pthread_mutex_unlock(&connection_lock);
	UNTIL(state_of(worker->consumer->ctx) == DOCA_CTX_STATE_RUNNING, worker->consumer->pe);
	for (size_t i = 0; i < DEPTH; i++) {
		worker->receives[i] = memory_buf(&worker->memory, i * MESSAGE, MESSAGE, 0);
		worker->sends[i] = memory_buf(&worker->memory, (DEPTH + i) * MESSAGE, MESSAGE, 0);
		(void)consumer_post(worker->consumer, worker->receives[i]);
	}
	worker->ready = true;
	UNTIL(worker->peer != 0, worker->consumer->pe);
	double deadline = now() + 120;

	while (worker->producer->sent < MESSAGES || worker->next_received < MESSAGES) {
		CHECK(now() < deadline);
		send_more(worker);
		(void)doca_pe_progress(worker->producer->pe);
		(void)doca_pe_progress(worker->consumer->pe);
	}
	CHECK(worker->producer->failed == 0 && worker->consumer->failed == 0);
	worker->done = true;
	return NULL;
}

static void finish(struct worker *worker)
{
	CHECK(pthread_join(worker->thread, NULL) == 0);
	worker->consumer->repost = false;
	stop(worker->consumer->ctx, worker->consumer->pe);
	CHECK(worker->consumer->failed == DEPTH);
	stop(worker->producer->ctx, worker->producer->pe);
	consumer_destroy(worker->consumer);
	producer_destroy(worker->producer);
	for (size_t i = 0; i < DEPTH; i++) {
		release(worker->sends[i]);
		release(worker->receives[i]);
	}
	memory_free(&worker->memory);
}

static void exchange(void)
{
	struct control *control = control_open("fast_path");
	struct worker workers[THREADS];

	memset(workers, 0, sizeof workers);
	for (uint32_t i = 0; i < THREADS; i++) {
		workers[i].control = control;
		workers[i].index = i;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
		/* The i-th consumer is that of the i-th thread: of both sides. */
		UNTIL(workers[i].ready && control->consumers > (int)i, control->pe);
		MEET_WHILE(control->pe);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		workers[i].peer = control->consumer_ids[i];
	UNTIL(workers[0].done && workers[1].done && workers[2].done, control->pe);
	MEET_WHILE(control->pe);
	for (uint32_t i = 0; i < THREADS; i++)
		finish(&workers[i]);
	UNTIL(control->expired == THREADS, control->pe);
	control_close(control);
}

const struct test tests[] = {
	{"exchange", exchange},
	{NULL, NULL},
};
