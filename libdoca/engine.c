// SPDX-License-Identifier: Apache-2.0

/* Progress engines, contexts, and tasks: states, pools, the ring of what happened, and callbacks,
 * which run here without the core on the stack. */

#include "skin.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "_cgo_export.h"

/* Engines. */

enum { FIRST_CAPACITY = 64, CALLS_PER_CLOCK = 4, SPIN_NS = 200000 };

doca_error_t emu_doca_pe_create(struct doca_pe **pe)
{
	struct doca_pe *created;
	doca_error_t result;

	if (!EMU_HAS(pe))
		return DOCA_ERROR_INVALID_VALUE;
	created = emu_new(EMU_PE, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	created->capacity = FIRST_CAPACITY;
	created->ring = calloc(created->capacity, sizeof *created->ring);
	if (created->ring == NULL) {
		emu_bury(created, NULL);
		return DOCA_ERROR_NO_MEMORY;
	}
	result = (doca_error_t)emuOpenEngine(created);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, created->ring);
		return result;
	}
	*pe = created;
	return DOCA_SUCCESS;
}

bool emu_enter_pe(struct doca_pe *pe, const char *function)
{
	return pe == NULL || emu_enter(&pe->used_by, &pe->depth, "pe", function);
}

void emu_leave_pe(struct doca_pe *pe)
{
	if (pe != NULL)
		emu_leave(&pe->used_by, &pe->depth);
}

doca_error_t emu_doca_pe_destroy(struct doca_pe *pe)
{
	if (!EMU_IS(pe, EMU_PE))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (pe->num_ctxs > 0 || pe->dispatching) {
		if (pe->dispatching)
			emu_misuse(__func__, "it was called from a callback of the engine");
		else
			emu_misuse(__func__, "%u contexts are connected to it: destroy them first",
				   pe->num_ctxs);
		emu_leave_pe(pe);
		return DOCA_ERROR_IN_USE;
	}
	emuCloseEngine(pe->core);
	emu_leave_pe(pe);
	emu_bury(pe, pe->ring);
	return DOCA_SUCCESS;
}

void emu_ring_grow(struct doca_pe *pe)
{
	uint32_t capacity = 2 * pe->capacity;
	struct emu_entry *ring = calloc(capacity, sizeof *ring);

	if (ring == NULL) {
		fputs("libdoca emulated: out of memory\n", stderr);
		abort(); /* an event would be lost */
	}
	for (uint32_t i = pe->head; i != pe->tail; i++)
		ring[i & (capacity - 1)] = pe->ring[i & (pe->capacity - 1)];
	free(pe->ring);
	pe->ring = ring;
	pe->capacity = capacity;
}

void emu_push(struct doca_pe *pe, struct emu_entry entry)
{
	if (pe->tail - pe->head == pe->capacity)
		emu_ring_grow(pe);
	pe->ring[pe->tail++ & (pe->capacity - 1)] = entry;
	if (pe->armed && !pe->collecting)
		emuRing(pe->core);
}

/* Removes what is left in the ring of a context. */
static void purge(struct doca_ctx *ctx)
{
	struct doca_pe *pe = ctx->pe;
	uint32_t kept = pe->head;

	for (uint32_t i = pe->head; i != pe->tail; i++) {
		struct emu_entry *entry = &pe->ring[i & (pe->capacity - 1)];

		if (entry->ctx == ctx)
			free(entry->payload);
		else
			pe->ring[kept++ & (pe->capacity - 1)] = *entry;
	}
	pe->tail = kept;
}

/* How often in a row a thread has progressed its engines in vain, and since when. */
static __thread uint32_t idle_calls;
static __thread int64_t idle_since_ns;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Yields the core after such a call, and sleeps after SPIN_NS of them: beside a program that never
 * gives its core away, yielding takes milliseconds. */
static void idle(void)
{
	struct timespec pause = {.tv_nsec = emu_settings.idle_sleep_ns};
	int slack;

	if (pause.tv_nsec == 0)
		return;
	if (idle_calls++ == 0)
		idle_since_ns = now_ns();
	if (idle_calls % CALLS_PER_CLOCK != 0 || now_ns() - idle_since_ns < SPIN_NS) {
		sched_yield();
		return;
	}
	idle_calls = CALLS_PER_CLOCK - 1; /* the next such call sleeps, too */
	/* By default the kernel lets short sleeps last 50 us longer. */
	slack = prctl(PR_GET_TIMERSLACK);
	if (slack > 0)
		(void)prctl(PR_SET_TIMERSLACK, 1UL);
	nanosleep(&pause, NULL);
	if (slack > 0)
		(void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}

/* Adds a context to those that may hold tasks back. */
static void begin_holding(struct doca_ctx *ctx)
{
	if (ctx->is_holding)
		return;
	ctx->is_holding = true;
	ctx->next_holding = ctx->pe->holding;
	ctx->pe->holding = ctx;
}

static void end_holding(struct doca_ctx *ctx)
{
	struct doca_ctx **link = &ctx->pe->holding;

	if (!ctx->is_holding)
		return;
	while (*link != ctx)
		link = &(*link)->next_holding;
	*link = ctx->next_holding;
	ctx->is_holding = false;
}

/* Flushes every context of an engine that has nothing else to do. A task without the flag may be
 * held back to go out together with others, but not for ever. */
static void flush_held(struct doca_pe *pe)
{
	struct doca_ctx *next;

	for (struct doca_ctx *ctx = pe->holding; ctx != NULL; ctx = next) {
		next = ctx->next_holding;
		if (ctx->submitted != NULL && ctx->state == DOCA_CTX_STATE_RUNNING)
			emuFlush(ctx->core);
		if (ctx->submitted == NULL || ctx->state != DOCA_CTX_STATE_RUNNING)
			end_holding(ctx);
	}
}

static void dispatch(struct emu_entry *entry);

uint8_t emu_doca_pe_progress(struct doca_pe *pe)
{
	struct emu_entry entry;

	if (!EMU_IS(pe, EMU_PE) || !emu_enter_pe(pe, __func__))
		return 0;
	if (pe->dispatching) {
		emu_misuse(__func__, "it was called from a callback of the same engine");
		emu_leave_pe(pe);
		return 0;
	}
	if (pe->armed && pe->mode == DOCA_PE_EVENT_MODE_PROGRESS_SELECTIVE) {
		emu_leave_pe(pe);
		return 0;
	}
	if (pe->head == pe->tail)
		emuPoll(pe->core);
	if (pe->head == pe->tail) {
		flush_held(pe);
		idle();
		emu_leave_pe(pe);
		return 0;
	}
	idle_calls = 0;
	entry = pe->ring[pe->head++ & (pe->capacity - 1)];
	pe->dispatching = true;
	dispatch(&entry);
	pe->dispatching = false;
	emu_leave_pe(pe);
	return 1;
}

/* Any thread may ask. */
doca_error_t emu_doca_pe_get_num_inflight_tasks(const struct doca_pe *pe, size_t *count)
{
	if (!EMU_IS(pe, EMU_PE) || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	*count = __atomic_load_n(&pe->inflight, __ATOMIC_RELAXED);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_pe_get_notification_handle(const struct doca_pe *pe,
						 doca_notification_handle_t *handle)
{
	if (!EMU_IS(pe, EMU_PE) || !EMU_HAS(handle))
		return DOCA_ERROR_INVALID_VALUE;
	*handle = pe->descriptor;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_pe_request_notification(struct doca_pe *pe)
{
	doca_error_t result;

	if (!EMU_IS(pe, EMU_PE))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	pe->collecting = true;
	flush_held(pe);
	result = (doca_error_t)emuArm(pe->core);
	pe->collecting = false;
	pe->armed = result == DOCA_SUCCESS;
	/* Like a device, this need not signal what happened before. */
	if (pe->armed && pe->head != pe->tail && !emu_settings.lose_wakeups)
		emuRing(pe->core);
	emu_leave_pe(pe);
	return result;
}

doca_error_t emu_doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle)
{
	(void)handle;
	if (!EMU_IS(pe, EMU_PE))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	pe->armed = false;
	emuDisarm(pe->core);
	emu_leave_pe(pe);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_pe_set_event_mode(struct doca_pe *pe, enum doca_pe_event_mode mode)
{
	doca_error_t result = DOCA_SUCCESS;

	if (!EMU_IS(pe, EMU_PE))
		return DOCA_ERROR_INVALID_VALUE;
	if (mode != DOCA_PE_EVENT_MODE_PROGRESS_SELECTIVE &&
	    mode != DOCA_PE_EVENT_MODE_PROGRESS_ALL) {
		emu_misuse(__func__, "%u is no mode", (unsigned int)mode);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (pe->dispatching) {
		emu_misuse(__func__, "it was called from a callback of the engine");
		result = DOCA_ERROR_BAD_STATE;
	} else {
		pe->mode = mode;
	}
	emu_leave_pe(pe);
	return result;
}

doca_error_t emu_doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx)
{
	doca_error_t result = DOCA_SUCCESS;

	if (!EMU_IS(pe, EMU_PE) || !EMU_IS(ctx, EMU_CTX))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_is_idle(ctx, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (ctx->pe != NULL) {
		emu_misuse(__func__, "the context is connected to an engine already");
		result = DOCA_ERROR_NOT_PERMITTED;
	} else {
		ctx->pe = pe;
		pe->num_ctxs++;
	}
	emu_leave_pe(pe);
	return result;
}

/* Contexts. */

static const char *const state_names[] = {"idle", "starting", "running", "stopping"};

doca_error_t emu_ctx_init(struct doca_ctx *ctx, enum emu_ctx_kind kind,
			  const struct emu_ctx_ops *ops, struct doca_dev *dev, const char *function)
{
	ctx->kind = kind;
	ctx->ops = ops;
	ctx->dev = dev;
	return dev == NULL || emu_use_dev(dev, function) ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE;
}

void *emu_ctx_of(const void *pointer, enum emu_ctx_kind kind, const char *function)
{
	struct doca_ctx *ctx = (struct doca_ctx *)pointer;

	if (!emu_is(ctx, EMU_CTX, function))
		return NULL;
	if (ctx->kind != kind) {
		emu_misuse(function, "the context is a %s", ctx->ops->name);
		return NULL;
	}
	return ctx;
}

bool emu_is_idle(const struct doca_ctx *ctx, const char *function)
{
	if (ctx->state != DOCA_CTX_STATE_IDLE)
		emu_misuse(function, "the %s is %s, but must be idle", ctx->ops->name,
			   state_names[ctx->state]);
	return ctx->state == DOCA_CTX_STATE_IDLE;
}

static void drop_pool(struct emu_pool *pool)
{
	if (pool->memory == NULL)
		return;
	for (uint32_t i = 1; i < pool->count; i++)
		((struct doca_task *)(pool->memory + i * pool->stride))->magic = EMU_DEAD;
	emu_bury(pool->memory, NULL);
	pool->memory = NULL;
	pool->free = NULL;
}

doca_error_t emu_ctx_end(struct doca_ctx *ctx, doca_error_t busy, const char *function)
{
	struct doca_pe *pe = ctx->pe;

	if (!emu_enter_pe(pe, function))
		return DOCA_ERROR_BAD_STATE;
	if (!emu_is_idle(ctx, function)) {
		emu_leave_pe(pe);
		return busy;
	}
	if (pe != NULL) {
		purge(ctx);
		end_holding(ctx);
		pe->num_ctxs--;
	}
	for (uint32_t i = 0; i < ctx->num_pools; i++)
		drop_pool(&ctx->pools[i]);
	if (ctx->dev != NULL)
		emu_release_dev(ctx->dev);
	emu_bury(ctx, NULL);
	emu_leave_pe(pe);
	return DOCA_SUCCESS;
}

static void set_state(struct doca_ctx *ctx, enum doca_ctx_states next)
{
	enum doca_ctx_states previous = ctx->state;

	if (previous == next)
		return;
	__atomic_store_n(&ctx->state, next, __ATOMIC_RELEASE);
	if (ctx->state_changed != NULL)
		ctx->state_changed(ctx->user_data, ctx, previous, next);
}

/* Makes a context idle. It may be destroyed afterwards. */
static void become_idle(struct doca_ctx *ctx)
{
	if (ctx->ops->idle != NULL)
		ctx->ops->idle(ctx);
	purge(ctx);
	ctx->ending = false;
	emuEndContext(ctx);
	set_state(ctx, DOCA_CTX_STATE_IDLE);
}

static bool is_finished(const struct doca_ctx *ctx)
{
	return ctx->state == DOCA_CTX_STATE_STOPPING && ctx->core_idle && ctx->inflight == 0 &&
	       ctx->allocated == 0 && !ctx->ending;
}

/* Lets progress make a stopping context idle once nothing is left of it. */
static void settle(struct doca_ctx *ctx)
{
	if (!is_finished(ctx))
		return;
	ctx->ending = true;
	emu_push(ctx->pe, (struct emu_entry){.kind = EMU_ENTRY_STATE,
					     .ctx = ctx,
					     .value = DOCA_CTX_STATE_IDLE});
}

static doca_error_t make_pools(struct doca_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->num_pools; i++) {
		struct emu_pool *pool = &ctx->pools[i];

		if (pool->count == 0 || pool->memory != NULL)
			continue;
		pool->memory = emu_new(EMU_TASK, pool->count * pool->stride);
		if (pool->memory == NULL)
			return DOCA_ERROR_NO_MEMORY;
		for (uint32_t j = pool->count; j-- > 0;) {
			struct doca_task *task =
				(struct doca_task *)(pool->memory + j * pool->stride);

			task->magic = EMU_TASK;
			task->pool = (uint16_t)i;
			task->ctx = ctx;
			task->next = pool->free;
			pool->free = task;
		}
	}
	return DOCA_SUCCESS;
}

static doca_error_t start(struct doca_ctx *ctx, const char *function)
{
	doca_error_t result;

	if (!emu_is_idle(ctx, function))
		return DOCA_ERROR_BAD_STATE;
	result = ctx->ops->check(ctx, function);
	if (result == DOCA_SUCCESS)
		result = make_pools(ctx);
	if (result != DOCA_SUCCESS)
		return result;
	ctx->core_idle = false;
	result = (doca_error_t)emuStartContext(ctx);
	if (result == DOCA_SUCCESS)
		set_state(ctx, DOCA_CTX_STATE_RUNNING);
	else if (result == DOCA_ERROR_IN_PROGRESS)
		set_state(ctx, DOCA_CTX_STATE_STARTING);
	return result;
}

doca_error_t emu_doca_ctx_start(struct doca_ctx *ctx)
{
	doca_error_t result;

	if (!EMU_IS(ctx, EMU_CTX))
		return DOCA_ERROR_INVALID_VALUE;
	if (ctx->pe == NULL) {
		emu_misuse(__func__, "the %s is not connected to an engine", ctx->ops->name);
		return DOCA_ERROR_NOT_CONNECTED;
	}
	if (!emu_enter_pe(ctx->pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	result = start(ctx, __func__);
	emu_leave_pe(ctx->pe);
	return result;
}

/* Completes the tasks that have been submitted and held back. */
static void fail_submitted(struct doca_ctx *ctx)
{
	struct doca_task *task = ctx->submitted;

	ctx->submitted = ctx->submitted_last = NULL;
	while (task != NULL) {
		struct doca_task *next = task->next;

		emu_complete(task, DOCA_ERROR_SHUTDOWN);
		task = next;
	}
}

static doca_error_t stop(struct doca_ctx *ctx)
{
	doca_error_t result;

	if (ctx->state == DOCA_CTX_STATE_STOPPING)
		return DOCA_ERROR_IN_PROGRESS;
	if (ctx->state == DOCA_CTX_STATE_IDLE)
		return DOCA_SUCCESS; /* programs take an error for a failure of their own */
	/* The core completes what it has, with an error, and says whether that was all. */
	result = (doca_error_t)emuStopContext(ctx);
	if (result != DOCA_SUCCESS && result != DOCA_ERROR_IN_PROGRESS)
		return result;
	ctx->core_idle = result == DOCA_SUCCESS;
	fail_submitted(ctx);
	if (ctx->core_idle && ctx->inflight == 0 && ctx->allocated == 0 && !ctx->pe->dispatching) {
		become_idle(ctx);
		return DOCA_SUCCESS;
	}
	set_state(ctx, DOCA_CTX_STATE_STOPPING);
	settle(ctx);
	return DOCA_ERROR_IN_PROGRESS;
}

doca_error_t emu_doca_ctx_stop(struct doca_ctx *ctx)
{
	struct doca_pe *pe;
	doca_error_t result;

	if (!EMU_IS(ctx, EMU_CTX))
		return DOCA_ERROR_INVALID_VALUE;
	pe = ctx->pe;
	if (!emu_enter_pe(pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	result = stop(ctx);
	if (result == DOCA_ERROR_IN_USE)
		emu_misuse(__func__, "consumers or producers of the %s exist: destroy them first",
			   ctx->ops->name);
	emu_leave_pe(pe);
	return result;
}

/* Any thread may ask for the following. */

doca_error_t emu_doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state)
{
	if (!EMU_IS(ctx, EMU_CTX) || !EMU_HAS(state))
		return DOCA_ERROR_INVALID_VALUE;
	*state = __atomic_load_n(&ctx->state, __ATOMIC_ACQUIRE);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *count)
{
	if (!EMU_IS(ctx, EMU_CTX) || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	*count = __atomic_load_n(&ctx->inflight, __ATOMIC_RELAXED);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data)
{
	if (!EMU_IS(ctx, EMU_CTX))
		return DOCA_ERROR_INVALID_VALUE;
	ctx->user_data = user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data)
{
	if (!EMU_IS(ctx, EMU_CTX) || !EMU_HAS(user_data))
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = ctx->user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_ctx_set_state_changed_cb(struct doca_ctx *ctx,
					       doca_ctx_state_changed_callback_t callback)
{
	if (!EMU_IS(ctx, EMU_CTX) || !EMU_HAS(callback))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_is_idle(ctx, __func__))
		return DOCA_ERROR_BAD_STATE;
	ctx->state_changed = callback;
	return DOCA_SUCCESS;
}

/* Interrupts are not emulated, so that the choice of one makes no difference. */

doca_error_t emu_doca_ctx_cap_get_num_completion_vectors(const struct doca_devinfo *info,
							 uint32_t *count)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	*count = info->device->can.completion_vectors;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_ctx_set_completion_vector(struct doca_ctx *ctx, uint32_t vector)
{
	if (!EMU_IS(ctx, EMU_CTX))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_is_idle(ctx, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (ctx->dev == NULL)
		return EMU_REFUSE("a context without a device has no completion vectors");
	if (vector >= ctx->dev->device->can.completion_vectors) {
		emu_misuse(__func__, "%u is not below the capability of %u vectors", vector,
			   ctx->dev->device->can.completion_vectors);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return DOCA_SUCCESS;
}

/* Tasks. */

doca_error_t emu_pool_configure(struct doca_ctx *ctx, uint32_t pool, size_t stride,
				emu_task_cb completed, emu_task_cb failed, uint32_t count,
				uint32_t limit, const char *function)
{
	if (!emu_is_idle(ctx, function))
		return DOCA_ERROR_BAD_STATE;
	if (completed == NULL || failed == NULL) {
		emu_misuse(function, "both callbacks are mandatory");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (count == 0 || count > limit) {
		emu_misuse(function, "%u tasks are not between 1 and the capability of %u", count,
			   limit);
		return DOCA_ERROR_INVALID_VALUE;
	}
	drop_pool(&ctx->pools[pool]);
	ctx->pools[pool] = (struct emu_pool){
		.completed = completed,
		.failed = failed,
		.fault = emu_fault_of(ctx->kind, pool),
		.count = count,
		.stride = stride};
	if (ctx->num_pools <= pool)
		ctx->num_pools = pool + 1;
	return DOCA_SUCCESS;
}

doca_error_t emu_pool_take(struct doca_ctx *ctx, uint32_t pool, struct doca_task **task,
			   const char *function)
{
	struct emu_pool *from = &ctx->pools[pool];
	doca_error_t result = DOCA_SUCCESS;

	if (!emu_enter_pe(ctx->pe, function))
		return DOCA_ERROR_BAD_STATE;
	if (ctx->state != DOCA_CTX_STATE_RUNNING && ctx->state != DOCA_CTX_STATE_STOPPING) {
		emu_misuse(function, "the %s is %s, but must be running or stopping",
			   ctx->ops->name, state_names[ctx->state]);
		result = DOCA_ERROR_BAD_STATE;
	} else if (ctx->ending || from->free == NULL) {
		result = DOCA_ERROR_NO_MEMORY;
	} else {
		*task = from->free;
		from->free = (*task)->next;
		(*task)->next = NULL;
		(*task)->state = EMU_TASK_HELD;
		(*task)->status = DOCA_SUCCESS;
		(*task)->user_data.u64 = 0;
		memset(*task + 1, 0, from->stride - sizeof **task);
		ctx->allocated++;
	}
	emu_leave_pe(ctx->pe);
	return result;
}

void *emu_task_of(const void *pointer, enum emu_ctx_kind kind, const char *function)
{
	struct doca_task *task = (struct doca_task *)pointer;

	if (!emu_is(task, EMU_TASK, function))
		return NULL;
	if (task->ctx->kind != kind) {
		emu_misuse(function, "the task belongs to a %s", task->ctx->ops->name);
		return NULL;
	}
	return task;
}

bool emu_is_held(const struct doca_task *task, const char *function)
{
	if (task->state == EMU_TASK_SUBMITTED)
		emu_misuse(function, "the task is submitted: its callback gives it back");
	else if (task->state == EMU_TASK_FREE)
		emu_misuse(function, "the task has been freed");
	return task->state == EMU_TASK_HELD;
}

static void hold(struct doca_task *task, bool submitted)
{
	struct doca_ctx *ctx = task->ctx;
	int change = submitted ? 1 : -1;

	task->state = submitted ? EMU_TASK_SUBMITTED : EMU_TASK_HELD;
	__atomic_store_n(&ctx->inflight, ctx->inflight + change, __ATOMIC_RELAXED);
	__atomic_store_n(&ctx->pe->inflight, ctx->pe->inflight + change, __ATOMIC_RELAXED);
	if (ctx->ops->hold != NULL)
		ctx->ops->hold(task, submitted);
}

void emu_complete(struct doca_task *task, doca_error_t status)
{
	task->status = status;
	emu_push(task->ctx->pe, (struct emu_entry){
					.kind = EMU_ENTRY_TASK, .ctx = task->ctx, .object = task});
}

/* Takes back the task that was submitted last. */
static void unsubmit(struct doca_ctx *ctx, struct doca_task *task)
{
	struct doca_task *previous = NULL;

	for (struct doca_task *t = ctx->submitted; t != task; t = t->next)
		previous = t;
	if (previous == NULL)
		ctx->submitted = NULL;
	else
		previous->next = NULL;
	ctx->submitted_last = previous;
	hold(task, false);
}

static doca_error_t submit(struct doca_task *task, uint32_t flags, const char *function)
{
	struct doca_ctx *ctx = task->ctx;
	doca_error_t result;

	if (!emu_is_held(task, function))
		return DOCA_ERROR_BAD_STATE;
	if (ctx->state != DOCA_CTX_STATE_RUNNING && ctx->state != DOCA_CTX_STATE_STOPPING) {
		emu_misuse(function, "the %s is %s, but must be running or stopping",
			   ctx->ops->name, state_names[ctx->state]);
		return DOCA_ERROR_BAD_STATE;
	}
	result = ctx->ops->check_task == NULL ? DOCA_SUCCESS : ctx->ops->check_task(task, function);
	if (result != DOCA_SUCCESS)
		return result;
	hold(task, true);
	if (ctx->state == DOCA_CTX_STATE_STOPPING) {
		emu_complete(task, DOCA_ERROR_SHUTDOWN);
		return DOCA_SUCCESS;
	}
	if (ctx->pools[task->pool].fault != NULL) {
		result = emu_fault_strike(ctx->pools[task->pool].fault);
		if (result != DOCA_SUCCESS) {
			emu_complete(task, result);
			return DOCA_SUCCESS;
		}
	}
	task->next = NULL;
	if (ctx->submitted == NULL)
		ctx->submitted = task;
	else
		ctx->submitted_last->next = task;
	ctx->submitted_last = task;
	if ((flags & DOCA_TASK_SUBMIT_FLAG_FLUSH) == 0) {
		begin_holding(ctx);
		return DOCA_SUCCESS;
	}
	result = (doca_error_t)emuFlush(ctx->core);
	if (result != DOCA_SUCCESS)
		unsubmit(ctx, task);
	return result;
}

static doca_error_t enter_and_submit(struct doca_task *task, uint32_t flags, const char *function)
{
	struct doca_pe *pe;
	doca_error_t result;

	if (!emu_is(task, EMU_TASK, function))
		return DOCA_ERROR_INVALID_VALUE;
	pe = task->ctx->pe;
	if (!emu_enter_pe(pe, function))
		return DOCA_ERROR_BAD_STATE;
	result = submit(task, flags, function);
	emu_leave_pe(pe);
	return result;
}

doca_error_t emu_doca_task_submit(struct doca_task *task)
{
	return enter_and_submit(task, DOCA_TASK_SUBMIT_FLAG_FLUSH, __func__);
}

doca_error_t emu_doca_task_submit_ex(struct doca_task *task, uint32_t flags)
{
	const uint32_t all =
		DOCA_TASK_SUBMIT_FLAG_FLUSH | DOCA_TASK_SUBMIT_FLAG_OPTIMIZE_REPORTS;

	if ((flags & ~all) != 0) {
		emu_misuse(__func__, "flags %#x have unknown bits", flags);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return enter_and_submit(task, flags, __func__);
}

/* Every submission checks the task here. */
doca_error_t emu_doca_task_try_submit(struct doca_task *task)
{
	return enter_and_submit(task, DOCA_TASK_SUBMIT_FLAG_FLUSH, __func__);
}

void emu_doca_ctx_flush_tasks(struct doca_ctx *ctx)
{
	if (!EMU_IS(ctx, EMU_CTX) || !emu_enter_pe(ctx->pe, __func__))
		return;
	if (ctx->state == DOCA_CTX_STATE_IDLE)
		emu_misuse(__func__, "the %s is idle", ctx->ops->name);
	else if (ctx->submitted != NULL && ctx->state == DOCA_CTX_STATE_RUNNING)
		emuFlush(ctx->core);
	emu_leave_pe(ctx->pe);
}

void emu_doca_task_free(struct doca_task *task)
{
	struct doca_ctx *ctx;
	struct emu_pool *pool;

	if (!EMU_IS(task, EMU_TASK))
		return;
	ctx = task->ctx;
	if (!emu_enter_pe(ctx->pe, __func__))
		return;
	if (emu_is_held(task, __func__)) {
		pool = &ctx->pools[task->pool];
		task->state = EMU_TASK_FREE;
		task->next = pool->free;
		pool->free = task;
		ctx->allocated--;
		settle(ctx);
	}
	emu_leave_pe(ctx->pe);
}

doca_error_t emu_doca_task_get_status(const struct doca_task *task)
{
	if (!EMU_IS(task, EMU_TASK))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_is_held(task, __func__))
		return DOCA_ERROR_BAD_STATE;
	return task->status;
}

void emu_doca_task_set_user_data(struct doca_task *task, union doca_data user_data)
{
	if (EMU_IS(task, EMU_TASK) && emu_is_held(task, __func__))
		task->user_data = user_data;
}

union doca_data emu_doca_task_get_user_data(const struct doca_task *task)
{
	union doca_data none = {.u64 = 0};

	if (!EMU_IS(task, EMU_TASK))
		return none;
	return task->user_data;
}

struct doca_ctx *emu_doca_task_get_ctx(const struct doca_task *task)
{
	return EMU_IS(task, EMU_TASK) ? task->ctx : NULL;
}

/* Batches. No context here allocates any, so whatever these functions are given is none. */

doca_error_t emu_doca_task_batch_submit(struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return DOCA_ERROR_INVALID_VALUE;
}

doca_error_t emu_doca_task_batch_try_submit(struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return DOCA_ERROR_INVALID_VALUE;
}

void emu_doca_task_batch_free(struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
}

doca_error_t emu_doca_task_batch_get_status(const struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return DOCA_ERROR_INVALID_VALUE;
}

uint16_t emu_doca_task_batch_get_tasks_num(struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return 0;
}

struct doca_ctx *emu_doca_task_batch_get_ctx(const struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return NULL;
}

union doca_data emu_doca_task_batch_get_ctx_user_data(const struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return (union doca_data){.u64 = 0};
}

void emu_doca_task_batch_set_user_data(struct doca_task_batch *batch, union doca_data user_data)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
}

union doca_data emu_doca_task_batch_get_user_data(const struct doca_task_batch *batch)
{
	(void)EMU_IS(batch, EMU_TASK_BATCH);
	return (union doca_data){.u64 = 0};
}

/* Callbacks. */

static void dispatch_task(struct doca_task *task)
{
	struct doca_ctx *ctx = task->ctx;
	struct emu_pool *pool = &ctx->pools[task->pool];
	emu_task_cb callback = task->status == DOCA_SUCCESS ? pool->completed : pool->failed;

	hold(task, false);
	callback(task, task->user_data, ctx->user_data);
	/* A context with an inflight task cannot have become idle in its callback. */
	settle(ctx);
}

static void dispatch_state(struct doca_ctx *ctx, enum doca_ctx_states next)
{
	if (next == DOCA_CTX_STATE_IDLE) {
		become_idle(ctx);
		return;
	}
	/* A start that completes after a stop changes nothing. */
	if (next == DOCA_CTX_STATE_RUNNING && ctx->state != DOCA_CTX_STATE_STARTING)
		return;
	set_state(ctx, next);
	if (next == DOCA_CTX_STATE_STOPPING) {
		fail_submitted(ctx);
		settle(ctx);
	}
}

static void dispatch(struct emu_entry *entry)
{
	struct doca_ctx *ctx = entry->ctx;

	switch (entry->kind) {
	case EMU_ENTRY_TASK:
		dispatch_task(entry->object);
		break;
	case EMU_ENTRY_STATE:
		dispatch_state(ctx, (enum doca_ctx_states)entry->value);
		break;
	case EMU_ENTRY_CORE_IDLE:
		ctx->core_idle = true;
		settle(ctx);
		break;
	default:
		ctx->ops->dispatch(ctx, entry);
		free(entry->payload);
	}
}
