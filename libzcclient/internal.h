/* SPDX-License-Identifier: Apache-2.0 */

#ifndef ZC_INTERNAL_H
#define ZC_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/core.h"

#define ZC_HIDDEN __attribute__((visibility("hidden")))

/* The functions of the private part, once zc_core_load has succeeded. */
struct zc_core_functions {
#define ZC_CORE_POINTER(name, result, arguments) result(*name) arguments;
	ZC_CORE_FUNCTIONS(ZC_CORE_POINTER)
#undef ZC_CORE_POINTER
};
extern ZC_HIDDEN struct zc_core_functions zc_core;

/* load.c */

/* zc_core_load loads the private part unless that was done, and starts its runtime. */
ZC_HIDDEN int zc_core_load(void);

/* zc_is_forked reports whether this process is the child of one in which the runtime runs. */
ZC_HIDDEN bool zc_is_forked(void);

/* error.c */

/* zc_fail keeps what zc_error_text and zc_error_number return, and returns the code. */
ZC_HIDDEN int zc_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* zc_fail_plainly is zc_fail for a text that is a constant, and costs less. */
ZC_HIDDEN int zc_fail_plainly(int code, const char *text);

/* zc_error_buffer returns where the private part writes this thread's error. */
ZC_HIDDEN struct zc_core_error *zc_error_buffer(void);

/* zc_fail_as_told keeps the error that the private part has written, and returns its code. */
ZC_HIDDEN int zc_fail_as_told(void);

ZC_HIDDEN int zc_errno_of(int code);

/* volume.c */

enum { ZC_KIND_VOLUME = 1, ZC_KIND_QUEUE = 2 };

/*
 * A queue. Its slot is never freed, so a handle of a closed queue is recognized: a handle has the
 * generation of the slot in its upper half.
 */
struct zc_queue_slot {
	_Alignas(128) atomic_int busy; /* a thread is in a call for it; shares no cache line */
	_Atomic uint64_t handle;      /* of the open queue, 0 if there is none */
	struct zc_core_turn turn;
	uint32_t outstanding;         /* taken by zc_submit, and not completed yet */
	uint32_t block_size, buffer_size;
	char *memory;
	uint64_t memory_length;
	bool has_descriptor;
};
extern ZC_HIDDEN struct zc_queue_slot zc_queues[ZC_CORE_VOLUMES * ZC_CORE_QUEUES_PER_VOLUME];

#endif
