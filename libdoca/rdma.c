// SPDX-License-Identifier: Apache-2.0

/* RDMA: contexts, their connections, and their tasks. The core carries the tasks out. */

#include "skin.h"

#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

enum {
	DEFAULT_CONNECTIONS = 16,
	MAX_CONNECTIONS = 4096,
	MAX_TASKS = 65536,
	WORD_SIZE = 8, /* of a sync event, and of what an atomic changes */
	GID_TABLE_SIZE = 256,
	DEFAULT_TIMEOUT_MS = 30000,
	MAX_LIST_LEN = 1, /* bufs */
	MAX_SERVICE_LEVEL = 15,
	MAX_RNR_RETRIES = 7, /* which means without end */
};
static const uint64_t max_message_size = 1 << 30;

/* What a context does. Nothing has to be configured: a context without tasks serves its peers. */

static doca_error_t check(struct doca_ctx *ctx, const char *function)
{
	(void)ctx;
	(void)function;
	return DOCA_SUCCESS;
}

/* Reports whether a task can use a buf, which is NULL or one that the application holds. */
static bool is_usable(const struct doca_ctx *ctx, const struct doca_buf *buf, bool of_peer,
		      const char *which, const char *function)
{
	if (buf == NULL)
		return true;
	if (!emu_is(buf, EMU_BUF, function))
		return false;
	if (buf->refcount == 0) {
		emu_misuse(function, "%s has been returned to its inventory", which);
		return false;
	}
	if (buf->next != NULL) {
		emu_misuse(function, "%s is a list, which exceeds the capability of 1", which);
		return false;
	}
	if (!emu_mmap_has_dev(buf->mmap, ctx->dev)) {
		emu_misuse(function, "the map of %s does not have the device", which);
		return false;
	}
	if (buf->mmap->of_peer != of_peer) {
		emu_misuse(function, "%s must be memory of %s", which,
			   of_peer ? "the peer, that it has exported for RDMA" : "this side");
		return false;
	}
	return true;
}

static uint64_t room_of(const struct doca_buf *buf)
{
	return buf == NULL ? 0 : buf->len - (buf->data - buf->head) - buf->data_len;
}

static doca_error_t check_destination(const struct doca_buf *dst, bool of_peer, const char *which,
				      const char *function)
{
	if (dst == NULL)
		return DOCA_SUCCESS;
	if (!of_peer && (dst->mmap->access & (DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
					      DOCA_ACCESS_FLAG_PCI_READ_WRITE)) == 0) {
		emu_misuse(function, "the map of %s grants no right to write", which);
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (__atomic_load_n(&dst->in_tasks, __ATOMIC_ACQUIRE) > 0) {
		emu_misuse(function, "another task that is submitted uses %s", which);
		return DOCA_ERROR_IN_USE;
	}
	return DOCA_SUCCESS;
}

static bool is_of_event(uint32_t pool)
{
	return pool >= EMU_RDMA_EVENT_GET && pool <= EMU_RDMA_EVENT_ADD;
}

/* Reports whether a task changes a word, and gets what it was before. */
static bool is_atomic(uint32_t pool)
{
	return pool >= EMU_RDMA_EVENT_ADD;
}

/* Checks the word that an atomic changes. Another task may use it at the same time. */
static bool is_word(const struct doca_buf *dst, const char *function)
{
	if (dst == NULL) {
		emu_misuse(function, "the task has no dst");
		return false;
	}
	if (dst->len - (dst->data - dst->head) < WORD_SIZE) {
		emu_misuse(function, "dst has no 8 bytes from its data on");
		return false;
	}
	if (dst->data % WORD_SIZE != 0) {
		emu_misuse(function, "the data of dst is not aligned to 8 bytes");
		return false;
	}
	return true;
}

static doca_error_t check_connection(const struct emu_rdma_task *task, const char *function)
{
	if (!emu_is(task->connection, EMU_RDMA_CONNECTION, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (&task->connection->rdma->ctx != task->task.ctx) {
		emu_misuse(function, "the connection is another context's");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (task->connection->state == EMU_RDMA_ENDED)
		return DOCA_ERROR_NOT_CONNECTED;
	if (task->connection->state != EMU_RDMA_CONNECTING) {
		emu_misuse(function, "the connection is not connected: call doca_rdma_connect or "
				     "doca_rdma_connection_accept first");
		return DOCA_ERROR_BAD_STATE;
	}
	return DOCA_SUCCESS;
}

static doca_error_t check_length(const struct emu_rdma_task *task, const char *function)
{
	uint64_t length = task->src == NULL ? 0 : task->src->data_len;
	bool is_event = task->event != NULL;

	if (is_atomic(task->task.pool)) {
		if (room_of(task->result) >= WORD_SIZE)
			return DOCA_SUCCESS;
		emu_misuse(function, "%s", task->result == NULL
						   ? "the task has no result"
						   : "result has no room for 8 bytes");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (is_event && (task->src != NULL ? length + room_of(task->src) : room_of(task->dst)) <
				WORD_SIZE) {
		emu_misuse(function, "%s has no room for the 8 bytes of a sync event",
			   task->src != NULL ? "src" : "dst");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (length > max_message_size) {
		emu_misuse(function, "%llu bytes are not at most 1 GiB",
			   (unsigned long long)length);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (!is_event && task->dst != NULL && length > room_of(task->dst)) {
		emu_misuse(function, "%llu bytes exceed the room of %llu in dst",
			   (unsigned long long)length, (unsigned long long)room_of(task->dst));
		return DOCA_ERROR_INVALID_VALUE;
	}
	return DOCA_SUCCESS;
}

static doca_error_t check_bufs(const struct emu_rdma_task *task, const char *function)
{
	const struct doca_ctx *ctx = task->task.ctx;
	uint32_t pool = task->task.pool;
	bool is_read = pool == EMU_RDMA_READ, changes_word = is_atomic(pool) && !is_of_event(pool);
	bool is_write = pool == EMU_RDMA_WRITE || pool == EMU_RDMA_WRITE_IMM;

	if (!is_usable(ctx, task->src, is_read, "src", function) ||
	    !is_usable(ctx, task->dst, is_write || changes_word, "dst", function) ||
	    !is_usable(ctx, task->result, false, "result", function))
		return DOCA_ERROR_INVALID_VALUE;
	if ((is_read || is_write) && (task->src == NULL) != (task->dst == NULL)) {
		emu_misuse(function, "the task has no %s", task->src == NULL ? "src" : "dst");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (changes_word && !is_word(task->dst, function))
		return DOCA_ERROR_INVALID_VALUE;
	return is_atomic(pool) ? check_destination(task->result, false, "result", function)
			       : check_destination(task->dst, is_write, "dst", function);
}

/* AGAIN means that the queue is full. */
static doca_error_t check_task(struct doca_task *base, const char *function)
{
	struct emu_rdma_task *task = (struct emu_rdma_task *)base;
	struct doca_rdma *rdma = (struct doca_rdma *)base->ctx;
	doca_error_t result = check_bufs(task, function);

	if (result != DOCA_SUCCESS)
		return result;
	if (base->pool == EMU_RDMA_RECEIVE)
		return rdma->num_receives < rdma->recv_queue_size ? DOCA_SUCCESS : DOCA_ERROR_AGAIN;
	result = check_connection(task, function);
	if (result == DOCA_SUCCESS)
		result = check_length(task, function);
	if (result == DOCA_SUCCESS && task->connection->num_sends >= rdma->send_queue_size)
		return DOCA_ERROR_AGAIN;
	return result;
}

static void hold(struct doca_task *base, bool submitted)
{
	struct emu_rdma_task *task = (struct emu_rdma_task *)base;
	struct doca_rdma *rdma = (struct doca_rdma *)base->ctx;
	uint32_t *queued = base->pool == EMU_RDMA_RECEIVE ? &rdma->num_receives
							  : &task->connection->num_sends;

	*queued += submitted ? 1 : -1;
	emu_hold_buf(task->src, submitted);
	emu_hold_buf(task->dst, submitted);
	emu_hold_buf(task->result, submitted);
}

static void dispatch(struct doca_ctx *ctx, struct emu_entry *entry)
{
	struct doca_rdma *rdma = (struct doca_rdma *)ctx;
	struct doca_rdma_connection *connection = entry->object;

	if (ctx->state != DOCA_CTX_STATE_RUNNING)
		return;
	switch (entry->kind) {
	case EMU_ENTRY_RDMA_REQUEST:
		rdma->request(connection, ctx->user_data);
		break;
	case EMU_ENTRY_RDMA_ESTABLISHED:
		rdma->established(connection, connection->user_data, ctx->user_data);
		break;
	default:
		connection->state = EMU_RDMA_ENDED;
		(entry->kind == EMU_ENTRY_RDMA_FAILURE ? rdma->failure : rdma->disconnection)(
			connection, connection->user_data, ctx->user_data);
		emu_rdma_connection_free(connection);
	}
}

/* Connections end with their context. */
static void idle(struct doca_ctx *ctx)
{
	struct doca_rdma *rdma = (struct doca_rdma *)ctx;

	while (rdma->connections != NULL)
		emu_rdma_connection_free(rdma->connections);
}

static const struct emu_ctx_ops ops = {.name = "rdma",
				       .check = check,
				       .check_task = check_task,
				       .dispatch = dispatch,
				       .hold = hold,
				       .idle = idle};

doca_error_t emu_doca_rdma_create(struct doca_dev *dev, struct doca_rdma **rdma)
{
	struct doca_rdma *created;
	doca_error_t result;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(rdma))
		return DOCA_ERROR_INVALID_VALUE;
	if (!dev->device->can.rdma)
		return emu_refuse(__func__, "the device has no RDMA");
	created = emu_new(EMU_CTX, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	created->max_connections = DEFAULT_CONNECTIONS;
	created->send_queue_size = created->recv_queue_size = MAX_TASKS;
	created->request_timeout_ms = DEFAULT_TIMEOUT_MS;
	created->grh_enabled = 1;
	created->rnr_retries = MAX_RNR_RETRIES;
	created->mtu = DOCA_MTU_SIZE_1K_BYTES;
	result = emu_ctx_init(&created->ctx, EMU_CTX_RDMA, &ops, dev, __func__);
	if (result == DOCA_SUCCESS)
		*rdma = created;
	else
		emu_bury(created, NULL);
	return result;
}

doca_error_t emu_doca_rdma_destroy(struct doca_rdma *rdma)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_ctx_end(&rdma->ctx, DOCA_ERROR_BAD_STATE, __func__);
}

struct doca_ctx *emu_doca_rdma_as_ctx(struct doca_rdma *rdma)
{
	return EMU_CTX_OF(rdma, EMU_CTX_RDMA);
}

/* Configuration. */

/* Returns the context if it is idle, and the result of the function if not. */
static doca_error_t check_idle(struct doca_rdma *rdma, const char *function)
{
	if (emu_ctx_of(rdma, EMU_CTX_RDMA, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_is_idle(&rdma->ctx, function) ? DOCA_SUCCESS : DOCA_ERROR_BAD_STATE;
}

doca_error_t emu_doca_rdma_set_permissions(struct doca_rdma *rdma, uint32_t permissions)
{
	const uint32_t all = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
			     DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_ATOMIC;
	doca_error_t result = check_idle(rdma, __func__);

	if (result == DOCA_SUCCESS && (permissions & ~all) != 0) {
		emu_misuse(__func__, "rights %#x have other bits than those of RDMA", permissions);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (result == DOCA_SUCCESS)
		rdma->permissions = permissions;
	return result;
}

static doca_error_t check_number(struct doca_rdma *rdma, uint32_t value, uint32_t minimum,
				 uint32_t maximum, const char *function)
{
	doca_error_t result = check_idle(rdma, function);

	if (result == DOCA_SUCCESS && (value < minimum || value > maximum)) {
		emu_misuse(function, "%u is not between %u and %u", value, minimum, maximum);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return result;
}

/* Define a setter of a number between a minimum and a maximum, which is stored as an expression
 * says, and a getter. */
#define NUMBER_SETTER(property, field, value_type, minimum, maximum, stored) \
	doca_error_t emu_doca_rdma_set_##property(struct doca_rdma *rdma, value_type value) \
	{ \
		doca_error_t result = check_number(rdma, value, (minimum), (maximum), __func__); \
		if (result == DOCA_SUCCESS) \
			rdma->field = (stored); \
		return result; \
	}
#define NUMBER_GETTER(property, result_value, value_type, constness) \
	doca_error_t emu_doca_rdma_get_##property(constness struct doca_rdma *rdma, \
						  value_type *value) \
	{ \
		if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(value)) \
			return DOCA_ERROR_INVALID_VALUE; \
		*value = (result_value); \
		return DOCA_SUCCESS; \
	}

/* The size of a queue is a power of two, as that of a device. */
static uint32_t power_of_two(uint32_t size)
{
	uint32_t power = 1;

	while (power < size)
		power *= 2;
	return power;
}

NUMBER_SETTER(send_queue_size, send_queue_size, uint32_t, 1, MAX_TASKS, power_of_two(value))
NUMBER_SETTER(recv_queue_size, recv_queue_size, uint32_t, 1, MAX_TASKS, power_of_two(value))
NUMBER_SETTER(connection_request_timeout, request_timeout_ms, uint16_t, 1, UINT16_MAX, value)
NUMBER_SETTER(max_num_connections, max_connections, uint16_t, 1, MAX_CONNECTIONS, value)

/* The following are only returned: over TCP they make no difference. */
NUMBER_SETTER(gid_index, gid_index, uint32_t, 0, GID_TABLE_SIZE - 1, value)
NUMBER_SETTER(grh_enabled, grh_enabled, uint8_t, 0, 1, value)
NUMBER_SETTER(rnr_retry_count, rnr_retries, uint8_t, 0, MAX_RNR_RETRIES, value)
NUMBER_SETTER(sl, service_level, uint32_t, 0, MAX_SERVICE_LEVEL, value)

doca_error_t emu_doca_rdma_set_mtu(struct doca_rdma *rdma, enum doca_mtu_size mtu)
{
	doca_error_t result = check_number(rdma, mtu, DOCA_MTU_SIZE_256_BYTES,
					   DOCA_MTU_SIZE_RAW_ETHERNET, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (mtu == DOCA_MTU_SIZE_RAW_ETHERNET)
		return emu_refuse(__func__, "it is no MTU of RDMA");
	rdma->mtu = mtu;
	return DOCA_SUCCESS;
}

NUMBER_GETTER(permissions, rdma->permissions, uint32_t, )
NUMBER_GETTER(max_num_connections, rdma->max_connections, uint16_t, )
NUMBER_GETTER(send_queue_size, rdma->send_queue_size, uint32_t, const)
NUMBER_GETTER(recv_queue_size, rdma->recv_queue_size, uint32_t, const)
NUMBER_GETTER(connection_request_timeout, rdma->request_timeout_ms, uint16_t, const)
NUMBER_GETTER(gid_index, rdma->gid_index, uint32_t, const)
NUMBER_GETTER(grh_enabled, rdma->grh_enabled, uint8_t, const)
NUMBER_GETTER(mtu, rdma->mtu, enum doca_mtu_size, const)
NUMBER_GETTER(rnr_retry_count, rdma->rnr_retries, uint8_t, const)
NUMBER_GETTER(sl, rdma->service_level, uint32_t, const)
NUMBER_GETTER(max_send_buf_list_len, MAX_LIST_LEN, uint32_t, const)
NUMBER_GETTER(transport_type, DOCA_RDMA_TRANSPORT_TYPE_RC, enum doca_rdma_transport_type, const)

doca_error_t emu_doca_rdma_set_max_send_buf_list_len(struct doca_rdma *rdma, uint32_t len)
{
	return check_number(rdma, len, 1, MAX_LIST_LEN, __func__);
}

doca_error_t emu_doca_rdma_task_receive_set_dst_buf_list_len(struct doca_rdma *rdma, uint32_t len)
{
	return check_number(rdma, len, 1, MAX_LIST_LEN, __func__);
}

doca_error_t emu_doca_rdma_task_receive_get_dst_buf_list_len(const struct doca_rdma *rdma,
							     uint32_t *len)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	*len = MAX_LIST_LEN;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_set_transport_type(struct doca_rdma *rdma,
					      enum doca_rdma_transport_type transport_type)
{
	doca_error_t result = check_idle(rdma, __func__);

	if (result == DOCA_SUCCESS && transport_type != DOCA_RDMA_TRANSPORT_TYPE_RC)
		return emu_refuse(__func__, "connections are reliable ones (RC)");
	return result;
}

doca_error_t emu_doca_rdma_set_connection_state_callbacks(
	struct doca_rdma *rdma, doca_rdma_connection_request_cb_t request,
	doca_rdma_connection_established_cb_t established,
	doca_rdma_connection_failure_cb_t failure,
	doca_rdma_connection_disconnection_cb_t disconnection)
{
	doca_error_t result = check_idle(rdma, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(established) || !EMU_HAS(failure) || !EMU_HAS(disconnection))
		return DOCA_ERROR_INVALID_VALUE;
	rdma->request = request;
	rdma->established = established;
	rdma->failure = failure;
	rdma->disconnection = disconnection;
	return DOCA_SUCCESS;
}

/* Capabilities. */

#define CAPABILITY(name, maximum) \
	doca_error_t emu_##name(const struct doca_devinfo *info, uint32_t *value) \
	{ \
		if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(value)) \
			return DOCA_ERROR_INVALID_VALUE; \
		*value = (maximum); \
		return DOCA_SUCCESS; \
	}

CAPABILITY(doca_rdma_cap_get_max_message_size, (uint32_t)max_message_size)
CAPABILITY(doca_rdma_cap_get_max_send_queue_size, MAX_TASKS)
CAPABILITY(doca_rdma_cap_get_max_recv_queue_size, MAX_TASKS)
CAPABILITY(doca_rdma_cap_get_max_send_buf_list_len, MAX_LIST_LEN)
CAPABILITY(doca_rdma_cap_get_gid_table_size, GID_TABLE_SIZE)

doca_error_t
emu_doca_rdma_cap_transport_type_is_supported(const struct doca_devinfo *info,
					      enum doca_rdma_transport_type transport_type)
{
	if (!EMU_IS(info, EMU_DEVINFO))
		return DOCA_ERROR_INVALID_VALUE;
	return info->device->can.rdma && transport_type == DOCA_RDMA_TRANSPORT_TYPE_RC
		       ? DOCA_SUCCESS
		       : DOCA_ERROR_NOT_SUPPORTED;
}

doca_error_t emu_doca_rdma_cap_task_receive_get_max_dst_buf_list_len(
	const struct doca_devinfo *info, enum doca_rdma_transport_type transport_type, uint32_t *len)
{
	doca_error_t result = emu_doca_rdma_cap_transport_type_is_supported(info, transport_type);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	*len = MAX_LIST_LEN;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_cap_get_gid(const struct doca_devinfo *info, uint32_t start,
				       uint32_t count, struct doca_rdma_gid *gids)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(gids))
		return DOCA_ERROR_INVALID_VALUE;
	if ((uint64_t)start + count > GID_TABLE_SIZE) {
		emu_misuse(__func__, "%u entries from %u on exceed the table of %d", count, start,
			   GID_TABLE_SIZE);
		return DOCA_ERROR_INVALID_VALUE;
	}
	memset(gids, 0, count * sizeof *gids);
	if (!info->device->can.rdma)
		return DOCA_SUCCESS; /* a port without RDMA has an empty table */
	for (uint32_t i = 0; i < count; i++)
		emuRdmaGID(info->device->index, start + i, &gids[i]);
	return DOCA_SUCCESS;
}

/* What the emulation has no processors for. */

doca_error_t emu_doca_rdma_get_dpa_handle(struct doca_rdma *rdma, doca_dpa_dev_rdma_t *handle)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(handle))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, "there is no DPA");
}

doca_error_t emu_doca_rdma_dpa_completion_attach(struct doca_rdma *rdma,
						 struct doca_dpa_completion *completion)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(completion))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, "there is no DPA");
}

doca_error_t emu_doca_rdma_get_gpu_handle(struct doca_rdma *rdma, struct doca_gpu_dev_rdma **handle)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(handle))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, "there is no GPU");
}

/* Tasks. */

static doca_error_t take(struct doca_rdma *rdma, enum emu_rdma_pool pool,
			 struct emu_rdma_task contents, union doca_data user_data, void *task,
			 const char *function)
{
	struct doca_task *taken;
	doca_error_t result;

	if (emu_ctx_of(rdma, EMU_CTX_RDMA, function) == NULL || !emu_has(task, "task", function) ||
	    (contents.src != NULL && !emu_is(contents.src, EMU_BUF, function)) ||
	    (contents.dst != NULL && !emu_is(contents.dst, EMU_BUF, function)) ||
	    (contents.result != NULL && !emu_is(contents.result, EMU_BUF, function)))
		return DOCA_ERROR_INVALID_VALUE;
	if (pool != EMU_RDMA_RECEIVE && !emu_is(contents.connection, EMU_RDMA_CONNECTION, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (is_of_event(pool) && !emu_is(contents.event, EMU_SYNC_EVENT_REMOTE, function))
		return DOCA_ERROR_INVALID_VALUE;
	result = emu_pool_take(&rdma->ctx, pool, &taken, function);
	if (result != DOCA_SUCCESS)
		return result;
	contents.task = *taken;
	contents.task.user_data = user_data;
	*(struct emu_rdma_task *)taken = contents;
	*(void **)task = taken;
	return DOCA_SUCCESS;
}

/* Returns a task of a pool, or NULL. */
static struct emu_rdma_task *task_of(const void *pointer, enum emu_rdma_pool pool,
				     const char *function)
{
	struct emu_rdma_task *task = emu_task_of(pointer, EMU_CTX_RDMA, function);

	if (task == NULL || task->task.pool == pool)
		return task;
	emu_misuse(function, "the task is of another type");
	return NULL;
}

/* Returns a task that the application may change, or NULL. */
static struct emu_rdma_task *changeable(const void *pointer, enum emu_rdma_pool pool,
					const char *function)
{
	struct emu_rdma_task *task = task_of(pointer, pool, function);

	return task != NULL && emu_is_held(&task->task, function) ? task : NULL;
}

/* Defines what all types of tasks have. */
#define TASK(type, pool) \
	doca_error_t emu_doca_rdma_cap_task_##type##_is_supported(const struct doca_devinfo *info) \
	{ \
		if (!EMU_IS(info, EMU_DEVINFO)) \
			return DOCA_ERROR_INVALID_VALUE; \
		return info->device->can.rdma ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED; \
	} \
	doca_error_t emu_doca_rdma_task_##type##_set_conf( \
		struct doca_rdma *rdma, doca_rdma_task_##type##_completion_cb_t completed, \
		doca_rdma_task_##type##_completion_cb_t failed, uint32_t num_tasks) \
	{ \
		if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL) \
			return DOCA_ERROR_INVALID_VALUE; \
		return emu_pool_configure(&rdma->ctx, (pool), sizeof(struct emu_rdma_task), \
					  (emu_task_cb)completed, (emu_task_cb)failed, num_tasks, \
					  MAX_TASKS, __func__); \
	} \
	struct doca_task *emu_doca_rdma_task_##type##_as_task(struct doca_rdma_task_##type *task) \
	{ \
		return (struct doca_task *)task_of(task, (pool), __func__); \
	}

/* Define a setter and a getter of a field. */
#define SETTER(type, pool, property, field, value_type) \
	void emu_doca_rdma_task_##type##_set_##property(struct doca_rdma_task_##type *task, \
							value_type value) \
	{ \
		struct emu_rdma_task *changed = changeable(task, (pool), __func__); \
		if (changed != NULL) \
			changed->field = value; \
	}
#define GETTER(type, pool, property, field, value_type) \
	value_type emu_doca_rdma_task_##type##_get_##property( \
		const struct doca_rdma_task_##type *task) \
	{ \
		struct emu_rdma_task *found = task_of(task, (pool), __func__); \
		return found == NULL ? (value_type)0 : found->field; \
	}
#define PROPERTY(type, pool, property, field, value_type) \
	SETTER(type, pool, property, field, value_type) \
	GETTER(type, pool, property, field, value_type)
#define CONNECTION(type, pool) \
	SETTER(type, pool, rdma_connection, connection, struct doca_rdma_connection *) \
	GETTER(type, pool, rdma_connection, connection, const struct doca_rdma_connection *)
#define SOURCE(type, pool) PROPERTY(type, pool, src_buf, src, const struct doca_buf *)
#define DESTINATION(type, pool) PROPERTY(type, pool, dst_buf, dst, struct doca_buf *)
#define IMMEDIATE(type, pool) PROPERTY(type, pool, immediate_data, immediate, doca_be32_t)
#define RESULT(type, pool) PROPERTY(type, pool, result_buf, result, struct doca_buf *)
#define OPERAND(type, pool, property, i) PROPERTY(type, pool, property, operands[i], uint64_t)
#define EVENT(type, pool, event_type) \
	SETTER(type, pool, sync_event, event, event_type) \
	event_type emu_doca_rdma_task_##type##_get_sync_event( \
		const struct doca_rdma_task_##type *task) \
	{ \
		struct emu_rdma_task *found = task_of(task, (pool), __func__); \
		return found == NULL ? NULL : (event_type)found->event; \
	}

TASK(receive, EMU_RDMA_RECEIVE)
DESTINATION(receive, EMU_RDMA_RECEIVE)
GETTER(receive, EMU_RDMA_RECEIVE, result_opcode, result_opcode, enum doca_rdma_opcode)
GETTER(receive, EMU_RDMA_RECEIVE, result_len, result_len, uint32_t)
GETTER(receive, EMU_RDMA_RECEIVE, result_immediate_data, immediate, doca_be32_t)
GETTER(receive, EMU_RDMA_RECEIVE, result_rdma_connection, result_connection,
       const struct doca_rdma_connection *)
TASK(send, EMU_RDMA_SEND)
SOURCE(send, EMU_RDMA_SEND)
CONNECTION(send, EMU_RDMA_SEND)
TASK(send_imm, EMU_RDMA_SEND_IMM)
SOURCE(send_imm, EMU_RDMA_SEND_IMM)
IMMEDIATE(send_imm, EMU_RDMA_SEND_IMM)
CONNECTION(send_imm, EMU_RDMA_SEND_IMM)
TASK(read, EMU_RDMA_READ)
SOURCE(read, EMU_RDMA_READ)
DESTINATION(read, EMU_RDMA_READ)
CONNECTION(read, EMU_RDMA_READ)
GETTER(read, EMU_RDMA_READ, result_len, result_len, uint32_t)
TASK(write, EMU_RDMA_WRITE)
SOURCE(write, EMU_RDMA_WRITE)
DESTINATION(write, EMU_RDMA_WRITE)
CONNECTION(write, EMU_RDMA_WRITE)
TASK(write_imm, EMU_RDMA_WRITE_IMM)
SOURCE(write_imm, EMU_RDMA_WRITE_IMM)
DESTINATION(write_imm, EMU_RDMA_WRITE_IMM)
IMMEDIATE(write_imm, EMU_RDMA_WRITE_IMM)
CONNECTION(write_imm, EMU_RDMA_WRITE_IMM)
TASK(remote_net_sync_event_get, EMU_RDMA_EVENT_GET)
DESTINATION(remote_net_sync_event_get, EMU_RDMA_EVENT_GET)
EVENT(remote_net_sync_event_get, EMU_RDMA_EVENT_GET, const struct doca_sync_event_remote_net *)
CONNECTION(remote_net_sync_event_get, EMU_RDMA_EVENT_GET)
GETTER(remote_net_sync_event_get, EMU_RDMA_EVENT_GET, result_len, result_len, uint32_t)
TASK(remote_net_sync_event_notify_set, EMU_RDMA_EVENT_SET)
SOURCE(remote_net_sync_event_notify_set, EMU_RDMA_EVENT_SET)
EVENT(remote_net_sync_event_notify_set, EMU_RDMA_EVENT_SET, struct doca_sync_event_remote_net *)
CONNECTION(remote_net_sync_event_notify_set, EMU_RDMA_EVENT_SET)
TASK(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD)
RESULT(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD)
EVENT(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD, struct doca_sync_event_remote_net *)
OPERAND(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD, add_data, 0)
CONNECTION(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD)
TASK(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP)
DESTINATION(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP)
RESULT(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP)
OPERAND(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP, cmp_data, 0)
OPERAND(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP, swap_data, 1)
CONNECTION(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP)
TASK(atomic_fetch_add, EMU_RDMA_FETCH_ADD)
DESTINATION(atomic_fetch_add, EMU_RDMA_FETCH_ADD)
RESULT(atomic_fetch_add, EMU_RDMA_FETCH_ADD)
OPERAND(atomic_fetch_add, EMU_RDMA_FETCH_ADD, add_data, 0)
CONNECTION(atomic_fetch_add, EMU_RDMA_FETCH_ADD)

/* Defines how a task is allocated: after its context, its connection unless it is a receive, what
 * it is about, user data, and where the task is stored. */
#define ALLOCATE(type, pool, contents, ...) \
	doca_error_t emu_doca_rdma_task_##type##_allocate_init( \
		struct doca_rdma *rdma, __VA_ARGS__, union doca_data user_data, \
		struct doca_rdma_task_##type **task) \
	{ \
		return take(rdma, (pool), (struct emu_rdma_task)contents, user_data, task, \
			    __func__); \
	}
#define CONTENTS(...) {__VA_ARGS__}

ALLOCATE(receive, EMU_RDMA_RECEIVE, CONTENTS(.dst = dst), struct doca_buf *dst)
ALLOCATE(send, EMU_RDMA_SEND, CONTENTS(.connection = connection, .src = src),
	 struct doca_rdma_connection *connection, const struct doca_buf *src)
ALLOCATE(send_imm, EMU_RDMA_SEND_IMM,
	 CONTENTS(.connection = connection, .src = src, .immediate = immediate),
	 struct doca_rdma_connection *connection, const struct doca_buf *src, doca_be32_t immediate)
ALLOCATE(read, EMU_RDMA_READ, CONTENTS(.connection = connection, .src = src, .dst = dst),
	 struct doca_rdma_connection *connection, const struct doca_buf *src, struct doca_buf *dst)
ALLOCATE(write, EMU_RDMA_WRITE, CONTENTS(.connection = connection, .src = src, .dst = dst),
	 struct doca_rdma_connection *connection, const struct doca_buf *src, struct doca_buf *dst)
ALLOCATE(write_imm, EMU_RDMA_WRITE_IMM,
	 CONTENTS(.connection = connection, .src = src, .dst = dst, .immediate = immediate),
	 struct doca_rdma_connection *connection, const struct doca_buf *src, struct doca_buf *dst,
	 doca_be32_t immediate)
ALLOCATE(remote_net_sync_event_get, EMU_RDMA_EVENT_GET,
	 CONTENTS(.connection = connection, .event = event, .dst = dst),
	 struct doca_rdma_connection *connection, const struct doca_sync_event_remote_net *event,
	 struct doca_buf *dst)
ALLOCATE(remote_net_sync_event_notify_set, EMU_RDMA_EVENT_SET,
	 CONTENTS(.connection = connection, .event = event, .src = src),
	 struct doca_rdma_connection *connection, struct doca_sync_event_remote_net *event,
	 const struct doca_buf *src)
ALLOCATE(remote_net_sync_event_notify_add, EMU_RDMA_EVENT_ADD,
	 CONTENTS(.connection = connection, .event = event, .result = result, .operands = {add}),
	 struct doca_rdma_connection *connection, struct doca_sync_event_remote_net *event,
	 struct doca_buf *result, uint64_t add)
ALLOCATE(atomic_cmp_swp, EMU_RDMA_COMPARE_SWAP,
	 CONTENTS(.connection = connection, .dst = dst, .result = result,
		  .operands = {compare, swap}),
	 struct doca_rdma_connection *connection, struct doca_buf *dst, struct doca_buf *result,
	 uint64_t compare, uint64_t swap)
ALLOCATE(atomic_fetch_add, EMU_RDMA_FETCH_ADD,
	 CONTENTS(.connection = connection, .dst = dst, .result = result, .operands = {add}),
	 struct doca_rdma_connection *connection, struct doca_buf *dst, struct doca_buf *result,
	 uint64_t add)
