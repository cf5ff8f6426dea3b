// SPDX-License-Identifier: Apache-2.0

/* The host of DOCA's DMA Copy application: it has a file that the DPU gets, or gets the DPU's.
 * BUFFER is what it exports: "pages", which are whole; "malloc", which are not; or "destroyed",
 * whose map ends before the DPU gets the descriptor. */

#include "dma_copy.h"

/* Connects to the DPU, which may begin to listen later. */
static void connect_to_dpu(struct control *control)
{
	for (double deadline = now() + 120;;) {
		(void)doca_ctx_start(control->ctx);
		while (state_of(control->ctx) == DOCA_CTX_STATE_STARTING)
			(void)doca_pe_progress(control->pe);
		if (state_of(control->ctx) == DOCA_CTX_STATE_RUNNING)
			break;
		CHECK(now() < deadline);
		control->states = 0; /* the record has room for a few attempts only */
		usleep(10000);
	}
	OK(doca_comch_client_get_connection(control->client, &control->connection));
}

/* Agrees with the DPU on the direction. Returns the size of the file, or 0 at the end. */
static size_t negotiate(struct control *control, bool sends)
{
	size_t size = sends ? file_size() : 0;
	struct direction direction = {.type = DIRECTION, .file_in_host = sends,
				      .file_size = __builtin_bswap64(size)};
	bool is_success;

	control_send(control, &direction, sizeof direction);
	if (held(control, "asked") || !next_message(control)) {
		ends_with("gone");
		return 0;
	}
	if (is_status(control, &is_success)) {
		CHECK(!is_success);
		ends_with("failure");
		return 0;
	}
	if (control->last_length != sizeof direction) {
		ends_with("rejected"); /* it is not a message of the application */
		return 0;
	}
	memcpy(&direction, control->last, sizeof direction);
	CHECK(direction.type == DIRECTION && (direction.file_in_host != 0) == sends);
	return sends ? size : (size_t)__builtin_bswap64(direction.file_size);
}

/* Allocates a buffer in a block that the caller frees. */
static uint8_t *allocate(size_t size, size_t *exported, void **block)
{
	enum { OFF_PAGE = 8 };
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *bytes;

	if (is_set("BUFFER", "malloc")) {
		*exported = size;
		*block = bytes = malloc(size + OFF_PAGE);
		if ((uintptr_t)bytes % page == 0)
			bytes += OFF_PAGE;
	} else {
		*exported = (size + page - 1) / page * page;
		*block = bytes = aligned_alloc(page, *exported);
	}
	CHECK(*block != NULL);
	return bytes;
}

/* Exports the buffer, and waits until the DPU has copied it. */
static void offer(struct control *control, bool sends, size_t size)
{
	void *block;
	size_t exported;
	uint8_t *bytes = allocate(size, &exported, &block);
	struct export message = {.type = EXPORT,
				 .host_address = __builtin_bswap64((uint64_t)(uintptr_t)bytes)};
	bool is_destroyed = is_set("BUFFER", "destroyed"), is_success;
	struct memory memory;
	const void *desc;
	size_t length;

	memset(bytes, 0xa5, exported);
	if (sends)
		read_file(bytes, size);
	memory = memory_over(control->dev, bytes, exported,
			     sends ? DOCA_ACCESS_FLAG_PCI_READ_ONLY
				   : DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
					     DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	OK(doca_mmap_export_pci(memory.mmap, control->dev, &desc, &length));
	CHECK(length <= sizeof message.descriptor);
	message.length = __builtin_bswap64(length);
	memcpy(message.descriptor, desc, length);
	if (is_destroyed)
		memory_free(&memory);
	control_send(control, &message, offsetof(struct export, descriptor) + length);
	if (!next_message(control)) {
		ends_with("gone");
	} else {
		CHECK(is_status(control, &is_success));
		ends_with(is_success ? "success" : "failure");
		if (is_success && !sends)
			write_file(bytes, size);
	}
	if (!is_destroyed)
		memory_free(&memory);
	free(block);
}

static void copy(bool sends)
{
	struct control *control = control_new("dma copy server");
	size_t size;

	CHECK(has_file() == sends);
	connect_to_dpu(control);
	if (held(control, "connected")) {
		ends_with("gone");
	} else {
		size = negotiate(control, sends);
		if (size > 0)
			offer(control, sends, size);
	}
	if (!is_gone(control))
		stop(control->ctx, control->pe);
	control_destroy(control);
}

static void sends(void)
{
	copy(true);
}

static void receives(void)
{
	copy(false);
}

const struct test tests[] = {
	{"sends", sends},
	{"receives", receives},
	{NULL, NULL},
};
