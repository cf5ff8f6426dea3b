// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>

#include "internal.h"

// on_done handles both outcomes. Sends may complete out of order; completed moves on in order,
// because message memory is reused in order.
static void on_done(struct zcd_producer *producer, uint64_t slot, doca_error_t code)
{
	struct zcd_send *send;

	if (slot >= producer->count || !producer->sends[slot].submitted) {
		zcd_context_fail(&producer->context, DOCA_ERROR_BAD_STATE);
		return;
	}
	send = &producer->sends[slot];
	send->submitted = 0;
	send->completed = 1;
	producer->succeeded += code == DOCA_SUCCESS;
	// A producer that is stopped gives its sends back with an error.
	if (code != DOCA_SUCCESS && producer->context.state == DOCA_CTX_STATE_RUNNING)
		zcd_context_fail(&producer->context, code);
	while (producer->sends[producer->completed & producer->mask].completed) {
		producer->sends[producer->completed & producer->mask].completed = 0;
		producer->completed++;
	}
}

static void on_sent(struct doca_comch_producer_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	(void)task;
	on_done(ctx_data.ptr, task_data.u64, DOCA_SUCCESS);
}

static void on_failed(struct doca_comch_producer_task_send *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	struct zcd_producer *producer = ctx_data.ptr;
	const struct zcd_functions *f = producer->context.engine->f;
	doca_error_t code = f->task_get_status(f->comch_producer_task_send_as_task(task));

	on_done(producer, task_data.u64, code == DOCA_SUCCESS ? DOCA_ERROR_NOT_CONNECTED : code);
}

doca_error_t zcd_producer_open(struct zcd_engine *engine, const struct zcd_producer_config *config,
			       struct zcd_producer *producer, const char **step)
{
	const struct zcd_functions *f = engine->f;
	doca_error_t result;

	producer->context.engine = engine;
	producer->count = config->sends;
	producer->mask = config->sends - 1;
	producer->target = config->target;
	producer->sends = calloc(config->sends, sizeof(*producer->sends));
	*step = "allocate sends";
	if (!producer->sends)
		return DOCA_ERROR_NO_MEMORY;
	result = zcd_memory_open(f, config->device, config->memory, config->memory_length,
				 config->sends, &producer->memory, step);
	if (result != DOCA_SUCCESS)
		return result;
	CHECK(comch_producer_create, config->connection, &producer->producer);
	CHECK(comch_producer_task_send_set_conf, producer->producer, on_sent, on_failed,
	      config->sends);
	return zcd_context_attach(&producer->context, engine,
				  f->comch_producer_as_ctx(producer->producer), step);
}

// allocate makes the task and the buffer of a send. Both are reused for ever: the buffer covers all
// of the memory, and its data is the message.
static doca_error_t allocate(struct zcd_producer *producer, struct zcd_send *send, uint32_t slot)
{
	const struct zcd_functions *f = producer->context.engine->f;
	const struct zcd_memory *memory = &producer->memory;
	union doca_data data = {.u64 = slot};
	doca_error_t result = DOCA_SUCCESS;

	if (!send->buffer)
		result = f->buf_inventory_buf_get_by_args(memory->inventory, memory->mmap,
							  memory->bytes, memory->length,
							  memory->bytes, 0, &send->buffer);
	if (result == DOCA_SUCCESS)
		result = f->comch_producer_task_send_alloc_init(producer->producer, send->buffer,
								NULL, 0, producer->target,
								&send->task);
	if (result == DOCA_SUCCESS)
		f->task_set_user_data(f->comch_producer_task_send_as_task(send->task), data);
	return result;
}

static doca_error_t submit(struct zcd_producer *producer, uint32_t slot)
{
	const struct zcd_functions *f = producer->context.engine->f;
	struct zcd_send *send = &producer->sends[slot];
	struct doca_task *base;
	doca_error_t result = DOCA_SUCCESS;

	// A producer that has lost its peer stops by itself.
	if (producer->context.state != DOCA_CTX_STATE_RUNNING)
		return DOCA_ERROR_NOT_CONNECTED;
	if (!send->task)
		result = allocate(producer, send, slot);
	if (result == DOCA_SUCCESS)
		result = f->buf_set_data(send->buffer, producer->memory.bytes + send->offset,
					 send->length);
	if (result != DOCA_SUCCESS)
		return result;
	if (send->immediate_length > 0 || send->immediate_set)
		f->comch_producer_task_send_set_imm_data(
			send->task, send->immediate_length > 0 ? send->immediate : NULL,
			send->immediate_length);
	send->immediate_set = send->immediate_length > 0;
	base = f->comch_producer_task_send_as_task(send->task);
	// A completion within submit must find the send submitted.
	send->submitted = 1;
	if (f->task_submit_ex && f->ctx_flush_tasks)
		result = f->task_submit_ex(base, DOCA_TASK_SUBMIT_FLAG_NONE);
	else
		result = f->task_submit(base);
	if (result != DOCA_SUCCESS)
		send->submitted = 0;
	return result;
}

uint32_t zcd_producer_turn(struct zcd_producer *producer, uint32_t written, uint32_t budget)
{
	const struct zcd_functions *f = producer->context.engine->f;
	uint32_t first = producer->submitted;
	uint32_t steps = 0;
	doca_error_t result = producer->context.failed;

	if (!zcd_enter(&producer->context))
		return 0;
	while (producer->submitted != written && result == DOCA_SUCCESS) {
		result = submit(producer, producer->submitted & producer->mask);
		if (result == DOCA_SUCCESS)
			producer->submitted++;
	}
	if (producer->submitted != first && f->task_submit_ex && f->ctx_flush_tasks)
		f->ctx_flush_tasks(producer->context.ctx);
	// The consumer has no receive posted, or the queue is full: the next turn tries again.
	if (result == DOCA_ERROR_NO_MEMORY && producer->completed != producer->submitted)
		result = DOCA_ERROR_AGAIN;
	if (result != DOCA_SUCCESS && result != DOCA_ERROR_AGAIN && result != DOCA_ERROR_FULL)
		zcd_context_fail(&producer->context, result);
	if (producer->completed != written) // something is in flight, or waits for room
		steps = zcd_context_progress(&producer->context, budget);
	zcd_leave(&producer->context);
	return steps;
}

uint32_t zcd_producer_free_tasks(struct zcd_producer *producer)
{
	const struct zcd_functions *f = producer->context.engine->f;
	uint32_t left = 0;

	for (uint32_t i = 0; producer->sends && i < producer->count; i++) {
		struct zcd_send *send = &producer->sends[i];

		if (send->submitted) {
			left++;
			continue;
		}
		if (send->task)
			f->task_free(f->comch_producer_task_send_as_task(send->task));
		if (send->buffer)
			f->buf_dec_refcount(send->buffer, NULL);
		send->task = NULL;
		send->buffer = NULL;
	}
	return left;
}

doca_error_t zcd_producer_close(struct zcd_producer *producer, const char **step)
{
	const struct zcd_functions *f = producer->context.engine->f;
	doca_error_t result;

	if (producer->producer)
		CHECK(comch_producer_destroy, producer->producer);
	producer->producer = NULL;
	*step = "close message memory";
	result = zcd_memory_close(f, &producer->memory);
	if (result != DOCA_SUCCESS)
		return result;
	return DOCA_SUCCESS;
}

void zcd_producer_free(struct zcd_producer *producer)
{
	free(producer->sends);
	free(producer);
}
