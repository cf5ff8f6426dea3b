/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A relay dies and comes back. The program says what it has seen, and the test then goes on. What
 * was outstanding fails once, what is submitted meanwhile waits, and a thread that waits keeps the
 * others out of its queue.
 */

#include <poll.h>
#include <pthread.h>

#include "program.h"

static struct opened o;

static struct zc_request read_block(uint64_t cookie)
{
	return (struct zc_request){ .operation = ZC_READ, .length = o.info.block_size,
		.memory = o.memory, .cookie = cookie };
}

/* lose_relay has the relay killed while it has a request. */
static void lose_relay(void)
{
	struct zc_request request = read_block(1);
	struct zc_completion completion;
	tell("open: stop the relay");
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	MUST(zc_ring(o.queue));
	tell("outstanding: kill the relay");
	CHECK(MUST(zc_wait(o.queue, &completion, 1, -1)) == 1);
	CHECK(completion.cookie == 1 && completion.code == ZC_CONNECTION_RESET);
	CHECK(completion.error_number == ECONNRESET && completion.flags == 0);
	MUST(zc_check(o.volume)); /* it is being reopened */
}

/* wait_for_relay waits for what main has submitted. */
static void *wait_for_relay(void *unused)
{
	struct zc_completion completion;
	int n;
	while ((n = zc_wait(o.queue, &completion, 1, -1)) == ZC_IN_USE)
		; /* main looks whether this thread waits */
	CHECK(n == 1 && completion.cookie == 2 && completion.code == ZC_SUCCESS);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	struct zc_completion completion;
	if (argc != 2)
		FAIL("usage: outage CONFIGURATION");
	o = open_volume(argv[1]);
	CHECK(carry_out(o.queue, read_block(1)).code == ZC_SUCCESS);
	lose_relay();

	/* A wait ends with its time, and a request stays. */
	struct zc_request request = read_block(3);
	struct pollfd wait = { .events = POLLIN };
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	CHECK(MUST(zc_wait(o.queue, &completion, 1, 20)) == 0);
	MUST(zc_get_descriptor(o.queue, &wait.fd));
	while (MUST(zc_arm(o.queue)) == 0)
		CHECK(MUST(zc_poll(o.queue, &completion, 1)) == 0);
	tell("lost: start the relay");
	for (int count = 0; count == 0;) {
		if (MUST(zc_arm(o.queue)) == 1)
			CHECK(poll(&wait, 1, -1) == 1);
		count = MUST(zc_poll(o.queue, &completion, 1));
	}
	CHECK(completion.cookie == 3 && completion.code == ZC_SUCCESS);
	MUST(zc_get_info(o.volume, &o.info));
	CHECK(o.info.sessions_lost == 1);

	lose_relay();
	request = read_block(2);
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	CHECK(pthread_create(&thread, NULL, wait_for_relay, NULL) == 0);
	int code;
	while ((code = zc_submit(o.queue, NULL, 0)) == 0)
		;
	EXPECT(ZC_IN_USE, code);
	EXPECT(ZC_IN_USE, zc_close(o.volume));
	tell("in use: start the relay");
	CHECK(pthread_join(thread, NULL) == 0);
	MUST(zc_close(o.volume));
	return 0;
}
