/* The host of DOCA's DMA Copy application: it has a file that the DPU gets, or gets the DPU's. FILE
 * names it. */

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The application's messages are these structures; 64-bit numbers are big-endian. */
enum { DIRECTION = 1, EXPORT, STATUS };

struct direction {
	uint32_t type;
	uint8_t file_in_host;
	uint64_t file_size;
};

struct export {
	uint32_t type;
	uint64_t host_address;
	uint64_t length;
	uint8_t descriptor[1024];
};

struct status {
	uint32_t type;
	uint8_t is_success;
};

static void await(struct control *control)
{
	int messages = control->messages;

	UNTIL(control->messages > messages, control->pe);
}

static void copy(bool has_file)
{
	const char *name = getenv("FILE");
	struct control *control = control_new("dma copy server");
	struct direction direction = {.type = DIRECTION, .file_in_host = has_file};
	size_t size = 0, page = (size_t)sysconf(_SC_PAGESIZE);

	CHECK((access(name, R_OK) == 0) == has_file);
	/* The DPU may begin to listen later. */
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
	if (has_file) {
		FILE *file = fopen(name, "rb");

		CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
		size = (size_t)ftell(file);
		CHECK(fclose(file) == 0);
	}
	direction.file_size = __builtin_bswap64(size);
	control_send(control, &direction, sizeof direction);
	await(control);
	CHECK(control->last_length == sizeof direction);

	struct direction reply;

	memcpy(&reply, control->last, sizeof reply);
	CHECK(reply.type == DIRECTION && (reply.file_in_host != 0) == has_file);
	if (!has_file)
		size = (size_t)__builtin_bswap64(reply.file_size);

	/* Whole pages, which the DPU can import. */
	size_t exported = (size + page - 1) / page * page;
	uint8_t *bytes = aligned_alloc(page, exported);

	memset(bytes, 0, exported);
	if (has_file) {
		FILE *file = fopen(name, "rb");

		CHECK(fread(bytes, 1, size, file) == size && fclose(file) == 0);
	}
	struct memory memory = memory_over(control->dev, bytes, exported,
					   DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
						   DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	struct export message = {.type = EXPORT,
				 .host_address = __builtin_bswap64((uint64_t)(uintptr_t)bytes)};
	const void *desc;
	size_t length;

	OK(doca_mmap_export_pci(memory.mmap, control->dev, &desc, &length));
	CHECK(length <= sizeof message.descriptor);
	message.length = __builtin_bswap64(length);
	memcpy(message.descriptor, desc, length);
	control_send(control, &message, offsetof(struct export, descriptor) + length);
	await(control);

	struct status outcome;

	CHECK(control->last_length == sizeof outcome);
	memcpy(&outcome, control->last, sizeof outcome);
	CHECK(outcome.type == STATUS && outcome.is_success);
	if (!has_file) {
		FILE *file = fopen(name, "wb");

		CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
	}
	memory_free(&memory);
	free(bytes);
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
