/* SPDX-License-Identifier: Apache-2.0 */

/* Progress engines and tasks. Everything asynchronous happens inside doca_pe_progress, on the
 * thread that calls it. */
#ifndef DOCA_PE_H_
#define DOCA_PE_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "doca_ctx.h"
#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_pe;
struct doca_task;
struct doca_task_batch;

enum doca_task_submit_flag {
	DOCA_TASK_SUBMIT_FLAG_NONE = 0,
	DOCA_TASK_SUBMIT_FLAG_FLUSH = 1 << 0,
	DOCA_TASK_SUBMIT_FLAG_OPTIMIZE_REPORTS = 1 << 1,
};

enum doca_pe_event_mode {
	/* An armed engine delivers nothing until its notification is cleared. The default. */
	DOCA_PE_EVENT_MODE_PROGRESS_SELECTIVE = 0,
	/* An armed engine still progresses, and arming it again clears the notification. */
	DOCA_PE_EVENT_MODE_PROGRESS_ALL = 1,
};

/* The capacity of a batch of tasks, and how many events one callback reports. */
enum doca_task_batch_max_tasks_number {
	DOCA_TASK_BATCH_MAX_TASKS_NUMBER_16 = 0,
	DOCA_TASK_BATCH_MAX_TASKS_NUMBER_32 = 1,
	DOCA_TASK_BATCH_MAX_TASKS_NUMBER_64 = 2,
	DOCA_TASK_BATCH_MAX_TASKS_NUMBER_128 = 3,
};

enum doca_event_batch_events_number {
	DOCA_EVENT_BATCH_EVENTS_NUMBER_1 = 0,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_2 = 1,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_4 = 2,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_8 = 3,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_16 = 4,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_32 = 5,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_64 = 6,
	DOCA_EVENT_BATCH_EVENTS_NUMBER_128 = 7,
};

/* The shape of the callbacks of all tasks. */
typedef void (*doca_task_completion_cb_t)(struct doca_task *task, union doca_data task_user_data,
					  union doca_data ctx_user_data);

doca_error_t doca_pe_create(struct doca_pe **pe);
/* IN_USE while contexts that are connected to it exist. */
doca_error_t doca_pe_destroy(struct doca_pe *pe);

/* Does at most one thing (a completion, an event, a change of state), and returns 1 if it did. Not
 * from a callback of the same engine. */
uint8_t doca_pe_progress(struct doca_pe *pe);

/* Of all contexts that are connected to the engine. */
doca_error_t doca_pe_get_num_inflight_tasks(const struct doca_pe *pe, size_t *count);

/* Once per context, while that is idle. */
doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx);

/* The descriptor belongs to the engine. */
doca_error_t doca_pe_get_notification_handle(const struct doca_pe *pe,
					     doca_notification_handle_t *handle);
/* Arms the descriptor for what happens from now on. */
doca_error_t doca_pe_request_notification(struct doca_pe *pe);
/* handle is ignored on Linux. */
doca_error_t doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle);
/* Not from a callback. */
doca_error_t doca_pe_set_event_mode(struct doca_pe *pe, enum doca_pe_event_mode mode);

/* The library owns the task from success until its callback. */
doca_error_t doca_task_submit(struct doca_task *task);
doca_error_t doca_task_submit_ex(struct doca_task *task, uint32_t flags);
/* Checks the task first: INVALID_VALUE if something is wrong with it. */
doca_error_t doca_task_try_submit(struct doca_task *task);
/* Not while the task is submitted. */
void doca_task_free(struct doca_task *task);
doca_error_t doca_task_get_status(const struct doca_task *task);
void doca_task_set_user_data(struct doca_task *task, union doca_data user_data);
union doca_data doca_task_get_user_data(const struct doca_task *task);
struct doca_ctx *doca_task_get_ctx(const struct doca_task *task);

/* Batches of tasks, which the contexts of some libraries allocate. */
doca_error_t doca_task_batch_submit(struct doca_task_batch *batch);
doca_error_t doca_task_batch_try_submit(struct doca_task_batch *batch);
void doca_task_batch_free(struct doca_task_batch *batch);
doca_error_t doca_task_batch_get_status(const struct doca_task_batch *batch);
uint16_t doca_task_batch_get_tasks_num(struct doca_task_batch *batch);
struct doca_ctx *doca_task_batch_get_ctx(const struct doca_task_batch *batch);
union doca_data doca_task_batch_get_ctx_user_data(const struct doca_task_batch *batch);
void doca_task_batch_set_user_data(struct doca_task_batch *batch, union doca_data user_data);
union doca_data doca_task_batch_get_user_data(const struct doca_task_batch *batch);

#ifdef __cplusplus
}
#endif
#endif
