// SPDX-License-Identifier: Apache-2.0

/* Comch for the test programs: control connections, consumers, and producers. */

#include "program.h"

#include <stdlib.h>
#include <string.h>

static struct control *control_of(struct doca_comch_connection *connection)
{
	union doca_data data;

	OK(doca_ctx_get_user_data(
		is_dpu ? doca_comch_server_as_ctx(doca_comch_server_get_server_ctx(connection))
		       : doca_comch_client_as_ctx(doca_comch_client_get_client_ctx(connection)),
		&data));
	return data.ptr;
}

static void on_sent(struct doca_comch_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	((struct control *)ctx_data.ptr)->sent++;
	doca_task_free(doca_comch_task_send_as_task(task));
	(void)task_data;
}

static void on_send_failed(struct doca_comch_task_send *task, union doca_data task_data,
			   union doca_data ctx_data)
{
	CHECK(doca_task_get_status(doca_comch_task_send_as_task(task)) != DOCA_SUCCESS);
	((struct control *)ctx_data.ptr)->failed++;
	doca_task_free(doca_comch_task_send_as_task(task));
	(void)task_data;
}

static void on_message(struct doca_comch_event_msg_recv *event, uint8_t *data, uint32_t length,
		       struct doca_comch_connection *connection)
{
	struct control *control = control_of(connection);

	(void)event;
	CHECK(length <= sizeof control->last);
	memcpy(control->last, data, length);
	control->last_length = length;
	control->messages++;
	if (control->on_message != NULL)
		control->on_message(control, data, length);
}

static void on_connected(struct doca_comch_event_connection_status_changed *event,
			 struct doca_comch_connection *connection, uint8_t success)
{
	struct control *control = control_of(connection);

	(void)event;
	CHECK(success);
	control->connection = connection;
	control->connects++;
}

static void on_disconnected(struct doca_comch_event_connection_status_changed *event,
			    struct doca_comch_connection *connection, uint8_t success)
{
	struct control *control = control_of(connection);

	(void)event;
	(void)success;
	if (control->connection == connection)
		control->connection = NULL;
	control->disconnects++;
}

static void on_consumer(struct doca_comch_event_consumer *event,
			struct doca_comch_connection *connection, uint32_t id)
{
	struct control *control = control_of(connection);

	(void)event;
	CHECK(control->consumers < MAX_RECORDED);
	control->consumer_ids[control->consumers++] = id;
}

static void on_expired(struct doca_comch_event_consumer *event,
		       struct doca_comch_connection *connection, uint32_t id)
{
	struct control *control = control_of(connection);

	(void)event;
	CHECK(control->expired < MAX_RECORDED);
	control->expired_ids[control->expired++] = id;
}

static void on_control_state(const union doca_data data, struct doca_ctx *ctx,
			     enum doca_ctx_states previous, enum doca_ctx_states next)
{
	struct control *control = data.ptr;

	(void)ctx;
	CHECK(previous != next && control->states < MAX_RECORDED);
	control->state[control->states++] = next;
}

enum { SENDS = 64 };

struct control *control_new(const char *name)
{
	struct control *control = calloc(1, sizeof *control);
	union doca_data data = {.ptr = control};

	control->dev = open_own_device();
	if (is_dpu) {
		control->rep = open_representor(control->dev);
		OK(doca_comch_server_create(control->dev, control->rep, name, &control->server));
		control->ctx = doca_comch_server_as_ctx(control->server);
		OK(doca_comch_server_task_send_set_conf(control->server, on_sent, on_send_failed,
							SENDS));
		OK(doca_comch_server_event_msg_recv_register(control->server, on_message));
		OK(doca_comch_server_event_connection_status_changed_register(
			control->server, on_connected, on_disconnected));
		OK(doca_comch_server_event_consumer_register(control->server, on_consumer,
							     on_expired));
	} else {
		OK(doca_comch_client_create(control->dev, name, &control->client));
		control->ctx = doca_comch_client_as_ctx(control->client);
		OK(doca_comch_client_task_send_set_conf(control->client, on_sent, on_send_failed,
							SENDS));
		OK(doca_comch_client_event_msg_recv_register(control->client, on_message));
		OK(doca_comch_client_event_consumer_register(control->client, on_consumer,
							     on_expired));
	}
	OK(doca_ctx_set_user_data(control->ctx, data));
	OK(doca_ctx_set_state_changed_cb(control->ctx, on_control_state));
	control->pe = new_engine(control->ctx);
	return control;
}

void control_connect(struct control *control)
{
	doca_error_t result;

	if (!is_dpu)
		meet(); /* the server has started */
	result = doca_ctx_start(control->ctx);
	CHECK(result == DOCA_SUCCESS || result == DOCA_ERROR_IN_PROGRESS);
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	if (is_dpu) {
		meet();
		UNTIL(control->connects == 1, control->pe);
	} else {
		OK(doca_comch_client_get_connection(control->client, &control->connection));
	}
}

struct control *control_open(const char *name)
{
	struct control *control = control_new(name);

	control_connect(control);
	return control;
}

void control_send(struct control *control, const void *data, size_t length)
{
	struct doca_comch_task_send *task;

	if (is_dpu)
		OK(doca_comch_server_task_send_alloc_init(control->server, control->connection,
							  data, (uint32_t)length, &task));
	else
		OK(doca_comch_client_task_send_alloc_init(control->client, control->connection,
							  data, (uint32_t)length, &task));
	OK(doca_task_submit(doca_comch_task_send_as_task(task)));
}

void control_close(struct control *control)
{
	MEET_WHILE(control->pe);
	if (is_dpu)
		UNTIL(control->disconnects == control->connects, control->pe);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

void control_destroy(struct control *control)
{
	if (is_dpu)
		OK(doca_comch_server_destroy(control->server));
	else
		OK(doca_comch_client_destroy(control->client));
	OK(doca_pe_destroy(control->pe));
	if (is_dpu)
		OK(doca_dev_rep_close(control->rep));
	OK(doca_dev_close(control->dev));
	free(control);
}

/* Consumers. */

static void on_received(struct doca_comch_consumer_task_post_recv *task, union doca_data task_data,
			union doca_data ctx_data)
{
	struct consumer *consumer = ctx_data.ptr;
	struct doca_buf *buf = doca_comch_consumer_task_post_recv_get_buf(task);
	uint32_t length = doca_comch_consumer_task_post_recv_get_imm_data_len(task);

	(void)task_data;
	consumer->received++;
	CHECK(length <= sizeof consumer->last_immediate);
	consumer->last_immediate_length = length;
	if (length > 0)
		memcpy(consumer->last_immediate,
		       doca_comch_consumer_task_post_recv_get_imm_data(task), length);
	if (consumer->on_message != NULL)
		consumer->on_message(consumer, buf);
	if (consumer->repost) {
		if (buf != NULL)
			OK(doca_buf_reset_data_len(buf));
		OK(doca_task_submit(doca_comch_consumer_task_post_recv_as_task(task)));
	} else if (consumer->free_tasks) {
		doca_task_free(doca_comch_consumer_task_post_recv_as_task(task));
	}
}

static void on_receive_failed(struct doca_comch_consumer_task_post_recv *task,
			      union doca_data task_data, union doca_data ctx_data)
{
	struct consumer *consumer = ctx_data.ptr;

	(void)task_data;
	consumer->failed++;
	consumer->last_status =
		doca_task_get_status(doca_comch_consumer_task_post_recv_as_task(task));
	consumer->inflight_at_failure = inflight(consumer->ctx);
	CHECK(consumer->last_status != DOCA_SUCCESS);
	if (consumer->free_tasks)
		doca_task_free(doca_comch_consumer_task_post_recv_as_task(task));
}

static void on_consumer_state(const union doca_data data, struct doca_ctx *ctx,
			      enum doca_ctx_states previous, enum doca_ctx_states next)
{
	struct consumer *consumer = data.ptr;

	(void)ctx;
	CHECK(previous != next);
	consumer->states++;
}

struct consumer *consumer_new(struct control *control, struct memory *memory, uint32_t tasks)
{
	struct consumer *consumer = calloc(1, sizeof *consumer);
	union doca_data data = {.ptr = consumer};

	consumer->free_tasks = true;
	OK(doca_comch_consumer_create(control->connection, memory->mmap, &consumer->consumer));
	consumer->ctx = doca_comch_consumer_as_ctx(consumer->consumer);
	OK(doca_comch_consumer_task_post_recv_set_conf(consumer->consumer, on_received,
						       on_receive_failed, tasks));
	OK(doca_comch_consumer_set_imm_data_len(consumer->consumer, 32));
	OK(doca_ctx_set_user_data(consumer->ctx, data));
	OK(doca_ctx_set_state_changed_cb(consumer->ctx, on_consumer_state));
	consumer->pe = new_engine(consumer->ctx);
	return consumer;
}

struct doca_task *consumer_post(struct consumer *consumer, struct doca_buf *buf)
{
	struct doca_comch_consumer_task_post_recv *task;

	OK(doca_comch_consumer_task_post_recv_alloc_init(consumer->consumer, buf, &task));
	OK(doca_task_submit(doca_comch_consumer_task_post_recv_as_task(task)));
	return doca_comch_consumer_task_post_recv_as_task(task);
}

void consumer_destroy(struct consumer *consumer)
{
	OK(doca_comch_consumer_destroy(consumer->consumer));
	OK(doca_pe_destroy(consumer->pe));
	free(consumer);
}

/* Producers. */

static void on_produced(struct doca_comch_producer_task_send *task, union doca_data task_data,
			union doca_data ctx_data)
{
	struct producer *producer = ctx_data.ptr;

	(void)task_data;
	producer->sent++;
	if (producer->free_tasks)
		doca_task_free(doca_comch_producer_task_send_as_task(task));
}

static void on_produce_failed(struct doca_comch_producer_task_send *task,
			      union doca_data task_data, union doca_data ctx_data)
{
	struct producer *producer = ctx_data.ptr;

	(void)task_data;
	CHECK(doca_task_get_status(doca_comch_producer_task_send_as_task(task)) != DOCA_SUCCESS);
	producer->inflight_at_failure = inflight(producer->ctx);
	producer->failed++;
	if (producer->free_tasks)
		doca_task_free(doca_comch_producer_task_send_as_task(task));
}

static void on_producer_state(const union doca_data data, struct doca_ctx *ctx,
			      enum doca_ctx_states previous, enum doca_ctx_states next)
{
	struct producer *producer = data.ptr;

	(void)ctx;
	CHECK(previous != next && producer->states < MAX_RECORDED);
	producer->state[producer->states++] = next;
}

struct producer *producer_new(struct control *control, uint32_t tasks)
{
	struct producer *producer = calloc(1, sizeof *producer);
	union doca_data data = {.ptr = producer};

	producer->free_tasks = true;
	OK(doca_comch_producer_create(control->connection, &producer->producer));
	producer->ctx = doca_comch_producer_as_ctx(producer->producer);
	OK(doca_comch_producer_task_send_set_conf(producer->producer, on_produced,
						  on_produce_failed, tasks));
	OK(doca_ctx_set_user_data(producer->ctx, data));
	OK(doca_ctx_set_state_changed_cb(producer->ctx, on_producer_state));
	producer->pe = new_engine(producer->ctx);
	return producer;
}

struct doca_task *producer_send(struct producer *producer, struct doca_buf *buf, uint32_t to,
				const void *immediate, size_t length)
{
	struct doca_comch_producer_task_send *task;

	OK(doca_comch_producer_task_send_alloc_init(producer->producer, buf, (uint8_t *)immediate,
						    (uint32_t)length, to, &task));
	OK(doca_task_submit(doca_comch_producer_task_send_as_task(task)));
	return doca_comch_producer_task_send_as_task(task);
}

void producer_destroy(struct producer *producer)
{
	OK(doca_comch_producer_destroy(producer->producer));
	OK(doca_pe_destroy(producer->pe));
	free(producer);
}
