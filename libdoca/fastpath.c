// SPDX-License-Identifier: Apache-2.0

/* Comch: consumers and producers, the fast path of a connection. */

#include "skin.h"

#include <string.h>

enum { POOL_POST_RECV = 0, POOL_SEND = 0 };

/* Makes a consumer or producer one of the connection's. */
static doca_error_t adopt(struct doca_ctx *ctx, enum emu_ctx_kind kind,
			  const struct emu_ctx_ops *ops, struct doca_comch_connection *connection,
			  const char *function)
{
	if (!__atomic_load_n(&connection->established, __ATOMIC_ACQUIRE)) {
		emu_misuse(function, "the connection is not established, or has ended");
		return DOCA_ERROR_BAD_STATE;
	}
	__atomic_add_fetch(&connection->children, 1, __ATOMIC_ACQ_REL);
	__atomic_add_fetch(&connection->references, 1, __ATOMIC_ACQ_REL);
	return emu_ctx_init(ctx, kind, ops, connection->dev, function);
}

static doca_error_t disown(struct doca_ctx *ctx, struct doca_comch_connection *connection,
			   const char *function)
{
	doca_error_t result = emu_ctx_end(ctx, DOCA_ERROR_IN_USE, function);

	if (result == DOCA_SUCCESS) {
		__atomic_sub_fetch(&connection->children, 1, __ATOMIC_ACQ_REL);
		emu_connection_release(connection);
	}
	return result;
}

/* Consumer events are mandatory for the fast path. */
static doca_error_t check_events(const struct doca_comch_connection *connection,
				 const char *function)
{
	if (!__atomic_load_n(&connection->established, __ATOMIC_ACQUIRE))
		return DOCA_ERROR_NOT_CONNECTED;
	if (!connection->has_consumer_events) {
		emu_misuse(function, "..._event_consumer_register has not been called for the "
				     "connection's server or client");
		return DOCA_ERROR_BAD_STATE;
	}
	return DOCA_SUCCESS;
}

/* Reports whether a buf can be used on the fast path: it is held, alone, and small enough. */
static bool check_buf(const struct doca_buf *buf, size_t bytes, uint32_t limit,
		      const struct doca_dev *dev, const char *function)
{
	if (!emu_is(buf, EMU_BUF, function))
		return false;
	if (buf->refcount == 0)
		emu_misuse(function, "the buf has been returned to its inventory");
	else if (buf->next != NULL || buf->first != buf)
		emu_misuse(function, "the buf is part of a list, which Comch does not support");
	else if (!emu_mmap_has_dev(buf->mmap, dev))
		emu_misuse(function, "the map of the buf does not have the device");
	else if (buf->mmap->imported)
		emu_misuse(function, "the map of the buf is imported, not local");
	else if (bytes > limit)
		emu_misuse(function, "%zu bytes are more than the capability of %u", bytes, limit);
	else
		return true;
	return false;
}

/* Consumers. */

static doca_error_t check_consumer(struct doca_ctx *ctx, const char *function)
{
	struct doca_comch_consumer *consumer = (struct doca_comch_consumer *)ctx;

	if (ctx->pools[POOL_POST_RECV].count == 0) {
		emu_misuse(function,
			   "doca_comch_consumer_task_post_recv_set_conf has not been called");
		return DOCA_ERROR_BAD_STATE;
	}
	if (!emu_is(consumer->mmap, EMU_MMAP, function))
		return DOCA_ERROR_INVALID_VALUE;
	return check_events(consumer->connection, function);
}

static doca_error_t check_post(struct doca_task *task, const char *function)
{
	struct doca_comch_consumer_task_post_recv *post =
		(struct doca_comch_consumer_task_post_recv *)task;
	struct doca_comch_consumer *consumer = (struct doca_comch_consumer *)task->ctx;
	const struct doca_buf *buf = post->buf;

	post->producer_id = 0;
	post->imm_data_len = 0;
	if (buf == NULL)
		return DOCA_SUCCESS;
	if (!check_buf(buf, buf->len - (buf->data - buf->head) - buf->data_len,
		       task->ctx->dev->device->can.consumer_buf_size, task->ctx->dev, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (buf->mmap != consumer->mmap) {
		emu_misuse(function, "the buf is not in the map that the consumer was created with");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (__atomic_load_n(&buf->in_tasks, __ATOMIC_ACQUIRE) > 0) {
		emu_misuse(function, "another task that is submitted uses the buf");
		return DOCA_ERROR_IN_USE;
	}
	return DOCA_SUCCESS;
}

static void hold_post(struct doca_task *task, bool submitted)
{
	emu_hold_buf(((struct doca_comch_consumer_task_post_recv *)task)->buf, submitted);
}

static const struct emu_ctx_ops consumer_ops = {.name = "comch_consumer",
						.check = check_consumer,
						.check_task = check_post,
						.hold = hold_post};

doca_error_t emu_doca_comch_consumer_create(struct doca_comch_connection *connection,
					    struct doca_mmap *mmap,
					    struct doca_comch_consumer **consumer)
{
	struct doca_comch_consumer *created;
	doca_error_t result;

	if (!EMU_IS(connection, EMU_CONNECTION) || !EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(consumer))
		return DOCA_ERROR_INVALID_VALUE;
	if (!mmap->started || (mmap->access & DOCA_ACCESS_FLAG_PCI_READ_WRITE) == 0) {
		emu_misuse(__func__, mmap->started ? "the map does not grant PCI_READ_WRITE"
						   : "the map is not started");
		return DOCA_ERROR_INVALID_VALUE;
	}
	created = emu_new(EMU_CTX, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = adopt(&created->ctx, EMU_CTX_CONSUMER, &consumer_ops, connection, __func__);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, NULL);
		return result;
	}
	created->connection = connection;
	created->mmap = mmap;
	created->imm_data_len = created->ctx.dev->device->can.imm_data_len;
	*consumer = created;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_consumer_destroy(struct doca_comch_consumer *consumer)
{
	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return disown(&consumer->ctx, consumer->connection, __func__);
}

struct doca_ctx *emu_doca_comch_consumer_as_ctx(struct doca_comch_consumer *consumer)
{
	return EMU_CTX_OF(consumer, EMU_CTX_CONSUMER);
}

doca_error_t emu_doca_comch_consumer_get_id(const struct doca_comch_consumer *consumer,
					    uint32_t *id)
{
	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL || !EMU_HAS(id))
		return DOCA_ERROR_INVALID_VALUE;
	if (consumer->id == 0) {
		emu_misuse(__func__, "the consumer has no id before it runs");
		return DOCA_ERROR_BAD_STATE;
	}
	*id = consumer->id;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_consumer_set_imm_data_len(struct doca_comch_consumer *consumer,
						      uint32_t len)
{
	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_is_idle(&consumer->ctx, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (len > consumer->ctx.dev->device->can.imm_data_len) {
		emu_misuse(__func__, "%u is more than the capability of %u", len,
			   consumer->ctx.dev->device->can.imm_data_len);
		return DOCA_ERROR_INVALID_VALUE;
	}
	consumer->imm_data_len = len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_consumer_get_imm_data_len(const struct doca_comch_consumer *consumer,
						      uint32_t *len)
{
	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL || !EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	*len = consumer->imm_data_len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_consumer_task_post_recv_set_conf(
	struct doca_comch_consumer *consumer,
	doca_comch_consumer_task_post_recv_completion_cb_t completed,
	doca_comch_consumer_task_post_recv_completion_cb_t failed, uint32_t num_tasks)
{
	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_pool_configure(&consumer->ctx, POOL_POST_RECV,
				  sizeof(struct doca_comch_consumer_task_post_recv),
				  (emu_task_cb)completed, (emu_task_cb)failed, num_tasks,
				  consumer->ctx.dev->device->can.consumer_tasks, __func__);
}

doca_error_t emu_doca_comch_consumer_task_post_recv_alloc_init(
	struct doca_comch_consumer *consumer, struct doca_buf *buf,
	struct doca_comch_consumer_task_post_recv **task)
{
	struct doca_task *taken;
	doca_error_t result;

	if (EMU_CTX_OF(consumer, EMU_CTX_CONSUMER) == NULL || !EMU_HAS(task) ||
	    (buf != NULL && !EMU_IS(buf, EMU_BUF)))
		return DOCA_ERROR_INVALID_VALUE;
	result = emu_pool_take(&consumer->ctx, POOL_POST_RECV, &taken, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	*task = (struct doca_comch_consumer_task_post_recv *)taken;
	(*task)->buf = buf;
	return DOCA_SUCCESS;
}

struct doca_task *emu_doca_comch_consumer_task_post_recv_as_task(
	struct doca_comch_consumer_task_post_recv *task)
{
	return EMU_TASK_OF(task, EMU_CTX_CONSUMER);
}

void emu_doca_comch_consumer_task_post_recv_set_buf(
	struct doca_comch_consumer_task_post_recv *task, struct doca_buf *buf)
{
	if (EMU_TASK_OF(task, EMU_CTX_CONSUMER) != NULL && emu_is_held(&task->task, __func__) &&
	    (buf == NULL || EMU_IS(buf, EMU_BUF)))
		task->buf = buf;
}

struct doca_buf *emu_doca_comch_consumer_task_post_recv_get_buf(
	const struct doca_comch_consumer_task_post_recv *task)
{
	return EMU_TASK_OF(task, EMU_CTX_CONSUMER) == NULL ? NULL : task->buf;
}

uint32_t emu_doca_comch_consumer_task_post_recv_get_producer_id(
	const struct doca_comch_consumer_task_post_recv *task)
{
	return EMU_TASK_OF(task, EMU_CTX_CONSUMER) == NULL ? 0 : task->producer_id;
}

const uint8_t *emu_doca_comch_consumer_task_post_recv_get_imm_data(
	const struct doca_comch_consumer_task_post_recv *task)
{
	if (EMU_TASK_OF(task, EMU_CTX_CONSUMER) == NULL || task->imm_data_len == 0)
		return NULL;
	return task->imm_data;
}

uint32_t emu_doca_comch_consumer_task_post_recv_get_imm_data_len(
	const struct doca_comch_consumer_task_post_recv *task)
{
	return EMU_TASK_OF(task, EMU_CTX_CONSUMER) == NULL ? 0 : task->imm_data_len;
}

/* Producers. */

static doca_error_t check_producer(struct doca_ctx *ctx, const char *function)
{
	struct doca_comch_producer *producer = (struct doca_comch_producer *)ctx;

	if (ctx->pools[POOL_SEND].count == 0) {
		emu_misuse(function, "doca_comch_producer_task_send_set_conf has not been called");
		return DOCA_ERROR_BAD_STATE;
	}
	return check_events(producer->connection, function);
}

static doca_error_t check_send(struct doca_task *task, const char *function)
{
	struct doca_comch_producer_task_send *send = (struct doca_comch_producer_task_send *)task;

	if (send->buf == NULL && send->imm_data_len == 0) {
		emu_misuse(function, "the task has neither a buf nor immediate data");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (send->buf != NULL &&
	    !check_buf(send->buf, send->buf->data_len,
		       task->ctx->dev->device->can.producer_buf_size, task->ctx->dev, function))
		return DOCA_ERROR_INVALID_VALUE;
	return DOCA_SUCCESS;
}

static void hold_send(struct doca_task *task, bool submitted)
{
	emu_hold_buf(((struct doca_comch_producer_task_send *)task)->buf, submitted);
}

static const struct emu_ctx_ops producer_ops = {.name = "comch_producer",
						.check = check_producer,
						.check_task = check_send,
						.hold = hold_send};

doca_error_t emu_doca_comch_producer_create(struct doca_comch_connection *connection,
					    struct doca_comch_producer **producer)
{
	struct doca_comch_producer *created;
	doca_error_t result;

	if (!EMU_IS(connection, EMU_CONNECTION) || !EMU_HAS(producer))
		return DOCA_ERROR_INVALID_VALUE;
	created = emu_new(EMU_CTX, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = adopt(&created->ctx, EMU_CTX_PRODUCER, &producer_ops, connection, __func__);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, NULL);
		return result;
	}
	created->connection = connection;
	*producer = created;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_producer_destroy(struct doca_comch_producer *producer)
{
	if (EMU_CTX_OF(producer, EMU_CTX_PRODUCER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return disown(&producer->ctx, producer->connection, __func__);
}

struct doca_ctx *emu_doca_comch_producer_as_ctx(struct doca_comch_producer *producer)
{
	return EMU_CTX_OF(producer, EMU_CTX_PRODUCER);
}

doca_error_t emu_doca_comch_producer_get_id(const struct doca_comch_producer *producer,
					    uint32_t *id)
{
	if (EMU_CTX_OF(producer, EMU_CTX_PRODUCER) == NULL || !EMU_HAS(id))
		return DOCA_ERROR_INVALID_VALUE;
	if (producer->id == 0) {
		emu_misuse(__func__, "the producer has no id before it runs");
		return DOCA_ERROR_BAD_STATE;
	}
	*id = producer->id;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_comch_producer_task_send_set_conf(
	struct doca_comch_producer *producer,
	doca_comch_producer_task_send_completion_cb_t completed,
	doca_comch_producer_task_send_completion_cb_t failed, uint32_t num_tasks)
{
	if (EMU_CTX_OF(producer, EMU_CTX_PRODUCER) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_pool_configure(&producer->ctx, POOL_SEND,
				  sizeof(struct doca_comch_producer_task_send),
				  (emu_task_cb)completed, (emu_task_cb)failed, num_tasks,
				  producer->ctx.dev->device->can.producer_tasks, __func__);
}

static bool set_imm(struct doca_comch_producer_task_send *task, const uint8_t *imm_data,
		    uint32_t imm_data_len)
{
	if (imm_data_len > EMU_MAX_IMM)
		return false;
	if (imm_data_len > 0)
		memcpy(task->imm_data, imm_data, imm_data_len);
	task->imm_data_len = imm_data_len;
	return true;
}

static bool is_consumer_id(uint32_t id, const char *function)
{
	if (id == 0)
		emu_misuse(function, "0 is no id of a consumer");
	return id != 0;
}

doca_error_t emu_doca_comch_producer_task_send_alloc_init(
	struct doca_comch_producer *producer, const struct doca_buf *buf, uint8_t *imm_data,
	uint32_t imm_data_len, uint32_t consumer_id, struct doca_comch_producer_task_send **task)
{
	struct doca_task *taken;
	doca_error_t result;

	if (EMU_CTX_OF(producer, EMU_CTX_PRODUCER) == NULL || !EMU_HAS(task) ||
	    (buf != NULL && !EMU_IS(buf, EMU_BUF)) || (imm_data_len > 0 && !EMU_HAS(imm_data)) ||
	    !is_consumer_id(consumer_id, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (imm_data_len > EMU_MAX_IMM) {
		emu_misuse(__func__, "%u bytes of immediate data are more than any consumer takes",
			   imm_data_len);
		return DOCA_ERROR_INVALID_VALUE;
	}
	result = emu_pool_take(&producer->ctx, POOL_SEND, &taken, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	*task = (struct doca_comch_producer_task_send *)taken;
	(*task)->buf = buf;
	(*task)->consumer_id = consumer_id;
	set_imm(*task, imm_data, imm_data_len);
	return DOCA_SUCCESS;
}

struct doca_task *
emu_doca_comch_producer_task_send_as_task(struct doca_comch_producer_task_send *task)
{
	return EMU_TASK_OF(task, EMU_CTX_PRODUCER);
}

/* Returns the task if the application may change it. */
static struct doca_comch_producer_task_send *
changeable(struct doca_comch_producer_task_send *task, const char *function)
{
	if (emu_task_of(task, EMU_CTX_PRODUCER, function) == NULL ||
	    !emu_is_held(&task->task, function))
		return NULL;
	return task;
}

void emu_doca_comch_producer_task_send_set_buf(struct doca_comch_producer_task_send *task,
					       const struct doca_buf *buf)
{
	if (changeable(task, __func__) != NULL && (buf == NULL || EMU_IS(buf, EMU_BUF)))
		task->buf = buf;
}

const struct doca_buf *
emu_doca_comch_producer_task_send_get_buf(const struct doca_comch_producer_task_send *task)
{
	return EMU_TASK_OF(task, EMU_CTX_PRODUCER) == NULL ? NULL : task->buf;
}

void emu_doca_comch_producer_task_send_set_consumer_id(struct doca_comch_producer_task_send *task,
						       const uint32_t consumer_id)
{
	if (changeable(task, __func__) != NULL && is_consumer_id(consumer_id, __func__))
		task->consumer_id = consumer_id;
}

uint32_t emu_doca_comch_producer_task_send_get_consumer_id(
	const struct doca_comch_producer_task_send *task)
{
	return EMU_TASK_OF(task, EMU_CTX_PRODUCER) == NULL ? 0 : task->consumer_id;
}

uint8_t *emu_doca_comch_producer_task_send_get_imm_data(
	const struct doca_comch_producer_task_send *task)
{
	if (EMU_TASK_OF(task, EMU_CTX_PRODUCER) == NULL || task->imm_data_len == 0)
		return NULL;
	return (uint8_t *)task->imm_data;
}

uint32_t emu_doca_comch_producer_task_send_get_imm_data_len(
	const struct doca_comch_producer_task_send *task)
{
	return EMU_TASK_OF(task, EMU_CTX_PRODUCER) == NULL ? 0 : task->imm_data_len;
}

void emu_doca_comch_producer_task_send_set_imm_data(struct doca_comch_producer_task_send *task,
						    uint8_t *imm_data, uint32_t imm_data_len)
{
	if (changeable(task, __func__) == NULL || (imm_data_len > 0 && !EMU_HAS(imm_data)))
		return;
	if (!set_imm(task, imm_data, imm_data_len))
		emu_misuse(__func__, "%u bytes of immediate data are more than any consumer takes",
			   imm_data_len);
}
