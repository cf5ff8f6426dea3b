/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What libzcclient.so calls in its private part, which is written in Go and loaded by the first
 * zc_open. Both are always of the same build.
 */

#ifndef ZC_CORE_H
#define ZC_CORE_H

#include <stdint.h>

#include "../include/zcclient.h"

enum {
	ZC_CORE_VOLUMES = 256,           /* open at the same time */
	ZC_CORE_QUEUES_PER_VOLUME = 64   /* the limit of the protocol */
};

/* Why a call has failed. */
struct zc_core_error {
	int32_t code;
	int32_t number; /* an errno, or 0 for that of the code */
	char text[1000];
};

/* What zc_core_open tells of a volume that stays as it is. */
struct zc_core_terms {
	uint32_t queues, depth, block_size, buffer_size;
};

/* A request that the library has checked. */
struct zc_core_request {
	uint32_t operation, flags;
	uint64_t offset, length;
	uint64_t memory; /* an offset in the memory of the queue */
	uint64_t cookie;
};

/*
 * What a queue's thread and the private part share. Only that thread uses it, and the private part
 * in its calls.
 */
struct zc_core_turn {
	struct zc_core_request *pending; /* a ring of depth requests that were not sent */
	uint32_t depth;
	uint32_t head, tail;   /* of pending: count requests since the beginning */
	uint64_t volume_size;  /* set by each turn */
	struct zc_completion *completions;
	uint32_t capacity;
	int32_t milliseconds;  /* to wait for a completion */
};

/* The name of each function of the private part, its result, and its arguments. */
#define ZC_CORE_FUNCTIONS(F) \
	F(zc_core_version, const char *, (void)) \
	F(zc_core_open, int32_t, (uint32_t volume, const char *configuration, \
		struct zc_core_terms *terms, struct zc_core_error *error)) \
	F(zc_core_info, void, (uint32_t volume, struct zc_info *info)) \
	F(zc_core_check, int32_t, (uint32_t volume, struct zc_core_error *error)) \
	F(zc_core_close, int32_t, (uint32_t volume, struct zc_core_error *error)) \
	F(zc_core_memory, void *, (uint32_t queue, int32_t is_switched, uint64_t *length)) \
	F(zc_core_turn, uint32_t, (uint32_t queue, struct zc_core_turn *turn)) \
	F(zc_core_descriptor, int32_t, (uint32_t queue, struct zc_core_error *error)) \
	F(zc_core_arm, int32_t, (uint32_t queue, struct zc_core_turn *turn))

#endif
