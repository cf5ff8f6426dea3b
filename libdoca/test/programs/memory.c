// SPDX-License-Identifier: Apache-2.0

/* Memory of any kind that the host exports: over PCI, where the DPU copies it by DMA until the host
 * takes it away, and for RDMA. */

#include "remote.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <doca_dma.h>

enum { PCI = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE };

/* DMA on the DPU. */
struct copier {
	struct doca_dma *dma;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	int done;
	doca_error_t status;
};

static void on_copied(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	struct copier *copier = ctx_data.ptr;

	(void)task_data;
	copier->done++;
	copier->status = doca_task_get_status(doca_dma_task_memcpy_as_task(task));
	doca_task_free(doca_dma_task_memcpy_as_task(task));
}

static void copier_open(struct copier *copier, struct doca_dev *dev)
{
	union doca_data data = {.ptr = copier};

	memset(copier, 0, sizeof *copier);
	OK(doca_dma_cap_task_memcpy_is_supported(doca_dev_as_devinfo(dev)));
	OK(doca_dma_create(dev, &copier->dma));
	copier->ctx = doca_dma_as_ctx(copier->dma);
	OK(doca_dma_task_memcpy_set_conf(copier->dma, on_copied, on_copied, 8));
	OK(doca_ctx_set_user_data(copier->ctx, data));
	copier->pe = new_engine(copier->ctx);
	OK(doca_ctx_start(copier->ctx));
}

static void copier_close(struct copier *copier)
{
	stop(copier->ctx, copier->pe);
	OK(doca_dma_destroy(copier->dma));
	OK(doca_pe_destroy(copier->pe));
}

static doca_error_t copy(struct copier *copier, const struct doca_buf *src, struct doca_buf *dst)
{
	struct doca_dma_task_memcpy *task;
	union doca_data none = {.u64 = 0};
	int done = copier->done;

	OK(doca_dma_task_memcpy_alloc_init(copier->dma, src, dst, none, &task));
	OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
	UNTIL(copier->done == done + 1, copier->pe);
	return copier->status;
}

/* The host's part for one kind of memory, which holds length bytes. */
static void export(struct doca_dev *dev, void *bytes, size_t length)
{
	struct memory memory = memory_over(dev, bytes, length, PCI);
	const void *desc;
	size_t size;

	for (size_t i = 0; i < length; i++)
		((uint8_t *)bytes)[i] = (uint8_t)(i * 3);
	OK(doca_mmap_export_pci(memory.mmap, dev, &desc, &size));
	tell(desc, size);
	meet(); /* the DPU has inverted the bytes */
	for (size_t i = 0; i < length; i++)
		CHECK(((uint8_t *)bytes)[i] == (uint8_t)~(i * 3));
	expect_misuse("doca_mmap_stop"); /* it has been exported */
	IS(DOCA_ERROR_NOT_PERMITTED, doca_mmap_stop(memory.mmap));
	memory_revoke(&memory);
	meet();
	meet();
	memory_free(&memory);
}

/* The DPU's. */
static void import(struct doca_dev *dev)
{
	struct memory local = memory_new(dev, 1 << 20, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	struct doca_mmap *forged;
	struct copier copier;
	uint8_t desc[1024];
	size_t size = hear(desc, sizeof desc);

	copier_open(&copier, dev);
	struct memory imported = memory_import(dev, desc, size);
	struct doca_buf *remote = memory_buf(&imported, 0, imported.size, imported.size);
	struct doca_buf *buf = memory_buf(&local, 0, imported.size, 0);

	OK(copy(&copier, remote, buf));
	for (size_t i = 0; i < imported.size; i++) {
		CHECK(local.bytes[i] == (uint8_t)(i * 3));
		local.bytes[i] = (uint8_t)~local.bytes[i];
	}
	OK(doca_buf_reset_data_len(remote));
	OK(copy(&copier, buf, remote));
	meet();
	meet(); /* the host has stopped the map */
	OK(doca_buf_reset_data_len(buf));
	IS(DOCA_ERROR_IO_FAILED, copy(&copier, remote, buf));
	IS(DOCA_ERROR_NOT_FOUND, doca_mmap_create_from_export(NULL, desc, size, dev, &forged));
	desc[0] ^= 1;
	IS(DOCA_ERROR_INVALID_VALUE, doca_mmap_create_from_export(NULL, desc, size, dev, &forged));
	meet();
	release(remote);
	release(buf);
	memory_free(&imported);
	memory_free(&local);
	copier_close(&copier);
}

/* Calls use with memory of each kind: of the program, of the stack, of the heap without alignment,
 * and of a file. */
static void use_any_memory(struct doca_dev *dev,
			   void (*use)(struct doca_dev *dev, void *bytes, size_t length))
{
	enum { LENGTH = 300007 };
	static uint8_t of_program[LENGTH];
	char on_stack[17];
	uint8_t *heap = malloc(LENGTH + 5), *file;
	int descriptor = memfd_create("shared", MFD_CLOEXEC);

	use(dev, of_program, LENGTH);
	use(dev, on_stack, sizeof on_stack);
	use(dev, heap + 5, LENGTH);
	free(heap);
	CHECK(descriptor >= 0 && ftruncate(descriptor, LENGTH) == 0);
	file = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	CHECK(file != MAP_FAILED);
	use(dev, file + 1, LENGTH - 1);
	CHECK(munmap(file, LENGTH) == 0 && close(descriptor) == 0);
}

enum { KINDS = 4 };

static void any_memory(void)
{
	struct doca_dev *dev = open_own_device();

	if (is_dpu)
		for (int i = 0; i < KINDS; i++)
			import(dev);
	else
		use_any_memory(dev, export);
	OK(doca_dev_close(dev));
}

/* The same by RDMA: the DPU reads the host's memory, and writes it back inverted. */
static void export_for_rdma(struct doca_dev *dev, void *bytes, size_t length)
{
	struct memory memory = memory_over(dev, bytes, length, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);

	for (size_t i = 0; i < length; i++)
		((uint8_t *)bytes)[i] = (uint8_t)(i * 3);
	remote_connect(remote);
	tell_memory(&memory, dev);
	meet(); /* the DPU has inverted the bytes */
	for (size_t i = 0; i < length; i++)
		CHECK(((uint8_t *)bytes)[i] == (uint8_t)~(i * 3));
	remote_destroy(remote);
	memory_free(&memory);
}

static void import_for_rdma(struct doca_dev *dev)
{
	struct memory local = memory_new(dev, 1 << 20, RDMA_ACCESS), imported;
	struct remote *remote = remote_new(dev, true);
	struct doca_buf *theirs, *ours;

	remote_connect(remote);
	imported = hear_memory(dev);
	theirs = memory_buf(&imported, 0, imported.size, imported.size);
	ours = memory_buf(&local, 0, imported.size, 0);
	(void)remote_read(remote, theirs, ours);
	UNTIL(remote->completed == 1, remote->pe);
	for (size_t i = 0; i < imported.size; i++) {
		CHECK(local.bytes[i] == (uint8_t)(i * 3));
		local.bytes[i] = (uint8_t)~local.bytes[i];
	}
	OK(doca_buf_reset_data_len(theirs));
	(void)remote_write(remote, ours, theirs);
	UNTIL(remote->completed == 2, remote->pe);
	meet();
	release(theirs);
	release(ours);
	remote_destroy(remote);
	memory_free(&imported);
	memory_free(&local);
}

static void any_memory_for_rdma(void)
{
	struct doca_dev *dev = open_own_device();

	if (is_dpu)
		for (int i = 0; i < KINDS; i++)
			import_for_rdma(dev);
	else
		use_any_memory(dev, export_for_rdma);
	OK(doca_dev_close(dev));
}

/* Lists of bufs on both sides of a copy. */
static void lists(void)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, 8192, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	struct doca_buf *src = memory_buf(&memory, 0, 100, 100), *dst;
	struct copier copier;
	size_t length;

	copier_open(&copier, dev);
	for (int i = 0; i < 300; i++)
		memory.bytes[i] = (uint8_t)i;
	OK(doca_buf_chain_list(src, memory_buf(&memory, 100, 200, 200)));
	dst = memory_buf(&memory, 4096, 250, 0);
	OK(doca_buf_chain_list(dst, memory_buf(&memory, 6000, 250, 0)));
	OK(copy(&copier, src, dst));
	OK(doca_buf_get_data_len(dst, &length));
	CHECK(length == 250);
	CHECK(memcmp(memory.bytes + 4096, memory.bytes, 250) == 0);
	CHECK(memcmp(memory.bytes + 6000, memory.bytes + 250, 50) == 0);
	release(src);
	release(dst);
	copier_close(&copier);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"any_memory", any_memory},
	{"any_memory_for_rdma", any_memory_for_rdma},
	{"lists", lists},
	{NULL, NULL},
};
