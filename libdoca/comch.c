// SPDX-License-Identifier: Apache-2.0

/* Comch: servers, clients, and their connections. */

#include "skin.h"

#include <string.h>

#include "_cgo_export.h"

enum { POOL_SEND };

/* Connections. */

struct doca_comch_connection *emu_connection_new(struct emu_control *owner, uint32_t core)
{
	struct doca_comch_connection *connection = emu_new(EMU_CONNECTION, sizeof *connection);

	if (connection != NULL) {
		connection->owner = owner;
		connection->dev = owner->ctx.dev;
		connection->has_consumer_events = owner->consumer_new != NULL;
		connection->core = core;
		connection->references = 1; /* the owner's */
	}
	return connection;
}

void emu_connection_release(struct doca_comch_connection *connection)
{
	if (__atomic_sub_fetch(&connection->references, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	emuEndConnection(connection->core);
	emu_bury(connection, NULL);
}

void emu_connection_establish(struct doca_comch_connection *connection)
{
	__atomic_store_n(&connection->established, 1, __ATOMIC_RELEASE);
}

void emu_connection_end(struct doca_comch_connection *connection)
{
	connection->ended = true;
	__atomic_store_n(&connection->established, 0, __ATOMIC_RELEASE);
}

doca_error_t emu_doca_comch_connection_set_user_data(struct doca_comch_connection *connection,
						     union doca_data user_data)
{
	if (!EMU_IS(connection, EMU_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	connection->user_data = user_data;
	return DOCA_SUCCESS;
}

union doca_data
emu_doca_comch_connection_get_user_data(const struct doca_comch_connection *connection)
{
	union doca_data none = {.u64 = 0};

	return EMU_IS(connection, EMU_CONNECTION) ? connection->user_data : none;
}

doca_error_t emu_doca_comch_connection_update_info(struct doca_comch_connection *connection)
{
	if (!EMU_IS(connection, EMU_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	if (connection->ended)
		return DOCA_ERROR_CONNECTION_ABORTED;
	if (!__atomic_load_n(&connection->established, __ATOMIC_ACQUIRE))
		return DOCA_ERROR_CONNECTION_INPROGRESS;
	memcpy(connection->refreshed, connection->counters, sizeof connection->refreshed);
	return DOCA_SUCCESS;
}

doca_error_t
emu_doca_comch_connection_get_counter(const struct doca_comch_connection *connection,
				      enum doca_comch_counter type, uint64_t *value)
{
	if (!EMU_IS(connection, EMU_CONNECTION) || !EMU_HAS(value))
		return DOCA_ERROR_INVALID_VALUE;
	if (type < DOCA_COMCH_COUNTER_SENT_MESSAGES || type > DOCA_COMCH_COUNTER_RECV_BYTES) {
		emu_misuse(__func__, "%u is no counter", (unsigned int)type);
		return DOCA_ERROR_INVALID_VALUE;
	}
	*value = connection->refreshed[type];
	return DOCA_SUCCESS;
}

static void *owner_of(const struct doca_comch_connection *connection, enum emu_ctx_kind kind,
		      const char *function)
{
	if (!emu_is(connection, EMU_CONNECTION, function) || connection->owner == NULL ||
	    connection->owner->ctx.kind != kind)
		return NULL;
	return connection->owner;
}

struct doca_comch_server *
emu_doca_comch_server_get_server_ctx(const struct doca_comch_connection *connection)
{
	return owner_of(connection, EMU_CTX_SERVER, __func__);
}

struct doca_comch_client *
emu_doca_comch_client_get_client_ctx(const struct doca_comch_connection *connection)
{
	return owner_of(connection, EMU_CTX_CLIENT, __func__);
}

/* What a server or client does as a context. */

static doca_error_t missing(const char *function, const char *what)
{
	emu_misuse(function, "%s has not been called", what);
	return DOCA_ERROR_BAD_STATE;
}

static doca_error_t check(struct doca_ctx *ctx, const char *function)
{
	struct emu_control *control = (struct emu_control *)ctx;

	if (ctx->pools[POOL_SEND].count == 0)
		return missing(function, "..._task_send_set_conf");
	if (control->received == NULL)
		return missing(function, "..._event_msg_recv_register");
	if (ctx->kind == EMU_CTX_SERVER && control->connected == NULL)
		return missing(function, "..._event_connection_status_changed_register");
	return DOCA_SUCCESS;
}

static doca_error_t check_task(struct doca_task *task, const char *function)
{
	struct doca_comch_task_send *send = (struct doca_comch_task_send *)task;

	if (!emu_is(send->connection, EMU_CONNECTION, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (send->connection->ended || send->connection->closing)
		return DOCA_ERROR_NOT_CONNECTED;
	return DOCA_SUCCESS;
}

static void receive(struct doca_ctx *ctx, struct emu_entry *entry)
{
	struct emu_control *control = (struct emu_control *)ctx;
	struct doca_comch_connection *connection = entry->object;

	emuMessageTaken(connection->core);
	if (ctx->state != DOCA_CTX_STATE_RUNNING)
		return;
	connection->counters[DOCA_COMCH_COUNTER_RECV_MESSAGES]++;
	connection->counters[DOCA_COMCH_COUNTER_RECV_BYTES] += entry->value;
	control->received((struct doca_comch_event_msg_recv *)entry, entry->payload,
			  (uint32_t)entry->value, connection);
}

static void dispatch(struct doca_ctx *ctx, struct emu_entry *entry)
{
	struct emu_control *control = (struct emu_control *)ctx;
	struct doca_comch_connection *connection = entry->object;
	doca_comch_event_consumer_cb_t consumer_event = entry->kind == EMU_ENTRY_CONSUMER_NEW
								? control->consumer_new
								: control->consumer_expired;

	switch (entry->kind) {
	case EMU_ENTRY_MESSAGE:
		receive(ctx, entry);
		break;
	case EMU_ENTRY_CONNECTED:
		emu_connection_establish(connection);
		control->connected((struct doca_comch_event_connection_status_changed *)entry,
				   connection, (uint8_t)entry->value);
		break;
	case EMU_ENTRY_DISCONNECTED:
		emu_connection_end(connection);
		control->disconnected((struct doca_comch_event_connection_status_changed *)entry,
				      connection, (uint8_t)entry->value);
		connection->owner = NULL;
		emu_connection_release(connection);
		break;
	default:
		emuMessageTaken(connection->core);
		if (consumer_event != NULL && ctx->state == DOCA_CTX_STATE_RUNNING)
			consumer_event((struct doca_comch_event_consumer *)entry, connection,
				       (uint32_t)entry->value);
	}
}

/* The connection of a client ends with its context. */
static void idle(struct doca_ctx *ctx)
{
	struct emu_control *control = (struct emu_control *)ctx;

	if (control->connection == NULL)
		return;
	emu_connection_end(control->connection);
	control->connection->owner = NULL;
	emu_connection_release(control->connection);
	control->connection = NULL;
}

static const struct emu_ctx_ops server_ops = {.name = "comch_server",
					      .check = check,
					      .check_task = check_task,
					      .dispatch = dispatch};
static const struct emu_ctx_ops client_ops = {.name = "comch_client",
					      .check = check,
					      .check_task = check_task,
					      .dispatch = dispatch,
					      .idle = idle};

/* What servers and clients have in common. */

static doca_error_t create(struct doca_dev *dev, const char *name, enum emu_ctx_kind kind,
			   const struct emu_ctx_ops *ops, struct emu_control **control,
			   const char *function)
{
	struct emu_control *created;
	doca_error_t result;

	if (!emu_is(dev, EMU_DEV, function) || !emu_has(name, "name", function))
		return DOCA_ERROR_INVALID_VALUE;
	if (*name == '\0' || strnlen(name, EMU_MAX_NAME) == EMU_MAX_NAME) {
		emu_misuse(function, "a name has between 1 and %d bytes", EMU_MAX_NAME - 1);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (dev->device->can.comch_msg_size == 0)
		return DOCA_ERROR_NOT_SUPPORTED;
	created = emu_new(EMU_CTX, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = emu_ctx_init(&created->ctx, kind, ops, dev, function);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, NULL);
		return result;
	}
	snprintf(created->name, sizeof created->name, "%s", name);
	*control = created;
	return DOCA_SUCCESS;
}

/* pointer is a server or a client, which begin with their control. */
static doca_error_t get_recv_queue_size(const void *pointer, enum emu_ctx_kind kind, uint32_t *size,
					const char *function)
{
	const struct emu_control *control = pointer;

	if (emu_ctx_of(pointer, kind, function) == NULL || !emu_has(size, "size", function))
		return DOCA_ERROR_INVALID_VALUE;
	*size = control->recv_queue_size != 0 ? control->recv_queue_size : EMU_DEFAULT_RECV_QUEUE;
	return DOCA_SUCCESS;
}

static doca_error_t get_device(const void *pointer, enum emu_ctx_kind kind, struct doca_dev **dev,
			       const char *function)
{
	const struct emu_control *control = pointer;

	if (emu_ctx_of(pointer, kind, function) == NULL || !emu_has(dev, "dev", function))
		return DOCA_ERROR_INVALID_VALUE;
	*dev = control->ctx.dev;
	return DOCA_SUCCESS;
}

/* Sets a size while the context is idle. */
static doca_error_t set_size(void *pointer, enum emu_ctx_kind kind, uint32_t *field, uint32_t size,
			     uint32_t limit, const char *function)
{
	if (!emu_is_idle(emu_ctx_of(pointer, kind, function), function))
		return DOCA_ERROR_BAD_STATE;
	if (size == 0 || size > limit) {
		emu_misuse(function, "%u is not between 1 and the capability of %u", size, limit);
		return DOCA_ERROR_INVALID_VALUE;
	}
	*field = size;
	return DOCA_SUCCESS;
}

static doca_error_t set_conf(void *pointer, enum emu_ctx_kind kind,
			     doca_comch_task_send_completion_cb_t completed,
			     doca_comch_task_send_completion_cb_t failed, uint32_t num_tasks,
			     const char *function)
{
	struct doca_ctx *ctx = emu_ctx_of(pointer, kind, function);

	if (ctx == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_pool_configure(ctx, POOL_SEND, sizeof(struct doca_comch_task_send),
				  (emu_task_cb)completed, (emu_task_cb)failed, num_tasks,
				  ctx->dev->device->can.comch_send_tasks, function);
}

/* Registers one or two callbacks, all of which are mandatory. */
static doca_error_t register_callbacks(struct doca_ctx *ctx, void **field1, void *callback1,
				       void **field2, void *callback2, const char *function)
{
	if (!emu_is_idle(ctx, function))
		return DOCA_ERROR_BAD_STATE;
	if (callback1 == NULL || (field2 != NULL && callback2 == NULL)) {
		emu_misuse(function, "a callback is NULL");
		return DOCA_ERROR_INVALID_VALUE;
	}
	*field1 = callback1;
	if (field2 != NULL)
		*field2 = callback2;
	return DOCA_SUCCESS;
}

static uint32_t max_msg_size(const struct emu_control *control)
{
	return control->max_msg_size != 0 ? control->max_msg_size
					  : control->ctx.dev->device->can.comch_msg_size;
}

static doca_error_t alloc_send(void *pointer, enum emu_ctx_kind kind,
			       struct doca_comch_connection *peer, const void *msg, uint32_t len,
			       struct doca_comch_task_send **task, const char *function)
{
	struct emu_control *control = emu_ctx_of(pointer, kind, function);
	struct doca_task *taken;
	doca_error_t result;

	if (control == NULL || !emu_is(peer, EMU_CONNECTION, function) ||
	    !emu_has(msg, "msg", function) || !emu_has(task, "task", function))
		return DOCA_ERROR_INVALID_VALUE;
	if (peer->owner != control) {
		emu_misuse(function, "the connection is another context's, or has ended");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (len == 0 || len > max_msg_size(control)) {
		emu_misuse(function, "%u bytes are not between 1 and the maximum of %u", len,
			   max_msg_size(control));
		return DOCA_ERROR_INVALID_VALUE;
	}
	result = emu_pool_take(&control->ctx, POOL_SEND, &taken, function);
	if (result != DOCA_SUCCESS)
		return result;
	*task = (struct doca_comch_task_send *)taken;
	(*task)->connection = peer;
	(*task)->msg = msg;
	(*task)->len = len;
	return DOCA_SUCCESS;
}

struct doca_task *emu_doca_comch_task_send_as_task(struct doca_comch_task_send *task)
{
	if (!EMU_IS(task, EMU_TASK))
		return NULL;
	if (task->task.ctx->kind != EMU_CTX_SERVER && task->task.ctx->kind != EMU_CTX_CLIENT) {
		emu_misuse(__func__, "the task belongs to a %s", task->task.ctx->ops->name);
		return NULL;
	}
	return &task->task;
}

/* Servers. */

doca_error_t emu_doca_comch_server_create(struct doca_dev *dev, struct doca_dev_rep *rep,
					  const char *name, struct doca_comch_server **server)
{
	struct emu_control *control;
	doca_error_t result;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_IS(rep, EMU_REP) || !EMU_HAS(server))
		return DOCA_ERROR_INVALID_VALUE;
	if (dev->device->role != EMU_ROLE_DPU && !emu_settings.server_on_host)
		return DOCA_ERROR_NOT_SUPPORTED;
	if (rep->dev != dev) {
		emu_misuse(__func__, "the representor belongs to another device");
		return DOCA_ERROR_INVALID_VALUE;
	}
	result = create(dev, name, EMU_CTX_SERVER, &server_ops, &control, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	control->rep = rep;
	__atomic_add_fetch(&rep->users, 1, __ATOMIC_SEQ_CST);
	*server = (struct doca_comch_server *)control;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_server_destroy(struct doca_comch_server *server)
{
	struct doca_dev_rep *rep;
	doca_error_t result;

	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	rep = server->control.rep;
	result = emu_ctx_end(&server->control.ctx, DOCA_ERROR_IN_USE, __func__);
	if (result == DOCA_SUCCESS)
		__atomic_sub_fetch(&rep->users, 1, __ATOMIC_SEQ_CST);
	return result;
}

struct doca_ctx *emu_doca_comch_server_as_ctx(struct doca_comch_server *server)
{
	return EMU_CTX_OF(server, EMU_CTX_SERVER);
}

doca_error_t emu_doca_comch_server_set_max_msg_size(struct doca_comch_server *server, uint32_t size)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return set_size(server, EMU_CTX_SERVER, &server->control.max_msg_size, size,
			server->control.ctx.dev->device->can.comch_msg_size, __func__);
}

doca_error_t emu_doca_comch_server_get_max_msg_size(const struct doca_comch_server *server,
						    uint32_t *size)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	*size = max_msg_size(&server->control);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_server_set_recv_queue_size(struct doca_comch_server *server,
						       uint32_t size)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return set_size(server, EMU_CTX_SERVER, &server->control.recv_queue_size, size,
			server->control.ctx.dev->device->can.comch_recv_queue, __func__);
}

doca_error_t emu_doca_comch_server_get_recv_queue_size(const struct doca_comch_server *server,
						       uint32_t *size)
{
	return get_recv_queue_size(server, EMU_CTX_SERVER, size, __func__);
}

doca_error_t emu_doca_comch_server_get_device(const struct doca_comch_server *server,
					      struct doca_dev **dev)
{
	return get_device(server, EMU_CTX_SERVER, dev, __func__);
}

doca_error_t emu_doca_comch_server_get_device_rep(const struct doca_comch_server *server,
						  struct doca_dev_rep **rep)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL || !EMU_HAS(rep))
		return DOCA_ERROR_INVALID_VALUE;
	*rep = server->control.rep;
	return DOCA_SUCCESS;
}

doca_error_t
emu_doca_comch_server_task_send_set_conf(struct doca_comch_server *server,
					 doca_comch_task_send_completion_cb_t completed,
					 doca_comch_task_send_completion_cb_t failed,
					 uint32_t num_tasks)
{
	return set_conf(server, EMU_CTX_SERVER, completed, failed, num_tasks, __func__);
}

doca_error_t emu_doca_comch_server_event_msg_recv_register(struct doca_comch_server *server,
							   doca_comch_event_msg_recv_cb_t callback)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return register_callbacks(&server->control.ctx, (void **)&server->control.received,
				  (void *)callback, NULL, NULL, __func__);
}

doca_error_t emu_doca_comch_server_event_connection_status_changed_register(
	struct doca_comch_server *server,
	doca_comch_event_connection_status_changed_cb_t connected,
	doca_comch_event_connection_status_changed_cb_t disconnected)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return register_callbacks(&server->control.ctx, (void **)&server->control.connected,
				  (void *)connected, (void **)&server->control.disconnected,
				  (void *)disconnected, __func__);
}

doca_error_t emu_doca_comch_server_event_consumer_register(struct doca_comch_server *server,
							   doca_comch_event_consumer_cb_t created,
							   doca_comch_event_consumer_cb_t expired)
{
	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return register_callbacks(&server->control.ctx, (void **)&server->control.consumer_new,
				  (void *)created, (void **)&server->control.consumer_expired,
				  (void *)expired, __func__);
}

doca_error_t emu_doca_comch_server_task_send_alloc_init(struct doca_comch_server *server,
							struct doca_comch_connection *peer,
							const void *msg, uint32_t len,
							struct doca_comch_task_send **task)
{
	return alloc_send(server, EMU_CTX_SERVER, peer, msg, len, task, __func__);
}

doca_error_t emu_doca_comch_server_disconnect(struct doca_comch_server *server,
					      struct doca_comch_connection *connection)
{
	doca_error_t result = DOCA_SUCCESS;

	if (EMU_CTX_OF(server, EMU_CTX_SERVER) == NULL || !EMU_IS(connection, EMU_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_enter_pe(server->control.ctx.pe, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (connection->owner != &server->control) {
		emu_misuse(__func__, "the connection is another context's, or has ended");
		result = DOCA_ERROR_INVALID_VALUE;
	} else if (__atomic_load_n(&connection->children, __ATOMIC_ACQUIRE) > 0) {
		emu_misuse(__func__,
			   "consumers or producers of the connection exist: destroy them first");
		result = DOCA_ERROR_IN_USE;
	} else if (!connection->closing) {
		connection->closing = true;
		__atomic_store_n(&connection->established, 0, __ATOMIC_RELEASE);
		emuDisconnect(connection->core);
	}
	emu_leave_pe(server->control.ctx.pe);
	return result;
}

/* Clients. */

doca_error_t emu_doca_comch_client_create(struct doca_dev *dev, const char *name,
					  struct doca_comch_client **client)
{
	struct emu_control *control;
	doca_error_t result;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(client))
		return DOCA_ERROR_INVALID_VALUE;
	if (dev->device->role != EMU_ROLE_HOST)
		return DOCA_ERROR_NOT_SUPPORTED;
	result = create(dev, name, EMU_CTX_CLIENT, &client_ops, &control, __func__);
	if (result == DOCA_SUCCESS)
		*client = (struct doca_comch_client *)control;
	return result;
}

doca_error_t emu_doca_comch_client_destroy(struct doca_comch_client *client)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_ctx_end(&client->control.ctx, DOCA_ERROR_IN_USE, __func__);
}

struct doca_ctx *emu_doca_comch_client_as_ctx(struct doca_comch_client *client)
{
	return EMU_CTX_OF(client, EMU_CTX_CLIENT);
}

doca_error_t emu_doca_comch_client_set_max_msg_size(struct doca_comch_client *client, uint32_t size)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return set_size(client, EMU_CTX_CLIENT, &client->control.max_msg_size, size,
			client->control.ctx.dev->device->can.comch_msg_size, __func__);
}

doca_error_t emu_doca_comch_client_get_max_msg_size(const struct doca_comch_client *client,
						    uint32_t *size)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	*size = max_msg_size(&client->control);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_client_set_recv_queue_size(struct doca_comch_client *client,
						       uint32_t size)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return set_size(client, EMU_CTX_CLIENT, &client->control.recv_queue_size, size,
			client->control.ctx.dev->device->can.comch_recv_queue, __func__);
}

doca_error_t emu_doca_comch_client_get_recv_queue_size(const struct doca_comch_client *client,
						       uint32_t *size)
{
	return get_recv_queue_size(client, EMU_CTX_CLIENT, size, __func__);
}

doca_error_t emu_doca_comch_client_get_device(const struct doca_comch_client *client,
					      struct doca_dev **dev)
{
	return get_device(client, EMU_CTX_CLIENT, dev, __func__);
}

doca_error_t
emu_doca_comch_client_task_send_set_conf(struct doca_comch_client *client,
					 doca_comch_task_send_completion_cb_t completed,
					 doca_comch_task_send_completion_cb_t failed,
					 uint32_t num_tasks)
{
	return set_conf(client, EMU_CTX_CLIENT, completed, failed, num_tasks, __func__);
}

doca_error_t emu_doca_comch_client_event_msg_recv_register(struct doca_comch_client *client,
							   doca_comch_event_msg_recv_cb_t callback)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return register_callbacks(&client->control.ctx, (void **)&client->control.received,
				  (void *)callback, NULL, NULL, __func__);
}

doca_error_t emu_doca_comch_client_event_consumer_register(struct doca_comch_client *client,
							   doca_comch_event_consumer_cb_t created,
							   doca_comch_event_consumer_cb_t expired)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return register_callbacks(&client->control.ctx, (void **)&client->control.consumer_new,
				  (void *)created, (void **)&client->control.consumer_expired,
				  (void *)expired, __func__);
}

doca_error_t emu_doca_comch_client_task_send_alloc_init(struct doca_comch_client *client,
							struct doca_comch_connection *peer,
							const void *msg, uint32_t len,
							struct doca_comch_task_send **task)
{
	return alloc_send(client, EMU_CTX_CLIENT, peer, msg, len, task, __func__);
}

doca_error_t emu_doca_comch_client_get_connection(const struct doca_comch_client *client,
						  struct doca_comch_connection **connection)
{
	if (EMU_CTX_OF(client, EMU_CTX_CLIENT) == NULL || !EMU_HAS(connection))
		return DOCA_ERROR_INVALID_VALUE;
	if (client->control.connection == NULL) {
		emu_misuse(__func__, "the client is idle");
		return DOCA_ERROR_BAD_STATE;
	}
	*connection = client->control.connection;
	return DOCA_SUCCESS;
}

/* Capabilities. */

static doca_error_t supported(const struct doca_devinfo *info, enum emu_role role, bool any_role,
			      const char *function)
{
	if (!emu_is(info, EMU_DEVINFO, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (info->device->can.comch_msg_size == 0 || (info->device->role != role && !any_role))
		return DOCA_ERROR_NOT_SUPPORTED;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_cap_server_is_supported(const struct doca_devinfo *info)
{
	return supported(info, EMU_ROLE_DPU, emu_settings.server_on_host, __func__);
}

doca_error_t emu_doca_comch_cap_client_is_supported(const struct doca_devinfo *info)
{
	return supported(info, EMU_ROLE_HOST, false, __func__);
}

/* Defines a function that returns a capability, and NOT_SUPPORTED if it is 0. */
#define CAPABILITY(name, field) \
	doca_error_t emu_##name(const struct doca_devinfo *info, uint32_t *value) \
	{ \
		if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(value)) \
			return DOCA_ERROR_INVALID_VALUE; \
		if (info->device->can.field == 0) \
			return DOCA_ERROR_NOT_SUPPORTED; \
		*value = info->device->can.field; \
		return DOCA_SUCCESS; \
	}

CAPABILITY(doca_comch_cap_get_max_name_len, comch_name_len)
CAPABILITY(doca_comch_cap_get_max_msg_size, comch_msg_size)
CAPABILITY(doca_comch_cap_get_max_recv_queue_size, comch_recv_queue)
CAPABILITY(doca_comch_cap_get_max_send_tasks, comch_send_tasks)
CAPABILITY(doca_comch_cap_get_max_clients, comch_clients)
CAPABILITY(doca_comch_consumer_cap_get_max_num_tasks, consumer_tasks)
CAPABILITY(doca_comch_consumer_cap_get_max_buf_size, consumer_buf_size)
CAPABILITY(doca_comch_consumer_cap_get_max_buf_list_len, comch_list_len)
CAPABILITY(doca_comch_consumer_cap_get_max_consumers, consumers)
CAPABILITY(doca_comch_consumer_cap_get_max_imm_data_len, imm_data_len)
CAPABILITY(doca_comch_producer_cap_get_max_num_tasks, producer_tasks)
CAPABILITY(doca_comch_producer_cap_get_max_buf_size, producer_buf_size)
CAPABILITY(doca_comch_producer_cap_get_max_buf_list_len, comch_list_len)
CAPABILITY(doca_comch_producer_cap_get_max_producers, producers)

doca_error_t emu_doca_comch_consumer_cap_is_supported(const struct doca_devinfo *info)
{
	if (!EMU_IS(info, EMU_DEVINFO))
		return DOCA_ERROR_INVALID_VALUE;
	return info->device->can.consumers > 0 ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}

doca_error_t emu_doca_comch_producer_cap_is_supported(const struct doca_devinfo *info)
{
	if (!EMU_IS(info, EMU_DEVINFO))
		return DOCA_ERROR_INVALID_VALUE;
	return info->device->can.producers > 0 ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}
