/* Progress engines and tasks. Everything asynchronous happens inside doca_pe_progress, on the
 * thread that calls it. */
#ifndef DOCA_PE_H_
#define DOCA_PE_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_ctx.h"
#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_pe;
struct doca_task;

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

doca_error_t doca_pe_create(struct doca_pe **pe);
/* IN_USE while contexts that are connected to it exist. */
doca_error_t doca_pe_destroy(struct doca_pe *pe);

/* Does at most one thing (a completion, an event, a change of state), and returns 1 if it did. Not
 * from a callback of the same engine. */
uint8_t doca_pe_progress(struct doca_pe *pe);

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
/* Not while the task is submitted. */
void doca_task_free(struct doca_task *task);
doca_error_t doca_task_get_status(const struct doca_task *task);
void doca_task_set_user_data(struct doca_task *task, union doca_data user_data);
union doca_data doca_task_get_user_data(const struct doca_task *task);

#ifdef __cplusplus
}
#endif
#endif
