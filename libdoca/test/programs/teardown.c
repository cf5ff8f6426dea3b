// SPDX-License-Identifier: Apache-2.0

/* The end of everything, in every order, while tasks of all kinds are outstanding. */

#include "remote.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <doca_dma.h>
#include <doca_sync_event.h>

enum {
	ACCESS = RDMA_ACCESS | DOCA_ACCESS_FLAG_PCI_READ_WRITE,
	SIZE = 65536,
	SLOT = 1024,
	TASKS = 8,
	BUFS = 3 * TASKS,
};

/* A DMA context with tasks that nobody progresses. */
struct copier {
	struct doca_dma *dma;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	struct doca_buf *src, *dst[TASKS];
	int ended;
};

/* One side of a channel and an RDMA connection, with work that cannot complete or that nobody
 * progresses. Its memory is exported, and imported by the peer. */
struct side {
	struct control *control;
	struct memory memory, peer;
	struct consumer *consumer;
	struct producer *producer;
	struct remote *remote;
	struct copier *copier;
	struct doca_sync_event *event;
	pthread_t waiting;
	struct doca_buf *bufs[BUFS], *source, *target, *peer_source, *peer_target;
};

static void on_copied(struct doca_dma_task_memcpy *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	(void)task_data;
	((struct copier *)ctx_data.ptr)->ended++;
	doca_task_free(doca_dma_task_memcpy_as_task(task));
}

static struct copier *copier_open(struct side *side)
{
	struct copier *copier = calloc(1, sizeof *copier);
	union doca_data data = {.ptr = copier};

	OK(doca_dma_create(side->control->dev, &copier->dma));
	copier->ctx = doca_dma_as_ctx(copier->dma);
	OK(doca_dma_task_memcpy_set_conf(copier->dma, on_copied, on_copied, TASKS));
	OK(doca_ctx_set_user_data(copier->ctx, data));
	copier->pe = new_engine(copier->ctx);
	OK(doca_ctx_start(copier->ctx));
	copier->src = memory_buf(&side->memory, 0, SLOT, SLOT);
	for (size_t i = 0; i < TASKS; i++) {
		struct doca_dma_task_memcpy *task;

		copier->dst[i] = memory_buf(&side->memory, SIZE / 2 + i * SLOT, SLOT, 0);
		OK(doca_dma_task_memcpy_alloc_init(copier->dma, copier->src, copier->dst[i], data,
						   &task));
		OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
	}
	return copier;
}

/* Waits until end_event sets the event. */
static void *wait_for_event(void *event)
{
	OK(doca_sync_event_wait_gt(event, 1, UINT64_MAX));
	return NULL;
}

static struct doca_sync_event *event_open(struct side *side)
{
	struct doca_sync_event *event;
	const uint8_t *export;
	size_t size;

	OK(doca_sync_event_create(&event));
	OK(doca_sync_event_add_subscriber_location_cpu(event, side->control->dev));
	OK(doca_sync_event_add_publisher_location_remote_net(event));
	OK(doca_sync_event_start(event));
	OK(doca_sync_event_export_to_remote_net(event, &export, &size));
	CHECK(pthread_create(&side->waiting, NULL, wait_for_event, event) == 0);
	return event;
}

static void side_open(struct side *side)
{
	const void *export;
	size_t size;

	memset(side, 0, sizeof *side);
	side->control = control_open("teardown");
	side->memory = memory_new(side->control->dev, SIZE, ACCESS);
	if (!is_dpu)
		OK(doca_mmap_export_pci(side->memory.mmap, side->control->dev, &export, &size));
	tell_memory(&side->memory, side->control->dev);
	side->peer = hear_memory(side->control->dev);
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
	side->source = memory_buf(&side->memory, SIZE - SLOT, SLOT, SLOT);
	side->target = memory_buf(&side->memory, SIZE - 2 * SLOT, SLOT, 0);
	side->peer_source = memory_buf(&side->peer, SIZE - SLOT, SLOT, SLOT);
	side->peer_target = memory_buf(&side->peer, SIZE - 3 * SLOT, SLOT, 0);
	(void)remote_read(side->remote, side->peer_source, side->target);
	(void)remote_write(side->remote, side->source, side->peer_target);
	side->copier = copier_open(side);
	side->event = event_open(side);
	control_send(side->control, "message", 8);
}

static void end_consumer(struct side *side)
{
	stop(side->consumer->ctx, side->consumer->pe);
	consumer_destroy(side->consumer);
}

static void end_producer(struct side *side)
{
	stop(side->producer->ctx, side->producer->pe);
	producer_destroy(side->producer);
}

static void end_remote(struct side *side)
{
	remote_destroy(side->remote);
}

static void end_copier(struct side *side)
{
	struct copier *copier = side->copier;

	stop(copier->ctx, copier->pe);
	CHECK(copier->ended == TASKS);
	OK(doca_dma_destroy(copier->dma));
	OK(doca_pe_destroy(copier->pe));
	release(copier->src);
	for (int i = 0; i < TASKS; i++)
		release(copier->dst[i]);
	free(copier);
}

static void end_event(struct side *side)
{
	OK(doca_sync_event_update_set(side->event, 2));
	CHECK(pthread_join(side->waiting, NULL) == 0);
	OK(doca_sync_event_stop(side->event));
	OK(doca_sync_event_destroy(side->event));
}

static void end_memory(struct side *side)
{
	for (int i = 0; i < BUFS; i++)
		release(side->bufs[i]);
	release(side->source);
	release(side->target);
	release(side->peer_source);
	release(side->peer_target);
	memory_free(&side->peer);
	memory_free(&side->memory);
}

/* Every order of consumer, producer, and RDMA on one side, with every order on the other. What the
 * peer has no part in ends at another step each time. */
static void every_order(void)
{
	enum { ENDS = 3, ORDERS = 6 };
	static void (*const orders[ORDERS][ENDS])(struct side *) = {
		{end_consumer, end_producer, end_remote}, {end_consumer, end_remote, end_producer},
		{end_producer, end_consumer, end_remote}, {end_producer, end_remote, end_consumer},
		{end_remote, end_consumer, end_producer}, {end_remote, end_producer, end_consumer},
	};

	for (int pair = 0; pair < ORDERS * ORDERS; pair++) {
		int order = is_dpu ? pair / ORDERS : pair % ORDERS;
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
		for (int i = 0; i <= ENDS; i++) {
			if (i == pair % (ENDS + 1))
				end_copier(&side);
			if (i == (pair + 1) % (ENDS + 1))
				end_event(&side);
			if (i < ENDS)
				orders[order][i](&side);
		}
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
	end_event(&side);
	end_copier(&side);
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
	/* The DPU's send fails; its receives wait for other connections. What the peer has served
	 * before may have completed. */
	UNTIL(side.remote->failed + side.remote->completed == (is_dpu ? 3 : 2), side.remote->pe);
	CHECK(!is_dpu || side.remote->failed >= 1);
	consumer_destroy(side.consumer);
	producer_destroy(side.producer);
	end_event(&side);
	end_copier(&side);
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
