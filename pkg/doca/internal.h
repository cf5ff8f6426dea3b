/* SPDX-License-Identifier: Apache-2.0 */

// What the C files of this package share beyond shim.h.

#ifndef ZC_DOCA_INTERNAL_H
#define ZC_DOCA_INTERNAL_H

#include "shim.h"

// CHECK calls a function of the table f, and returns from the caller if it fails. The caller has
// the variables f, step, and result.
#define CHECK(name, ...)                                                                          \
	do {                                                                                      \
		*step = "doca_" #name;                                                            \
		result = f->name(__VA_ARGS__);                                                    \
		if (result != DOCA_SUCCESS)                                                       \
			return result;                                                            \
	} while (0)

doca_error_t zcd_context_attach(struct zcd_context *context, struct zcd_engine *engine,
				struct doca_ctx *ctx, const char **step);
void zcd_context_fail(struct zcd_context *context, doca_error_t code);

// zcd_enter begins a turn, unless the context was revoked. Either the turn sees that, or the revoker
// sees the turn.
static inline int zcd_enter(struct zcd_context *context)
{
	__atomic_store_n(&context->busy, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&context->revoked, __ATOMIC_SEQ_CST))
		return 1;
	__atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
	return 0;
}

static inline void zcd_leave(struct zcd_context *context)
{
	__atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
}

// zcd_lock_buffers begins to take buffers from memory maps, or to return them, that other threads
// may use. Maps are thread-safe from DOCA 3.0 on; before that, one lock serves all of them.
void zcd_lock_buffers(const struct zcd_functions *f);
void zcd_unlock_buffers(const struct zcd_functions *f);

static inline uint32_t zcd_power_of_two(uint32_t n)
{
	uint32_t power = 1;

	while (power < n)
		power <<= 1;
	return power;
}

#endif
