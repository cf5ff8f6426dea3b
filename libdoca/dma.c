// SPDX-License-Identifier: Apache-2.0

/* DMA: a context with one kind of task. The core copies. */

#include "skin.h"

enum { POOL_MEMCPY };

static doca_error_t check(struct doca_ctx *ctx, const char *function)
{
	if (ctx->pools[POOL_MEMCPY].count == 0) {
		emu_misuse(function, "doca_dma_task_memcpy_set_conf has not been called");
		return DOCA_ERROR_BAD_STATE;
	}
	return DOCA_SUCCESS;
}

/* Adds up a list of bufs; returns false if one is not held, or lies in a map without the device. */
static bool measure(const struct doca_dma *dma, const struct doca_buf *list, bool free_space,
		    uint64_t *bytes, uint32_t *length, const char *function)
{
	*bytes = 0;
	*length = 0;
	for (const struct doca_buf *buf = list; buf != NULL; buf = buf->next) {
		if (!emu_is(buf, EMU_BUF, function))
			return false;
		if (buf->refcount == 0) {
			emu_misuse(function, "the buf has been returned to its inventory");
			return false;
		}
		if (!emu_mmap_has_dev(buf->mmap, dma->ctx.dev)) {
			emu_misuse(function, "the map of the buf does not have the device");
			return false;
		}
		*bytes += free_space ? buf->len - (buf->data - buf->head) - buf->data_len
				     : buf->data_len;
		++*length;
	}
	return true;
}

/* Reports whether the rights of the maps allow the device to use the list. */
static bool check_rights(const struct doca_buf *list, bool write, const char *function)
{
	for (const struct doca_buf *buf = list; buf != NULL; buf = buf->next) {
		uint32_t access = buf->mmap->access;
		uint32_t write_bit = buf->mmap->imported ? DOCA_ACCESS_FLAG_PCI_READ_WRITE
							 : DOCA_ACCESS_FLAG_LOCAL_READ_WRITE;

		if (write && (access & write_bit) == 0) {
			emu_misuse(function, "the map of the destination grants no right to write");
			return false;
		}
	}
	return true;
}

static doca_error_t check_task(struct doca_task *task, const char *function)
{
	struct doca_dma_task_memcpy *copy = (struct doca_dma_task_memcpy *)task;
	const struct doca_dma *dma = (const struct doca_dma *)task->ctx;
	const struct emu_capabilities *can = &task->ctx->dev->device->can;
	uint64_t source, room;
	uint32_t sources, destinations;

	if (!measure(dma, copy->src, false, &source, &sources, function) ||
	    !measure(dma, copy->dst, true, &room, &destinations, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (sources == 0 || destinations == 0) {
		emu_misuse(function, "the task has no %s", sources == 0 ? "src" : "dst");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (sources > can->dma_list_len || destinations > can->dma_list_len) {
		emu_misuse(function, "a list is longer than the capability of %u",
			   can->dma_list_len);
		return DOCA_ERROR_INVALID_VALUE;
	}
	/* The device rejects a copy of nothing. */
	if (source > can->dma_buf_size || source > room) {
		emu_misuse(function,
			   "%llu bytes exceed the room of %llu or the capability of %llu",
			   (unsigned long long)source, (unsigned long long)room,
			   (unsigned long long)can->dma_buf_size);
		return DOCA_ERROR_INVALID_VALUE;
	}
	for (struct doca_buf *buf = copy->dst; buf != NULL; buf = buf->next) {
		if (__atomic_load_n(&buf->in_tasks, __ATOMIC_ACQUIRE) > 0) {
			emu_misuse(function, "another task that is submitted uses the destination");
			return DOCA_ERROR_IN_USE;
		}
	}
	return check_rights(copy->dst, true, function) ? DOCA_SUCCESS : DOCA_ERROR_NOT_PERMITTED;
}

static void hold(struct doca_task *task, bool submitted)
{
	struct doca_dma_task_memcpy *copy = (struct doca_dma_task_memcpy *)task;

	for (const struct doca_buf *buf = copy->src; buf != NULL; buf = buf->next)
		emu_hold_buf(buf, submitted);
	for (const struct doca_buf *buf = copy->dst; buf != NULL; buf = buf->next)
		emu_hold_buf(buf, submitted);
}

static const struct emu_ctx_ops ops = {
	.name = "dma", .check = check, .check_task = check_task, .hold = hold};

doca_error_t emu_doca_dma_create(struct doca_dev *dev, struct doca_dma **dma)
{
	struct doca_dma *created;
	doca_error_t result;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(dma))
		return DOCA_ERROR_INVALID_VALUE;
	if (!dev->device->can.dma)
		return DOCA_ERROR_NOT_SUPPORTED;
	created = emu_new(EMU_CTX, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = emu_ctx_init(&created->ctx, EMU_CTX_DMA, &ops, dev, __func__);
	if (result == DOCA_SUCCESS)
		*dma = created;
	else
		emu_bury(created, NULL);
	return result;
}

doca_error_t emu_doca_dma_destroy(struct doca_dma *dma)
{
	if (EMU_CTX_OF(dma, EMU_CTX_DMA) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_ctx_end(&dma->ctx, DOCA_ERROR_BAD_STATE, __func__);
}

struct doca_ctx *emu_doca_dma_as_ctx(struct doca_dma *dma)
{
	return EMU_CTX_OF(dma, EMU_CTX_DMA);
}

doca_error_t emu_doca_dma_cap_task_memcpy_is_supported(const struct doca_devinfo *info)
{
	if (!EMU_IS(info, EMU_DEVINFO))
		return DOCA_ERROR_INVALID_VALUE;
	return info->device->can.dma ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}

doca_error_t emu_doca_dma_cap_task_memcpy_get_max_buf_size(const struct doca_devinfo *info,
							   uint64_t *size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	if (!info->device->can.dma)
		return DOCA_ERROR_NOT_SUPPORTED;
	*size = info->device->can.dma_buf_size;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dma_cap_task_memcpy_get_max_buf_list_len(const struct doca_devinfo *info,
							       uint32_t *len)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	if (!info->device->can.dma)
		return DOCA_ERROR_NOT_SUPPORTED;
	*len = info->device->can.dma_list_len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dma_cap_get_max_num_tasks(struct doca_dma *dma, uint32_t *count)
{
	if (EMU_CTX_OF(dma, EMU_CTX_DMA) == NULL || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	*count = dma->ctx.dev->device->can.dma_tasks;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dma_task_memcpy_set_conf(struct doca_dma *dma,
					       doca_dma_task_memcpy_completion_cb_t completed,
					       doca_dma_task_memcpy_completion_cb_t failed,
					       uint32_t num_tasks)
{
	if (EMU_CTX_OF(dma, EMU_CTX_DMA) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_pool_configure(&dma->ctx, POOL_MEMCPY, sizeof(struct doca_dma_task_memcpy),
				  (emu_task_cb)completed, (emu_task_cb)failed, num_tasks,
				  dma->ctx.dev->device->can.dma_tasks, __func__);
}

doca_error_t emu_doca_dma_task_memcpy_alloc_init(struct doca_dma *dma, const struct doca_buf *src,
						 struct doca_buf *dst, union doca_data user_data,
						 struct doca_dma_task_memcpy **task)
{
	struct doca_task *taken;
	doca_error_t result;

	if (EMU_CTX_OF(dma, EMU_CTX_DMA) == NULL || !EMU_HAS(task) || !EMU_IS(src, EMU_BUF) ||
	    !EMU_IS(dst, EMU_BUF))
		return DOCA_ERROR_INVALID_VALUE;
	result = emu_pool_take(&dma->ctx, POOL_MEMCPY, &taken, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	*task = (struct doca_dma_task_memcpy *)taken;
	taken->user_data = user_data;
	(*task)->src = src;
	(*task)->dst = dst;
	return DOCA_SUCCESS;
}

struct doca_task *emu_doca_dma_task_memcpy_as_task(struct doca_dma_task_memcpy *task)
{
	return EMU_TASK_OF(task, EMU_CTX_DMA);
}

/* Returns the task if the application may change it. */
static struct doca_dma_task_memcpy *changeable(struct doca_dma_task_memcpy *task,
					       const char *function)
{
	if (emu_task_of(task, EMU_CTX_DMA, function) == NULL || !emu_is_held(&task->task, function))
		return NULL;
	return task;
}

void emu_doca_dma_task_memcpy_set_src(struct doca_dma_task_memcpy *task,
				      const struct doca_buf *src)
{
	if (changeable(task, __func__) != NULL && EMU_IS(src, EMU_BUF))
		task->src = src;
}

void emu_doca_dma_task_memcpy_set_dst(struct doca_dma_task_memcpy *task, struct doca_buf *dst)
{
	if (changeable(task, __func__) != NULL && EMU_IS(dst, EMU_BUF))
		task->dst = dst;
}

const struct doca_buf *
emu_doca_dma_task_memcpy_get_src(const struct doca_dma_task_memcpy *task)
{
	return EMU_TASK_OF(task, EMU_CTX_DMA) == NULL ? NULL : task->src;
}

struct doca_buf *emu_doca_dma_task_memcpy_get_dst(const struct doca_dma_task_memcpy *task)
{
	return EMU_TASK_OF(task, EMU_CTX_DMA) == NULL ? NULL : task->dst;
}
