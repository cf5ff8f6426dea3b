/* SPDX-License-Identifier: Apache-2.0 */

/* What the test programs share. */

#ifndef PROGRAM_H
#define PROGRAM_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zcclient.h>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
	fprintf(stderr, "\n"), exit(1))

/* CHECK ends the program unless a condition holds. */
#define CHECK(condition) ((condition) ? (void)0 : FAIL("%s: %s", #condition, zc_error_text()))

/* MUST ends the program if a call fails, and returns its result. */
#define MUST(call) must(call, #call, __LINE__)

static inline int must(int result, const char *call, int line)
{
	if (result < 0) {
		fprintf(stderr, "line %d: %s: %s: %s\n", line, call, zc_code_name(result),
			zc_error_text());
		exit(1);
	}
	return result;
}

/* EXPECT ends the program unless a call returns a code, with a text and an errno. */
#define EXPECT(code, call) expect(code, call, #call, __LINE__)

static inline void expect(int code, int result, const char *call, int line)
{
	if (result == code && zc_error_text()[0] != '\0' && zc_error_number() != 0)
		return;
	fprintf(stderr, "line %d: %s returned %d (%s, errno %d, %s), want %s\n", line, call, result,
		zc_code_name(result), zc_error_number(), zc_error_text(), zc_code_name(code));
	exit(1);
}

/* An open volume with its first queue. */
struct opened {
	zc_volume volume;
	struct zc_info info;
	zc_queue queue;
	char *memory;
	size_t length;
};

static inline struct opened open_volume(const char *configuration)
{
	struct opened o = { .info = { .struct_size = sizeof o.info } };
	void *memory;
	MUST(zc_open(configuration, &o.volume));
	MUST(zc_get_info(o.volume, &o.info));
	MUST(zc_get_queue(o.volume, 0, &o.queue));
	MUST(zc_get_memory(o.queue, &memory, &o.length));
	o.memory = memory;
	return o;
}

/* carry_out submits a request, and returns its completion. */
static inline struct zc_completion carry_out(zc_queue queue, struct zc_request request)
{
	struct zc_completion completion;
	CHECK(MUST(zc_submit(queue, &request, 1)) == 1);
	CHECK(MUST(zc_wait(queue, &completion, 1, -1)) == 1);
	CHECK(completion.cookie == request.cookie);
	return completion;
}

/* tell tells the test something, and waits for its answer. */
static inline void tell(const char *what)
{
	char answer[100];
	puts(what);
	fflush(stdout);
	CHECK(fgets(answer, sizeof answer, stdin) != NULL);
}

#endif
