// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "internal.h"

// The free slots of Go bound the records: a receive has at most one record that Go has not taken,
// and done has room for one of each.
static struct zcd_received *record(struct zcd_consumer *consumer, uint32_t slot)
{
	struct zcd_received *received;

	if (slot >= consumer->count || !consumer->receives[slot].submitted) {
		zcd_context_fail(&consumer->context, DOCA_ERROR_BAD_STATE);
		return NULL;
	}
	consumer->receives[slot].submitted = 0;
	if (consumer->context.revoked)
		return NULL;
	received = &consumer->done[consumer->tail++ & consumer->mask];
	received->slot = slot;
	return received;
}

static void on_received(struct doca_comch_consumer_task_post_recv *task, union doca_data task_data,
			union doca_data ctx_data)
{
	struct zcd_consumer *consumer = ctx_data.ptr;
	const struct zcd_functions *f = consumer->context.engine->f;
	struct zcd_received *received = record(consumer, (uint32_t)task_data.u64);
	size_t length = 0;

	if (!received)
		return;
	received->code = f->buf_get_data_len(consumer->receives[received->slot].buffer, &length);
	if (received->code != DOCA_SUCCESS)
		zcd_context_fail(&consumer->context, received->code);
	received->length = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX;
	received->producer = f->comch_consumer_task_post_recv_get_producer_id(task);
	received->immediate_length = f->comch_consumer_task_post_recv_get_imm_data_len(task);
	if (received->immediate_length == 0)
		return;

	const uint8_t *immediate = f->comch_consumer_task_post_recv_get_imm_data(task);

	if (!immediate)
		received->immediate_length = 0;
	else if (received->immediate_length > ZCD_MAX_IMMEDIATE)
		received->immediate_length = ZCD_MAX_IMMEDIATE;
	if (received->immediate_length > 0)
		memcpy(received->immediate, immediate, received->immediate_length);
}

static void on_failed(struct doca_comch_consumer_task_post_recv *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	struct zcd_consumer *consumer = ctx_data.ptr;
	const struct zcd_functions *f = consumer->context.engine->f;
	struct zcd_received *received = record(consumer, (uint32_t)task_data.u64);

	if (!received)
		return;
	received->code =
		f->task_get_status(f->comch_consumer_task_post_recv_as_task(task));
	if (received->code == DOCA_SUCCESS)
		received->code = DOCA_ERROR_NOT_CONNECTED;
	received->length = 0;
	received->immediate_length = 0;
	// A stopped consumer gives its receives back this way.
	if (consumer->context.state == DOCA_CTX_STATE_RUNNING)
		zcd_context_fail(&consumer->context, received->code);
}

doca_error_t zcd_consumer_open(struct zcd_engine *engine, const struct zcd_consumer_config *config,
			       struct zcd_consumer *consumer, const char **step)
{
	const struct zcd_functions *f = engine->f;
	uint32_t records = zcd_power_of_two(config->receives);
	doca_error_t result;

	consumer->context.engine = engine;
	consumer->count = config->receives;
	consumer->mask = records - 1;
	consumer->receives = calloc(config->receives, sizeof(*consumer->receives));
	consumer->posts = calloc(config->receives, sizeof(*consumer->posts));
	consumer->done = calloc(records, sizeof(*consumer->done));
	*step = "allocate receives";
	if (!consumer->receives || !consumer->posts || !consumer->done)
		return DOCA_ERROR_NO_MEMORY;
	// A buffer is taken before the one that it replaces is returned.
	result = zcd_memory_open(f, config->device, config->memory, config->memory_length,
				 config->receives + 1, &consumer->memory, step);
	if (result != DOCA_SUCCESS)
		return result;
	CHECK(comch_consumer_create, config->connection, consumer->memory.mmap,
	      &consumer->consumer);
	CHECK(comch_consumer_task_post_recv_set_conf, consumer->consumer, on_received, on_failed,
	      config->receives);
	CHECK(comch_consumer_set_imm_data_len, consumer->consumer, config->immediate_length);
	result = zcd_context_attach(&consumer->context, engine,
				    f->comch_consumer_as_ctx(consumer->consumer), step);
	return result;
}

// prepare gives a receive a task with the buffer that post asks for. In steady state receives are
// posted with the buffers that they had, and only their data length is reset.
static doca_error_t prepare(struct zcd_consumer *consumer, struct zcd_receive *receive,
			    const struct zcd_post *post)
{
	const struct zcd_functions *f = consumer->context.engine->f;
	uint8_t *start = consumer->memory.bytes + post->offset;
	struct doca_buf *old = receive->buffer;
	union doca_data data = {.u64 = post->slot};
	doca_error_t result;

	// A consumer that has lost its peer stops by itself.
	if (consumer->context.state != DOCA_CTX_STATE_RUNNING)
		return DOCA_ERROR_NOT_CONNECTED;
	if (old && receive->offset == post->offset && receive->length == post->length && receive->task)
		return f->buf_reset_data_len(old);
	result = f->buf_inventory_buf_get_by_args(consumer->memory.inventory, consumer->memory.mmap,
						  start, post->length, start, 0, &receive->buffer);
	if (result != DOCA_SUCCESS) {
		receive->buffer = old;
		return result;
	}
	receive->offset = post->offset;
	receive->length = post->length;
	if (receive->task && f->comch_consumer_task_post_recv_set_buf) {
		f->comch_consumer_task_post_recv_set_buf(receive->task, receive->buffer);
	} else {
		if (receive->task)
			f->task_free(f->comch_consumer_task_post_recv_as_task(receive->task));
		receive->task = NULL;
		result = f->comch_consumer_task_post_recv_alloc_init(
			consumer->consumer, receive->buffer, &receive->task);
	}
	if (old)
		f->buf_dec_refcount(old, NULL);
	if (result == DOCA_SUCCESS)
		f->task_set_user_data(f->comch_consumer_task_post_recv_as_task(receive->task),
				      data);
	return result;
}

void zcd_consumer_turn(struct zcd_consumer *consumer, uint32_t posts, uint32_t want,
		       uint32_t budget)
{
	const struct zcd_functions *f = consumer->context.engine->f;

	if (!zcd_enter(&consumer->context))
		return;
	for (uint32_t i = 0; i < posts; i++) {
		const struct zcd_post *post = &consumer->posts[i];
		struct zcd_receive *receive = &consumer->receives[post->slot];
		doca_error_t result = prepare(consumer, receive, post);

		// A completion within submit must find the receive submitted.
		receive->submitted = 1;
		if (result == DOCA_SUCCESS)
			result = f->task_submit(
				f->comch_consumer_task_post_recv_as_task(receive->task));
		if (result == DOCA_SUCCESS)
			continue;
		receive->submitted = 0;
		zcd_context_fail(&consumer->context, result);
	}
	while (consumer->tail - consumer->head < want && budget-- > 0 &&
	       f->pe_progress(consumer->context.engine->pe))
		;
	zcd_leave(&consumer->context);
}

uint32_t zcd_consumer_free_tasks(struct zcd_consumer *consumer)
{
	const struct zcd_functions *f = consumer->context.engine->f;
	uint32_t left = 0;

	for (uint32_t i = 0; consumer->receives && i < consumer->count; i++) {
		struct zcd_receive *receive = &consumer->receives[i];

		if (receive->submitted) {
			left++;
			continue;
		}
		if (receive->task)
			f->task_free(f->comch_consumer_task_post_recv_as_task(receive->task));
		if (receive->buffer)
			f->buf_dec_refcount(receive->buffer, NULL);
		receive->task = NULL;
		receive->buffer = NULL;
	}
	return left;
}

doca_error_t zcd_consumer_stop(struct zcd_consumer *consumer)
{
	doca_error_t result;

	if (!zcd_enter(&consumer->context))
		return DOCA_SUCCESS;
	result = zcd_context_stop(&consumer->context);
	// Each posted receive comes back in a step of its own; a few steps change states.
	zcd_context_progress(&consumer->context, consumer->count + 16);
	if (zcd_consumer_free_tasks(consumer) == 0)
		zcd_context_progress(&consumer->context, 16);
	zcd_leave(&consumer->context);
	return result;
}

doca_error_t zcd_consumer_close(struct zcd_consumer *consumer, const char **step)
{
	const struct zcd_functions *f = consumer->context.engine->f;
	doca_error_t result;

	if (consumer->consumer)
		CHECK(comch_consumer_destroy, consumer->consumer);
	consumer->consumer = NULL;
	*step = "close message memory";
	result = zcd_memory_close(f, &consumer->memory);
	if (result != DOCA_SUCCESS)
		return result;
	return DOCA_SUCCESS;
}

void zcd_consumer_free(struct zcd_consumer *consumer)
{
	free(consumer->receives);
	free(consumer->posts);
	free(consumer->done);
	free(consumer);
}
