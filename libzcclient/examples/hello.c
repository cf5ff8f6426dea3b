/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writes a block of a volume, and reads it back. The argument is a configuration of zc_open.
 *
 *	cc hello.c $(pkg-config --cflags --libs zcclient) -o hello
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zcclient.h>

static void must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s: %s\n", what, zc_code_name(result), zc_error_text());
		exit(1);
	}
}

/* carry_out submits one request, and waits for its completion. */
static void carry_out(zc_queue queue, const struct zc_request *request, const char *what)
{
	struct zc_completion completion;
	must(zc_submit(queue, request, 1), what);
	must(zc_wait(queue, &completion, 1, -1), what);
	if (completion.code != ZC_SUCCESS) {
		fprintf(stderr, "%s: %s: %s\n", what, zc_code_name(completion.code),
			strerror(completion.error_number));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	zc_volume volume;
	must(zc_open(argc > 1 ? argv[1] : "", &volume), "open");

	struct zc_info info = { .struct_size = sizeof info };
	must(zc_get_info(volume, &info), "info");
	printf("%s has %llu bytes in blocks of %u\n", info.name,
		(unsigned long long)info.volume_size, info.block_size);

	zc_queue queue;
	void *memory;
	size_t length;
	must(zc_get_queue(volume, 0, &queue), "queue");
	must(zc_get_memory(queue, &memory, &length), "memory");

	/* The target fetches the block from this memory, and later writes it there. */
	char *block = memory;
	memset(block, 0, info.block_size);
	strcpy(block, "hello, block");
	carry_out(queue, &(struct zc_request){ .operation = ZC_WRITE, .memory = block,
		.length = info.block_size }, "write");
	carry_out(queue, &(struct zc_request){ .operation = ZC_FLUSH }, "flush");
	memset(block, 0, info.block_size);
	carry_out(queue, &(struct zc_request){ .operation = ZC_READ, .memory = block,
		.length = info.block_size }, "read");
	printf("%s\n", block);

	must(zc_close(volume), "close");
	return 0;
}
