/* SPDX-License-Identifier: Apache-2.0 */

/* RDMA for the test programs. */
#ifndef REMOTE_H
#define REMOTE_H

#include <doca_rdma.h>

#include "program.h"

enum {
	RDMA_ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
		      DOCA_ACCESS_FLAG_RDMA_WRITE,
	RDMA_ATOMIC_ACCESS = RDMA_ACCESS | DOCA_ACCESS_FLAG_RDMA_ATOMIC,
	RDMA_TASKS = 64,
};

/* A context, and what it has been told. */
struct remote {
	struct doca_dev *dev;
	struct doca_rdma *rdma;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	struct doca_rdma_connection *connection; /* the last one */
	int completed, failed, received, requests, established, failures, disconnects;
	doca_error_t last_status;
	size_t inflight_at_failure;
	/* Of the last receive. */
	enum doca_rdma_opcode opcode;
	doca_be32_t immediate;
	uint32_t length;
	const struct doca_rdma_connection *from;
	bool free_tasks, reject;
};

/* Creates a context with all tasks, or none. */
struct remote *remote_new(struct doca_dev *dev, bool with_tasks);
/* Exports a connection, and exchanges the details with the other process. */
struct doca_rdma_connection *remote_export(struct remote *remote, void *peer, size_t *length);
/* Starts the context, and connects it by details to that of the other process. */
void remote_connect(struct remote *remote);
/* Stops the context, whose tasks must be free or complete by themselves. */
void remote_destroy(struct remote *remote);

struct doca_task *remote_post(struct remote *remote, struct doca_buf *dst);
struct doca_task *remote_send(struct remote *remote, const struct doca_buf *src);
struct doca_task *remote_send_imm(struct remote *remote, const struct doca_buf *src,
				  uint32_t immediate);
struct doca_task *remote_read(struct remote *remote, const struct doca_buf *src,
			      struct doca_buf *dst);
struct doca_task *remote_write(struct remote *remote, const struct doca_buf *src,
			       struct doca_buf *dst);
struct doca_task *remote_write_imm(struct remote *remote, const struct doca_buf *src,
				   struct doca_buf *dst, uint32_t immediate);

struct doca_task *remote_compare_swap(struct remote *remote, struct doca_buf *dst,
				      struct doca_buf *result, uint64_t compare, uint64_t swap);
struct doca_task *remote_fetch_add(struct remote *remote, struct doca_buf *dst,
				   struct doca_buf *result, uint64_t add);

/* Tells the other process of memory, or imports what it tells. */
void tell_memory(struct memory *memory, struct doca_dev *dev);
struct memory hear_memory(struct doca_dev *dev);

#endif
