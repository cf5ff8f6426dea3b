// SPDX-License-Identifier: Apache-2.0

/* A loop for benchmarks: messages through producer and consumer without a crossing per call. */

#include "call.h"

#include "doca_comch_producer.h"

static struct {
	__typeof__(doca_task_submit_ex) *submit;
	__typeof__(doca_pe_progress) *progress;
	__typeof__(doca_buf_reset_data_len) *reset;
} functions;

void docatest_loop_functions(void *submit, void *progress, void *reset)
{
	functions.submit = submit;
	functions.progress = progress;
	functions.reset = reset;
}

static uint64_t completed;

static void count(void *task, union doca_data task_data, union doca_data ctx_data)
{
	completed++;
}

void *docatest_count(void)
{
	return (void *)count;
}

static int submit_all(void **tasks, int batch)
{
	for (int i = 0; i < batch; i++) {
		uint32_t flags = i == batch - 1 ? DOCA_TASK_SUBMIT_FLAG_FLUSH
						: DOCA_TASK_SUBMIT_FLAG_NONE;

		if (functions.submit(tasks[i], flags) != DOCA_SUCCESS)
			return -1;
	}
	return 0;
}

int docatest_loop(void *producer_pe, void *consumer_pe, void **sends, void **receives, void **bufs,
		  int batch, uint64_t rounds)
{
	for (uint64_t round = 0; round < rounds; round++) {
		for (int i = 0; i < batch; i++)
			functions.reset(bufs[i]);
		if (submit_all(receives, batch) != 0 || submit_all(sends, batch) != 0)
			return -1;
		for (completed = 0; completed < 2 * (uint64_t)batch;) {
			functions.progress(producer_pe);
			functions.progress(consumer_pe);
		}
	}
	return 0;
}

uint64_t docatest_loop_empty(void *pe, uint64_t rounds)
{
	uint64_t found = 0;

	for (uint64_t round = 0; round < rounds; round++)
		found += functions.progress(pe);
	return found;
}
