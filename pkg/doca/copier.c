// SPDX-License-Identifier: Apache-2.0

#include <pthread.h>
#include <stdlib.h>

#include "internal.h"

static pthread_mutex_t buffers = PTHREAD_MUTEX_INITIALIZER;

void zcd_lock_buffers(const struct zcd_functions *f)
{
	if (!f->mmap_enable_thread_safety)
		pthread_mutex_lock(&buffers);
}

void zcd_unlock_buffers(const struct zcd_functions *f)
{
	if (!f->mmap_enable_thread_safety)
		pthread_mutex_unlock(&buffers);
}

// give_back returns the buffers of a copy to the inventory. The head of a list stands for all of
// it.
static void give_back(const struct zcd_functions *f, struct zcd_copy *copy)
{
	zcd_lock_buffers(f);
	if (copy->source)
		f->buf_dec_refcount(copy->source, NULL);
	if (copy->destination)
		f->buf_dec_refcount(copy->destination, NULL);
	zcd_unlock_buffers(f);
	copy->source = NULL;
	copy->destination = NULL;
}

static void on_done(struct zcd_copier *copier, uint64_t slot, doca_error_t code)
{
	struct zcd_copied *copied;

	if (slot >= copier->count || !copier->copies[slot].submitted) {
		zcd_context_fail(&copier->context, DOCA_ERROR_BAD_STATE);
		return;
	}
	copier->copies[slot].submitted = 0;
	give_back(copier->context.engine->f, &copier->copies[slot]);
	copied = &copier->done[copier->tail++ & copier->mask];
	copied->slot = (uint32_t)slot;
	copied->code = code;
}

static void on_copied(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	(void)task;
	on_done(ctx_data.ptr, task_data.u64, DOCA_SUCCESS);
}

static void on_failed(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	struct zcd_copier *copier = ctx_data.ptr;
	const struct zcd_functions *f = copier->context.engine->f;
	doca_error_t code = f->task_get_status(f->dma_task_memcpy_as_task(task));

	on_done(copier, task_data.u64, code == DOCA_SUCCESS ? DOCA_ERROR_NOT_CONNECTED : code);
}

doca_error_t zcd_copier_open(struct zcd_engine *engine, struct doca_dev *device, uint32_t copies,
			     uint32_t max_sources, struct zcd_copier *copier, const char **step)
{
	const struct zcd_functions *f = engine->f;
	uint32_t records = zcd_power_of_two(copies);
	doca_error_t result;

	copier->context.engine = engine;
	copier->count = copies;
	copier->mask = records - 1;
	copier->max_sources = max_sources;
	copier->copies = calloc(copies, sizeof(*copier->copies));
	copier->segments = calloc(max_sources + 1, sizeof(*copier->segments));
	copier->done = calloc(records, sizeof(*copier->done));
	*step = "allocate copies";
	if (!copier->copies || !copier->segments || !copier->done)
		return DOCA_ERROR_NO_MEMORY;
	CHECK(buf_inventory_create, (size_t)copies * (max_sources + 1), &copier->inventory);
	CHECK(buf_inventory_start, copier->inventory);
	CHECK(dma_create, device, &copier->dma);
	CHECK(dma_task_memcpy_set_conf, copier->dma, on_copied, on_failed, copies);
	return zcd_context_attach(&copier->context, engine, f->dma_as_ctx(copier->dma), step);
}

// gather makes a list of buffers over the segments from first on.
static doca_error_t gather(struct zcd_copier *copier, const struct zcd_segment *segments,
			   uint32_t count, size_t has_data, struct doca_buf **head)
{
	const struct zcd_functions *f = copier->context.engine->f;

	for (uint32_t i = 0; i < count; i++) {
		void *address = (void *)(uintptr_t)segments[i].address;
		size_t length = segments[i].length;
		struct doca_buf *next = NULL;
		doca_error_t result;

		result = f->buf_inventory_buf_get_by_args(copier->inventory, segments[i].mmap,
							  address, length, address,
							  has_data ? length : 0, &next);
		if (result != DOCA_SUCCESS)
			return result;
		if (!*head) {
			*head = next;
			continue;
		}
		result = f->buf_chain_list(*head, next);
		if (result != DOCA_SUCCESS) {
			f->buf_dec_refcount(next, NULL);
			return result;
		}
	}
	return DOCA_SUCCESS;
}

doca_error_t zcd_copier_submit(struct zcd_copier *copier, uint32_t slot, uint32_t sources)
{
	const struct zcd_functions *f = copier->context.engine->f;
	struct zcd_copy *copy = &copier->copies[slot];
	union doca_data data = {.u64 = slot};
	doca_error_t result;

	zcd_lock_buffers(f);
	result = gather(copier, copier->segments, 1, 0, &copy->destination);
	if (result == DOCA_SUCCESS)
		result = gather(copier, copier->segments + 1, sources, 1, &copy->source);
	zcd_unlock_buffers(f);
	if (result == DOCA_SUCCESS && copy->task) {
		f->dma_task_memcpy_set_src(copy->task, copy->source);
		f->dma_task_memcpy_set_dst(copy->task, copy->destination);
	} else if (result == DOCA_SUCCESS) {
		result = f->dma_task_memcpy_alloc_init(copier->dma, copy->source,
						       copy->destination, data, &copy->task);
	}
	if (result == DOCA_SUCCESS) {
		copy->submitted = 1;
		result = f->task_submit(f->dma_task_memcpy_as_task(copy->task));
	}
	if (result != DOCA_SUCCESS) {
		copy->submitted = 0;
		give_back(f, copy);
	}
	return result;
}

void zcd_copier_turn(struct zcd_copier *copier, uint32_t want, uint32_t budget)
{
	const struct zcd_functions *f = copier->context.engine->f;

	while (copier->tail - copier->head < want && budget-- > 0 &&
	       f->pe_progress(copier->context.engine->pe))
		;
}

uint32_t zcd_copier_free_tasks(struct zcd_copier *copier)
{
	const struct zcd_functions *f = copier->context.engine->f;
	uint32_t left = 0;

	for (uint32_t i = 0; copier->copies && i < copier->count; i++) {
		struct zcd_copy *copy = &copier->copies[i];

		if (copy->submitted) {
			left++;
			continue;
		}
		if (copy->task)
			f->task_free(f->dma_task_memcpy_as_task(copy->task));
		copy->task = NULL;
	}
	return left;
}

doca_error_t zcd_copier_close(struct zcd_copier *copier, const char **step)
{
	const struct zcd_functions *f = copier->context.engine->f;
	doca_error_t result;

	if (copier->dma)
		CHECK(dma_destroy, copier->dma);
	copier->dma = NULL;
	if (copier->inventory)
		CHECK(buf_inventory_destroy, copier->inventory);
	copier->inventory = NULL;
	return DOCA_SUCCESS;
}

void zcd_copier_free(struct zcd_copier *copier)
{
	free(copier->copies);
	free(copier->segments);
	free(copier->done);
	free(copier);
}
