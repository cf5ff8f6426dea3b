/* The end of everything, in every order, while tasks of all kinds are outstanding. */

#include "remote.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	ACCESS = RDMA_ACCESS | DOCA_ACCESS_FLAG_PCI_READ_WRITE,
	SIZE = 65536,
	SLOT = 1024,
	TASKS = 8,
	BUFS = 3 * TASKS,
};

/* One side of a channel and an RDMA connection, with work that cannot complete. */
struct side {
	struct control *control;
	struct memory memory;
	struct consumer *consumer;
	struct producer *producer;
	struct remote *remote;
	struct doca_buf *bufs[BUFS];
};

static void side_open(struct side *side)
{
	memset(side, 0, sizeof *side);
	side->control = control_open("teardown");
	side->memory = memory_new(side->control->dev, SIZE, ACCESS);
	side->consumer = consumer_new(side->control, &side->memory, TASKS);
	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(side->consumer->ctx));
	side->producer = producer_new(side->control, TASKS);
	OK(doca_ctx_start(side->producer->ctx));
	side->remote = remote_new(side->control->dev, true);
	remote_connect(side->remote);
	UNTIL(state_of(side->consumer->ctx) == DOCA_CTX_STATE_RUNNING, side->consumer->pe);
	UNTIL(side->control->consumers == 1, side->control->pe);
	for (size_t i = 0; i < BUFS; i++)
		side->bufs[i] = memory_buf(&side->memory, i * SLOT, SLOT, i < TASKS ? 0 : SLOT);
	/* The DPU waits for messages that do not come; the host sends what nobody receives. */
	for (size_t i = 0; i < TASKS; i++) {
		if (is_dpu) {
			(void)remote_post(side->remote, side->bufs[i]);
		} else {
			uint32_t peer = side->control->consumer_ids[0];

			(void)producer_send(side->producer, side->bufs[TASKS + i], peer, NULL, 0);
			(void)consumer_post(side->consumer, side->bufs[i]);
		}
	}
	if (is_dpu)
		(void)remote_send(side->remote, side->bufs[2 * TASKS]);
	control_send(side->control, "message", 8);
}

static void end_consumer(struct side *side)
{
	if (side->consumer == NULL)
		return;
	stop(side->consumer->ctx, side->consumer->pe);
	consumer_destroy(side->consumer);
	side->consumer = NULL;
}

static void end_producer(struct side *side)
{
	if (side->producer == NULL)
		return;
	stop(side->producer->ctx, side->producer->pe);
	producer_destroy(side->producer);
	side->producer = NULL;
}

static void end_remote(struct side *side)
{
	if (side->remote == NULL)
		return;
	remote_destroy(side->remote);
	side->remote = NULL;
}

static void end_memory(struct side *side)
{
	for (int i = 0; i < BUFS; i++)
		release(side->bufs[i]);
	memory_free(&side->memory);
}

/* Every order of consumer, producer, and RDMA, which differs between the sides. */
static void every_order(void)
{
	static void (*const orders[6][3])(struct side *) = {
		{end_consumer, end_producer, end_remote}, {end_consumer, end_remote, end_producer},
		{end_producer, end_consumer, end_remote}, {end_producer, end_remote, end_consumer},
		{end_remote, end_consumer, end_producer}, {end_remote, end_producer, end_consumer},
	};

	for (int order = 0; order < 6; order++) {
		struct side side;

		side_open(&side);
		meet();
		/* The connection lasts while it has consumers and producers. */
		if (is_dpu) {
			expect_misuse("doca_comch_server_disconnect");
			IS(DOCA_ERROR_IN_USE,
			   doca_comch_server_disconnect(side.control->server,
							side.control->connection));
		} else {
			expect_misuse("doca_ctx_stop");
			IS(DOCA_ERROR_IN_USE, doca_ctx_stop(side.control->ctx));
		}
		for (int i = 0; i < 3; i++)
			orders[is_dpu ? order : 5 - order][i](&side);
		end_memory(&side);
		control_close(side.control);
	}
}

/* The server ends the connection. */
static void server_disconnects(void)
{
	struct side side;

	side_open(&side);
	meet();
	end_producer(&side);
	end_consumer(&side);
	end_remote(&side);
	end_memory(&side);
	MEET_WHILE(side.control->pe);
	if (is_dpu) {
		OK(doca_comch_server_disconnect(side.control->server, side.control->connection));
		UNTIL(side.control->disconnects == 1, side.control->pe);
		stop(side.control->ctx, side.control->pe);
	} else {
		UNTIL(state_of(side.control->ctx) == DOCA_CTX_STATE_IDLE, side.control->pe);
	}
	control_destroy(side.control);
}

/* Either side dies without a word. The other gets all of its tasks back. */
static void dies(bool dpu_dies)
{
	struct side side;

	side_open(&side);
	meet();
	if (is_dpu == dpu_dies)
		_exit(0);
	UNTIL(state_of(side.consumer->ctx) == DOCA_CTX_STATE_IDLE &&
		      state_of(side.producer->ctx) == DOCA_CTX_STATE_IDLE,
	      side.control->pe, side.consumer->pe, side.producer->pe);
	CHECK(side.consumer->failed == (is_dpu ? 0 : TASKS));
	CHECK(side.producer->failed == (is_dpu ? 0 : TASKS));
	if (is_dpu) /* its send fails; its receives wait for other connections */
		UNTIL(side.remote->failed == 1, side.remote->pe);
	consumer_destroy(side.consumer);
	producer_destroy(side.producer);
	end_remote(&side);
	end_memory(&side);
	if (is_dpu) {
		UNTIL(side.control->disconnects == 1, side.control->pe);
		stop(side.control->ctx, side.control->pe);
	} else {
		UNTIL(state_of(side.control->ctx) == DOCA_CTX_STATE_IDLE, side.control->pe);
	}
	control_destroy(side.control);
}

static void dpu_dies(void)
{
	dies(true);
}

static void host_dies(void)
{
	dies(false);
}

/* The host dies before it connects. What the DPU has sent fails, whichever of them is to dial. */
static void host_never_connects(void)
{
	struct control *control = control_open("teardown");
	struct memory memory = memory_new(control->dev, SIZE, ACCESS);
	struct remote *remote = remote_new(control->dev, true);
	struct doca_buf *buf = memory_buf(&memory, 0, SLOT, SLOT);
	uint8_t peer[1024];
	size_t length = sizeof peer;

	OK(doca_ctx_start(remote->ctx));
	remote->connection = remote_export(remote, peer, &length);
	if (is_dpu) {
		OK(doca_rdma_connect(remote->rdma, peer, length, remote->connection));
		(void)remote_send(remote, buf);
	}
	meet();
	if (!is_dpu)
		_exit(0);
	UNTIL(remote->failed == 1, remote->pe);
	remote_destroy(remote);
	release(buf);
	memory_free(&memory);
	UNTIL(control->disconnects == 1, control->pe);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

const struct test tests[] = {
	{"every_order", every_order},
	{"server_disconnects", server_disconnects},
	{"dpu_dies", dpu_dies},
	{"host_dies", host_dies},
	{"host_never_connects", host_never_connects},
	{NULL, NULL},
};
