// SPDX-License-Identifier: Apache-2.0

#include "internal.h"

doca_error_t zcd_engine_open(const struct zcd_functions *f, int wait, struct zcd_engine *engine)
{
	doca_error_t result = f->pe_create(&engine->pe);

	engine->f = f;
	engine->descriptor = -1;
	if (result != DOCA_SUCCESS)
		return result;
	// In the default mode an armed engine stalls outbound work, and the way to sleep without
	// losing a notification needs progress while armed. So there is no sleep without this mode.
	if (!wait || !f->pe_set_event_mode ||
	    f->pe_set_event_mode(engine->pe, DOCA_PE_EVENT_MODE_PROGRESS_ALL) != DOCA_SUCCESS)
		return DOCA_SUCCESS;
	doca_notification_handle_t handle = -1;
	if (f->pe_get_notification_handle(engine->pe, &handle) == DOCA_SUCCESS && handle >= 0)
		engine->descriptor = handle;
	return DOCA_SUCCESS;
}

uint32_t zcd_context_revoke(struct zcd_context *context)
{
	__atomic_store_n(&context->revoked, 1, __ATOMIC_SEQ_CST);
	return !__atomic_load_n(&context->busy, __ATOMIC_SEQ_CST);
}

uint32_t zcd_context_progress(struct zcd_context *context, uint32_t budget)
{
	const struct zcd_functions *f = context->engine->f;
	uint32_t done = 0;

	while (done < budget && f->pe_progress(context->engine->pe))
		done++;
	return done;
}

uint32_t zcd_context_arm(struct zcd_context *context)
{
	const struct zcd_functions *f = context->engine->f;
	uint32_t found = 1;

	if (!zcd_enter(context))
		return 0;
	// Without the event mode that progresses everything, an armed engine makes no progress. Its
	// thread polls with pauses, and must not leave it armed when it loses the context.
	if (context->engine->descriptor < 0) {
		found = f->pe_progress(context->engine->pe) != 0;
	// A request that fails means that there is work.
	} else if (f->pe_request_notification(context->engine->pe) == DOCA_SUCCESS) {
		found = f->pe_progress(context->engine->pe) != 0;
		if (found)
			(void)f->pe_clear_notification(context->engine->pe, 0);
	}
	zcd_leave(context);
	return found;
}

void zcd_context_clear(struct zcd_context *context)
{
	if (context->engine->descriptor < 0 || !zcd_enter(context))
		return;
	// On Linux libdoca ignores the handle. A failure leaves the descriptor readable, so that
	// the next sleep ends at once.
	(void)context->engine->f->pe_clear_notification(context->engine->pe, 0);
	zcd_leave(context);
}

static void on_state(const union doca_data user_data, struct doca_ctx *ctx, uint32_t previous,
		     uint32_t next)
{
	struct zcd_context *context = user_data.ptr;

	(void)ctx;
	(void)previous;
	context->state = next;
}

// zcd_context_attach makes ctx an object of the engine. It is the last step of configuration.
doca_error_t zcd_context_attach(struct zcd_context *context, struct zcd_engine *engine,
				struct doca_ctx *ctx, const char **step)
{
	const struct zcd_functions *f = engine->f;
	union doca_data self = {.ptr = context};
	doca_error_t result;

	context->engine = engine;
	context->ctx = ctx;
	context->state = DOCA_CTX_STATE_IDLE;
	*step = "doca_ctx_set_user_data";
	result = f->ctx_set_user_data(ctx, self);
	if (result != DOCA_SUCCESS)
		return result;
	*step = "doca_ctx_set_state_changed_cb";
	result = f->ctx_set_state_changed_cb(ctx, on_state);
	if (result != DOCA_SUCCESS)
		return result;
	*step = "doca_pe_connect_ctx";
	return f->pe_connect_ctx(engine->pe, ctx);
}

// update_state asks for the state: a release need not call back for a synchronous transition.
static void update_state(struct zcd_context *context)
{
	uint32_t state;

	if (context->engine->f->ctx_get_state(context->ctx, &state) == DOCA_SUCCESS)
		context->state = state;
}

doca_error_t zcd_context_start(struct zcd_context *context)
{
	doca_error_t result = context->engine->f->ctx_start(context->ctx);

	update_state(context);
	return result == DOCA_ERROR_IN_PROGRESS ? DOCA_SUCCESS : result;
}

doca_error_t zcd_context_stop(struct zcd_context *context)
{
	doca_error_t result = context->engine->f->ctx_stop(context->ctx);

	update_state(context);
	return result == DOCA_ERROR_IN_PROGRESS ? DOCA_SUCCESS : result;
}

// zcd_context_fail keeps the first late failure of a context.
void zcd_context_fail(struct zcd_context *context, doca_error_t code)
{
	if (context->failed == DOCA_SUCCESS)
		context->failed = code;
}

doca_error_t zcd_memory_open(const struct zcd_functions *f, struct doca_dev *device, void *bytes,
			     size_t length, uint32_t buffers, struct zcd_memory *memory,
			     const char **step)
{
	doca_error_t result;

	memory->bytes = bytes;
	memory->length = length;
	CHECK(mmap_create, &memory->mmap);
	CHECK(mmap_add_dev, memory->mmap, device);
	CHECK(mmap_set_memrange, memory->mmap, bytes, length);
	CHECK(mmap_set_permissions, memory->mmap,
	      DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	CHECK(mmap_start, memory->mmap);
	CHECK(buf_inventory_create, buffers, &memory->inventory);
	CHECK(buf_inventory_start, memory->inventory);
	return DOCA_SUCCESS;
}

doca_error_t zcd_memory_close(const struct zcd_functions *f, struct zcd_memory *memory)
{
	doca_error_t result = DOCA_SUCCESS;

	if (memory->inventory) {
		result = f->buf_inventory_destroy(memory->inventory);
		if (result != DOCA_SUCCESS)
			return result;
		memory->inventory = NULL;
	}
	if (memory->mmap) {
		result = f->mmap_destroy(memory->mmap);
		if (result != DOCA_SUCCESS)
			return result;
		memory->mmap = NULL;
	}
	return result;
}

doca_error_t zcd_mmap_key(const struct zcd_functions *f, struct doca_mmap *mmap,
			  struct doca_dev *device, uint32_t *key, const char **step)
{
	doca_error_t result;

	if (f->mmap_get_mkey) {
		*step = "doca_mmap_get_mkey";
		result = f->mmap_get_mkey(mmap, device, key);
		if (result == DOCA_SUCCESS)
			return result;
	}
	if (f->rdma_bridge_get_mmap_mkey_from_pd) {
		struct ibv_pd *pd = NULL;

		*step = "doca_rdma_bridge_get_dev_pd";
		result = f->rdma_bridge_get_dev_pd(device, &pd);
		if (result == DOCA_SUCCESS) {
			*step = "doca_rdma_bridge_get_mmap_mkey_from_pd";
			result = f->rdma_bridge_get_mmap_mkey_from_pd(mmap, pd, key);
		}
		if (result == DOCA_SUCCESS)
			return result;
	}

	struct doca_buf_inventory *inventory = NULL;
	struct doca_buf *buffer = NULL;
	void *address = NULL;
	size_t length = 0;

	*step = "doca_mmap_get_memrange";
	result = f->mmap_get_memrange(mmap, &address, &length);
	if (result != DOCA_SUCCESS)
		return result;
	*step = "doca_buf_inventory_create";
	result = f->buf_inventory_create(1, &inventory);
	if (result != DOCA_SUCCESS)
		return result;
	*step = "doca_buf_inventory_start";
	result = f->buf_inventory_start(inventory);
	zcd_lock_buffers(f);
	if (result == DOCA_SUCCESS) {
		*step = "doca_buf_inventory_buf_get_by_args";
		result = f->buf_inventory_buf_get_by_args(inventory, mmap, address, length, address,
							  0, &buffer);
	}
	if (result == DOCA_SUCCESS) {
		*step = "doca_rdma_bridge_get_buf_mkey";
		result = f->rdma_bridge_get_buf_mkey(buffer, device, key);
		f->buf_dec_refcount(buffer, NULL);
	}
	zcd_unlock_buffers(f);
	f->buf_inventory_destroy(inventory);
	return result;
}
