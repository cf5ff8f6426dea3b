/* SPDX-License-Identifier: Apache-2.0 */

/* The protocols of the DOCA storage applications, for initiator, relay, and target: control messages
 * and the 64 bytes of IO messages. Numbers are big-endian. */
#ifndef STORAGE_H
#define STORAGE_H

#include "program.h"

/* The dialect that the program speaks. 3.1 has the messages of 3.2, except where an IO message
 * names its transaction. */
enum dialect { DOCA_2_10, DOCA_3_0, DOCA_3_1, DOCA_3_2 };
extern enum dialect dialect;

/* Defines a test that calls serve() in a dialect. */
#define SERVE_IN(name, its_dialect) \
	static void name(void) \
	{ \
		dialect = its_dialect; \
		serve(); \
	}

enum {
	MESSAGE = 64,         /* bytes of an IO message */
	CONTROL_MESSAGE = 4096, /* largest control message */
	MAX_QUEUES = 8,
	MAX_COUNT = 256, /* transactions of a queue */
};

/* Types of control messages, as in 3.x: the reply to a request is the next type. 2.10 has other
 * numbers, and START_CONNECTIONS. */
enum {
	RESPONSE = 0, /* of 2.10 to most requests, and an error in 3.x */
	QUERY_STORAGE = 1,
	INIT_STORAGE = 3,
	CREATE_CONNECTION = 5,
	CREATE_CONNECTION_REPLY = 6,
	START_STORAGE = 7,
	STOP_STORAGE = 9,
	SHUTDOWN = 11,
	START_CONNECTIONS = 13,
};

/* Types of IO messages, and their results. */
enum { RESULT, READ, WRITE, STOP };
enum { INVALID_VALUE = 6, IO_FAILED = 17 };

enum { ROLE_DATA, ROLE_CONTROL, ROLES };

/* put appends a number of length bytes, and get reads one. */
void put(uint8_t **at, uint64_t value, int length);
uint64_t get(const uint8_t *at, int length);
/* set_result turns an IO message into a response. */
void set_result(uint8_t *message, uint32_t result);

struct control_message {
	uint32_t type, id, correlation;
	const uint8_t *payload;
	size_t length; /* of payload */
};

/* Writes a message into CONTROL_MESSAGE bytes, and returns its length. */
size_t encode_control(uint8_t *bytes, const struct control_message *message);
struct control_message decode_control(const uint8_t *bytes, size_t length);
/* The first header_size() bytes of a message tell its size. */
size_t header_size(void);
size_t size_of_control(const uint8_t *header);

/* Of INIT_STORAGE. In 2.10 the initiator's memory tells the number of queues. */
struct init_storage {
	uint32_t count, buffer_size, queues;
	const uint8_t *export;
	size_t length; /* of export */
};

size_t encode_init(uint8_t *payload, const struct init_storage *init);
struct init_storage decode_init(const struct control_message *message);

/* Of CREATE_CONNECTION and its reply. 2.10 does not number queues. */
struct connection {
	uint32_t queue, role;
	const uint8_t *details;
	size_t length; /* of details */
};

size_t encode_connection(uint8_t *payload, const struct connection *connection);
struct connection decode_connection(const struct control_message *message);

#endif
