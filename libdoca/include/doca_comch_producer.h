/* SPDX-License-Identifier: Apache-2.0 */

/* Producers send messages to the consumers of the peer of a Comch connection. */
#ifndef DOCA_COMCH_PRODUCER_H_
#define DOCA_COMCH_PRODUCER_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_comch_connection;
struct doca_comch_producer;
struct doca_comch_producer_task_send;
struct doca_ctx;
struct doca_devinfo;
struct doca_dpa_completion;
struct doca_task;

/* The handle of a producer on a DPA. */
typedef uint64_t doca_dpa_dev_comch_producer_t;

typedef void (*doca_comch_producer_task_send_completion_cb_t)(
	struct doca_comch_producer_task_send *task, union doca_data task_user_data,
	union doca_data ctx_user_data);

doca_error_t doca_comch_producer_cap_is_supported(const struct doca_devinfo *info);
doca_error_t doca_comch_producer_cap_get_max_num_tasks(const struct doca_devinfo *info,
						       uint32_t *count);
doca_error_t doca_comch_producer_cap_get_max_buf_size(const struct doca_devinfo *info,
						      uint32_t *size);
doca_error_t doca_comch_producer_cap_get_max_buf_list_len(const struct doca_devinfo *info,
							  uint32_t *len);
doca_error_t doca_comch_producer_cap_get_max_producers(const struct doca_devinfo *info,
						       uint32_t *count);

/* On an established connection. */
doca_error_t doca_comch_producer_create(struct doca_comch_connection *connection,
					struct doca_comch_producer **producer);
doca_error_t doca_comch_producer_destroy(struct doca_comch_producer *producer);
struct doca_ctx *doca_comch_producer_as_ctx(struct doca_comch_producer *producer);
/* Unique on the connection. */
doca_error_t doca_comch_producer_get_id(const struct doca_comch_producer *producer, uint32_t *id);

/* For producers on a DPA. */
doca_error_t doca_comch_producer_set_dev_max_num_send(struct doca_comch_producer *producer,
						      uint32_t dev_num_send);
doca_error_t doca_comch_producer_dpa_completion_attach(struct doca_comch_producer *producer,
							struct doca_dpa_completion *completion);
doca_error_t doca_comch_producer_get_dpa_handle(struct doca_comch_producer *producer,
						doca_dpa_dev_comch_producer_t *handle);

doca_error_t doca_comch_producer_task_send_set_conf(
	struct doca_comch_producer *producer,
	doca_comch_producer_task_send_completion_cb_t completed,
	doca_comch_producer_task_send_completion_cb_t failed, uint32_t num_tasks);
/* Sends the window of buf, which may be NULL, and the immediate data to a consumer of the peer. */
doca_error_t doca_comch_producer_task_send_alloc_init(struct doca_comch_producer *producer,
						      const struct doca_buf *buf, uint8_t *imm_data,
						      uint32_t imm_data_len, uint32_t consumer_id,
						      struct doca_comch_producer_task_send **task);
struct doca_task *doca_comch_producer_task_send_as_task(struct doca_comch_producer_task_send *task);
void doca_comch_producer_task_send_set_buf(struct doca_comch_producer_task_send *task,
					   const struct doca_buf *buf);
const struct doca_buf *
doca_comch_producer_task_send_get_buf(const struct doca_comch_producer_task_send *task);
void doca_comch_producer_task_send_set_consumer_id(struct doca_comch_producer_task_send *task,
						   const uint32_t consumer_id);
uint32_t
doca_comch_producer_task_send_get_consumer_id(const struct doca_comch_producer_task_send *task);
void doca_comch_producer_task_send_set_imm_data(struct doca_comch_producer_task_send *task,
						uint8_t *imm_data, uint32_t imm_data_len);
/* NULL if there is none. */
uint8_t *
doca_comch_producer_task_send_get_imm_data(const struct doca_comch_producer_task_send *task);
uint32_t
doca_comch_producer_task_send_get_imm_data_len(const struct doca_comch_producer_task_send *task);

#ifdef __cplusplus
}
#endif
#endif
