/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reads random blocks of 4 KiB for some seconds, after one to warm up, and prints how many it has
 * read per second.
 *
 *	cc -O2 bench.c $(pkg-config --cflags --libs zcclient) -o bench
 *	./bench DEPTH SECONDS [CONFIGURATION]
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zcclient.h>

enum { BLOCK = 4096, MOST = 4096 };

static void must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s: %s\n", what, zc_code_name(result), zc_error_text());
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t next_random(void)
{
	static uint64_t state = 88172645463325252;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: bench DEPTH SECONDS [CONFIGURATION]\n");
		return 2;
	}
	unsigned int depth = (unsigned int)atoi(argv[1]);
	double seconds = atof(argv[2]);
	if (depth < 1 || depth > MOST)
		depth = 1;
	char configuration[1000];
	snprintf(configuration, sizeof configuration, "depth=%u,buffer_size=4KiB,%s", depth,
		argc > 3 ? argv[3] : "");
	zc_volume volume;
	zc_queue queue;
	void *memory;
	size_t length;
	struct zc_info info = { .struct_size = sizeof info };
	must(zc_open(configuration, &volume), "open");
	must(zc_get_info(volume, &info), "info");
	must(zc_get_queue(volume, 0, &queue), "queue");
	must(zc_get_memory(queue, &memory, &length), "memory");

	uint64_t blocks = info.volume_size / BLOCK, done = 0;
	unsigned int in_flight = 0, count = depth;
	static struct zc_request requests[MOST];
	static struct zc_completion completions[MOST];
	for (unsigned int i = 0; i < depth; i++)
		requests[i] = (struct zc_request){ .operation = ZC_READ, .length = BLOCK, .cookie = i,
			.memory = (char *)memory + (size_t)i * BLOCK,
			.offset = next_random() % blocks * BLOCK };
	const double warm_up = 1;
	double begun = now() + warm_up, end = begun + seconds;
	bool is_warm = false;
	do {
		if (!is_warm && now() >= begun) {
			is_warm = true;
			begun = now();
			done = 0;
		}
		/* Submit what has completed again, with other offsets. */
		must(zc_submit(queue, requests, count), "submit");
		in_flight += count;
		int n = zc_wait(queue, completions, depth, -1);
		must(n, "wait");
		count = (unsigned int)n;
		in_flight -= count;
		done += count;
		for (unsigned int i = 0; i < count; i++) {
			if (completions[i].code != ZC_SUCCESS) {
				fprintf(stderr, "read: %s\n", zc_code_name(completions[i].code));
				return 1;
			}
			requests[i].cookie = completions[i].cookie;
			requests[i].memory = (char *)memory + completions[i].cookie * BLOCK;
			requests[i].offset = next_random() % blocks * BLOCK;
		}
	} while (now() < end);
	double took = now() - begun;
	while (in_flight > 0) {
		int n = zc_wait(queue, completions, depth, -1);
		must(n, "wait");
		in_flight -= (unsigned int)n;
	}
	printf("depth %u: %" PRIu64 " reads in %.2f s: %.0f per second, %.1f us each\n", depth, done,
		took, (double)done / took, took * 1e6 * depth / (double)done);
	must(zc_close(volume), "close");
	return 0;
}
