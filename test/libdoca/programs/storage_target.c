/* A target in the shape of that of the DOCA storage applications, in their protocol of 3.2, and, as
 * far as it differs, of 3.0. It serves one relay, and ends. For each thread of the initiator it has
 * two RDMA contexts: messages travel on one, and it moves data on the other. It prints the port that
 * it listens on. */

#include "remote.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BLOCKS = 1024,
	BLOCK = 4096,
	MESSAGE = 64,
	MAX_QUEUES = 8,
	MAX_COUNT = 256, /* messages per queue */
};

/* Control messages: a request is answered by the type that follows its own. */
enum {
	ERROR_RESPONSE,
	QUERY_STORAGE = 1,
	INIT_STORAGE = 3,
	CREATE_CONNECTION = 5,
	START_STORAGE = 7,
	STOP_STORAGE = 9,
	SHUTDOWN = 11,
};

enum { ROLE_DATA, ROLE_CONTROL, ROLES };

/* Types and results of IO messages. */
enum { RESULT, READ, WRITE };
enum { INVALID_VALUE = 6, IO_FAILED = 17 };

struct queue;

/* A message, from its receive to the completion of its answer. */
struct transaction {
	struct queue *queue;
	struct doca_buf *message, *host, *storage;
	uint8_t *bytes; /* of the message */
};

struct queue {
	struct doca_pe *pe;
	struct doca_rdma *rdma[ROLES];
	struct doca_rdma_connection *connection[ROLES];
	struct memory messages;
	struct transaction *transactions;
	int in_flight;
};

static bool is_3_0, is_stopping;
static uint32_t count, cores, transfers;
static struct doca_dev *dev;
static struct memory storage, host;
static struct queue queues[MAX_QUEUES];

static void put(uint8_t **at, uint64_t value, int length)
{
	for (int i = length; i-- > 0;)
		*(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, int length)
{
	uint64_t value = 0;

	for (int i = 0; i < length; i++)
		value = value << 8 | at[i];
	return value;
}

static struct doca_ctx *ctx_of(struct queue *queue, int role)
{
	return doca_rdma_as_ctx(queue->rdma[role]);
}

/* The data path. */

static void post(struct transaction *transaction)
{
	struct doca_rdma_task_receive *task;
	union doca_data data = {.ptr = transaction};

	OK(doca_buf_reset_data_len(transaction->message));
	OK(doca_rdma_task_receive_allocate_init(transaction->queue->rdma[ROLE_CONTROL],
						transaction->message, data, &task));
	OK(doca_task_submit(doca_rdma_task_receive_as_task(task)));
}

/* Answers with the same message, of which only type and result change. */
static void answer(struct transaction *transaction, uint32_t result)
{
	struct queue *queue = transaction->queue;
	union doca_data data = {.ptr = transaction};
	struct doca_rdma_task_send *task;
	uint8_t *type = transaction->bytes, *at = transaction->bytes + 16;

	put(&type, RESULT, 4);
	put(&at, result, 4);
	OK(doca_rdma_task_send_allocate_init(queue->rdma[ROLE_CONTROL],
					     queue->connection[ROLE_CONTROL], transaction->message,
					     data, &task));
	OK(doca_task_submit(doca_rdma_task_send_as_task(task)));
}

static void end_transfer(struct transaction *transaction, uint32_t result)
{
	release(transaction->host);
	release(transaction->storage);
	transfers++;
	answer(transaction, result);
}

/* Takes the memory that a message names. Returns false if it names other memory. */
static bool take_memory(struct transaction *transaction, bool is_read)
{
	const uint8_t *bytes = transaction->bytes;
	uint64_t size = get(bytes + 20, 4), requester = get(bytes + 24, 8);
	uint64_t offset = get(bytes + 32, 8);

	if (is_3_0) {
		offset = requester - (uint64_t)(uintptr_t)host.bytes;
		requester = offset + get(bytes + 32, 4);
	}
	if (requester > host.size || size > host.size - requester || offset > storage.size ||
	    size > storage.size - offset)
		return false;
	transaction->host = memory_buf(&host, requester, size, is_read ? 0 : size);
	transaction->storage = memory_buf(&storage, offset, size, is_read ? size : 0);
	return true;
}

static void on_receive(struct doca_rdma_task_receive *task, union doca_data task_data,
		       union doca_data ctx_data)
{
	struct transaction *transaction = task_data.ptr;
	struct queue *queue = transaction->queue;
	uint64_t type = get(transaction->bytes, 4);

	(void)ctx_data;
	CHECK(doca_rdma_task_receive_get_result_len(task) == MESSAGE);
	doca_task_free(doca_rdma_task_receive_as_task(task));
	queue->in_flight++;
	if ((type != READ && type != WRITE) || !take_memory(transaction, type == READ)) {
		answer(transaction, INVALID_VALUE);
	} else if (type == READ) {
		struct doca_rdma_task_write *write;

		OK(doca_rdma_task_write_allocate_init(
			queue->rdma[ROLE_DATA], queue->connection[ROLE_DATA], transaction->storage,
			transaction->host, task_data, &write));
		OK(doca_task_submit(doca_rdma_task_write_as_task(write)));
	} else {
		struct doca_rdma_task_read *read;

		OK(doca_rdma_task_read_allocate_init(
			queue->rdma[ROLE_DATA], queue->connection[ROLE_DATA], transaction->host,
			transaction->storage, task_data, &read));
		OK(doca_task_submit(doca_rdma_task_read_as_task(read)));
	}
}

/* The receives that are left end with the context. */
static void on_receive_failed(struct doca_rdma_task_receive *task, union doca_data task_data,
			      union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	CHECK(is_stopping);
	doca_task_free(doca_rdma_task_receive_as_task(task));
}

static void on_sent(struct doca_rdma_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	struct transaction *transaction = task_data.ptr;

	(void)ctx_data;
	doca_task_free(doca_rdma_task_send_as_task(task));
	transaction->queue->in_flight--;
	post(transaction);
}

static void on_send_failed(struct doca_rdma_task_send *task, union doca_data task_data,
			   union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	fail(__FILE__, __LINE__, "a send has failed: %u",
	     (unsigned int)doca_task_get_status(doca_rdma_task_send_as_task(task)));
}

/* Defines the callbacks of a transfer. */
#define TRANSFER(type) \
	static void on_##type(struct doca_rdma_task_##type *task, union doca_data task_data, \
			      union doca_data ctx_data) \
	{ \
		(void)ctx_data; \
		doca_task_free(doca_rdma_task_##type##_as_task(task)); \
		end_transfer(task_data.ptr, 0); \
	} \
	static void on_##type##_failed(struct doca_rdma_task_##type *task, \
				       union doca_data task_data, union doca_data ctx_data) \
	{ \
		(void)ctx_data; \
		doca_task_free(doca_rdma_task_##type##_as_task(task)); \
		end_transfer(task_data.ptr, IO_FAILED); \
	}

TRANSFER(read)
TRANSFER(write)

/* Set-up and end of a queue. */

static void open_queue(struct queue *queue)
{
	queue->messages = memory_new(dev, count * MESSAGE, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	queue->transactions = calloc(count, sizeof *queue->transactions);
	CHECK(queue->transactions != NULL);
	OK(doca_pe_create(&queue->pe));
	for (int role = 0; role < ROLES; role++) {
		struct doca_rdma *rdma;

		OK(doca_rdma_create(dev, &rdma));
		queue->rdma[role] = rdma;
		OK(doca_rdma_set_permissions(rdma, RDMA_ACCESS));
		if (role == ROLE_DATA) {
			OK(doca_rdma_task_read_set_conf(rdma, on_read, on_read_failed, count));
			OK(doca_rdma_task_write_set_conf(rdma, on_write, on_write_failed, count));
		} else {
			OK(doca_rdma_task_receive_set_conf(rdma, on_receive, on_receive_failed,
							   count));
			OK(doca_rdma_task_send_set_conf(rdma, on_sent, on_send_failed, count));
		}
		OK(doca_pe_connect_ctx(queue->pe, doca_rdma_as_ctx(rdma)));
		OK(doca_ctx_start(doca_rdma_as_ctx(rdma)));
	}
}

static void start_queue(struct queue *queue)
{
	for (uint32_t i = 0; i < count; i++) {
		struct transaction *transaction = &queue->transactions[i];

		transaction->queue = queue;
		transaction->bytes = queue->messages.bytes + i * MESSAGE;
		transaction->message = memory_buf(&queue->messages, i * MESSAGE, MESSAGE, 0);
		post(transaction);
	}
}

static void close_queue(struct queue *queue)
{
	for (int role = 0; role < ROLES; role++) {
		(void)doca_ctx_stop(ctx_of(queue, role));
		UNTIL(state_of(ctx_of(queue, role)) == DOCA_CTX_STATE_IDLE, queue->pe);
		OK(doca_rdma_destroy(queue->rdma[role]));
	}
	OK(doca_pe_destroy(queue->pe));
	for (uint32_t i = 0; i < count; i++)
		if (queue->transactions[i].message != NULL)
			release(queue->transactions[i].message);
	free(queue->transactions);
	memory_free(&queue->messages);
}

/* Requests. Each writes the payload of its response, and returns its length. */

static size_t init_storage(const uint8_t *payload, size_t length)
{
	size_t fixed = is_3_0 ? 16 : 12;

	CHECK(length >= fixed && get(payload + fixed - 4, 4) == length - fixed);
	count = (uint32_t)get(payload, 4);
	cores = (uint32_t)get(payload + fixed - 8, 4);
	CHECK(count > 0 && count <= MAX_COUNT && cores > 0 && cores <= MAX_QUEUES);
	host = memory_import(dev, payload + fixed, length - fixed);
	for (uint32_t i = 0; i < cores; i++)
		open_queue(&queues[i]);
	return 0;
}

static size_t create_connection(const uint8_t *payload, size_t length, uint8_t *response)
{
	uint32_t index = (uint32_t)get(payload, 4), role = (uint32_t)get(payload + 4, 4);
	const void *details;
	size_t size;

	CHECK(length >= 12 && index < cores && role < ROLES &&
	      get(payload + 8, 4) == length - 12);
	struct queue *queue = &queues[index];

	OK(doca_rdma_export(queue->rdma[role], &details, &size, &queue->connection[role]));
	OK(doca_rdma_connect(queue->rdma[role], payload + 12, length - 12,
			     queue->connection[role]));
	put(&response, index, 4);
	put(&response, role, 4);
	put(&response, size, 4);
	memcpy(response, details, size);
	return 12 + size;
}

static void progress_queues(void)
{
	for (uint32_t i = 0; i < cores; i++)
		for (int n = 0; n < 64 && doca_pe_progress(queues[i].pe) != 0; n++)
			;
}

static size_t carry_out(uint32_t type, const uint8_t *payload, size_t length, uint8_t *response)
{
	switch (type) {
	case QUERY_STORAGE:
		put(&response, BLOCKS * BLOCK, 8);
		put(&response, BLOCK, 4);
		return 12;
	case INIT_STORAGE:
		return init_storage(payload, length);
	case CREATE_CONNECTION:
		return create_connection(payload, length, response);
	case START_STORAGE:
		for (uint32_t i = 0; i < cores; i++)
			start_queue(&queues[i]);
		return 0;
	case STOP_STORAGE:
		is_stopping = true;
		for (uint32_t i = 0; i < cores; i++)
			UNTIL(queues[i].in_flight == 0, queues[i].pe);
		return 0;
	case SHUTDOWN:
		for (uint32_t i = 0; i < cores; i++)
			close_queue(&queues[i]);
		cores = 0;
		memory_free(&host);
		return 0;
	}
	fail(__FILE__, __LINE__, "request of type %u", type);
}

/* The connection to the relay. */

static int accept_relay(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), relay;

	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 &&
	      listen(listener, 1) == 0 &&
	      getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	printf("port %u\n", ntohs(address.sin_port));
	fflush(stdout);
	relay = accept(listener, NULL, NULL);
	CHECK(relay >= 0);
	close(listener);
	return relay;
}

/* Reads bytes while the queues are served. Returns false at the end of the stream. */
static bool read_bytes(int relay, uint8_t *bytes, size_t length)
{
	while (length > 0) {
		struct pollfd ready = {.fd = relay, .events = POLLIN};

		if (poll(&ready, 1, cores == 0 ? 100 : 0) > 0) {
			ssize_t n = read(relay, bytes, length);

			if (n <= 0)
				return false;
			bytes += n;
			length -= (size_t)n;
		}
		progress_queues();
	}
	return true;
}

static void serve(void)
{
	uint8_t request[4096], response[4096], *at;
	uint32_t type = 0;
	int relay;

	dev = open_own_device();
	storage = memory_new(dev, BLOCKS * BLOCK, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	relay = accept_relay();
	while (type != SHUTDOWN) {
		size_t length;

		if (!read_bytes(relay, request, 4))
			fail(__FILE__, __LINE__, "the relay has gone after request %u", type);
		length = get(request, 4);
		CHECK(length >= 12 && length <= sizeof request - 4 &&
		      read_bytes(relay, request + 4, length));
		type = (uint32_t)get(request + 4, 4);
		length = carry_out(type, request + 16, length - 12, response + 16);
		at = response;
		put(&at, 12 + length, 4);
		put(&at, type + 1, 4);
		memcpy(at, request + 8, 8);
		CHECK(write(relay, response, 16 + length) == (ssize_t)(16 + length));
	}
	close(relay);
	memory_free(&storage);
	OK(doca_dev_close(dev));
	printf("%u transfers\n", transfers);
}

static void doca_3_0(void)
{
	is_3_0 = true;
	serve();
}

static void doca_3_2(void) { serve(); }

const struct test tests[] = {
	{"doca_3_0", doca_3_0},
	{"doca_3_2", doca_3_2},
	{NULL, NULL},
};
