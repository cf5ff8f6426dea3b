/* SPDX-License-Identifier: Apache-2.0 */

/* Consumers receive messages on the fast path of a Comch connection. */
#ifndef DOCA_COMCH_CONSUMER_H_
#define DOCA_COMCH_CONSUMER_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_comch_connection;
struct doca_comch_consumer;
struct doca_comch_consumer_completion;
struct doca_comch_consumer_task_post_recv;
struct doca_ctx;
struct doca_devinfo;
struct doca_dpa_thread;
struct doca_mmap;
struct doca_task;

/* The handles of a consumer, and of what completes its receives, on a DPA. */
typedef uint64_t doca_dpa_dev_comch_consumer_t;
typedef uint64_t doca_dpa_dev_comch_consumer_completion_t;

typedef void (*doca_comch_consumer_task_post_recv_completion_cb_t)(
	struct doca_comch_consumer_task_post_recv *task, union doca_data task_user_data,
	union doca_data ctx_user_data);

doca_error_t doca_comch_consumer_cap_is_supported(const struct doca_devinfo *info);
doca_error_t doca_comch_consumer_cap_get_max_num_tasks(const struct doca_devinfo *info,
						       uint32_t *count);
doca_error_t doca_comch_consumer_cap_get_max_buf_size(const struct doca_devinfo *info,
						      uint32_t *size);
doca_error_t doca_comch_consumer_cap_get_max_buf_list_len(const struct doca_devinfo *info,
							  uint32_t *len);
doca_error_t doca_comch_consumer_cap_get_max_consumers(const struct doca_devinfo *info,
						       uint32_t *count);
doca_error_t doca_comch_consumer_cap_get_max_imm_data_len(const struct doca_devinfo *info,
							  uint32_t *len);

/* On an established connection. All bufs that are posted lie in mmap. */
doca_error_t doca_comch_consumer_create(struct doca_comch_connection *connection,
					struct doca_mmap *mmap,
					struct doca_comch_consumer **consumer);
doca_error_t doca_comch_consumer_destroy(struct doca_comch_consumer *consumer);
struct doca_ctx *doca_comch_consumer_as_ctx(struct doca_comch_consumer *consumer);
/* Unique on the connection, and never 0. */
doca_error_t doca_comch_consumer_get_id(const struct doca_comch_consumer *consumer, uint32_t *id);
doca_error_t doca_comch_consumer_set_imm_data_len(struct doca_comch_consumer *consumer,
						  uint32_t len);
doca_error_t doca_comch_consumer_get_imm_data_len(const struct doca_comch_consumer *consumer,
						  uint32_t *len);

/* For consumers on a DPA. */
doca_error_t
doca_comch_consumer_completion_create(struct doca_comch_consumer_completion **completion);
doca_error_t
doca_comch_consumer_completion_destroy(struct doca_comch_consumer_completion *completion);
doca_error_t
doca_comch_consumer_completion_start(struct doca_comch_consumer_completion *completion);
doca_error_t doca_comch_consumer_completion_stop(struct doca_comch_consumer_completion *completion);
doca_error_t
doca_comch_consumer_completion_set_dpa_thread(struct doca_comch_consumer_completion *completion,
					      struct doca_dpa_thread *thread);
doca_error_t doca_comch_consumer_completion_set_max_num_consumers(
	struct doca_comch_consumer_completion *completion, uint32_t max_num_consumers);
doca_error_t doca_comch_consumer_completion_get_max_num_consumers(
	const struct doca_comch_consumer_completion *completion, uint32_t *max_num_consumers);
doca_error_t doca_comch_consumer_completion_set_max_num_recv(
	struct doca_comch_consumer_completion *completion, uint32_t max_num_recv);
doca_error_t doca_comch_consumer_completion_get_max_num_recv(
	const struct doca_comch_consumer_completion *completion, uint32_t *max_num_recv);
doca_error_t doca_comch_consumer_completion_set_imm_data_len(
	struct doca_comch_consumer_completion *completion, uint32_t len);
doca_error_t doca_comch_consumer_completion_get_imm_data_len(
	const struct doca_comch_consumer_completion *completion, uint32_t *len);
doca_error_t doca_comch_consumer_completion_get_dpa_handle(
	struct doca_comch_consumer_completion *completion,
	doca_dpa_dev_comch_consumer_completion_t *handle);
doca_error_t
doca_comch_consumer_set_completion(struct doca_comch_consumer *consumer,
				   struct doca_comch_consumer_completion *completion,
				   uint32_t user_data);
doca_error_t doca_comch_consumer_set_dev_max_num_recv(struct doca_comch_consumer *consumer,
						      uint32_t dev_num_recv);
doca_error_t doca_comch_consumer_get_dpa_handle(struct doca_comch_consumer *consumer,
						doca_dpa_dev_comch_consumer_t *handle);

doca_error_t doca_comch_consumer_task_post_recv_set_conf(
	struct doca_comch_consumer *consumer,
	doca_comch_consumer_task_post_recv_completion_cb_t completed,
	doca_comch_consumer_task_post_recv_completion_cb_t failed, uint32_t num_tasks);
/* buf may be NULL for a receive of immediate data only. */
doca_error_t
doca_comch_consumer_task_post_recv_alloc_init(struct doca_comch_consumer *consumer,
					      struct doca_buf *buf,
					      struct doca_comch_consumer_task_post_recv **task);
struct doca_task *
doca_comch_consumer_task_post_recv_as_task(struct doca_comch_consumer_task_post_recv *task);
void doca_comch_consumer_task_post_recv_set_buf(struct doca_comch_consumer_task_post_recv *task,
						struct doca_buf *buf);
struct doca_buf *doca_comch_consumer_task_post_recv_get_buf(
	const struct doca_comch_consumer_task_post_recv *task);

/* After completion: 0 or NULL if nothing has been received. */
uint32_t doca_comch_consumer_task_post_recv_get_producer_id(
	const struct doca_comch_consumer_task_post_recv *task);
const uint8_t *doca_comch_consumer_task_post_recv_get_imm_data(
	const struct doca_comch_consumer_task_post_recv *task);
uint32_t doca_comch_consumer_task_post_recv_get_imm_data_len(
	const struct doca_comch_consumer_task_post_recv *task);

#ifdef __cplusplus
}
#endif
#endif
