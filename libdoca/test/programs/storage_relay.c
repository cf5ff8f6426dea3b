// SPDX-License-Identifier: Apache-2.0

/* A relay in the shape of that of the DOCA storage applications, in their protocols of 2.10 to 3.2.
 * It serves one initiator, and ends. A message of the initiator goes to the target from the buffer
 * that it was received in, and the same way back. TARGET is the port of the target, on the loopback
 * address. Like the original, it tells the initiator that every IO has succeeded. It prints a line
 * when initiators can connect. */

#include "remote.h"
#include "storage.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct queue;

/* A buffer for a message, of a request or of a response. */
struct slot {
	struct queue *queue;
	struct doca_buf *buf;
	uint8_t *bytes;
};

/* A thread of the initiator: its Comch consumer and producer, and two RDMA contexts. Messages travel
 * on one, and the target moves data on the other. */
struct queue {
	struct doca_pe *pe; /* of RDMA */
	struct doca_rdma *rdma[ROLES];
	struct doca_rdma_connection *connection[ROLES];
	struct consumer *consumer;
	struct producer *producer;
	struct memory memory;
	struct slot *requests, *responses; /* count each */
	uint32_t to;                       /* the initiator's consumer */
	uint32_t responses_sent;           /* by the producer, among those submitted */
	uint32_t sends[2 * MAX_COUNT];     /* slots of responses, in the order of their sends */
	uint32_t submitted;
};

static struct control *control;
static struct memory host; /* the initiator's */
static struct queue queues[MAX_QUEUES];
static uint32_t count, cores, requests, forwarded;
static int target;
static bool is_stopping, is_finished;

static struct doca_ctx *ctx_of(struct queue *queue, int role)
{
	return doca_rdma_as_ctx(queue->rdma[role]);
}

/* From the initiator to the target. */

static void on_request(struct consumer *consumer, struct doca_buf *buf)
{
	struct queue *queue = consumer->context;
	union doca_data data = {.ptr = NULL};
	struct doca_rdma_task_send *task;

	for (uint32_t i = 0; i < count && data.ptr == NULL; i++)
		if (queue->requests[i].buf == buf)
			data.ptr = &queue->requests[i];
	CHECK(data.ptr != NULL);
	OK(doca_rdma_task_send_allocate_init(queue->rdma[ROLE_CONTROL],
					     queue->connection[ROLE_CONTROL], buf, data, &task));
	OK(doca_task_submit(doca_rdma_task_send_as_task(task)));
}

static void on_forwarded(struct doca_rdma_task_send *task, union doca_data task_data,
			 union doca_data ctx_data)
{
	struct slot *slot = task_data.ptr;

	(void)ctx_data;
	doca_task_free(doca_rdma_task_send_as_task(task));
	if (is_stopping)
		return;
	OK(doca_buf_reset_data_len(slot->buf));
	(void)consumer_post(slot->queue->consumer, slot->buf);
}

static void on_forward_failed(struct doca_rdma_task_send *task, union doca_data task_data,
			      union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	fail(__FILE__, __LINE__, "a send to the target has failed: %u",
	     (unsigned int)doca_task_get_status(doca_rdma_task_send_as_task(task)));
}

/* From the target to the initiator. */

static void post_response(struct slot *slot)
{
	union doca_data data = {.ptr = slot};
	struct doca_rdma_task_receive *task;

	OK(doca_buf_reset_data_len(slot->buf));
	OK(doca_rdma_task_receive_allocate_init(slot->queue->rdma[ROLE_CONTROL], slot->buf, data,
						&task));
	OK(doca_task_submit(doca_rdma_task_receive_as_task(task)));
}

static void on_response(struct doca_rdma_task_receive *task, union doca_data task_data,
			union doca_data ctx_data)
{
	struct slot *slot = task_data.ptr;
	struct queue *queue = slot->queue;

	(void)ctx_data;
	CHECK(doca_rdma_task_receive_get_result_len(task) == MESSAGE);
	doca_task_free(doca_rdma_task_receive_as_task(task));
	if (dialect == DOCA_2_10 && get(slot->bytes, 4) == STOP)
		is_stopping = true;
	else
		set_result(slot->bytes, 0);
	queue->sends[queue->submitted++ % count] = (uint32_t)(slot - queue->responses);
	(void)producer_send(queue->producer, slot->buf, queue->to, NULL, 0);
	forwarded++;
}

static void on_response_failed(struct doca_rdma_task_receive *task, union doca_data task_data,
			       union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	CHECK(is_stopping); /* the receives that are left end with the context */
	doca_task_free(doca_rdma_task_receive_as_task(task));
}

static void progress_queue(struct queue *queue)
{
	struct doca_pe *const engines[] = {queue->pe, queue->consumer->pe, queue->producer->pe};

	for (size_t e = 0; e < sizeof engines / sizeof engines[0]; e++)
		for (int n = 0; n < 64 && doca_pe_progress(engines[e]) != 0; n++)
			;
	while (queue->responses_sent < (uint32_t)queue->producer->sent) {
		uint32_t slot = queue->sends[queue->responses_sent++ % count];

		if (!is_stopping)
			post_response(&queue->responses[slot]);
	}
}

static void progress_queues(void)
{
	for (uint32_t i = 0; i < cores; i++)
		if (queues[i].consumer != NULL)
			progress_queue(&queues[i]);
	(void)doca_pe_progress(control->pe);
}

/* Set-up and end of a queue. */

static void open_rdma(struct queue *queue, int role)
{
	struct doca_rdma *rdma;

	OK(doca_rdma_create(control->dev, &rdma));
	queue->rdma[role] = rdma;
	OK(doca_rdma_set_permissions(rdma, RDMA_ACCESS));
	if (role == ROLE_CONTROL) {
		OK(doca_rdma_task_receive_set_conf(rdma, on_response, on_response_failed, count));
		OK(doca_rdma_task_send_set_conf(rdma, on_forwarded, on_forward_failed, count));
	}
	OK(doca_pe_connect_ctx(queue->pe, doca_rdma_as_ctx(rdma)));
	OK(doca_ctx_start(doca_rdma_as_ctx(rdma)));
}

static struct slot *new_slots(struct queue *queue, size_t offset)
{
	struct slot *slots = calloc(count, sizeof *slots);

	CHECK(slots != NULL);
	for (uint32_t i = 0; i < count; i++, offset += MESSAGE)
		slots[i] = (struct slot){queue, memory_buf(&queue->memory, offset, MESSAGE, 0),
					 queue->memory.bytes + offset};
	return slots;
}

static void open_queue(struct queue *queue)
{
	queue->memory = memory_new(control->dev, 2 * count * MESSAGE,
				   DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
					   DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	queue->requests = new_slots(queue, 0);
	queue->responses = new_slots(queue, count * MESSAGE);
	OK(doca_pe_create(&queue->pe));
	for (int role = 0; role < ROLES; role++)
		open_rdma(queue, role);
	queue->consumer = consumer_new(control, &queue->memory, count);
	queue->consumer->on_message = on_request;
	queue->consumer->context = queue;
	queue->producer = producer_new(control, count);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(queue->consumer->ctx));
	OK(doca_ctx_start(queue->producer->ctx));
}

static void start_queue(struct queue *queue)
{
	UNTIL(state_of(queue->consumer->ctx) == DOCA_CTX_STATE_RUNNING, queue->consumer->pe,
	      control->pe);
	for (uint32_t i = 0; i < count; i++) {
		post_response(&queue->responses[i]);
		(void)consumer_post(queue->consumer, queue->requests[i].buf);
	}
}

static void close_comch(struct queue *queue)
{
	while (queue->producer->sent < (int)queue->submitted)
		progress_queue(queue);
	stop(queue->consumer->ctx, queue->consumer->pe);
	stop(queue->producer->ctx, queue->producer->pe);
	consumer_destroy(queue->consumer);
	producer_destroy(queue->producer);
	queue->consumer = NULL;
	queue->producer = NULL;
}

static void close_rdma(struct queue *queue)
{
	for (int role = 0; role < ROLES; role++) {
		(void)doca_ctx_stop(ctx_of(queue, role));
		UNTIL(state_of(ctx_of(queue, role)) == DOCA_CTX_STATE_IDLE, queue->pe);
		OK(doca_rdma_destroy(queue->rdma[role]));
	}
	OK(doca_pe_destroy(queue->pe));
	for (uint32_t i = 0; i < count; i++) {
		release(queue->requests[i].buf);
		release(queue->responses[i].buf);
	}
	free(queue->requests);
	free(queue->responses);
	memory_free(&queue->memory);
}

/* The connection to the target. */

static void connect_target(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)atoi(getenv("TARGET"))),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	target = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(target >= 0 &&
	      connect(target, (struct sockaddr *)&address, sizeof address) == 0);
}

static void read_bytes(uint8_t *bytes, size_t length)
{
	while (length > 0) {
		struct pollfd ready = {.fd = target, .events = POLLIN};

		if (poll(&ready, 1, 0) > 0) {
			ssize_t n = read(target, bytes, length);

			if (n <= 0)
				fail(__FILE__, __LINE__, "the target has gone");
			bytes += n;
			length -= (size_t)n;
		}
		progress_queues();
	}
}

/* Sends a request to the target, and returns the response, which is in bytes. */
static struct control_message ask(uint32_t type, const uint8_t *payload, size_t length,
				  uint32_t correlation, uint8_t *bytes)
{
	struct control_message message = {type, requests++, correlation, payload, length}, reply;
	size_t size = encode_control(bytes, &message);

	CHECK(write(target, bytes, size) == (ssize_t)size);
	read_bytes(bytes, header_size());
	size = size_of_control(bytes);
	CHECK(size >= header_size() && size <= CONTROL_MESSAGE);
	read_bytes(bytes + header_size(), size - header_size());
	reply = decode_control(bytes, size);
	CHECK(reply.correlation == correlation);
	return reply;
}

/* Requests of the initiator. */

static void create_connection(uint32_t queue, int role, uint32_t correlation)
{
	uint8_t payload[CONTROL_MESSAGE], bytes[CONTROL_MESSAGE];
	struct queue *q = &queues[queue];
	struct connection connection = {.queue = queue, .role = (uint32_t)role};
	struct control_message reply;
	const void *details;

	OK(doca_rdma_export(q->rdma[role], &details, &connection.length, &q->connection[role]));
	connection.details = details;
	reply = ask(CREATE_CONNECTION, payload, encode_connection(payload, &connection),
		    correlation, bytes);
	CHECK(reply.type == CREATE_CONNECTION_REPLY);
	connection = decode_connection(&reply);
	CHECK(connection.queue == (dialect == DOCA_2_10 ? 0 : queue) &&
	      connection.role == (uint32_t)role);
	OK(doca_rdma_connect(q->rdma[role], connection.details, connection.length,
			     q->connection[role]));
}

static void create_connections(uint32_t correlation)
{
	for (uint32_t i = 0; i < cores; i++) {
		open_queue(&queues[i]);
		create_connection(i, dialect == DOCA_2_10 ? ROLE_CONTROL : ROLE_DATA, correlation);
		create_connection(i, dialect == DOCA_2_10 ? ROLE_DATA : ROLE_CONTROL, correlation);
	}
}

/* Passes on the initiator's memory. In 3.2 the target gets twice the transactions. */
static struct control_message init_storage(const struct control_message *request, uint8_t *bytes)
{
	struct init_storage init = decode_init(request);
	uint8_t payload[CONTROL_MESSAGE];
	struct control_message reply;
	const void *desc;

	count = 2 * init.count;
	cores = init.queues;
	host = memory_import(control->dev, init.export, init.length);
	if (dialect == DOCA_2_10)
		cores = (uint32_t)(host.size / ((size_t)init.count * init.buffer_size));
	CHECK(count <= MAX_COUNT && cores > 0 && cores <= MAX_QUEUES);
	OK(doca_mmap_export_rdma(host.mmap, control->dev, &desc, &init.length));
	init.export = desc;
	if (dialect == DOCA_3_2)
		init.count = count;
	reply = ask(INIT_STORAGE, payload, encode_init(payload, &init), request->correlation,
		    bytes);
	if (reply.type == INIT_STORAGE + 1)
		create_connections(request->correlation);
	return reply;
}

static struct control_message carry_out(const struct control_message *request, uint8_t *bytes)
{
	struct control_message reply;

	if (request->type == INIT_STORAGE)
		return init_storage(request, bytes);
	if (request->type == START_CONNECTIONS)
		create_connections(request->correlation);
	if (request->type == SHUTDOWN) {
		UNTIL(control->expired == (int)cores, control->pe);
		if (dialect == DOCA_2_10) /* which has no request to stop */
			for (uint32_t i = 0; i < cores; i++)
				close_comch(&queues[i]);
		for (uint32_t i = 0; i < cores; i++)
			close_rdma(&queues[i]);
		cores = 0;
	}
	if (request->type == START_STORAGE) {
		UNTIL(control->consumers == (int)cores, control->pe);
		for (uint32_t i = 0; i < cores; i++)
			queues[i].to = control->consumer_ids[i];
	}
	reply = ask(request->type, request->payload, request->length, request->correlation, bytes);
	if (request->type == START_STORAGE)
		for (uint32_t i = 0; i < cores; i++)
			start_queue(&queues[i]);
	if (request->type == STOP_STORAGE) {
		is_stopping = true;
		for (uint32_t i = 0; i < cores; i++)
			close_comch(&queues[i]);
	}
	if (request->type == SHUTDOWN) {
		memory_free(&host);
		is_finished = true;
	}
	return reply;
}

static void serve(void)
{
	uint8_t bytes[CONTROL_MESSAGE], answer[CONTROL_MESSAGE];
	int answered = 0;

	control = control_new(dialect == DOCA_2_10 ? "storage_zero_copy_comch" :
						     "doca_storage_comch");
	connect_target();
	(void)doca_ctx_start(control->ctx);
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	printf("ready\n");
	fflush(stdout);
	while (!is_finished) {
		struct control_message request, reply;

		if (control->messages == answered) {
			progress_queues();
			continue;
		}
		answered++;
		CHECK(control->messages == answered); /* an initiator waits for each answer */
		memcpy(bytes, control->last, control->last_length);
		request = decode_control(bytes, control->last_length);
		reply = carry_out(&request, answer);
		reply.id = request.id;

		uint8_t encoded[CONTROL_MESSAGE];

		control_send(control, encoded, encode_control(encoded, &reply));
	}
	UNTIL(control->disconnects == 1, control->pe);
	close(target);
	stop(control->ctx, control->pe);
	control_destroy(control);
	printf("%u responses\n", forwarded);
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
