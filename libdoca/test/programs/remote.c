// SPDX-License-Identifier: Apache-2.0

#include "remote.h"

#include <stdlib.h>
#include <string.h>

static void complete(struct remote *remote, struct doca_task *task)
{
	CHECK(doca_task_get_status(task) == DOCA_SUCCESS);
	remote->completed++;
	if (remote->free_tasks)
		doca_task_free(task);
}

static void fail_task(struct remote *remote, struct doca_task *task)
{
	remote->last_status = doca_task_get_status(task);
	CHECK(remote->last_status != DOCA_SUCCESS);
	remote->inflight_at_failure = inflight(remote->ctx);
	remote->failed++;
	if (remote->free_tasks)
		doca_task_free(task);
}

/* Defines the callbacks of a type of tasks, and how to submit one to the connection. */
#define TASK(type) \
	static void on_##type(struct doca_rdma_task_##type *task, union doca_data task_data, \
			      union doca_data ctx_data) \
	{ \
		(void)task_data; \
		complete(ctx_data.ptr, doca_rdma_task_##type##_as_task(task)); \
	} \
	static void on_##type##_failed(struct doca_rdma_task_##type *task, \
				       union doca_data task_data, union doca_data ctx_data) \
	{ \
		(void)task_data; \
		fail_task(ctx_data.ptr, doca_rdma_task_##type##_as_task(task)); \
	}

TASK(send)
TASK(send_imm)
TASK(read)
TASK(write)
TASK(write_imm)
TASK(atomic_cmp_swp)
TASK(atomic_fetch_add)

static void on_receive(struct doca_rdma_task_receive *task, union doca_data task_data,
		       union doca_data ctx_data)
{
	struct remote *remote = ctx_data.ptr;

	(void)task_data;
	remote->received++;
	remote->opcode = doca_rdma_task_receive_get_result_opcode(task);
	remote->length = doca_rdma_task_receive_get_result_len(task);
	remote->from = doca_rdma_task_receive_get_result_rdma_connection(task);
	if (remote->opcode != DOCA_RDMA_OPCODE_RECV_SEND)
		remote->immediate = doca_rdma_task_receive_get_result_immediate_data(task);
	if (remote->free_tasks)
		doca_task_free(doca_rdma_task_receive_as_task(task));
}

static void on_receive_failed(struct doca_rdma_task_receive *task, union doca_data task_data,
			      union doca_data ctx_data)
{
	(void)task_data;
	fail_task(ctx_data.ptr, doca_rdma_task_receive_as_task(task));
}

static void on_request(struct doca_rdma_connection *connection, union doca_data ctx_data)
{
	struct remote *remote = ctx_data.ptr;
	union doca_data data = {.u64 = 77};

	remote->requests++;
	if (remote->reject) {
		OK(doca_rdma_connection_reject(connection));
		return;
	}
	OK(doca_rdma_connection_set_user_data(connection, data));
	OK(doca_rdma_connection_accept(connection, NULL, 0));
}

static void on_established(struct doca_rdma_connection *connection,
			   union doca_data connection_data, union doca_data ctx_data)
{
	struct remote *remote = ctx_data.ptr;

	CHECK(connection_data.u64 == 77);
	remote->connection = connection;
	remote->established++;
}

static void on_failure(struct doca_rdma_connection *connection, union doca_data connection_data,
		       union doca_data ctx_data)
{
	(void)connection;
	CHECK(connection_data.u64 == 77);
	((struct remote *)ctx_data.ptr)->failures++;
}

static void on_disconnection(struct doca_rdma_connection *connection,
			     union doca_data connection_data, union doca_data ctx_data)
{
	struct remote *remote = ctx_data.ptr;

	CHECK(connection_data.u64 == 77);
	if (remote->connection == connection)
		remote->connection = NULL;
	remote->disconnects++;
}

struct remote *remote_new(struct doca_dev *dev, bool with_tasks)
{
	struct remote *remote = calloc(1, sizeof *remote);
	union doca_data data = {.ptr = remote};
	struct doca_rdma *rdma;

	remote->dev = dev;
	remote->free_tasks = true;
	OK(doca_rdma_create(dev, &rdma));
	remote->rdma = rdma;
	remote->ctx = doca_rdma_as_ctx(rdma);
	OK(doca_rdma_set_permissions(rdma, RDMA_ACCESS));
	OK(doca_rdma_set_connection_state_callbacks(rdma, on_request, on_established, on_failure,
						    on_disconnection));
	if (with_tasks) {
		OK(doca_rdma_task_receive_set_conf(rdma, on_receive, on_receive_failed,
						   RDMA_TASKS));
		OK(doca_rdma_task_send_set_conf(rdma, on_send, on_send_failed, RDMA_TASKS));
		OK(doca_rdma_task_send_imm_set_conf(rdma, on_send_imm, on_send_imm_failed,
						    RDMA_TASKS));
		OK(doca_rdma_task_read_set_conf(rdma, on_read, on_read_failed, RDMA_TASKS));
		OK(doca_rdma_task_write_set_conf(rdma, on_write, on_write_failed, RDMA_TASKS));
		OK(doca_rdma_task_write_imm_set_conf(rdma, on_write_imm, on_write_imm_failed,
						     RDMA_TASKS));
		OK(doca_rdma_task_atomic_cmp_swp_set_conf(rdma, on_atomic_cmp_swp,
							  on_atomic_cmp_swp_failed, RDMA_TASKS));
		OK(doca_rdma_task_atomic_fetch_add_set_conf(
			rdma, on_atomic_fetch_add, on_atomic_fetch_add_failed, RDMA_TASKS));
	}
	OK(doca_ctx_set_user_data(remote->ctx, data));
	remote->pe = new_engine(remote->ctx);
	return remote;
}

struct doca_rdma_connection *remote_export(struct remote *remote, void *peer, size_t *length)
{
	struct doca_rdma_connection *connection;
	const void *details;
	size_t size;

	OK(doca_rdma_export(remote->rdma, &details, &size, &connection));
	tell(details, size);
	*length = hear(peer, *length);
	return connection;
}

void remote_connect(struct remote *remote)
{
	uint8_t peer[1024];
	size_t length = sizeof peer;

	OK(doca_ctx_start(remote->ctx));
	remote->connection = remote_export(remote, peer, &length);
	OK(doca_rdma_connect(remote->rdma, peer, length, remote->connection));
}

void remote_destroy(struct remote *remote)
{
	if (state_of(remote->ctx) != DOCA_CTX_STATE_IDLE)
		stop(remote->ctx, remote->pe);
	OK(doca_rdma_destroy(remote->rdma));
	OK(doca_pe_destroy(remote->pe));
	free(remote);
}

static const union doca_data none = {.u64 = 5};

static struct doca_task *submit(struct doca_task *task)
{
	CHECK(doca_task_get_user_data(task).u64 == none.u64);
	OK(doca_task_submit(task));
	return task;
}

struct doca_task *remote_post(struct remote *remote, struct doca_buf *dst)
{
	struct doca_rdma_task_receive *task;

	OK(doca_rdma_task_receive_allocate_init(remote->rdma, dst, none, &task));
	CHECK(doca_rdma_task_receive_get_dst_buf(task) == dst);
	return submit(doca_rdma_task_receive_as_task(task));
}

struct doca_task *remote_send(struct remote *remote, const struct doca_buf *src)
{
	struct doca_rdma_task_send *task;

	OK(doca_rdma_task_send_allocate_init(remote->rdma, remote->connection, src, none, &task));
	CHECK(doca_rdma_task_send_get_src_buf(task) == src);
	return submit(doca_rdma_task_send_as_task(task));
}

struct doca_task *remote_send_imm(struct remote *remote, const struct doca_buf *src,
				  uint32_t immediate)
{
	struct doca_rdma_task_send_imm *task;

	OK(doca_rdma_task_send_imm_allocate_init(remote->rdma, remote->connection, src, immediate,
						 none, &task));
	return submit(doca_rdma_task_send_imm_as_task(task));
}

struct doca_task *remote_read(struct remote *remote, const struct doca_buf *src,
			      struct doca_buf *dst)
{
	struct doca_rdma_task_read *task;

	OK(doca_rdma_task_read_allocate_init(remote->rdma, remote->connection, src, dst, none,
					     &task));
	return submit(doca_rdma_task_read_as_task(task));
}

struct doca_task *remote_write(struct remote *remote, const struct doca_buf *src,
			       struct doca_buf *dst)
{
	struct doca_rdma_task_write *task;

	OK(doca_rdma_task_write_allocate_init(remote->rdma, remote->connection, src, dst, none,
					      &task));
	return submit(doca_rdma_task_write_as_task(task));
}

struct doca_task *remote_write_imm(struct remote *remote, const struct doca_buf *src,
				   struct doca_buf *dst, uint32_t immediate)
{
	struct doca_rdma_task_write_imm *task;

	OK(doca_rdma_task_write_imm_allocate_init(remote->rdma, remote->connection, src, dst,
						  immediate, none, &task));
	return submit(doca_rdma_task_write_imm_as_task(task));
}

struct doca_task *remote_compare_swap(struct remote *remote, struct doca_buf *dst,
				      struct doca_buf *result, uint64_t compare, uint64_t swap)
{
	struct doca_rdma_task_atomic_cmp_swp *task;

	OK(doca_rdma_task_atomic_cmp_swp_allocate_init(remote->rdma, remote->connection, dst,
						       result, compare, swap, none, &task));
	return submit(doca_rdma_task_atomic_cmp_swp_as_task(task));
}

struct doca_task *remote_fetch_add(struct remote *remote, struct doca_buf *dst,
				   struct doca_buf *result, uint64_t add)
{
	struct doca_rdma_task_atomic_fetch_add *task;

	OK(doca_rdma_task_atomic_fetch_add_allocate_init(remote->rdma, remote->connection, dst,
							 result, add, none, &task));
	return submit(doca_rdma_task_atomic_fetch_add_as_task(task));
}

void tell_memory(struct memory *memory, struct doca_dev *dev)
{
	const void *desc;
	size_t length;

	OK(doca_mmap_export_rdma(memory->mmap, dev, &desc, &length));
	tell(desc, length);
}

struct memory hear_memory(struct doca_dev *dev)
{
	uint8_t desc[1024];
	size_t length = hear(desc, sizeof desc);

	return memory_import(dev, desc, length);
}
