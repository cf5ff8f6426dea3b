/* SPDX-License-Identifier: Apache-2.0 */

/* A relay dies, and the volume, which is not reopened, ends. Every request gets a completion. */

#include <poll.h>

#include "program.h"

int main(int argc, char **argv)
{
	struct zc_completion completions[4];
	if (argc != 2)
		FAIL("usage: end CONFIGURATION");
	struct opened o = open_volume(argv[1]);
	struct zc_request request = { .operation = ZC_READ, .length = o.info.block_size,
		.memory = o.memory };
	struct pollfd wait = { .events = POLLIN };
	MUST(zc_get_descriptor(o.queue, &wait.fd));
	tell("open: stop the relay");
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	MUST(zc_ring(o.queue));
	tell("outstanding: kill the relay");
	for (int count = 0; count < 2;) {
		if (MUST(zc_arm(o.queue)) == 1)
			CHECK(poll(&wait, 1, -1) == 1);
		int n = MUST(zc_poll(o.queue, completions, 4));
		for (int i = 0; i < n; i++)
			CHECK(completions[i].code == ZC_CONNECTION_RESET);
		count += n;
	}
	EXPECT(ZC_CONNECTION_RESET, zc_check(o.volume));

	/* What is submitted now fails, with or without a wait. */
	CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	CHECK(MUST(zc_wait(o.queue, completions, 4, -1)) == 1);
	CHECK(completions[0].code == ZC_CONNECTION_RESET);
	CHECK(completions[0].error_number == ECONNRESET);
	for (int i = 0; i < 4; i++)
		CHECK(MUST(zc_submit(o.queue, &request, 1)) == 1);
	CHECK(MUST(zc_arm(o.queue)) == 0);
	MUST(zc_ring(o.queue));
	CHECK(MUST(zc_arm(o.queue)) == 0);
	CHECK(MUST(zc_poll(o.queue, completions, 3)) == 3);
	CHECK(MUST(zc_arm(o.queue)) == 0);
	CHECK(MUST(zc_poll(o.queue, completions, 3)) == 1);
	CHECK(MUST(zc_poll(o.queue, completions, 3)) == 0);

	/* It is closed nevertheless. */
	EXPECT(ZC_CONNECTION_RESET, zc_close(o.volume));
	EXPECT(ZC_CLOSED, zc_close(o.volume));
	return 0;
}
