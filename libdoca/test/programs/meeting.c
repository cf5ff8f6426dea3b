// SPDX-License-Identifier: Apache-2.0

/* A client of a server that is not a program on libdoca, and that returns what it gets. */

#include "program.h"

#include <stdlib.h>
#include <string.h>

enum { ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE };

static void echo(void)
{
	struct control *control = control_new("meeting");
	struct memory memory = memory_new(control->dev, 4096, ACCESS);
	struct doca_buf *src = memory_buf(&memory, 0, 1000, 1000);
	struct doca_buf *dst = memory_buf(&memory, 2000, 1000, 0);

	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(control->ctx));
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	OK(doca_comch_client_get_connection(control->client, &control->connection));
	control_send(control, "to the relay", 13);
	UNTIL(control->messages == 1, control->pe);
	CHECK(control->last_length == 13 && strcmp((char *)control->last, "to the relay") == 0);

	struct consumer *consumer = consumer_new(control, &memory, 4);
	struct producer *producer = producer_new(control, 4);

	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(consumer->ctx));
	OK(doca_ctx_start(producer->ctx));
	UNTIL(state_of(consumer->ctx) == DOCA_CTX_STATE_RUNNING, consumer->pe, control->pe);
	(void)consumer_post(consumer, dst);
	UNTIL(control->consumers == 1, control->pe);
	memset(memory.bytes, 'x', 1000);
	(void)producer_send(producer, src, control->consumer_ids[0], "immediate", 10);
	UNTIL(consumer->received == 1, control->pe, consumer->pe, producer->pe);
	CHECK(memcmp(memory.bytes, memory.bytes + 2000, 1000) == 0);
	CHECK(consumer->last_immediate_length == 10);
	CHECK(memcmp(consumer->last_immediate, "immediate", 10) == 0);
	stop(consumer->ctx, consumer->pe);
	stop(producer->ctx, producer->pe);
	consumer_destroy(consumer);
	producer_destroy(producer);
	release(src);
	release(dst);
	memory_free(&memory);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

/* Exports memory of the heap, whose pages are whole or not, to a server that imports and changes
 * it, if it can. Afterwards the memory is as it was before, and nobody else's. */
static void export_heap(size_t offset)
{
	enum { SIZE = 5 << 20 };
	struct control *control = control_new("meeting");
	uint8_t *bytes = aligned_alloc(4096, SIZE);
	uint8_t *exported = bytes + offset;
	const void *desc;
	size_t length;

	IS(DOCA_ERROR_IN_PROGRESS, doca_ctx_start(control->ctx));
	UNTIL(state_of(control->ctx) == DOCA_CTX_STATE_RUNNING, control->pe);
	OK(doca_comch_client_get_connection(control->client, &control->connection));
	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (uint8_t)(i % 251);

	struct memory memory = memory_over(control->dev, exported, SIZE - 2 * offset, ACCESS);

	OK(doca_mmap_export_pci(memory.mmap, control->dev, &desc, &length));
	for (size_t i = 0; i < SIZE; i++)
		CHECK(bytes[i] == (uint8_t)(i % 251));
	control_send(control, desc, length);
	UNTIL(control->messages == 1, control->pe);

	bool imported = control->last[0] == 'y';

	CHECK(imported == (offset == 0));
	CHECK(exported[4096] == (imported ? 'A' : (uint8_t)((4096 + offset) % 251)));
	exported[0] = 'B';
	control_send(control, "look", 4);
	UNTIL(control->messages == 2, control->pe);
	memory_free(&memory);
	CHECK(exported[0] == 'B');
	for (size_t i = 8192; i < SIZE - offset; i++)
		CHECK(bytes[i] == (uint8_t)(i % 251));
	control_send(control, "late", 4);
	UNTIL(control->messages == 3, control->pe);
	CHECK(exported[0] == 'B');
	free(bytes);
	stop(control->ctx, control->pe);
	control_destroy(control);
}

static void whole_pages(void)
{
	export_heap(0);
}

static void parts_of_pages(void)
{
	export_heap(64);
}

const struct test tests[] = {
	{"echo", echo},
	{"whole_pages", whole_pages},
	{"parts_of_pages", parts_of_pages},
	{NULL, NULL},
};
