// SPDX-License-Identifier: Apache-2.0

/* Misuse of threads, states, references, and tasks is reported, and changes nothing. What the
 * emulation does not have is refused by name. */

#include "remote.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <doca_compress.h>
#include <doca_dma.h>
#include <doca_erasure_coding.h>
#include <doca_log.h>

/* A DMA context with one task. */
static struct {
	struct doca_dev *dev;
	struct memory memory;
	struct doca_dma *dma;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	struct doca_buf *src, *dst;
	struct doca_dma_task_memcpy *task;
	int completed;
} copier;

static void on_copied(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	(void)task;
	(void)task_data;
	(void)ctx_data;
	copier.completed++;
}

static void open_copier(void)
{
	union doca_data none = {.u64 = 0};

	copier.dev = open_own_device();
	copier.memory = memory_new(copier.dev, 8192, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	OK(doca_dma_create(copier.dev, &copier.dma));
	copier.ctx = doca_dma_as_ctx(copier.dma);
	OK(doca_dma_task_memcpy_set_conf(copier.dma, on_copied, on_copied, 2));
	copier.pe = new_engine(copier.ctx);
	OK(doca_ctx_start(copier.ctx));
	copier.src = memory_buf(&copier.memory, 0, 4096, 4096);
	copier.dst = memory_buf(&copier.memory, 4096, 4096, 0);
	OK(doca_dma_task_memcpy_alloc_init(copier.dma, copier.src, copier.dst, none,
					   &copier.task));
}

static void close_copier(void)
{
	doca_task_free(doca_dma_task_memcpy_as_task(copier.task));
	stop(copier.ctx, copier.pe);
	OK(doca_dma_destroy(copier.dma));
	OK(doca_pe_destroy(copier.pe));
	release(copier.src);
	release(copier.dst);
	memory_free(&copier.memory);
	OK(doca_dev_close(copier.dev));
}

static void of_tasks(void)
{
	struct doca_task *task;

	open_copier();
	task = doca_dma_task_memcpy_as_task(copier.task);
	OK(doca_task_submit(task));
	expect_misuse("doca_task_submit");
	IS(DOCA_ERROR_BAD_STATE, doca_task_submit(task)); /* twice */
	expect_misuse("doca_task_free");
	doca_task_free(task); /* too early */
	expect_misuse("doca_dma_task_memcpy_set_src");
	doca_dma_task_memcpy_set_src(copier.task, copier.src);
	UNTIL(copier.completed == 1, copier.pe);
	OK(doca_buf_reset_data_len(copier.dst));
	OK(doca_task_submit(task)); /* it was not harmed */
	UNTIL(copier.completed == 2, copier.pe);
	close_copier();
}

static void of_references(void)
{
	struct doca_task *task;

	open_copier();
	task = doca_dma_task_memcpy_as_task(copier.task);
	OK(doca_task_submit(task));
	expect_misuse("doca_buf_dec_refcount");
	IS(DOCA_ERROR_IN_USE, doca_buf_dec_refcount(copier.src, NULL));
	expect_misuse("doca_buf_set_data");
	IS(DOCA_ERROR_IN_USE, doca_buf_set_data(copier.dst, copier.memory.bytes + 4096, 1));
	expect_misuse("doca_mmap_destroy");
	IS(DOCA_ERROR_NOT_PERMITTED, doca_mmap_destroy(copier.memory.mmap));
	expect_misuse("doca_buf_inventory_destroy");
	IS(DOCA_ERROR_IN_USE, doca_buf_inventory_destroy(copier.memory.inventory));
	expect_misuse("doca_dev_close");
	IS(DOCA_ERROR_IN_USE, doca_dev_close(copier.dev));
	UNTIL(copier.completed == 1, copier.pe);
	close_copier();
	copier.completed = 0;
	expect_misuse("doca_pe_progress");
	CHECK(doca_pe_progress(copier.pe) == 0); /* it has been destroyed */
	expect_misuse("doca_dma_destroy");
	IS(DOCA_ERROR_INVALID_VALUE, doca_dma_destroy(copier.dma));
}

static void of_states(void)
{
	open_copier();
	expect_misuse("doca_ctx_start");
	IS(DOCA_ERROR_BAD_STATE, doca_ctx_start(copier.ctx));
	expect_misuse("doca_dma_task_memcpy_set_conf");
	IS(DOCA_ERROR_BAD_STATE,
	   doca_dma_task_memcpy_set_conf(copier.dma, on_copied, on_copied, 2));
	expect_misuse("doca_dma_destroy");
	IS(DOCA_ERROR_BAD_STATE, doca_dma_destroy(copier.dma));
	expect_misuse("doca_pe_destroy");
	IS(DOCA_ERROR_IN_USE, doca_pe_destroy(copier.pe));
	expect_misuse("doca_mmap_set_permissions");
	IS(DOCA_ERROR_BAD_STATE, doca_mmap_set_permissions(copier.memory.mmap, 0));
	close_copier();
}

/* Two threads inside of one engine. */
static pthread_barrier_t barrier;

static void on_copied_while_another(struct doca_dma_task_memcpy *task, union doca_data task_data,
				    union doca_data ctx_data)
{
	on_copied(task, task_data, ctx_data);
	pthread_barrier_wait(&barrier); /* the other one enters */
	pthread_barrier_wait(&barrier);
}

static void *enter(void *unused)
{
	pthread_barrier_wait(&barrier);
	expect_misuse("doca_pe_progress");
	CHECK(doca_pe_progress(copier.pe) == 0);
	expect_misuse("doca_task_submit");
	IS(DOCA_ERROR_BAD_STATE, doca_task_submit(doca_dma_task_memcpy_as_task(copier.task)));
	pthread_barrier_wait(&barrier);
	return unused;
}

static void of_threads(void)
{
	pthread_t other;

	open_copier();
	doca_task_free(doca_dma_task_memcpy_as_task(copier.task));
	stop(copier.ctx, copier.pe);
	OK(doca_dma_task_memcpy_set_conf(copier.dma, on_copied_while_another,
					 on_copied_while_another, 1));
	OK(doca_ctx_start(copier.ctx));
	union doca_data none = {.u64 = 0};

	OK(doca_dma_task_memcpy_alloc_init(copier.dma, copier.src, copier.dst, none,
					   &copier.task));
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
	CHECK(pthread_create(&other, NULL, enter, NULL) == 0);
	OK(doca_task_submit(doca_dma_task_memcpy_as_task(copier.task)));
	UNTIL(copier.completed == 1, copier.pe);
	CHECK(pthread_join(other, NULL) == 0);
	close_copier();
}

static void of_rdma(void)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, 4096, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);
	struct doca_buf *buf = memory_buf(&memory, 0, 64, 64);
	struct doca_buf *dst = memory_buf(&memory, 64, 64, 0);
	struct doca_rdma_task_write *write;
	struct doca_rdma_task_send *send;
	union doca_data none = {.u64 = 0};
	const void *details;
	size_t size;

	expect_misuse("doca_rdma_export");
	IS(DOCA_ERROR_BAD_STATE,
	   doca_rdma_export(remote->rdma, &details, &size, &remote->connection));
	OK(doca_ctx_start(remote->ctx));
	OK(doca_rdma_export(remote->rdma, &details, &size, &remote->connection));
	OK(doca_rdma_task_send_allocate_init(remote->rdma, remote->connection, buf, none, &send));
	expect_misuse("doca_task_submit");
	IS(DOCA_ERROR_BAD_STATE, doca_task_submit(doca_rdma_task_send_as_task(send)));
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_rdma_connect(remote->rdma, details, size, remote->connection)); /* to itself */
	IS(DOCA_ERROR_INVALID_VALUE, doca_rdma_connect(remote->rdma, "?", 1, remote->connection));
	expect_misuse("doca_rdma_task_write_as_task");
	CHECK(doca_rdma_task_write_as_task((struct doca_rdma_task_write *)send) == NULL);
	OK(doca_rdma_task_write_allocate_init(remote->rdma, remote->connection, buf, dst, none,
					      &write));
	expect_misuse("doca_task_submit");
	IS(DOCA_ERROR_INVALID_VALUE, /* dst is not of a peer */
	   doca_task_submit(doca_rdma_task_write_as_task(write)));
	doca_task_free(doca_rdma_task_write_as_task(write));
	doca_task_free(doca_rdma_task_send_as_task(send));
	expect_misuse("doca_rdma_start_listen_to_port");
	IS(DOCA_ERROR_INVALID_VALUE, doca_rdma_start_listen_to_port(remote->rdma, 0));
	release(buf);
	release(dst);
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Functions of libraries that the emulation does not have. Each says so by name. */
static const struct {
	const char *library, *name;
} functions[] = {
#define EMU_FUNCTION(library, name, first) {#library, #name},
#include "../../../libdoca/functions.h"
#undef EMU_FUNCTION
};

static void absent(void)
{
	union doca_data none = {.u64 = 0};
	struct doca_dev *dev = open_own_device();
	struct doca_log_backend *backend;
	struct doca_compress *compress;
	struct doca_compress_task_decompress_lz4_stream *decompress;
	struct doca_ec *ec;
	struct doca_ec_matrix *matrix;
	struct doca_ec_task_recover *recover;
	static char text[1 << 16];
	FILE *log = fmemopen(text, sizeof text, "w");
	size_t count = 0;

	OK(doca_log_backend_create_with_file_sdk(log, &backend));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_compress_create(dev, &compress));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_compress_destroy(NULL));
	CHECK(doca_compress_as_ctx(NULL) == NULL);
	IS(DOCA_ERROR_NOT_SUPPORTED,
	   doca_compress_task_decompress_lz4_stream_set_conf(NULL, NULL, NULL, 1));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_compress_task_decompress_lz4_stream_alloc_init(
					     NULL, 0, 0, NULL, NULL, none, &decompress));
	CHECK(doca_compress_task_decompress_lz4_stream_as_task(NULL) == NULL);
	CHECK(doca_compress_task_decompress_lz4_stream_get_src(NULL) == NULL);
	CHECK(doca_compress_task_decompress_lz4_stream_get_dst(NULL) == NULL);
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_ec_create(dev, &ec));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_ec_destroy(NULL));
	CHECK(doca_ec_as_ctx(NULL) == NULL);
	IS(DOCA_ERROR_NOT_SUPPORTED,
	   doca_ec_matrix_create(NULL, DOCA_EC_MATRIX_TYPE_CAUCHY, 2, 1, &matrix));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_ec_matrix_destroy(NULL));
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_ec_task_recover_set_conf(NULL, NULL, NULL, 1));
	IS(DOCA_ERROR_NOT_SUPPORTED,
	   doca_ec_task_recover_allocate_init(NULL, NULL, NULL, NULL, none, &recover));
	CHECK(doca_ec_task_recover_as_task(NULL) == NULL);
	CHECK(doca_ec_task_recover_get_available_blocks(NULL) == NULL);
	CHECK(doca_ec_task_recover_get_recovered_data(NULL) == NULL);
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
		char sentence[128];

		if (strcmp(functions[i].library, "compress") != 0 &&
		    strcmp(functions[i].library, "erasure_coding") != 0)
			continue;
		snprintf(sentence, sizeof sentence, " %s is not supported: ", functions[i].name);
		if (strstr(text, sentence) == NULL)
			fail(__FILE__, __LINE__, "%s does not say that it is absent: %s",
			     functions[i].name, text);
		count++;
	}
	CHECK(count > 0);
	OK(doca_log_backend_set_sdk_level(backend, DOCA_LOG_LEVEL_DISABLE));
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"of_tasks", of_tasks},
	{"of_references", of_references},
	{"of_states", of_states},
	{"of_threads", of_threads},
	{"of_rdma", of_rdma},
	{"absent", absent},
	{NULL, NULL},
};
