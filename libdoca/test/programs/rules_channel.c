// SPDX-License-Identifier: Apache-2.0

/* What programs for DOCA rely on: the rules of Comch.
 * The numbers are those of docs/guides/libdoca.md. */

#include "program.h"

#include <string.h>
#include <sys/resource.h>

enum {
	ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE,
	SIZE = 16384,
	MESSAGE = 64,
	TASKS = 8,
};

/* Starts a consumer, and waits until it runs. */
static void run_consumer(struct consumer *consumer)
{
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(consumer->ctx));
	UNTIL(state_of(consumer->ctx) == DOCA_CTX_STATE_RUNNING, consumer->pe);
}

/* Rule 1: contexts start with the codes that programs compare with. */
static void start_results(void)
{
	struct control *control = control_new("start");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);
	doca_error_t result;

	if (!is_dpu)
		meet();
	result = doca_ctx_start(control->ctx);
	if (is_dpu)
		CHECK(result == DOCA_SUCCESS || result == DOCA_ERROR_IN_PROGRESS);
	else
		CHECK(result == DOCA_ERROR_IN_PROGRESS);
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	if (is_dpu) {
		meet();
		UNTIL(control->connects == 1, control->pe);
	} else {
		OK(doca_comch_client_get_connection(control->client, &control->connection));
	}
	struct consumer *consumer = consumer_new(control, &memory, TASKS);
	struct producer *producer = producer_new(control, TASKS);

	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(consumer->ctx));
	OK(doca_ctx_start(producer->ctx));
	/* The callback tells of a change that doca_ctx_start has made itself, too. */
	UNTIL(producer->states == 1, producer->pe);
	CHECK(producer->state[0] == DOCA_CTX_STATE_RUNNING);
	UNTIL(state_of(consumer->ctx) == DOCA_CTX_STATE_RUNNING, consumer->pe);
	stop(consumer->ctx, consumer->pe);
	stop(producer->ctx, producer->pe);
	consumer_destroy(consumer);
	producer_destroy(producer);
	memory_free(&memory);
	control_close(control);
}

/* Rule 2: the peer hears of a consumer whose process does not progress anything. */
static void consumer_is_announced(void)
{
	struct control *control = control_open("announced");

	if (is_dpu) {
		struct memory memory = memory_new(control->dev, SIZE, ACCESS);
		struct consumer *consumer = consumer_new(control, &memory, TASKS);
		char seen;

		IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(consumer->ctx));
		hear(&seen, 1); /* without progress */
		stop(consumer->ctx, consumer->pe);
		consumer_destroy(consumer);
		memory_free(&memory);
	} else {
		UNTIL(control->consumers == 1, control->pe);
		tell("!", 1);
	}
	control_close(control);
}

/* Rule 3: a consumer gets to run by its own engine alone. */
static void consumer_runs_alone(void)
{
	struct control *control = control_open("alone");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);

	if (is_dpu) {
		struct consumer *consumer = consumer_new(control, &memory, TASKS);

		run_consumer(consumer); /* neither this nor the host's engine is progressed */
		tell("!", 1);
		stop(consumer->ctx, consumer->pe);
		consumer_destroy(consumer);
	} else {
		char running;

		hear(&running, 1);
	}
	memory_free(&memory);
	control_close(control);
}

/* Rules 4 and 5: stopping flushes tasks through the error callback, one per progress of the
 * context's own engine, which becomes idle by that alone. */
static void stop_flushes(void)
{
	struct control *control = control_open("flush");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);
	struct consumer *consumer = consumer_new(control, &memory, TASKS);
	struct doca_task *tasks[TASKS];
	struct doca_buf *bufs[TASKS];

	run_consumer(consumer);
	consumer->free_tasks = false;
	for (int i = 0; i < TASKS; i++) {
		bufs[i] = memory_buf(&memory, (size_t)i * MESSAGE, MESSAGE, 0);
		tasks[i] = consumer_post(consumer, bufs[i]);
	}
	CHECK(inflight(consumer->ctx) == TASKS);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_stop(consumer->ctx));
	for (size_t left = inflight(consumer->ctx); left > 0; left--) {
		CHECK(doca_pe_progress(consumer->pe) == 1);
		CHECK(consumer->inflight_at_failure == left - 1);
	}
	CHECK(consumer->failed == TASKS && inflight(consumer->ctx) == 0);
	CHECK(state_of(consumer->ctx) == DOCA_CTX_STATE_STOPPING);
	for (int i = 0; i < TASKS; i++) {
		CHECK(doca_task_get_status(tasks[i]) != DOCA_SUCCESS);
		doca_task_free(tasks[i]);
		release(bufs[i]);
	}
	UNTIL(state_of(consumer->ctx) == DOCA_CTX_STATE_IDLE, consumer->pe);
	consumer_destroy(consumer);

	struct producer *producer = producer_new(control, TASKS);
	struct doca_buf *buf = memory_buf(&memory, 0, MESSAGE, MESSAGE);

	OK(doca_ctx_start(producer->ctx));
	producer->free_tasks = false;
	for (int i = 0; i < TASKS; i++) /* to a consumer that does not exist */
		tasks[i] = producer_send(producer, buf, 4000, NULL, 0);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_stop(producer->ctx));
	for (size_t left = inflight(producer->ctx); left > 0; left--) {
		CHECK(doca_pe_progress(producer->pe) == 1);
		CHECK(producer->inflight_at_failure == left - 1);
	}
	CHECK(producer->failed == TASKS && inflight(producer->ctx) == 0);
	CHECK(state_of(producer->ctx) == DOCA_CTX_STATE_STOPPING);
	for (int i = 0; i < TASKS; i++)
		doca_task_free(tasks[i]);
	UNTIL(state_of(producer->ctx) == DOCA_CTX_STATE_IDLE, producer->pe);
	producer_destroy(producer);
	release(buf);
	memory_free(&memory);
	control_close(control);
}

/* Rule 11: messages are copied when they are submitted, and arrive whole and in order. */
enum { BURST = 48 };

static uint32_t length_of(uint32_t number)
{
	return number % 3 == 0 ? 4080 : 1 + number * 37 % 4080;
}

static void check_order(struct control *control, const uint8_t *data, uint32_t length)
{
	uint32_t number = (uint32_t)control->messages - 1;

	CHECK(length == length_of(number));
	for (uint32_t i = 0; i < length; i++)
		CHECK(data[i] == (uint8_t)(number + i));
}

static void messages_in_order(void)
{
	struct control *control = control_open("order");
	uint8_t message[4080];

	control->on_message = check_order;
	for (uint32_t number = 0; number < BURST; number++) {
		for (uint32_t i = 0; i < length_of(number); i++)
			message[i] = (uint8_t)(number + i);
		control_send(control, message, length_of(number));
		memset(message, 0xee, sizeof message); /* it is encoded anew at once */
	}
	UNTIL(control->sent == BURST && control->messages == BURST, control->pe);
	control_close(control);
}

/* Rule 12: the progress call that turns a client to running delivers nothing else. */
static void running_comes_alone(void)
{
	for (int round = 0; round < 20; round++) {
		struct control *control = control_new("running");

		if (is_dpu) {
			OK(doca_ctx_start(control->ctx));
			meet();
			UNTIL(control->connects == 1, control->pe);
			control_send(control, "early", 5);
			struct memory memory = memory_new(control->dev, SIZE, ACCESS);
			struct consumer *consumer = consumer_new(control, &memory, TASKS);

			run_consumer(consumer);
			UNTIL(control->sent == 1, control->pe);
			stop(consumer->ctx, consumer->pe);
			consumer_destroy(consumer);
			memory_free(&memory);
		} else {
			meet();
			IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(control->ctx));
			UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
			CHECK(control->messages == 0 && control->consumers == 0);
			UNTIL(control->messages == 1 && control->consumers == 1, control->pe);
			CHECK(control->last_length == 5);
		}
		control_close(control);
	}
}

/* Rule 13: a server takes several clients, and hears of the end of each. */
static void several_clients(void)
{
	enum { CLIENTS = 3 };

	if (is_dpu) {
		struct control *control = control_new("several");

		OK(doca_ctx_start(control->ctx));
		meet();
		UNTIL(control->connects == CLIENTS, control->pe);
		CHECK(control->connection != NULL);
		MEET_WHILE(control->pe);
		UNTIL(control->disconnects == CLIENTS, control->pe);
		stop(control->ctx, control->pe);
		control_destroy(control);
		return;
	}
	struct control *controls[CLIENTS];

	meet();
	for (int i = 0; i < CLIENTS; i++) {
		controls[i] = control_new("several");
		IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(controls[i]->ctx));
		UNTIL(state_of(controls[i]->ctx) == DOCA_CTX_STATE_RUNNING, controls[i]->pe);
	}
	MEET_WHILE(controls[0]->pe, controls[1]->pe, controls[2]->pe);
	for (int i = 0; i < CLIENTS; i++) {
		stop(controls[i]->ctx, controls[i]->pe);
		control_destroy(controls[i]);
	}
}

/* Rules 14 and 15: the events of consumers come in the order in which they were created, with
 * proper IDs, and again when they end. */
static void consumer_events(void)
{
	enum { CONSUMERS = 4 };
	struct control *control = control_open("events");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);
	uint32_t ids[CONSUMERS];

	if (is_dpu) {
		struct consumer *consumers[CONSUMERS];

		for (int i = 0; i < CONSUMERS; i++) {
			consumers[i] = consumer_new(control, &memory, TASKS);
			run_consumer(consumers[i]);
			OK(doca_comch_consumer_get_id(consumers[i]->consumer, &ids[i]));
		}
		tell(ids, sizeof ids);
		MEET_WHILE(control->pe);
		for (int i = 0; i < CONSUMERS; i++) {
			stop(consumers[i]->ctx, consumers[i]->pe);
			consumer_destroy(consumers[i]);
		}
		MEET_WHILE(control->pe);
	} else {
		UNTIL(control->consumers == CONSUMERS, control->pe);
		CHECK(hear(ids, sizeof ids) == sizeof ids);
		for (int i = 0; i < CONSUMERS; i++) {
			CHECK(control->consumer_ids[i] == ids[i]);
			CHECK(ids[i] >= 1 && ids[i] != 0xffff);
		}
		CHECK(control->expired == 0);
		MEET_WHILE(control->pe);
		UNTIL(control->expired == CONSUMERS, control->pe);
		for (int i = 0; i < CONSUMERS; i++)
			CHECK(control->expired_ids[i] == ids[i]);
		MEET_WHILE(control->pe);
	}
	memory_free(&memory);
	control_close(control);
}

/* Rule 16: submitting a send never fails with AGAIN for want of a posted receive, or else programs
 * spin inside of a callback. */
static void send_without_receive(void)
{
	enum { SENDS = 32 };
	struct control *control = control_open("again");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);

	if (is_dpu) {
		struct consumer *consumer = consumer_new(control, &memory, SENDS);

		run_consumer(consumer);
		MEET_WHILE(control->pe); /* all is submitted before the first receive is posted */
		for (int i = 0; i < SENDS; i++)
			(void)consumer_post(consumer, NULL);
		UNTIL(consumer->received == SENDS, consumer->pe);
		CHECK(consumer->last_immediate_length == 4);
		MEET_WHILE(control->pe, consumer->pe);
		stop(consumer->ctx, consumer->pe);
		consumer_destroy(consumer);
	} else {
		struct producer *producer = producer_new(control, SENDS);

		OK(doca_ctx_start(producer->ctx));
		UNTIL(control->consumers == 1, control->pe);
		for (uint32_t i = 0; i < SENDS; i++)
			(void)producer_send(producer, NULL, control->consumer_ids[0], &i, 4);
		MEET_WHILE(control->pe);
		UNTIL(producer->sent == SENDS, producer->pe);
		MEET_WHILE(control->pe, producer->pe);
		stop(producer->ctx, producer->pe);
		producer_destroy(producer);
	}
	memory_free(&memory);
	control_close(control);
}

/* A thread whose engine has nothing to do sleeps in most of its calls, rather than keeping its
 * core. */
static void idle_engine_sleeps(void)
{
	enum { CALLS = 2000 };
	struct control *control = control_open("idle");
	struct rusage before, after;
	double began = now();

	while (now() - began < 0.01) /* it spins at first, and may have changes to report */
		(void)doca_pe_progress(control->pe);
	CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
	for (int i = 0; i < CALLS; i++)
		(void)doca_pe_progress(control->pe);
	CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
	if (after.ru_nvcsw - before.ru_nvcsw < CALLS / 2)
		fail(__FILE__, __LINE__, "%d calls slept %ld times", CALLS,
		     after.ru_nvcsw - before.ru_nvcsw);
	meet();
	control_close(control);
}

const struct test tests[] = {
	{"start_results", start_results},
	{"consumer_is_announced", consumer_is_announced},
	{"consumer_runs_alone", consumer_runs_alone},
	{"stop_flushes", stop_flushes},
	{"messages_in_order", messages_in_order},
	{"running_comes_alone", running_comes_alone},
	{"several_clients", several_clients},
	{"consumer_events", consumer_events},
	{"send_without_receive", send_without_receive},
	{"idle_engine_sleeps", idle_engine_sleeps},
	{NULL, NULL},
};
