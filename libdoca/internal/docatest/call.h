/* SPDX-License-Identifier: Apache-2.0 */

/* Calls of the functions of libdoca, by their names, and callbacks that tell Go what happened. */
#ifndef DOCATEST_CALL_H
#define DOCATEST_CALL_H

#include <stdint.h>

#include "doca_buf.h"
#include "doca_buf_inventory.h"
#include "doca_ctx.h"
#include "doca_dev.h"
#include "doca_dma.h"
#include "doca_error.h"
#include "doca_log.h"
#include "doca_mmap.h"
#include "doca_pe.h"
#include "doca_rdma_bridge.h"
#include "doca_types.h"
#include "doca_version.h"

enum { DOCATEST_ARGUMENTS = 8 };

/* All arguments of DOCA travel in integer registers, and so do all results. */
uint64_t docatest_call(void *function, const uint64_t *arguments);

enum docatest_kind {
	DOCATEST_COMPLETED,
	DOCATEST_FAILED,
	DOCATEST_STATE,
	DOCATEST_CONNECTED,
	DOCATEST_DISCONNECTED,
	DOCATEST_MESSAGE,
	DOCATEST_CONSUMER_NEW,
	DOCATEST_CONSUMER_EXPIRED,
	DOCATEST_FREED,
	DOCATEST_KINDS,
};

/* The callback that reports a kind of event. */
void *docatest_callback(int kind);

/* A function that the DOCA providers use, and whether they cannot do without it. */
struct docatest_function {
	const char *name;
	int required;
};

const struct docatest_function *docatest_provider_functions(int *count);

/* For benchmarks: the functions that the loops call, a callback that counts, rounds of batches of
 * messages, and rounds of progress that finds nothing. */
void docatest_loop_functions(void *submit, void *progress, void *reset);
void *docatest_count(void);
int docatest_loop(void *producer_pe, void *consumer_pe, void **sends, void **receives, void **bufs,
		  int batch, uint64_t rounds);
uint64_t docatest_loop_empty(void *pe, uint64_t rounds);

#endif
