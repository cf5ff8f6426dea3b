// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>

#include "internal.h"

// Go finds the message behind the note.
_Static_assert(sizeof(struct zcd_note) == offsetof(struct zcd_note, bytes), "no padding");

// Events of connections carry no user data, and a callback runs on the thread that makes progress
// or starts or stops the context. So the control that this thread works on is the right one.
static __thread struct zcd_control *current;

static struct zcd_control *enter(struct zcd_control *control)
{
	struct zcd_control *before = current;

	current = control;
	return before;
}

static void leave(struct zcd_control *before) { current = before; }

// take appends a note with room for length bytes. Returns NULL if there is no memory: then an event
// is lost, which ends the control.
static struct zcd_note *take(struct zcd_control *control, uint32_t kind,
			     struct doca_comch_connection *connection, uint32_t length)
{
	struct zcd_note *note;

	if (!control)
		return NULL;
	note = calloc(1, sizeof(*note) + length);
	if (!note) {
		zcd_context_fail(&control->context, DOCA_ERROR_NO_MEMORY);
		return NULL;
	}
	note->kind = kind;
	note->connection = connection;
	note->length = length;
	*control->last = note;
	control->last = &note->next;
	return note;
}

static void on_message(struct doca_comch_event_msg_recv *event, uint8_t *message, uint32_t length,
		       struct doca_comch_connection *connection)
{
	struct zcd_note *note = take(current, ZCD_NOTE_MESSAGE, connection, length);

	(void)event;
	if (note && length > 0)
		memcpy(note->bytes, message, length);
}

static void on_status(uint32_t kind, struct doca_comch_connection *connection, uint8_t successful)
{
	struct zcd_note *note = take(current, kind, connection, 0);

	if (note)
		note->code = !successful;
}

static void on_connected(struct doca_comch_event_connection_status_changed *event,
			 struct doca_comch_connection *connection, uint8_t successful)
{
	(void)event;
	on_status(ZCD_NOTE_CONNECTED, connection, successful);
}

static void on_disconnected(struct doca_comch_event_connection_status_changed *event,
			    struct doca_comch_connection *connection, uint8_t successful)
{
	(void)event;
	on_status(ZCD_NOTE_DISCONNECTED, connection, successful);
}

static void on_consumer(struct doca_comch_event_consumer *event,
			struct doca_comch_connection *connection, uint32_t id)
{
	struct zcd_note *note = take(current, ZCD_NOTE_CONSUMER, connection, 0);

	(void)event;
	if (note)
		note->id = id;
}

static void on_consumer_expired(struct doca_comch_event_consumer *event,
				struct doca_comch_connection *connection, uint32_t id)
{
	struct zcd_note *note = take(current, ZCD_NOTE_CONSUMER_EXPIRED, connection, 0);

	(void)event;
	if (note)
		note->id = id;
}

// A message in flight. Its note is allocated with it, so that a completion cannot be lost.
struct message {
	struct zcd_note *sent;
	uint8_t bytes[];
};

static void on_sent(struct doca_comch_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	struct zcd_control *control = ctx_data.ptr;
	const struct zcd_functions *f = control->context.engine->f;
	struct message *message = task_data.ptr;
	struct doca_task *base = f->comch_task_send_as_task(task);

	message->sent->code = f->task_get_status(base);
	*control->last = message->sent;
	control->last = &message->sent->next;
	free(message);
	f->task_free(base);
}

static doca_error_t open_server(struct zcd_control *control, const struct zcd_functions *f,
				const struct zcd_control_config *config, const char **step)
{
	doca_error_t result;

	CHECK(comch_server_create, config->device, config->representor, config->name,
	      &control->server);
	CHECK(comch_server_set_max_msg_size, control->server, config->max_message_size);
	CHECK(comch_server_set_recv_queue_size, control->server, config->receive_queue);
	CHECK(comch_server_task_send_set_conf, control->server, on_sent, on_sent, config->sends);
	CHECK(comch_server_event_msg_recv_register, control->server, on_message);
	CHECK(comch_server_event_connection_status_changed_register, control->server, on_connected,
	      on_disconnected);
	CHECK(comch_server_event_consumer_register, control->server, on_consumer,
	      on_consumer_expired);
	return DOCA_SUCCESS;
}

static doca_error_t open_client(struct zcd_control *control, const struct zcd_functions *f,
				const struct zcd_control_config *config, const char **step)
{
	doca_error_t result;

	CHECK(comch_client_create, config->device, config->name, &control->client);
	CHECK(comch_client_set_max_msg_size, control->client, config->max_message_size);
	CHECK(comch_client_set_recv_queue_size, control->client, config->receive_queue);
	CHECK(comch_client_task_send_set_conf, control->client, on_sent, on_sent, config->sends);
	CHECK(comch_client_event_msg_recv_register, control->client, on_message);
	CHECK(comch_client_event_consumer_register, control->client, on_consumer,
	      on_consumer_expired);
	return DOCA_SUCCESS;
}

doca_error_t zcd_control_open(struct zcd_engine *engine, const struct zcd_control_config *config,
			      struct zcd_control *control, const char **step)
{
	const struct zcd_functions *f = engine->f;
	struct doca_ctx *ctx;
	doca_error_t result;

	control->context.engine = engine;
	control->last = &control->notes;
	if (config->representor) {
		result = open_server(control, f, config, step);
		ctx = control->server ? f->comch_server_as_ctx(control->server) : NULL;
	} else {
		result = open_client(control, f, config, step);
		ctx = control->client ? f->comch_client_as_ctx(control->client) : NULL;
	}
	if (result == DOCA_SUCCESS)
		result = zcd_context_attach(&control->context, engine, ctx, step);
	return result;
}

doca_error_t zcd_control_start(struct zcd_control *control)
{
	struct zcd_control *before = enter(control);
	doca_error_t result = zcd_context_start(&control->context);

	leave(before);
	return result;
}

doca_error_t zcd_control_stop(struct zcd_control *control)
{
	struct zcd_control *before = enter(control);
	doca_error_t result = zcd_context_stop(&control->context);

	leave(before);
	return result;
}

uint32_t zcd_control_arm(struct zcd_control *control)
{
	struct zcd_control *before = enter(control);
	uint32_t found = zcd_context_arm(&control->context);

	leave(before);
	return found;
}

doca_error_t zcd_control_disconnect(struct zcd_control *control,
				    struct doca_comch_connection *connection)
{
	struct zcd_control *before = enter(control);
	doca_error_t result = control->context.engine->f->comch_server_disconnect(control->server,
										  connection);

	leave(before);
	return result;
}

doca_error_t zcd_control_connection(struct zcd_control *control,
				    struct doca_comch_connection **connection)
{
	return control->context.engine->f->comch_client_get_connection(control->client, connection);
}

doca_error_t zcd_control_close(struct zcd_control *control)
{
	const struct zcd_functions *f = control->context.engine->f;
	doca_error_t result = DOCA_SUCCESS;

	if (control->server)
		result = f->comch_server_destroy(control->server);
	else if (control->client)
		result = f->comch_client_destroy(control->client);
	if (result != DOCA_SUCCESS)
		return result;
	control->server = NULL;
	control->client = NULL;
	zcd_notes_free(control->notes);
	control->notes = NULL;
	control->last = &control->notes;
	return DOCA_SUCCESS;
}

struct zcd_note *zcd_control_turn(struct zcd_control *control, uint32_t budget)
{
	struct zcd_control *before = enter(control);
	struct zcd_note *notes;

	zcd_context_progress(&control->context, budget);
	leave(before);
	notes = control->notes;
	control->notes = NULL;
	control->last = &control->notes;
	return notes;
}

void zcd_notes_free(struct zcd_note *notes)
{
	while (notes) {
		struct zcd_note *next = notes->next;

		free(notes);
		notes = next;
	}
}

// has_ended reports whether a connection has ended, which Go learns from the notes of the next turn.
// libdoca has destroyed it by then.
static int has_ended(const struct zcd_control *control,
		     const struct doca_comch_connection *connection)
{
	for (const struct zcd_note *note = control->notes; note; note = note->next)
		if (note->kind == ZCD_NOTE_DISCONNECTED && note->connection == connection)
			return 1;
	return 0;
}

doca_error_t zcd_control_send(struct zcd_control *control, struct doca_comch_connection *connection,
			      const void *bytes, uint32_t length, uint64_t user)
{
	const struct zcd_functions *f = control->context.engine->f;
	struct zcd_control *before = enter(control);
	struct message *message = malloc(sizeof(*message) + length);
	struct zcd_note *sent = calloc(1, sizeof(*sent));
	struct doca_comch_task_send *task = NULL;
	union doca_data data = {.ptr = message};
	doca_error_t result = DOCA_ERROR_NO_MEMORY;

	if (!message || !sent)
		goto failed;
	if (has_ended(control, connection)) {
		result = DOCA_ERROR_NOT_CONNECTED;
		goto failed;
	}
	sent->kind = ZCD_NOTE_SENT;
	sent->connection = connection;
	sent->user = user;
	message->sent = sent;
	if (length > 0)
		memcpy(message->bytes, bytes, length);
	if (control->server)
		result = f->comch_server_task_send_alloc_init(control->server, connection,
							      message->bytes, length, &task);
	else
		result = f->comch_client_task_send_alloc_init(control->client, connection,
							      message->bytes, length, &task);
	// An empty pool and a full queue pass; the shim reports both the same way.
	if (result == DOCA_ERROR_NO_MEMORY)
		result = DOCA_ERROR_AGAIN;
	if (result != DOCA_SUCCESS)
		goto failed;
	f->task_set_user_data(f->comch_task_send_as_task(task), data);
	result = f->task_submit(f->comch_task_send_as_task(task));
	if (result == DOCA_ERROR_FULL)
		result = DOCA_ERROR_AGAIN;
	if (result == DOCA_SUCCESS) {
		leave(before);
		return result;
	}
	f->task_free(f->comch_task_send_as_task(task));
failed:
	leave(before);
	free(message);
	free(sent);
	return result;
}
