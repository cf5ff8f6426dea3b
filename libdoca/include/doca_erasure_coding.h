/* SPDX-License-Identifier: Apache-2.0 */

/* Erasure coding. The emulation does not have it: doca_ec_create fails with NOT_SUPPORTED. */
#ifndef DOCA_ERASURE_CODING_H_
#define DOCA_ERASURE_CODING_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_ctx;
struct doca_dev;
struct doca_ec;
struct doca_ec_matrix;
struct doca_ec_task_recover;
struct doca_task;

enum doca_ec_matrix_type {
	DOCA_EC_MATRIX_TYPE_CAUCHY = 1,
	DOCA_EC_MATRIX_TYPE_VANDERMONDE = 2,
};

typedef void (*doca_ec_task_recover_completion_cb_t)(struct doca_ec_task_recover *task,
						     union doca_data task_user_data,
						     union doca_data ctx_user_data);

doca_error_t doca_ec_create(struct doca_dev *dev, struct doca_ec **ec);
doca_error_t doca_ec_destroy(struct doca_ec *ec);
struct doca_ctx *doca_ec_as_ctx(struct doca_ec *ec);

doca_error_t doca_ec_matrix_create(struct doca_ec *ec, enum doca_ec_matrix_type type,
				   size_t data_block_count, size_t rdnc_block_count,
				   struct doca_ec_matrix **matrix);
doca_error_t doca_ec_matrix_destroy(struct doca_ec_matrix *matrix);

doca_error_t doca_ec_task_recover_set_conf(struct doca_ec *ec,
					   doca_ec_task_recover_completion_cb_t completed,
					   doca_ec_task_recover_completion_cb_t failed,
					   uint32_t num_tasks);
doca_error_t doca_ec_task_recover_allocate_init(struct doca_ec *ec,
						const struct doca_ec_matrix *recover_matrix,
						const struct doca_buf *available_blocks,
						struct doca_buf *recovered_data,
						union doca_data user_data,
						struct doca_ec_task_recover **task);
struct doca_task *doca_ec_task_recover_as_task(struct doca_ec_task_recover *task);
const struct doca_buf *
doca_ec_task_recover_get_available_blocks(const struct doca_ec_task_recover *task);
struct doca_buf *doca_ec_task_recover_get_recovered_data(const struct doca_ec_task_recover *task);

#ifdef __cplusplus
}
#endif
#endif
