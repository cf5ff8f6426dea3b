// SPDX-License-Identifier: Apache-2.0

/* What programs for DOCA rely on: the rules of RDMA.
 * The numbers are those of docs/guides/libdoca.md. */

#include "remote.h"

#include <string.h>

enum { SIZE = 65536 };

/* Rules 1 and 6: a context without tasks starts, exports, and connects, and its stop is done at
 * once. */
static void no_tasks(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, false);

	remote_connect(remote); /* its start is DOCA_SUCCESS */
	meet();
	OK(doca_ctx_stop(remote->ctx));
	CHECK(state_of(remote->ctx) == DOCA_CTX_STATE_IDLE);
	OK(doca_ctx_start(remote->ctx)); /* connections have to be made anew */
	OK(doca_ctx_stop(remote->ctx));
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

/* Rules 4 and 5: as for consumers and producers. */
static void stop_flushes(void)
{
	enum { RECEIVES = 8, SENDS = 4 };
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);
	struct doca_task *tasks[RECEIVES + SENDS];
	struct doca_buf *bufs[RECEIVES], *src = memory_buf(&memory, 0, 64, 64);
	int count = 0;

	remote_connect(remote);
	remote->free_tasks = false;
	if (is_dpu) {
		for (int i = 0; i < RECEIVES; i++) {
			bufs[i] = memory_buf(&memory, 1024 * (size_t)i, 1024, 0);
			tasks[count++] = remote_post(remote, bufs[i]);
		}
	} else {
		meet(); /* the peer has stopped */
		for (int i = 0; i < SENDS; i++)
			tasks[count++] = remote_send(remote, src);
	}
	CHECK(inflight(remote->ctx) == (size_t)count);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_stop(remote->ctx));
	for (size_t left = inflight(remote->ctx); left > 0; left--) {
		CHECK(doca_pe_progress(remote->pe) == 1);
		CHECK(inflight(remote->ctx) == left - 1);
		CHECK(remote->inflight_at_failure == left - 1);
	}
	CHECK(remote->failed == count);
	CHECK(state_of(remote->ctx) == DOCA_CTX_STATE_STOPPING);
	for (int i = 0; i < count; i++)
		doca_task_free(tasks[i]);
	UNTIL(state_of(remote->ctx) == DOCA_CTX_STATE_IDLE, remote->pe);
	if (is_dpu)
		meet();
	release(src);
	for (int i = 0; is_dpu && i < RECEIVES; i++)
		release(bufs[i]);
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Rule 7: connecting succeeds at once, in any order of both sides, without progress; a send may
 * follow at once; and a context runs without a peer. */
static void connect_in_any_order(bool dpu_first)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);
	struct doca_buf *src = memory_buf(&memory, 0, 100, 100);
	struct doca_buf *dst = memory_buf(&memory, 4096, 100, 0);
	uint8_t peer[1024];
	size_t length = sizeof peer;

	OK(doca_ctx_start(remote->ctx));
	CHECK(state_of(remote->ctx) == DOCA_CTX_STATE_RUNNING);
	remote->connection = remote_export(remote, peer, &length);
	if (is_dpu != dpu_first)
		meet(); /* the other side has connected and sent */
	OK(doca_rdma_connect(remote->rdma, peer, length, remote->connection));
	memset(memory.bytes, is_dpu ? 'd' : 'h', 100);
	(void)remote_send(remote, src);
	if (is_dpu == dpu_first)
		meet();
	(void)remote_post(remote, dst);
	UNTIL(remote->completed == 1 && remote->received == 1, remote->pe);
	for (int i = 0; i < 100; i++)
		CHECK(memory.bytes[4096 + i] == (is_dpu ? 'h' : 'd'));
	meet();
	release(src);
	release(dst);
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

static void dpu_connects_first(void)
{
	for (int round = 0; round < 4; round++) /* chance decides which side dials */
		connect_in_any_order(true);
}

static void host_connects_first(void)
{
	for (int round = 0; round < 4; round++)
		connect_in_any_order(false);
}

/* Rule 8: a context serves reads and writes while nobody progresses it. */
static void served_without_progress(void)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);

	memcpy(memory.bytes, "memory of this side", 20);
	remote_connect(remote);
	if (is_dpu) {
		tell_memory(&memory, dev);
		meet(); /* in one system call until the host is done */
		CHECK(strcmp((char *)memory.bytes + 100, "written by the host") == 0);
	} else {
		struct memory peer = hear_memory(dev);
		struct doca_buf *from = memory_buf(&peer, 0, 20, 20);
		struct doca_buf *to = memory_buf(&peer, 100, 20, 0);
		struct doca_buf *dst = memory_buf(&memory, 200, 20, 0);
		struct doca_buf *src = memory_buf(&memory, 300, 20, 20);

		(void)remote_read(remote, from, dst);
		UNTIL(remote->completed == 1, remote->pe);
		CHECK(strcmp((char *)memory.bytes + 200, "memory of this side") == 0);
		memcpy(memory.bytes + 300, "written by the host", 20);
		(void)remote_write(remote, src, to);
		UNTIL(remote->completed == 2, remote->pe);
		meet();
		release(from);
		release(to);
		release(dst);
		release(src);
		memory_free(&peer);
	}
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Rule 9: the DPU re-exports memory of its host for RDMA. Whoever imports that knows it by the
 * addresses of the host, and reaches it through the DPU. Here, it is the host itself. */
static void reexport(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, true);
	const void *desc;
	uint8_t blob[1024];
	size_t length;

	remote_connect(remote);
	if (is_dpu) {
		length = hear(blob, sizeof blob);
		struct memory imported = memory_import(dev, blob, length);

		tell_memory(&imported, dev);
		meet();
		meet();
		memory_free(&imported);
		meet();
		remote_destroy(remote);
		OK(doca_dev_close(dev));
		return;
	}
	struct memory memory =
		memory_new(dev, SIZE, RDMA_ACCESS | DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	struct memory local = memory_new(dev, SIZE, RDMA_ACCESS);

	OK(doca_mmap_export_pci(memory.mmap, dev, &desc, &length));
	tell(desc, length);
	struct memory through_dpu = hear_memory(dev);

	CHECK(through_dpu.bytes == memory.bytes && through_dpu.size == memory.size);
	memcpy(memory.bytes + 10000, "of the host", 12);
	struct doca_buf *from = memory_buf(&through_dpu, 10000, 12, 12);
	struct doca_buf *to = memory_buf(&through_dpu, 20000, 12, 0);
	struct doca_buf *buf = memory_buf(&local, 0, 12, 0);

	(void)remote_read(remote, from, buf);
	UNTIL(remote->completed == 1, remote->pe);
	CHECK(strcmp((char *)local.bytes, "of the host") == 0);
	(void)remote_write(remote, buf, to);
	UNTIL(remote->completed == 2, remote->pe);
	CHECK(strcmp((char *)memory.bytes + 20000, "of the host") == 0);
	meet();
	/* What the host takes away, nobody reaches any more. */
	memory_revoke(&memory);
	meet();
	OK(doca_buf_reset_data_len(buf));
	(void)remote_read(remote, from, buf);
	UNTIL(remote->failed == 1, remote->pe);
	CHECK(remote->last_status == DOCA_ERROR_IO_FAILED ||
	      remote->last_status == DOCA_ERROR_NOT_CONNECTED);
	meet();
	release(from);
	release(to);
	release(buf);
	memory_free(&through_dpu);
	memory_free(&memory);
	memory_free(&local);
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"no_tasks", no_tasks},
	{"stop_flushes", stop_flushes},
	{"dpu_connects_first", dpu_connects_first},
	{"host_connects_first", host_connects_first},
	{"served_without_progress", served_without_progress},
	{"reexport", reexport},
	{NULL, NULL},
};
