// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>

#include "internal.h"

// give_back returns the buffers of a work to the inventory.
static void give_back(const struct zcd_functions *f, struct zcd_work *work)
{
	zcd_lock_buffers(f);
	if (work->local)
		f->buf_dec_refcount(work->local, NULL);
	if (work->remote)
		f->buf_dec_refcount(work->remote, NULL);
	zcd_unlock_buffers(f);
	work->local = NULL;
	work->remote = NULL;
}

// on_done ends a work. Its task is free again before the rdma is idle.
static void on_done(struct zcd_rdma *rdma, struct doca_task *task, uint64_t slot, doca_error_t code,
		    uint32_t length)
{
	const struct zcd_functions *f = rdma->context.engine->f;
	struct zcd_worked *record;

	f->task_free(task);
	if (slot >= rdma->count || !rdma->works[slot].submitted) {
		zcd_context_fail(&rdma->context, DOCA_ERROR_BAD_STATE);
		return;
	}
	rdma->works[slot].submitted = 0;
	give_back(f, &rdma->works[slot]);
	// The owner of a revoked rdma may be reading the records.
	if (__atomic_load_n(&rdma->context.revoked, __ATOMIC_SEQ_CST))
		return;
	record = &rdma->done[rdma->tail++ & rdma->mask];
	record->slot = (uint32_t)slot;
	record->code = code;
	record->length = length;
}

static void on_failure(struct zcd_rdma *rdma, struct doca_task *task, uint64_t slot)
{
	doca_error_t code = rdma->context.engine->f->task_get_status(task);

	on_done(rdma, task, slot, code == DOCA_SUCCESS ? DOCA_ERROR_NOT_CONNECTED : code, 0);
}

static void on_received(struct doca_rdma_task_receive *task, union doca_data task_data,
			union doca_data ctx_data)
{
	struct zcd_rdma *rdma = ctx_data.ptr;
	const struct zcd_functions *f = rdma->context.engine->f;
	uint32_t length = f->rdma_task_receive_get_result_len(task);

	on_done(rdma, f->rdma_task_receive_as_task(task), task_data.u64, DOCA_SUCCESS, length);
}

static void on_receive_failed(struct doca_rdma_task_receive *task, union doca_data task_data,
			      union doca_data ctx_data)
{
	struct zcd_rdma *rdma = ctx_data.ptr;

	on_failure(rdma, rdma->context.engine->f->rdma_task_receive_as_task(task), task_data.u64);
}

// Defines the callbacks of a task of the send queue.
#define SEND_CALLBACKS(type, succeeded, failed)                                                   \
	static void succeeded(struct doca_rdma_task_##type *task, union doca_data task_data,      \
			      union doca_data ctx_data)                                           \
	{                                                                                         \
		struct zcd_rdma *rdma = ctx_data.ptr;                                             \
                                                                                                  \
		on_done(rdma, rdma->context.engine->f->rdma_task_##type##_as_task(task),          \
			task_data.u64, DOCA_SUCCESS, 0);                                          \
	}                                                                                         \
	static void failed(struct doca_rdma_task_##type *task, union doca_data task_data,         \
			   union doca_data ctx_data)                                              \
	{                                                                                         \
		struct zcd_rdma *rdma = ctx_data.ptr;                                             \
                                                                                                  \
		on_failure(rdma, rdma->context.engine->f->rdma_task_##type##_as_task(task),       \
			   task_data.u64);                                                        \
	}

SEND_CALLBACKS(send, on_sent, on_send_failed)
SEND_CALLBACKS(write, on_written, on_write_failed)
SEND_CALLBACKS(read, on_read, on_read_failed)

// tune sets what the configuration does not leave to the device.
static doca_error_t tune(const struct zcd_functions *f, struct doca_rdma *rdma,
			 const struct zcd_rdma_config *config, const char **step)
{
	doca_error_t result;

#define TUNE(is_set, name, value)                                                                 \
	if (is_set) {                                                                             \
		*step = #name;                                                                    \
		result = f->name ? f->name(rdma, value) : DOCA_ERROR_NOT_SUPPORTED;               \
		if (result != DOCA_SUCCESS)                                                       \
			return result;                                                            \
	}
	TUNE(config->gid_index >= 0, rdma_set_gid_index, (uint32_t)config->gid_index)
	// The sizes double from 256 bytes (0) to 4096 (4): enum doca_mtu_size.
	TUNE(config->mtu > 0, rdma_set_mtu, (uint32_t)__builtin_ctz(config->mtu) - 8)
	TUNE(config->rnr_retries > 0, rdma_set_rnr_retry_count, config->rnr_retries)
#undef TUNE
	return DOCA_SUCCESS;
}

doca_error_t zcd_rdma_open(struct zcd_engine *engine, const struct zcd_rdma_config *config,
			   struct zcd_rdma *rdma, const char **step)
{
	const struct zcd_functions *f = engine->f;
	uint32_t records = zcd_power_of_two(config->works);
	doca_error_t result;

	rdma->context.engine = engine;
	rdma->count = config->works;
	rdma->mask = records - 1;
	rdma->works = calloc(config->works, sizeof(*rdma->works));
	rdma->done = calloc(records, sizeof(*rdma->done));
	*step = "allocate works";
	if (!rdma->works || !rdma->done)
		return DOCA_ERROR_NO_MEMORY;
	CHECK(buf_inventory_create, (size_t)config->works * 2, &rdma->inventory);
	CHECK(buf_inventory_start, rdma->inventory);
	CHECK(rdma_create, config->device, &rdma->rdma);
	CHECK(rdma_set_permissions, rdma->rdma, config->permissions);
	CHECK(rdma_set_grh_enabled, rdma->rdma, 1); // RoCE needs it
	result = tune(f, rdma->rdma, config, step);
	if (result != DOCA_SUCCESS)
		return result;
	CHECK(rdma_set_send_queue_size, rdma->rdma, config->sends);
	CHECK(rdma_task_receive_set_conf, rdma->rdma, on_received, on_receive_failed,
	      config->receives);
	CHECK(rdma_task_send_set_conf, rdma->rdma, on_sent, on_send_failed, config->sends);
	CHECK(rdma_task_write_set_conf, rdma->rdma, on_written, on_write_failed, config->sends);
	if (config->reads > 0)
		CHECK(rdma_task_read_set_conf, rdma->rdma, on_read, on_read_failed, config->reads);
	return zcd_context_attach(&rdma->context, engine, f->rdma_as_ctx(rdma->rdma), step);
}

doca_error_t zcd_rdma_export(struct zcd_rdma *rdma, const void **details, size_t *length)
{
	return rdma->context.engine->f->rdma_export(rdma->rdma, details, length, &rdma->connection);
}

doca_error_t zcd_rdma_connect(struct zcd_rdma *rdma, const void *details, size_t length)
{
	return rdma->context.engine->f->rdma_connect(rdma->rdma, details, length, rdma->connection);
}

// take makes a buffer of a segment. A source is full of data, and a destination empty.
static doca_error_t take(struct zcd_rdma *rdma, const struct zcd_segment *segment, int is_source,
			 struct doca_buf **buffer)
{
	void *address = (void *)(uintptr_t)segment->address;

	if (!segment->mmap)
		return DOCA_SUCCESS;
	return rdma->context.engine->f->buf_inventory_buf_get_by_args(
		rdma->inventory, segment->mmap, address, segment->length, address,
		is_source ? segment->length : 0, buffer);
}

static doca_error_t allocate(struct zcd_rdma *rdma, uint32_t kind, struct zcd_work *work,
			     union doca_data data, struct doca_task **task)
{
	const struct zcd_functions *f = rdma->context.engine->f;
	struct doca_rdma_task_receive *receive;
	struct doca_rdma_task_send *send;
	struct doca_rdma_task_write *write;
	struct doca_rdma_task_read *read;
	doca_error_t result = DOCA_ERROR_INVALID_VALUE;

	switch (kind) {
	case ZCD_RDMA_RECEIVE:
		result = f->rdma_task_receive_allocate_init(rdma->rdma, work->local, data, &receive);
		if (result == DOCA_SUCCESS)
			*task = f->rdma_task_receive_as_task(receive);
		break;
	case ZCD_RDMA_SEND:
		result = f->rdma_task_send_allocate_init(rdma->rdma, rdma->connection, work->local,
							 data, &send);
		if (result == DOCA_SUCCESS)
			*task = f->rdma_task_send_as_task(send);
		break;
	case ZCD_RDMA_WRITE:
		result = f->rdma_task_write_allocate_init(rdma->rdma, rdma->connection, work->local,
							  work->remote, data, &write);
		if (result == DOCA_SUCCESS)
			*task = f->rdma_task_write_as_task(write);
		break;
	case ZCD_RDMA_READ:
		result = f->rdma_task_read_allocate_init(rdma->rdma, rdma->connection, work->remote,
							 work->local, data, &read);
		if (result == DOCA_SUCCESS)
			*task = f->rdma_task_read_as_task(read);
		break;
	}
	return result;
}

doca_error_t zcd_rdma_submit(struct zcd_rdma *rdma, uint32_t kind, uint32_t slot,
			     const struct zcd_segment *local, const struct zcd_segment *remote)
{
	const struct zcd_functions *f = rdma->context.engine->f;
	struct zcd_work *work = &rdma->works[slot];
	union doca_data data = {.u64 = slot};
	struct doca_task *task = NULL;
	doca_error_t result;

	if (!zcd_enter(&rdma->context))
		return DOCA_ERROR_AGAIN;
	zcd_lock_buffers(f);
	result = take(rdma, local, kind == ZCD_RDMA_SEND || kind == ZCD_RDMA_WRITE, &work->local);
	if (result == DOCA_SUCCESS)
		result = take(rdma, remote, kind == ZCD_RDMA_READ, &work->remote);
	zcd_unlock_buffers(f);
	if (result == DOCA_SUCCESS)
		result = allocate(rdma, kind, work, data, &task);
	if (result == DOCA_SUCCESS) {
		work->submitted = 1;
		result = f->task_submit(task);
	}
	if (result != DOCA_SUCCESS) {
		work->submitted = 0;
		if (task)
			f->task_free(task);
		give_back(f, work);
	}
	zcd_leave(&rdma->context);
	return result;
}

void zcd_rdma_turn(struct zcd_rdma *rdma, uint32_t want, uint32_t budget)
{
	const struct zcd_functions *f = rdma->context.engine->f;

	if (!zcd_enter(&rdma->context))
		return;
	while (rdma->tail - rdma->head < want && budget-- > 0 &&
	       f->pe_progress(rdma->context.engine->pe))
		;
	zcd_leave(&rdma->context);
}

doca_error_t zcd_rdma_close(struct zcd_rdma *rdma, const char **step)
{
	const struct zcd_functions *f = rdma->context.engine->f;
	doca_error_t result;

	if (rdma->rdma)
		CHECK(rdma_destroy, rdma->rdma);
	rdma->rdma = NULL;
	if (rdma->inventory)
		CHECK(buf_inventory_destroy, rdma->inventory);
	rdma->inventory = NULL;
	return DOCA_SUCCESS;
}

void zcd_rdma_free(struct zcd_rdma *rdma)
{
	free(rdma->works);
	free(rdma->done);
	free(rdma);
}
