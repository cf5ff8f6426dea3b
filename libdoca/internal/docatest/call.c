// SPDX-License-Identifier: Apache-2.0

#include "call.h"

#include <stddef.h>

#include "_cgo_export.h"

uint64_t docatest_call(void *function, const uint64_t *a)
{
	uint64_t (*call)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
			 uint64_t) = (uint64_t(*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
						  uint64_t, uint64_t, uint64_t))function;

	return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}

static void completed(void *task, union doca_data task_data, union doca_data ctx_data)
{
	docatestEvent(DOCATEST_COMPLETED, task, task_data.u64, ctx_data.u64, NULL, 0);
}

static void failed(void *task, union doca_data task_data, union doca_data ctx_data)
{
	docatestEvent(DOCATEST_FAILED, task, task_data.u64, ctx_data.u64, NULL, 0);
}

static void state(const union doca_data user_data, struct doca_ctx *ctx,
		  enum doca_ctx_states previous, enum doca_ctx_states next)
{
	docatestEvent(DOCATEST_STATE, ctx, previous, next, NULL, user_data.u64);
}

static void connected(void *event, void *connection, uint8_t successful)
{
	docatestEvent(DOCATEST_CONNECTED, connection, successful, event != NULL, NULL, 0);
}

static void disconnected(void *event, void *connection, uint8_t successful)
{
	docatestEvent(DOCATEST_DISCONNECTED, connection, successful, event != NULL, NULL, 0);
}

static void message(void *event, uint8_t *bytes, uint32_t length, void *connection)
{
	docatestEvent(DOCATEST_MESSAGE, connection, length, event != NULL, bytes, length);
}

static void consumer_new(void *event, void *connection, uint32_t id)
{
	docatestEvent(DOCATEST_CONSUMER_NEW, connection, id, event != NULL, NULL, 0);
}

static void consumer_expired(void *event, void *connection, uint32_t id)
{
	docatestEvent(DOCATEST_CONSUMER_EXPIRED, connection, id, event != NULL, NULL, 0);
}

static void freed(void *addr, size_t len, void *cookie)
{
	docatestEvent(DOCATEST_FREED, addr, len, (uintptr_t)cookie, NULL, 0);
}

void *docatest_callback(int kind)
{
	void *const callbacks[DOCATEST_KINDS] = {
		[DOCATEST_COMPLETED] = (void *)completed,
		[DOCATEST_FAILED] = (void *)failed,
		[DOCATEST_STATE] = (void *)state,
		[DOCATEST_CONNECTED] = (void *)connected,
		[DOCATEST_DISCONNECTED] = (void *)disconnected,
		[DOCATEST_MESSAGE] = (void *)message,
		[DOCATEST_CONSUMER_NEW] = (void *)consumer_new,
		[DOCATEST_CONSUMER_EXPIRED] = (void *)consumer_expired,
		[DOCATEST_FREED] = (void *)freed,
	};

	return callbacks[kind];
}
