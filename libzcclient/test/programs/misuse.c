/* SPDX-License-Identifier: Apache-2.0 */

/* Calls the library wrongly in every way. Each call gets an error, and the volume still works. */

#include "program.h"

static struct opened o;

static void arguments_are_null(void)
{
	struct zc_completion completion;
	void *address;
	size_t length;
	EXPECT(ZC_INVALID_VALUE, zc_open("", NULL));
	EXPECT(ZC_INVALID_VALUE, zc_get_info(o.volume, NULL));
	EXPECT(ZC_INVALID_VALUE, zc_get_queue(o.volume, 0, NULL));
	EXPECT(ZC_INVALID_VALUE, zc_get_memory(o.queue, NULL, &length));
	EXPECT(ZC_INVALID_VALUE, zc_get_memory(o.queue, &address, NULL));
	EXPECT(ZC_INVALID_VALUE, zc_switch_memory(o.queue, NULL, NULL));
	EXPECT(ZC_INVALID_VALUE, zc_submit(o.queue, NULL, 1));
	EXPECT(ZC_INVALID_VALUE, zc_poll(o.queue, NULL, 1));
	EXPECT(ZC_INVALID_VALUE, zc_wait(o.queue, &completion, 0, -1));
	EXPECT(ZC_INVALID_VALUE, zc_get_descriptor(o.queue, NULL));
	CHECK(zc_submit(o.queue, NULL, 0) == 0);
}

/* use_volume and use_queue expect each call for a handle to fail with a code. */
static void use_volume(zc_volume volume, int code)
{
	struct zc_info info = { .struct_size = sizeof info };
	zc_queue queue;
	EXPECT(code, zc_get_info(volume, &info));
	EXPECT(code, zc_check(volume));
	EXPECT(code, zc_get_queue(volume, 0, &queue));
	EXPECT(code, zc_close(volume));
}

static void use_queue(zc_queue queue, int code)
{
	struct zc_request request = { .operation = ZC_FLUSH };
	struct zc_completion completion;
	int descriptor;
	void *address;
	size_t length;
	EXPECT(code, zc_submit(queue, &request, 1));
	EXPECT(code, zc_ring(queue));
	EXPECT(code, zc_poll(queue, &completion, 1));
	EXPECT(code, zc_wait(queue, &completion, 1, -1));
	EXPECT(code, zc_arm(queue));
	EXPECT(code, zc_get_descriptor(queue, &descriptor));
	CHECK(descriptor == -1);
	EXPECT(code, zc_get_memory(queue, &address, &length));
	CHECK(address == NULL && length == 0);
	EXPECT(code, zc_switch_memory(queue, &address, &length));
}

static void handles_are_none(void)
{
	uint64_t wrong[] = { 0, 1, UINT64_MAX, 1ull << 24 | 0xffffff, 2ull << 24 | 0xffffff };
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		use_volume((zc_volume){ wrong[i] }, ZC_INVALID_VALUE);
		use_queue((zc_queue){ wrong[i] }, ZC_INVALID_VALUE);
	}
	use_volume((zc_volume){ o.queue.handle }, ZC_INVALID_VALUE);
	use_queue((zc_queue){ o.volume.handle }, ZC_INVALID_VALUE);
	/* Of another time. */
	use_volume((zc_volume){ o.volume.handle + (1ull << 32) }, ZC_CLOSED);
	use_queue((zc_queue){ o.queue.handle + (1ull << 32) }, ZC_CLOSED);
}

static void a_volume_is_closed(const char *configuration)
{
	struct opened once = open_volume(configuration);
	MUST(zc_close(once.volume));
	use_volume(once.volume, ZC_CLOSED);
	use_queue(once.queue, ZC_CLOSED);
	/* Nor do the handles of a former volume fit the next one. */
	struct opened again = open_volume(configuration);
	use_volume(once.volume, ZC_CLOSED);
	use_queue(once.queue, ZC_CLOSED);
	MUST(zc_close(again.volume));
}

static void configurations_are_wrong(void)
{
	static const char *const wrong[] = { "device", "colour=red", "queues=-1", "queues=0",
		"depth=many", "buffer_size=1XB", "buffer_size=8GiB", "control_timeout=5",
		"read_only=yes", "provider=pigeon", "log=loud", "queues=1,queues=1",
		"reconnect_timeout=1s", "preempt=nobody" };
	zc_volume volume = { 1 };
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		EXPECT(ZC_INVALID_VALUE, zc_open(wrong[i], &volume));
		CHECK(volume.handle == 0);
	}
	EXPECT(ZC_TOO_BIG, zc_open("queues=65", &volume));
	EXPECT(ZC_TOO_BIG, zc_open("depth=1000000", &volume));
	/* Nobody listens there; on a busy machine, the time may be over before that is known. */
	int code = zc_open("directory=/nonexistent,control_timeout=10ms", &volume);
	CHECK(code == ZC_NOT_FOUND || code == ZC_TIME_OUT);
	CHECK(volume.handle == 0 && zc_error_text()[0] != '\0');
}

static void infos_are_too_small(void)
{
	struct zc_info info = { .struct_size = 0 };
	EXPECT(ZC_INVALID_VALUE, zc_get_info(o.volume, &info));
	info.struct_size = sizeof info - 1;
	EXPECT(ZC_INVALID_VALUE, zc_get_info(o.volume, &info));
	/* A program that knows more than this library gets zeroes. */
	struct { struct zc_info known; uint64_t more; } larger = { .more = 1 };
	larger.known.struct_size = sizeof larger;
	MUST(zc_get_info(o.volume, &larger.known));
	CHECK(larger.more == 0 && larger.known.volume_size == o.info.volume_size);
}

static void queues_do_not_exist(void)
{
	zc_queue queue;
	EXPECT(ZC_INVALID_VALUE, zc_get_queue(o.volume, o.info.queues, &queue));
	EXPECT(ZC_INVALID_VALUE, zc_get_queue(o.volume, UINT32_MAX, &queue));
	CHECK(queue.handle == 0);
}

static void requests_are_wrong(void)
{
	const uint64_t block = o.info.block_size, size = o.info.volume_size;
	static char foreign[1 << 16];
	char *end = o.memory + o.length;
	const struct { int code; struct zc_request request; } wrong[] = {
		{ ZC_INVALID_VALUE, { 0 } },
		{ ZC_INVALID_VALUE, { .operation = 3, .length = block, .memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = 19, .length = block, .memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .flags = 2, .length = block,
			.memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_FLUSH, .reserved = { 0, 0, 1 } } },
		/* ranges */
		{ ZC_INVALID_VALUE, { .operation = ZC_READ, .memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_READ, .length = 1, .memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_READ, .offset = 1, .length = block,
			.memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_READ, .offset = size, .length = block,
			.memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_READ, .offset = -block, .length = 2 * block,
			.memory = o.memory } },
		{ ZC_INVALID_VALUE, { .operation = ZC_DISCARD, .offset = block, .length = size } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE_ZEROES, .length = -block } },
		{ ZC_INVALID_VALUE, { .operation = ZC_DISCARD } },
		/* memory */
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block, .memory = foreign } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block, .memory = end } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block,
			.memory = end - block + 1 } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block,
			.memory = o.memory - 1 } },
		{ ZC_INVALID_VALUE, { .operation = ZC_WRITE, .length = block,
			.memory = (void *)UINTPTR_MAX } },
		{ ZC_TOO_BIG, { .operation = ZC_READ, .length = o.info.buffer_size + block,
			.memory = o.memory } },
		{ ZC_TOO_BIG, { .operation = ZC_READ, .length = size, .memory = o.memory } },
	};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		int code = zc_submit(o.queue, &wrong[i].request, 1);
		if (code != wrong[i].code)
			FAIL("wrong request %zu: %s, want %s", i, zc_code_name(code),
				zc_code_name(wrong[i].code));
	}
	/* What is before a wrong one is taken. */
	struct zc_request requests[] = { { .operation = ZC_FLUSH, .cookie = 7 }, { 0 } };
	struct zc_completion completion;
	CHECK(zc_submit(o.queue, requests, 2) == 1);
	CHECK(zc_wait(o.queue, &completion, 1, -1) == 1 && completion.cookie == 7);
}

static void a_queue_is_full(void)
{
	struct zc_request request = { .operation = ZC_READ, .length = o.info.block_size,
		.memory = o.memory };
	struct zc_completion completions[64];
	unsigned int taken = 0, completed = 0;
	while (zc_submit(o.queue, &request, 1) == 1)
		taken++;
	CHECK(taken == o.info.depth);
	EXPECT(ZC_AGAIN, zc_submit(o.queue, &request, 1));
	MUST(zc_ring(o.queue)); /* makes no room */
	EXPECT(ZC_AGAIN, zc_submit(o.queue, &request, 1));
	while (completed < taken)
		completed += (unsigned int)MUST(zc_wait(o.queue, completions, 64, -1));
	CHECK(zc_wait(o.queue, completions, 64, -1) == 0); /* nothing is outstanding */
}

static void a_queue_is_not_ready_for_arm(const char *configuration)
{
	struct opened other = open_volume(configuration);
	EXPECT(ZC_BAD_STATE, zc_arm(other.queue));
	MUST(zc_close(other.volume));
}

static void codes_are_unknown(void)
{
	CHECK(strcmp(zc_code_name(ZC_IO_FAILED), "IO_FAILED") == 0);
	CHECK(strcmp(zc_code_name(12345), "UNKNOWN") == 0);
	CHECK(strcmp(zc_code_name(-12345), "UNKNOWN") == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		FAIL("usage: misuse CONFIGURATION");
	/* Before the first volume. */
	use_volume((zc_volume){ 1ull << 32 | 1ull << 24 }, ZC_CLOSED);
	use_queue((zc_queue){ 1ull << 32 | 2ull << 24 }, ZC_CLOSED);
	o = open_volume(argv[1]);
	arguments_are_null();
	handles_are_none();
	a_volume_is_closed(argv[1]);
	configurations_are_wrong();
	infos_are_too_small();
	queues_do_not_exist();
	requests_are_wrong();
	a_queue_is_full();
	a_queue_is_not_ready_for_arm(argv[1]);
	codes_are_unknown();
	/* The volume has come to no harm. */
	CHECK(carry_out(o.queue, (struct zc_request){ .operation = ZC_READ, .memory = o.memory,
		.length = o.info.block_size, .cookie = 1 }).code == ZC_SUCCESS);
	MUST(zc_close(o.volume));
	EXPECT(ZC_CLOSED, zc_close(o.volume));
	return 0;
}
