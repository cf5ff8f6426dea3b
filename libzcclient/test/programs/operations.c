/* SPDX-License-Identifier: Apache-2.0 */

/* Every operation and flag, of one request and of many at once, and of a volume for reading. */

#include "program.h"

static struct opened o;

static struct zc_request request(uint32_t operation, uint64_t block, uint64_t blocks, char *memory)
{
	return (struct zc_request){ .operation = operation, .memory = memory,
		.offset = block * o.info.block_size, .length = blocks * o.info.block_size,
		.cookie = UINT64_MAX - block };
}

static void succeed(struct zc_request r)
{
	struct zc_completion c = carry_out(o.queue, r);
	if (c.code != ZC_SUCCESS || c.error_number != 0 || c.flags != 0)
		FAIL("operation %u: %s, errno %d", r.operation, zc_code_name(c.code), c.error_number);
}

/* holds reports whether blocks have nothing but a character. */
static bool holds(uint64_t block, uint64_t blocks, char want)
{
	memset(o.memory, '?', blocks * o.info.block_size);
	succeed(request(ZC_READ, block, blocks, o.memory));
	for (size_t i = 0; i < blocks * o.info.block_size; i++)
		if (o.memory[i] != want)
			return false;
	return true;
}

static void operations(void)
{
	CHECK(o.info.flags & ZC_CAN_FUA && o.info.flags & ZC_CAN_DISCARD);
	CHECK(o.info.flags & ZC_CAN_WRITE_ZEROES && !(o.info.flags & ZC_READ_ONLY));
	memset(o.memory, 'a', 8 * o.info.block_size);
	succeed(request(ZC_WRITE, 0, 8, o.memory));
	CHECK(holds(0, 8, 'a'));

	memset(o.memory, 'b', o.info.block_size);
	struct zc_request durable = request(ZC_WRITE, 1, 1, o.memory);
	durable.flags = ZC_FUA;
	succeed(durable);
	CHECK(holds(0, 1, 'a') && holds(1, 1, 'b') && holds(2, 6, 'a'));

	succeed(request(ZC_WRITE_ZEROES, 2, 2, NULL));
	struct zc_request hole = request(ZC_WRITE_ZEROES, 4, 1, NULL);
	hole.flags = ZC_DEALLOCATE;
	succeed(hole);
	CHECK(holds(1, 1, 'b') && holds(2, 3, 0) && holds(5, 3, 'a'));

	succeed(request(ZC_DISCARD, 6, 1, NULL));
	CHECK(holds(5, 1, 'a') && holds(7, 1, 'a'));
	succeed((struct zc_request){ .operation = ZC_FLUSH, .cookie = 1 });
}

/* batches submits as many as the queue takes, each with memory of its own. */
static void batches(void)
{
	enum { MOST = 64 };
	struct zc_request requests[2 * MOST];
	struct zc_completion completions[MOST];
	bool has_completed[MOST] = { false };
	unsigned int depth = o.info.depth, completed = 0;
	CHECK(depth <= MOST && o.length >= depth * o.info.block_size);
	for (unsigned int i = 0; i < 2 * depth; i++)
		requests[i] = request(ZC_WRITE, i, 1, o.memory + i % depth * o.info.block_size);
	memset(o.memory, 'c', depth * o.info.block_size);
	CHECK(MUST(zc_submit(o.queue, requests, 2 * depth)) == (int)depth);
	while (completed < depth) {
		int n = MUST(zc_wait(o.queue, completions, 3, -1)); /* fewer than have completed */
		CHECK(n >= 1 && n <= 3);
		for (int i = 0; i < n; i++) {
			uint64_t block = UINT64_MAX - completions[i].cookie;
			CHECK(block < depth && !has_completed[block]);
			CHECK(completions[i].code == ZC_SUCCESS);
			has_completed[block] = true;
			completed++;
		}
	}
	CHECK(holds(0, depth, 'c') && !holds(depth, 1, 'c'));
}

static void reading(const char *configuration)
{
	char text[1000];
	snprintf(text, sizeof text, "%sread_only=true", configuration);
	o = open_volume(text);
	CHECK(o.info.flags & ZC_READ_ONLY && !(o.info.flags & ZC_CAN_DISCARD));
	CHECK(holds(0, 1, 'c'));
	uint32_t changes[] = { ZC_WRITE, ZC_WRITE_ZEROES, ZC_DISCARD };
	for (int i = 0; i < 3; i++) {
		struct zc_completion c = carry_out(o.queue, request(changes[i], 0, 1, o.memory));
		if (c.code != ZC_NOT_PERMITTED || c.error_number != EPERM)
			FAIL("operation %u for reading: %s, errno %d", changes[i], zc_code_name(c.code),
				c.error_number);
	}
	CHECK(holds(0, 1, 'c'));
	MUST(zc_close(o.volume));
}

int main(int argc, char **argv)
{
	if (argc != 2)
		FAIL("usage: operations CONFIGURATION");
	o = open_volume(argv[1]);
	operations();
	batches();
	MUST(zc_close(o.volume));
	reading(argv[1]);
	return 0;
}
