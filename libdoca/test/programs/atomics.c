// SPDX-License-Identifier: Apache-2.0

/* Atomics of RDMA, from two processes on the same memory. */

#include "remote.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <doca_sync_event.h>

enum { ADDS = 1000, SWAPS = 200, DEPTH = 8, PAGE = 4096 };

static struct remote *atomic_remote(struct doca_dev *dev)
{
	struct remote *remote = remote_new(dev, true);

	OK(doca_rdma_set_permissions(remote->rdma, RDMA_ATOMIC_ACCESS));
	return remote;
}

static void reuse(struct doca_buf *buf)
{
	OK(doca_buf_reset_data_len(buf));
}

/* Adds ADDS times to the word behind dst, DEPTH at a time, and stores what was fetched. */
static void add_many(struct remote *remote, struct doca_buf *dst, const struct memory *results,
		     uint64_t *fetched)
{
	struct doca_buf *bufs[DEPTH];

	for (size_t i = 0; i < DEPTH; i++)
		bufs[i] = memory_buf(results, 8 * i, 8, 0);
	for (int done = 0; done < ADDS; done += DEPTH) {
		remote->completed = 0;
		for (size_t i = 0; i < DEPTH; i++)
			(void)remote_fetch_add(remote, dst, bufs[i], 1);
		UNTIL(remote->completed == DEPTH, remote->pe);
		memcpy(fetched + done, results->bytes, 8 * DEPTH);
		for (size_t i = 0; i < DEPTH; i++)
			reuse(bufs[i]);
	}
	for (size_t i = 0; i < DEPTH; i++)
		release(bufs[i]);
}

/* Adds 1 to the word behind dst SWAPS times, by comparing and swapping. */
static void swap_many(struct remote *remote, struct doca_buf *dst, const struct memory *results)
{
	struct doca_buf *result = memory_buf(results, 0, 8, 0);
	uint64_t expected = 0, found;

	for (int swaps = 0; swaps < SWAPS;) {
		remote->completed = 0;
		(void)remote_compare_swap(remote, dst, result, expected, expected + 1);
		UNTIL(remote->completed == 1, remote->pe);
		reuse(result);
		memcpy(&found, results->bytes, 8);
		swaps += found == expected;
		expected = found == expected ? expected + 1 : found;
	}
	release(result);
}

enum { OWN = 32 }; /* the bit from which the host counts its own additions */

static struct {
	uint64_t *word;
	bool is_over; /* atomic */
	uint32_t count;
} own;

/* Adds to a word without end: an addition of a peer that is not atomic loses some of these. */
static void *add_meanwhile(void *data)
{
	(void)data;
	for (; !__atomic_load_n(&own.is_over, __ATOMIC_RELAXED); own.count++)
		__atomic_fetch_add(own.word, UINT64_C(1) << OWN, __ATOMIC_SEQ_CST);
	return NULL;
}

/* The host exports a page over PCI, and each process exports it for RDMA. So each changes it
 * through the other, and the host changes it itself. */
static void between_processes(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = atomic_remote(dev);
	struct memory results = memory_new(dev, PAGE, RDMA_ACCESS), shared, peer;
	static uint64_t fetched[2 * ADDS];
	bool seen[2 * ADDS] = {false};
	struct doca_buf *first, *second;
	const void *desc;
	uint8_t heard[1024];
	size_t length;
	pthread_t adding;

	if (is_dpu) {
		length = hear(heard, sizeof heard);
		shared = memory_import(dev, heard, length);
	} else {
		void *page = aligned_alloc(PAGE, PAGE);

		memset(page, 0, PAGE);
		shared = memory_over(dev, page, PAGE,
				     RDMA_ATOMIC_ACCESS | DOCA_ACCESS_FLAG_PCI_READ_WRITE);
		OK(doca_mmap_export_pci(shared.mmap, dev, &desc, &length));
		tell(desc, length);
	}
	remote_connect(remote);
	tell_memory(&shared, dev);
	peer = hear_memory(dev);
	first = memory_buf(&peer, 64, 8, 8);
	second = memory_buf(&peer, 128, 16, 0); /* what counts is where its data begins */
	if (!is_dpu) {
		own.word = (uint64_t *)(shared.bytes + 64);
		CHECK(pthread_create(&adding, NULL, add_meanwhile, NULL) == 0);
	}
	meet();
	add_many(remote, first, &results, fetched);
	swap_many(remote, second, &results);
	MEET_WHILE(remote->pe);
	tell(fetched, 8 * ADDS);
	CHECK(hear(fetched + ADDS, 8 * ADDS) == 8 * ADDS);
	for (int i = 0; i < 2 * ADDS; i++) {
		uint32_t before = (uint32_t)fetched[i];

		CHECK(before < 2 * ADDS && !seen[before]);
		seen[before] = true;
	}
	if (!is_dpu) {
		uint64_t words[2];

		__atomic_store_n(&own.is_over, true, __ATOMIC_RELAXED);
		CHECK(pthread_join(adding, NULL) == 0);
		memcpy(&words[0], shared.bytes + 64, 8);
		memcpy(&words[1], shared.bytes + 128, 8);
		CHECK((uint32_t)words[0] == 2 * ADDS && words[0] >> OWN == own.count);
		CHECK(words[1] == 2 * SWAPS);
	}
	CHECK(remote->failed == 0);
	release(first);
	release(second);
	MEET_WHILE(remote->pe);
	remote_destroy(remote);
	memory_free(&peer);
	meet();
	if (is_dpu)
		memory_free(&shared);
	meet();
	if (!is_dpu) {
		memory_free(&shared);
		free(shared.bytes);
	}
	memory_free(&results);
	OK(doca_dev_close(dev));
}

enum refusal { OF_MEMORY, OF_CONTEXT, REVOKED, NOT_MAPPED, REFUSALS };

/* Exports memory that atomics cannot change, for the reason that round says. */
static void tell_of_refusal(struct doca_dev *dev, enum refusal round)
{
	uint32_t access = round == OF_MEMORY ? RDMA_ACCESS : RDMA_ATOMIC_ACCESS;
	struct memory memory;

	if (round == NOT_MAPPED) { /* it shares its page with other memory */
		uint8_t desc[1024];
		size_t length = hear(desc, sizeof desc);

		memory = memory_import(dev, desc, length);
	} else {
		memory = memory_new(dev, 64, access);
	}
	tell_memory(&memory, dev);
	meet();
	if (round == REVOKED)
		memory_revoke(&memory);
	meet();
	meet();
	memory_free(&memory);
}

/* What the peer has not exported for atomics ends the connection, and changes nothing. */
static void refused(void)
{
	struct doca_dev *dev = open_own_device();

	for (enum refusal round = 0; round < REFUSALS; round++) {
		struct remote *remote = atomic_remote(dev);

		if (is_dpu && round == OF_CONTEXT)
			OK(doca_rdma_set_permissions(remote->rdma, RDMA_ACCESS));
		remote_connect(remote);
		if (is_dpu) {
			tell_of_refusal(dev, round);
		} else {
			struct memory memory = memory_new(dev, 64, RDMA_ACCESS), peer;
			uint64_t word[8] = {7};
			struct memory exported =
				memory_over(dev, word, sizeof word,
					    RDMA_ATOMIC_ACCESS | DOCA_ACCESS_FLAG_PCI_READ_WRITE);
			struct doca_buf *result = memory_buf(&memory, 0, 8, 0), *dst;
			const void *desc;
			size_t length;

			if (round == NOT_MAPPED) {
				OK(doca_mmap_export_pci(exported.mmap, dev, &desc, &length));
				tell(desc, length);
			}
			peer = hear_memory(dev);
			dst = memory_buf(&peer, 56, 8, 8);
			meet();
			meet();
			(void)remote_fetch_add(remote, dst, result, 1);
			UNTIL(remote->failed == 1, remote->pe);
			CHECK(remote->last_status == DOCA_ERROR_IO_FAILED);
			CHECK(word[0] == 7 && word[7] == 0);
			meet();
			release(result);
			release(dst);
			memory_free(&peer);
			memory_free(&exported);
			memory_free(&memory);
		}
		remote_destroy(remote);
	}
	OK(doca_dev_close(dev));
}

static struct doca_rdma_task_atomic_cmp_swp *checked;

/* Submits the task with other bufs, which is misuse. */
static void submit_wrongly(struct doca_buf *dst, struct doca_buf *result, doca_error_t expected)
{
	doca_rdma_task_atomic_cmp_swp_set_dst_buf(checked, dst);
	doca_rdma_task_atomic_cmp_swp_set_result_buf(checked, result);
	expect_misuse("doca_task_submit");
	IS(expected, doca_task_submit(doca_rdma_task_atomic_cmp_swp_as_task(checked)));
}

static void misuse(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = atomic_remote(dev);
	struct memory memory = memory_new(dev, 64, RDMA_ATOMIC_ACCESS), peer, read_only;
	struct doca_buf *word, *unaligned, *short_word, *result, *full, *constant;
	struct doca_rdma_task_atomic_fetch_add *add;
	union doca_data none = {.u64 = 0};
	uint64_t bytes[8], found;

	remote_connect(remote);
	tell_memory(&memory, dev);
	peer = hear_memory(dev);
	read_only = memory_over(dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_ONLY);
	word = memory_buf(&peer, 0, 8, 8);
	unaligned = memory_buf(&peer, 4, 8, 8);
	short_word = memory_buf(&peer, 8, 7, 7);
	result = memory_buf(&memory, 32, 8, 0);
	full = memory_buf(&memory, 48, 8, 1);
	constant = memory_buf(&read_only, 0, 8, 0);
	OK(doca_rdma_task_atomic_cmp_swp_allocate_init(remote->rdma, remote->connection, word,
						       result, 0, 5, none, &checked));
	submit_wrongly(NULL, result, DOCA_ERROR_INVALID_VALUE);
	submit_wrongly(unaligned, result, DOCA_ERROR_INVALID_VALUE);
	submit_wrongly(short_word, result, DOCA_ERROR_INVALID_VALUE);
	submit_wrongly(result, full, DOCA_ERROR_INVALID_VALUE); /* dst is of this side */
	submit_wrongly(word, NULL, DOCA_ERROR_INVALID_VALUE);
	submit_wrongly(word, full, DOCA_ERROR_INVALID_VALUE);
	submit_wrongly(word, unaligned, DOCA_ERROR_INVALID_VALUE); /* result is of the peer */
	submit_wrongly(word, constant, DOCA_ERROR_NOT_PERMITTED);
	/* Two tasks may change one word at once, but not share a result. */
	OK(doca_rdma_task_atomic_fetch_add_allocate_init(remote->rdma, remote->connection, word,
							 result, 3, none, &add));
	OK(doca_task_submit(doca_rdma_task_atomic_fetch_add_as_task(add)));
	submit_wrongly(word, result, DOCA_ERROR_IN_USE);
	expect_misuse("doca_rdma_task_atomic_fetch_add_set_add_data");
	doca_rdma_task_atomic_fetch_add_set_add_data(add, 9);
	UNTIL(remote->completed == 1, remote->pe);
	reuse(result);
	doca_rdma_task_atomic_cmp_swp_set_cmp_data(checked, 3);
	OK(doca_task_submit(doca_rdma_task_atomic_cmp_swp_as_task(checked)));
	UNTIL(remote->completed == 2, remote->pe);
	MEET_WHILE(remote->pe);
	memcpy(&found, memory.bytes, 8);
	CHECK(found == 5); /* what the other process has done to this one */
	memcpy(&found, memory.bytes + 32, 8);
	CHECK(found == 3);
	for (size_t i = 0; i < 6; i++)
		release((struct doca_buf *[]){word, unaligned, short_word, result, full,
					      constant}[i]);
	meet();
	remote_destroy(remote);
	memory_free(&peer);
	memory_free(&read_only);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

static void on_added(struct doca_rdma_task_remote_net_sync_event_notify_add *task,
		     union doca_data task_data, union doca_data ctx_data)
{
	struct doca_task *base = doca_rdma_task_remote_net_sync_event_notify_add_as_task(task);

	(void)task_data;
	CHECK(doca_task_get_status(base) == DOCA_SUCCESS);
	((struct remote *)ctx_data.ptr)->completed++;
	doca_task_free(base);
}

/* A peer adds to a sync event, while its owner does. */
static void sync_event(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, true);
	union doca_data none = {.u64 = 0};

	OK(doca_rdma_task_remote_net_sync_event_notify_add_set_conf(remote->rdma, on_added, on_added,
								    1));
	remote_connect(remote);
	if (is_dpu) {
		struct doca_sync_event *event;
		const uint8_t *export;
		uint64_t value;
		size_t size;

		OK(doca_sync_event_create(&event));
		OK(doca_sync_event_add_subscriber_location_cpu(event, dev));
		OK(doca_sync_event_add_publisher_location_remote_net(event));
		OK(doca_sync_event_start(event));
		OK(doca_sync_event_export_to_remote_net(event, &export, &size));
		tell(export, size);
		for (int i = 0; i < ADDS; i++)
			OK(doca_sync_event_update_add(event, 1, &value));
		meet();
		OK(doca_sync_event_get(event, &value));
		CHECK(value == 3 * ADDS);
		OK(doca_sync_event_stop(event));
		OK(doca_sync_event_destroy(event));
	} else {
		struct memory memory = memory_new(dev, 64, RDMA_ACCESS);
		struct doca_buf *result = memory_buf(&memory, 0, 8, 0);
		struct doca_rdma_task_remote_net_sync_event_notify_add *task;
		struct doca_sync_event_remote_net *event;
		uint8_t export[1024];
		uint64_t value = 0, before = 0;

		OK(doca_sync_event_remote_net_create_from_export(
			dev, export, hear(export, sizeof export), &event));
		for (int i = 0; i < ADDS; i++) {
			OK(doca_rdma_task_remote_net_sync_event_notify_add_allocate_init(
				remote->rdma, remote->connection, event, result, 2, none, &task));
			OK(doca_task_submit(
				doca_rdma_task_remote_net_sync_event_notify_add_as_task(task)));
			UNTIL(remote->completed == i + 1, remote->pe);
			reuse(result);
			memcpy(&value, memory.bytes, 8);
			CHECK(i == 0 || value >= before + 2);
			before = value;
		}
		meet();
		OK(doca_sync_event_remote_net_destroy(event));
		release(result);
		memory_free(&memory);
	}
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"between_processes", between_processes},
	{"refused", refused},
	{"misuse", misuse},
	{"sync_event", sync_event},
	{NULL, NULL},
};
