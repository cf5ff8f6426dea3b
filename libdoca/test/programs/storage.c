// SPDX-License-Identifier: Apache-2.0

#include "storage.h"

#include <string.h>

enum dialect dialect;

void put(uint8_t **at, uint64_t value, int length)
{
	for (int i = length; i-- > 0;)
		*(*at)++ = (uint8_t)(value >> (8 * i));
}

uint64_t get(const uint8_t *at, int length)
{
	uint64_t value = 0;

	for (int i = 0; i < length; i++)
		value = value << 8 | at[i];
	return value;
}

void set_result(uint8_t *message, uint32_t result)
{
	uint8_t *type = message, *at = message + 16;

	put(&type, RESULT, 4);
	put(&at, result, 4);
}

/* The types of 2.10, by their numbers there. */
static const uint32_t types_2_10[] = {RESPONSE,          INIT_STORAGE,  CREATE_CONNECTION,
				      CREATE_CONNECTION_REPLY, START_CONNECTIONS, START_STORAGE,
				      SHUTDOWN};

enum { TYPES_2_10 = sizeof types_2_10 / sizeof types_2_10[0] };

size_t encode_control(uint8_t *bytes, const struct control_message *message)
{
	static const uint8_t success[8]; /* a result, and the length of a text */
	uint8_t *at = bytes;
	const uint8_t *payload = message->payload;
	size_t length = message->length;

	if (dialect == DOCA_2_10) {
		uint32_t type = 0; /* what it has no reply of its own for is a response */

		while (type < TYPES_2_10 && types_2_10[type] != message->type)
			type++;
		if (type == TYPES_2_10) {
			type = RESPONSE;
			payload = success;
			length = sizeof success;
		}
		put(&at, 8 + length, 2);
		put(&at, type, 2);
	} else {
		put(&at, 12 + length, 4);
		put(&at, message->type, 4);
		put(&at, message->id, 4);
	}
	put(&at, message->correlation, 4);
	CHECK((size_t)(at - bytes) + length <= CONTROL_MESSAGE);
	if (length > 0)
		memcpy(at, payload, length);
	return (size_t)(at - bytes) + length;
}

struct control_message decode_control(const uint8_t *bytes, size_t length)
{
	struct control_message message = {.type = RESPONSE};
	size_t header = dialect == DOCA_2_10 ? 8 : 16;

	CHECK(length >= header && size_of_control(bytes) == length);
	if (dialect == DOCA_2_10) {
		uint64_t type = get(bytes + 2, 2);

		CHECK(type < TYPES_2_10);
		message.type = types_2_10[type];
	} else {
		message.type = (uint32_t)get(bytes + 4, 4);
		message.id = (uint32_t)get(bytes + 8, 4);
	}
	message.correlation = (uint32_t)get(bytes + header - 4, 4);
	message.payload = bytes + header;
	message.length = length - header;
	return message;
}

size_t header_size(void) { return dialect == DOCA_2_10 ? 2 : 4; }

size_t size_of_control(const uint8_t *header)
{
	return dialect == DOCA_2_10 ? get(header, 2) : 4 + get(header, 4);
}

static size_t put_blob(uint8_t *payload, uint8_t *at, const uint8_t *blob, size_t length)
{
	put(&at, length, 4);
	CHECK(length <= 1000);
	memcpy(at, blob, length);
	return (size_t)(at - payload) + length;
}

size_t encode_init(uint8_t *payload, const struct init_storage *init)
{
	uint8_t *at = payload;

	put(&at, init->count, 4);
	if (dialect == DOCA_2_10)
		put(&at, init->buffer_size, 4);
	if (dialect <= DOCA_3_0)
		put(&at, 4, 4); /* the batch size */
	if (dialect != DOCA_2_10)
		put(&at, init->queues, 4);
	return put_blob(payload, at, init->export, init->length);
}

struct init_storage decode_init(const struct control_message *message)
{
	struct init_storage init = {.count = 0};
	const uint8_t *at = message->payload;
	size_t fixed = dialect <= DOCA_3_0 ? 16 : 12;

	CHECK(message->length >= fixed &&
	      get(at + fixed - 4, 4) == message->length - fixed);
	init.count = (uint32_t)get(at, 4);
	if (dialect == DOCA_2_10)
		init.buffer_size = (uint32_t)get(at + 4, 4);
	else
		init.queues = (uint32_t)get(at + fixed - 8, 4);
	init.export = at + fixed;
	init.length = message->length - fixed;
	CHECK(init.count > 0 && init.count <= MAX_COUNT);
	return init;
}

size_t encode_connection(uint8_t *payload, const struct connection *connection)
{
	uint8_t *at = payload;
	size_t length;

	if (dialect != DOCA_2_10)
		put(&at, connection->queue, 4);
	put(&at, connection->role, dialect == DOCA_2_10 ? 1 : 4);
	length = put_blob(payload, at, connection->details, connection->length);
	if (dialect == DOCA_2_10) { /* which counts four bytes for the role */
		memset(payload + length, 0, 3);
		length += 3;
	}
	return length;
}

struct connection decode_connection(const struct control_message *message)
{
	struct connection connection = {.queue = 0};
	const uint8_t *at = message->payload;
	size_t fixed = dialect == DOCA_2_10 ? 5 : 12, filler = dialect == DOCA_2_10 ? 3 : 0;

	CHECK(message->length >= fixed + filler);
	if (dialect == DOCA_2_10) {
		connection.role = (uint32_t)get(at, 1);
	} else {
		connection.queue = (uint32_t)get(at, 4);
		connection.role = (uint32_t)get(at + 4, 4);
	}
	connection.details = at + fixed;
	connection.length = get(at + fixed - 4, 4);
	CHECK(connection.role < ROLES && connection.queue < MAX_QUEUES &&
	      connection.length == message->length - fixed - filler);
	return connection;
}
