/* Copies the memory that the host has exported. */

#include <stdbool.h>
#include <string.h>

#include "common.h"
#include "dma_common.h"
#include <doca_buf_inventory.h>
#include <doca_ctx.h>
#include <doca_dma.h>
#include <doca_pe.h>

static bool is_done, is_failed;

static void on_done(struct doca_dma_task_memcpy *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	is_done = true;
	is_failed = doca_task_get_status(doca_dma_task_memcpy_as_task(task)) != DOCA_SUCCESS;
	doca_task_free(doca_dma_task_memcpy_as_task(task));
}

int main(void)
{
	struct doca_dev *dev = open_capable(doca_dma_cap_task_memcpy_is_supported);
	char descriptor[MAX_DESCRIPTOR], copy[NOTE_SIZE] = "";
	size_t length = read_file(DESCRIPTOR_FILE, descriptor, sizeof descriptor);
	struct doca_buf_inventory *inventory;
	struct doca_dma_task_memcpy *task;
	struct doca_mmap *remote, *local;
	struct doca_buf *from, *to;
	struct doca_ctx *ctx;
	struct doca_dma *dma;
	struct doca_pe *pe;
	void *address;
	size_t size;

#ifndef DOCA_ARCH_DPU
	fprintf(stderr, "error: this sample runs on the DPU alone\n");
	return EXIT_FAILURE;
#endif
	OK(doca_mmap_create_from_export(NULL, descriptor, length, dev, &remote));
	OK(doca_mmap_get_memrange(remote, &address, &size));
	local = map(dev, copy, sizeof copy, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	OK(doca_buf_inventory_create(2, &inventory));
	OK(doca_buf_inventory_start(inventory));
	OK(doca_buf_inventory_buf_get_by_data(inventory, remote, address, size, &from));
	OK(doca_buf_inventory_buf_get_by_addr(inventory, local, copy, sizeof copy, &to));
	OK(doca_pe_create(&pe));
	OK(doca_dma_create(dev, &dma));
	ctx = doca_dma_as_ctx(dma);
	OK(doca_dma_task_memcpy_set_conf(dma, on_done, on_done, 1));
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_ctx_start(ctx));
	OK(doca_dma_task_memcpy_alloc_init(dma, from, to, (union doca_data){.u64 = 0}, &task));
	OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
	while (!is_done)
		(void)doca_pe_progress(pe);
	OK(doca_ctx_stop(ctx));
	OK(doca_dma_destroy(dma));
	OK(doca_pe_destroy(pe));
	OK(doca_buf_dec_refcount(from, NULL));
	OK(doca_buf_dec_refcount(to, NULL));
	OK(doca_buf_inventory_destroy(inventory));
	OK(doca_mmap_destroy(remote));
	OK(doca_mmap_destroy(local));
	OK(doca_dev_close(dev));
	printf("copied: %s\n", copy);
	return !is_failed && strcmp(copy, NOTE) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
