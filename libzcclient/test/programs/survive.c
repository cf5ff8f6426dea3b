/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two threads write and read blocks of a queue each, and repeat what fails, while the test kills
 * or stops the relay. In the end every block has what was last written to it.
 *
 * Usage: survive CONFIGURATION    until standard input ends
 */

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "program.h"

enum { QUEUES = 2, DEPTH = 16, BLOCKS = 64 };

static zc_volume volume;
static struct zc_info info;
static atomic_bool is_over;
static atomic_ullong written; /* requests that have succeeded */
static atomic_uint quarantined, replaced;

struct worker {
	unsigned int number;
	zc_queue queue;
	char *memory;
	size_t length;
	uint32_t versions[BLOCKS];  /* that were last written */
	bool are_known[BLOCKS];     /* false while a write is outstanding */
	unsigned int block_of[DEPTH];
	bool is_reading[DEPTH], is_busy[DEPTH], is_parked[DEPTH];
	unsigned int outstanding;
	int descriptor;
};

static char *buffer(struct worker *w, unsigned int slot)
{
	return w->memory + ((size_t)w->number * DEPTH + slot) * info.block_size;
}

static uint64_t content(struct worker *w, unsigned int block)
{
	return (uint64_t)w->number << 56 | (uint64_t)block << 32 | w->versions[block];
}

static void submit(struct worker *w, unsigned int slot)
{
	unsigned int block = w->block_of[slot];
	struct zc_request request = { .operation = w->is_reading[slot] ? ZC_READ : ZC_WRITE,
		.offset = ((uint64_t)w->number * BLOCKS + block) * info.block_size,
		.length = info.block_size, .memory = buffer(w, slot), .cookie = slot };
	uint64_t *words = (uint64_t *)buffer(w, slot);
	for (uint32_t i = 0; i < info.block_size / sizeof *words; i++)
		words[i] = w->is_reading[slot] ? ~0ull : content(w, block);
	CHECK(MUST(zc_submit(w->queue, &request, 1)) == 1);
	w->is_busy[slot] = true;
	w->outstanding++;
}

static void check(struct worker *w, unsigned int slot)
{
	const uint64_t *words = (const uint64_t *)buffer(w, slot);
	uint64_t want = content(w, w->block_of[slot]);
	for (uint32_t i = 0; i < info.block_size / sizeof *words; i++)
		if (words[i] != want)
			FAIL("queue %u, block %u: read %llx, want %llx", w->number, w->block_of[slot],
				(unsigned long long)words[i], (unsigned long long)want);
}

/* replace_memory switches to new memory, and submits again what has waited for that. */
static void replace_memory(struct worker *w)
{
	void *memory;
	MUST(zc_switch_memory(w->queue, &memory, &w->length));
	CHECK(memory != w->memory);
	w->memory = memory;
	replaced++;
	for (unsigned int slot = 0; slot < DEPTH; slot++)
		if (w->is_parked[slot]) {
			w->is_parked[slot] = false;
			submit(w, slot);
		}
}

static void complete(struct worker *w, const struct zc_completion *c)
{
	unsigned int slot = (unsigned int)c->cookie;
	CHECK(w->is_busy[slot] && !w->is_parked[slot]);
	w->outstanding--;
	if (c->flags & ZC_QUARANTINED)
		quarantined++;
	switch (c->code) {
	case ZC_SUCCESS:
		w->is_busy[slot] = false;
		if (w->is_reading[slot])
			check(w, slot);
		else
			written++;
		w->are_known[w->block_of[slot]] = true;
		return;
	case ZC_MEMORY_REPLACED:
		w->is_parked[slot] = true; /* until nothing uses the former memory */
		return;
	case ZC_CONNECTION_RESET:
	case ZC_SHUTDOWN:
	case ZC_TIME_OUT:
	case ZC_NOT_CONNECTED:
		submit(w, slot); /* the block is busy until this has succeeded */
		return;
	}
	FAIL("a request fails with %s", zc_code_name(c->code));
}

static bool has_parked(const struct worker *w)
{
	for (unsigned int slot = 0; slot < DEPTH; slot++)
		if (w->is_parked[slot])
			return true;
	return false;
}

/* collect waits for completions with the descriptor, or without. */
static void collect(struct worker *w)
{
	struct zc_completion completions[DEPTH];
	int n;
	if (w->number == 0) {
		n = MUST(zc_wait(w->queue, completions, DEPTH, -1));
	} else {
		struct pollfd wait = { .fd = w->descriptor, .events = POLLIN };
		if (MUST(zc_arm(w->queue)) == 1)
			CHECK(poll(&wait, 1, -1) == 1);
		n = MUST(zc_poll(w->queue, completions, DEPTH));
	}
	for (int i = 0; i < n; i++)
		complete(w, &completions[i]);
	if (w->outstanding == 0 && has_parked(w))
		replace_memory(w);
}

static void *work(void *argument)
{
	struct worker *w = argument;
	unsigned int next = 0;
	while (!is_over || w->outstanding > 0) {
		for (unsigned int slot = 0; slot < DEPTH && !is_over; slot++, next++) {
			unsigned int block = next * 7 % BLOCKS;
			bool is_reading = next % 3 == 2 && w->versions[block] > 0;
			if (w->is_busy[slot] || has_parked(w) || (!w->are_known[block] && w->versions[block] > 0))
				continue;
			w->are_known[block] = false;
			w->versions[block] += !is_reading;
			w->block_of[slot] = block;
			w->is_reading[slot] = is_reading;
			submit(w, slot);
		}
		collect(w);
	}
	/* All blocks once more. */
	for (unsigned int block = 0; block < BLOCKS; block++) {
		if (w->versions[block] == 0)
			continue;
		w->block_of[0] = block;
		w->is_reading[0] = true;
		submit(w, 0);
		while (w->outstanding > 0)
			collect(w);
	}
	return NULL;
}

/* report tells the test now and then how many requests have succeeded. */
static void *report(void *unused)
{
	while (!is_over) {
		printf("quarantined %u\n%llu\n", quarantined, (unsigned long long)written);
		fflush(stdout);
		usleep(10000);
	}
	return unused;
}

int main(int argc, char **argv)
{
	static struct worker workers[QUEUES];
	pthread_t threads[QUEUES], reporter;
	char unused;
	if (argc != 2)
		FAIL("usage: survive CONFIGURATION");
	MUST(zc_open(argv[1], &volume));
	info.struct_size = sizeof info;
	MUST(zc_get_info(volume, &info));
	CHECK(info.queues == QUEUES && info.depth == DEPTH);
	for (unsigned int i = 0; i < QUEUES; i++) {
		void *memory;
		workers[i].number = i;
		MUST(zc_get_queue(volume, i, &workers[i].queue));
		MUST(zc_get_memory(workers[i].queue, &memory, &workers[i].length));
		MUST(zc_get_descriptor(workers[i].queue, &workers[i].descriptor));
		workers[i].memory = memory;
		CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
	}
	CHECK(pthread_create(&reporter, NULL, report, NULL) == 0);
	CHECK(read(STDIN_FILENO, &unused, 1) == 0);
	is_over = true;
	for (unsigned int i = 0; i < QUEUES; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(pthread_join(reporter, NULL) == 0);
	MUST(zc_get_info(volume, &info));
	MUST(zc_close(volume));
	printf("reopened %u, replaced %u\n", info.sessions_lost, replaced);
	return 0;
}
