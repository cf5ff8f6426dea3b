// SPDX-License-Identifier: Apache-2.0

/* A target in the shape of those of the DOCA storage applications, in their protocols of 2.10 to 3.2.
 * It serves one relay, and ends. For each thread of the initiator it has two RDMA contexts:
 * messages travel on one, and it moves data on the other. In 2.10 each thread has a storage of its
 * own. It prints the port that it listens on. */

#include "remote.h"
#include "storage.h"

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
};

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
	struct memory messages, storage;
	struct transaction *transactions;
	int in_flight;
};

static bool is_stopping;
static uint32_t count, cores, transfers;
static uint32_t connections; /* created so far */
static struct doca_dev *dev;
static struct memory host;
static uint8_t *storage; /* that all queues share, from 3.0 on */
static struct queue queues[MAX_QUEUES];

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

static void send_back(struct transaction *transaction)
{
	struct queue *queue = transaction->queue;
	union doca_data data = {.ptr = transaction};
	struct doca_rdma_task_send *task;

	OK(doca_rdma_task_send_allocate_init(queue->rdma[ROLE_CONTROL],
					     queue->connection[ROLE_CONTROL], transaction->message,
					     data, &task));
	OK(doca_task_submit(doca_rdma_task_send_as_task(task)));
}

/* Answers with the same message, of which only type and result change. */
static void answer(struct transaction *transaction, uint32_t result)
{
	set_result(transaction->bytes, result);
	send_back(transaction);
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
	const struct memory *storage = &transaction->queue->storage;
	uint64_t size = get(bytes + 20, 4), requester = get(bytes + 24, 8);
	uint64_t offset = get(bytes + 32, 8);

	if (dialect <= DOCA_3_0) {
		offset = requester - (uint64_t)(uintptr_t)host.bytes;
		requester = offset + (dialect == DOCA_3_0 ? get(bytes + 32, 4) : 0);
	}
	if (requester > host.size || size > host.size - requester || offset > storage->size ||
	    size > storage->size - offset)
		return false;
	transaction->host = memory_buf(&host, requester, size, is_read ? 0 : size);
	transaction->storage = memory_buf(storage, offset, size, is_read ? size : 0);
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
	if (dialect == DOCA_2_10 && type == STOP) {
		is_stopping = true;
		send_back(transaction);
	} else if ((type != READ && type != WRITE) || !take_memory(transaction, type == READ)) {
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
	if (dialect == DOCA_2_10)
		queue->storage = memory_new(dev, host.size, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	else
		queue->storage = memory_over(dev, storage, BLOCKS * BLOCK,
					     DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
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
	memory_free(&queue->storage);
}

/* Requests. Each writes the payload of its response, and returns its length. */

static size_t init_storage(const struct control_message *request)
{
	struct init_storage init = decode_init(request);

	count = init.count;
	cores = init.queues;
	host = memory_import(dev, init.export, init.length);
	if (dialect == DOCA_2_10) {
		size_t size = (size_t)init.count * init.buffer_size; /* of a queue */

		CHECK(size > 0 && host.size % size == 0);
		cores = (uint32_t)(host.size / size);
	}
	CHECK(cores > 0 && cores <= MAX_QUEUES);
	for (uint32_t i = 0; i < cores; i++)
		open_queue(&queues[i]);
	return 0;
}

static size_t create_connection(const struct control_message *request, uint8_t *response)
{
	struct connection connection = decode_connection(request), reply;
	const void *details;

	if (dialect == DOCA_2_10) /* queues follow each other, with two connections each */
		connection.queue = connections++ / ROLES;
	CHECK(connection.queue < cores);
	struct queue *queue = &queues[connection.queue];
	uint32_t role = connection.role;

	CHECK(queue->connection[role] == NULL);
	reply = connection;
	OK(doca_rdma_export(queue->rdma[role], &details, &reply.length, &queue->connection[role]));
	reply.details = details;
	OK(doca_rdma_connect(queue->rdma[role], connection.details, connection.length,
			     queue->connection[role]));
	return encode_connection(response, &reply);
}

static void progress_queues(void)
{
	for (uint32_t i = 0; i < cores; i++)
		for (int n = 0; n < 64 && doca_pe_progress(queues[i].pe) != 0; n++)
			;
}

static size_t carry_out(const struct control_message *request, uint8_t *response)
{
	switch (request->type) {
	case QUERY_STORAGE:
		put(&response, BLOCKS * BLOCK, 8);
		put(&response, BLOCK, 4);
		return 12;
	case INIT_STORAGE:
		return init_storage(request);
	case CREATE_CONNECTION:
		return create_connection(request, response);
	case START_CONNECTIONS:
		CHECK(connections == ROLES * cores);
		return 0;
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
	fail(__FILE__, __LINE__, "request of type %u", request->type);
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
	uint8_t bytes[CONTROL_MESSAGE], payload[CONTROL_MESSAGE];
	struct control_message request = {.type = RESPONSE}, response;
	int relay;

	dev = open_own_device();
	storage = calloc(BLOCKS, BLOCK);
	relay = accept_relay();
	while (request.type != SHUTDOWN) {
		size_t header = header_size(), length;

		if (!read_bytes(relay, bytes, header))
			fail(__FILE__, __LINE__, "the relay has gone after request %u",
			     request.type);
		length = size_of_control(bytes);
		CHECK(length >= header && length <= sizeof bytes &&
		      read_bytes(relay, bytes + header, length - header));
		request = decode_control(bytes, length);
		response = request;
		response.length = carry_out(&request, payload);
		response.payload = payload;
		response.type = request.type + 1;
		length = encode_control(bytes, &response);
		CHECK(write(relay, bytes, length) == (ssize_t)length);
	}
	close(relay);
	free(storage);
	OK(doca_dev_close(dev));
	printf("%u transfers\n", transfers);
}

SERVE_IN(doca_2_10, DOCA_2_10)
SERVE_IN(doca_3_0, DOCA_3_0)
SERVE_IN(doca_3_1, DOCA_3_1)
SERVE_IN(doca_3_2, DOCA_3_2)

const struct test tests[] = {
	{"doca_2_10", doca_2_10},
	{"doca_3_0", doca_3_0},
	{"doca_3_1", doca_3_1},
	{"doca_3_2", doca_3_2},
	{NULL, NULL},
};
