/* SPDX-License-Identifier: Apache-2.0 */

/* Contexts: what every object that runs tasks has in common. A context is used by the thread of its
 * progress engine. */
#ifndef DOCA_CTX_H_
#define DOCA_CTX_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_ctx;
struct doca_devinfo;
struct doca_dpa;
struct doca_gpu;

enum doca_ctx_states {
	DOCA_CTX_STATE_IDLE = 0,
	DOCA_CTX_STATE_STARTING = 1,
	DOCA_CTX_STATE_RUNNING = 2,
	DOCA_CTX_STATE_STOPPING = 3,
};

/* Called after the state has changed, also by doca_ctx_start and doca_ctx_stop themselves. */
typedef void (*doca_ctx_state_changed_callback_t)(const union doca_data user_data,
						  struct doca_ctx *ctx,
						  enum doca_ctx_states prev_state,
						  enum doca_ctx_states next_state);

/* SUCCESS: running. IN_PROGRESS: starting, and progress makes it running, or idle if that fails. */
doca_error_t doca_ctx_start(struct doca_ctx *ctx);
/* SUCCESS: idle. IN_PROGRESS: stopping until all tasks have completed and are freed. */
doca_error_t doca_ctx_stop(struct doca_ctx *ctx);

doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state);
doca_error_t doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *count);
doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data);
doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data);
doca_error_t doca_ctx_set_state_changed_cb(struct doca_ctx *ctx,
					   doca_ctx_state_changed_callback_t callback);
/* Submits what doca_task_submit_ex has held back. */
void doca_ctx_flush_tasks(struct doca_ctx *ctx);

/* Which of the device's interrupts announces completions; before the start. Since 3.0. */
doca_error_t doca_ctx_cap_get_num_completion_vectors(const struct doca_devinfo *info,
						     uint32_t *count);
doca_error_t doca_ctx_set_completion_vector(struct doca_ctx *ctx, uint32_t vector);
/* Leave the tasks to a DPA or a GPU. */
doca_error_t doca_ctx_set_datapath_on_dpa(struct doca_ctx *ctx, struct doca_dpa *dpa);
doca_error_t doca_ctx_set_datapath_on_gpu(struct doca_ctx *ctx, struct doca_gpu *gpu);

#ifdef __cplusplus
}
#endif
#endif
