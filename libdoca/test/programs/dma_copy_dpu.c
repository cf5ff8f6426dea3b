// SPDX-License-Identifier: Apache-2.0

/* The DPU of DOCA's DMA Copy application: it gets a file of the host, or has one that the host
 * gets. It copies the file with one DMA task. */

#include "dma_copy.h"

#include <doca_dma.h>

static int tasks_done;
static doca_error_t task_status;

static void on_copied(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	task_status = doca_task_get_status(doca_dma_task_memcpy_as_task(task));
	doca_task_free(doca_dma_task_memcpy_as_task(task));
	tasks_done++;
}

static void send_status(struct control *control, bool is_success)
{
	struct status status = {.type = STATUS, .is_success = is_success};

	control_send(control, &status, sizeof status);
}

static bool reject(struct control *control)
{
	send_status(control, false);
	ends_with("rejected");
	return false;
}

/* Agrees with the host on the direction. Returns false at the end. */
static bool negotiate(struct control *control, bool sends, size_t *size)
{
	struct direction asked, reply = {.type = DIRECTION, .file_in_host = !sends};
	uint64_t limit;

	if (!next_message(control)) {
		ends_with("gone");
		return false;
	}
	memcpy(&asked, control->last, sizeof asked);
	if (control->last_length != sizeof asked || asked.type != DIRECTION)
		return reject(control);
	if ((asked.file_in_host != 0) == sends)
		return reject(control); /* both have the file, or none */
	*size = sends ? file_size() : (size_t)__builtin_bswap64(asked.file_size);
	OK(doca_dma_cap_task_memcpy_get_max_buf_size(doca_dev_as_devinfo(control->dev), &limit));
	if (*size > limit)
		return reject(control);
	if (sends)
		reply.file_size = __builtin_bswap64(*size);
	control_send(control, &reply, sizeof reply);
	return true;
}

/* Copies by DMA between local and the host's memory at an address. */
static doca_error_t copy_by_dma(struct control *control, bool sends, struct memory *remote,
				uint64_t address, struct memory *local)
{
	struct memory *from = sends ? local : remote, *to = sends ? remote : local;
	uint8_t *remote_bytes = (void *)(uintptr_t)address;
	uint8_t *source = sends ? local->bytes : remote_bytes;
	uint8_t *destination = sends ? remote_bytes : local->bytes;
	struct doca_dma_task_memcpy *task;
	union doca_data none = {.u64 = 0};
	struct doca_buf *src, *dst;
	struct doca_dma *dma;
	struct doca_ctx *ctx;
	struct doca_pe *pe;

	OK(doca_dma_create(control->dev, &dma));
	ctx = doca_dma_as_ctx(dma);
	OK(doca_dma_task_memcpy_set_conf(dma, on_copied, on_copied, 1));
	pe = new_engine(ctx);
	OK(doca_ctx_start(ctx));
	OK(doca_buf_inventory_buf_get_by_args(from->inventory, from->mmap, source, local->size,
					      source, local->size, &src));
	OK(doca_buf_inventory_buf_get_by_args(to->inventory, to->mmap, destination, local->size,
					      destination, 0, &dst));
	OK(doca_dma_task_memcpy_alloc_init(dma, src, dst, none, &task));
	OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
	UNTIL(tasks_done == 1, pe);
	release(src);
	release(dst);
	stop(ctx, pe);
	OK(doca_dma_destroy(dma));
	OK(doca_pe_destroy(pe));
	return task_status;
}

/* Imports the host's buffer and copies. Returns false at the end. */
static bool transfer(struct control *control, bool sends, size_t size)
{
	uint8_t *bytes = malloc(size);
	struct memory local, remote;
	struct export *export = (void *)control->last;
	doca_error_t result;
	uint64_t address;
	bool is_success, was_held;

	if (held(control, "asked") || !next_message(control)) {
		ends_with("gone");
		free(bytes);
		return false;
	}
	if (is_status(control, &is_success)) {
		CHECK(!is_success);
		ends_with("failure");
		free(bytes);
		return false;
	}
	CHECK(control->last_length > offsetof(struct export, descriptor) && export->type == EXPORT);
	address = __builtin_bswap64(export->host_address);
	remote = memory_import(control->dev, export->descriptor,
			       (size_t)__builtin_bswap64(export->length));
	if (sends)
		read_file(bytes, size);
	local = memory_over(control->dev, bytes, size, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	was_held = held(control, "imported");
	result = copy_by_dma(control, sends, &remote, address, &local);
	memory_free(&remote);
	memory_free(&local);
	if (was_held) {
		IS(DOCA_ERROR_IO_FAILED, result);
		ends_with("gone");
		free(bytes);
		return false;
	}
	OK(result);
	if (!sends)
		write_file(bytes, size);
	free(bytes);
	return true;
}

static void copy(bool sends)
{
	struct control *control = control_new("dma copy server");
	size_t size;

	CHECK(has_file() == sends);
	OK(doca_ctx_start(control->ctx));
	UNTIL(control->connects == 1, control->pe);
	if (held(control, "connected")) {
		ends_with("gone");
	} else if (negotiate(control, sends, &size) && transfer(control, sends, size)) {
		ends_with("success");
		send_status(control, true);
	}
	UNTIL(is_gone(control), control->pe);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

static void sends(void)
{
	copy(true);
}

static void receives(void)
{
	copy(false);
}

const struct test tests[] = {
	{"sends", sends},
	{"receives", receives},
	{NULL, NULL},
};
