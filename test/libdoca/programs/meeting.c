/* A client of a server that is not a program on libdoca, and that returns what it gets. */

#include "program.h"

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

const struct test tests[] = {
	{"echo", echo},
	{NULL, NULL},
};
