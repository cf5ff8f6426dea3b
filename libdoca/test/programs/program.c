// SPDX-License-Identifier: Apache-2.0

#include "program.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

bool is_dpu;

enum { PEER = 3 }; /* the descriptor of the socket to the other process */

/* Usage: PROGRAM host|dpu TEST */
int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s host|dpu TEST\n", argv[0]);
		return 2;
	}
	is_dpu = strcmp(argv[1], "dpu") == 0;
	for (const struct test *test = tests; test->name != NULL; test++) {
		if (strcmp(test->name, argv[2]) != 0)
			continue;
		test->run();
		printf("passed\n");
		return 0;
	}
	fprintf(stderr, "%s has no test %s\n", argv[0], argv[2]);
	return 2;
}

_Noreturn void fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: %s:%d: ", is_dpu ? "dpu" : "host", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(1);
}

void check_result(doca_error_t expected, doca_error_t result, const char *call, const char *file,
		  int line)
{
	if (result != expected)
		fail(file, line, "%s is %s, not %s", call, doca_error_get_name(result),
		     doca_error_get_name(expected));
}

void expect_misuse(const char *function)
{
	fprintf(stderr, "expected: %s\n", function);
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

void progress_each(struct doca_pe *const *engines, size_t count)
{
	for (size_t i = 0; i < count; i++)
		(void)doca_pe_progress(engines[i]);
}

/* The other process. */

void tell(const void *data, size_t length)
{
	if (send(PEER, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		fail(__FILE__, __LINE__, "tell the other process: %s", strerror(errno));
}

size_t hear(void *data, size_t size)
{
	ssize_t length = recv(PEER, data, size, 0);

	if (length <= 0)
		fail(__FILE__, __LINE__, "hear from the other process: %s",
		     length == 0 ? "it has ended" : strerror(errno));
	return (size_t)length;
}

void meet(void)
{
	char byte = 'm';

	tell(&byte, 1);
	CHECK(hear(&byte, 1) == 1 && byte == 'm');
}

static bool is_heard(void)
{
	struct pollfd peer = {.fd = PEER, .events = POLLIN};

	return poll(&peer, 1, 0) == 1;
}

void meet_while(struct doca_pe *const *engines, size_t count)
{
	double deadline = now() + 120;
	char byte = 'm';

	tell(&byte, 1);
	while (!is_heard()) {
		if (now() > deadline)
			fail(__FILE__, __LINE__, "two minutes without the other process");
		progress_each(engines, count);
	}
	CHECK(hear(&byte, 1) == 1 && byte == 'm');
}

/* Devices. */

struct doca_dev *open_device(const char *pci)
{
	struct doca_devinfo **list;
	struct doca_dev *dev = NULL;
	uint32_t count;

	OK(doca_devinfo_create_list(&list, &count));
	for (uint32_t i = 0; i < count && dev == NULL; i++) {
		uint8_t equal;

		OK(doca_devinfo_is_equal_pci_addr(list[i], pci, &equal));
		if (equal)
			OK(doca_dev_open(list[i], &dev));
	}
	OK(doca_devinfo_destroy_list(list));
	if (dev == NULL)
		fail(__FILE__, __LINE__, "no device %s among %u", pci, count);
	return dev;
}

struct doca_dev *open_own_device(void)
{
	return open_device(is_dpu ? "03:00.0" : "b1:00.0");
}

struct doca_dev_rep *open_representor(struct doca_dev *dev)
{
	struct doca_devinfo_rep **list;
	struct doca_dev_rep *rep = NULL;
	uint32_t count;

	OK(doca_devinfo_rep_create_list(dev, DOCA_DEVINFO_REP_FILTER_NET, &list, &count));
	for (uint32_t i = 0; i < count && rep == NULL; i++) {
		uint8_t equal;

		OK(doca_devinfo_rep_is_equal_pci_addr(list[i], "b1:00.0", &equal));
		if (equal)
			OK(doca_dev_rep_open(list[i], &rep));
	}
	OK(doca_devinfo_rep_destroy_list(list));
	CHECK(rep != NULL);
	return rep;
}

/* Memory. */

enum { BUFS = 512 };

static void add_inventory(struct memory *memory)
{
	OK(doca_buf_inventory_create(BUFS, &memory->inventory));
	OK(doca_buf_inventory_start(memory->inventory));
}

struct memory memory_over(struct doca_dev *dev, void *bytes, size_t size, uint32_t access)
{
	struct memory memory = {.bytes = bytes, .size = size};

	OK(doca_mmap_create(&memory.mmap));
	OK(doca_mmap_add_dev(memory.mmap, dev));
	OK(doca_mmap_set_memrange(memory.mmap, bytes, size));
	OK(doca_mmap_set_permissions(memory.mmap, access));
	OK(doca_mmap_start(memory.mmap));
	add_inventory(&memory);
	return memory;
}

struct memory memory_new(struct doca_dev *dev, size_t size, uint32_t access)
{
	struct memory memory = memory_over(dev, calloc(1, size), size, access);

	memory.allocated = true;
	return memory;
}

struct memory memory_import(struct doca_dev *dev, const void *desc, size_t length)
{
	struct memory memory = {.bytes = NULL};
	void *address;

	OK(doca_mmap_create_from_export(NULL, desc, length, dev, &memory.mmap));
	OK(doca_mmap_get_memrange(memory.mmap, &address, &memory.size));
	memory.bytes = address;
	add_inventory(&memory);
	return memory;
}

void memory_revoke(struct memory *memory)
{
	OK(doca_mmap_destroy(memory->mmap));
	memory->mmap = NULL;
}

void memory_free(struct memory *memory)
{
	OK(doca_buf_inventory_stop(memory->inventory));
	OK(doca_buf_inventory_destroy(memory->inventory));
	if (memory->mmap != NULL)
		memory_revoke(memory);
	if (memory->allocated)
		free(memory->bytes);
}

struct doca_buf *memory_buf(const struct memory *memory, size_t offset, size_t length, size_t data)
{
	struct doca_buf *buf;

	OK(doca_buf_inventory_buf_get_by_args(memory->inventory, memory->mmap,
					      memory->bytes + offset, length,
					      memory->bytes + offset, data, &buf));
	return buf;
}

void release(struct doca_buf *buf)
{
	OK(doca_buf_dec_refcount(buf, NULL));
}

/* Contexts. */

enum doca_ctx_states state_of(const struct doca_ctx *ctx)
{
	enum doca_ctx_states state;

	OK(doca_ctx_get_state(ctx, &state));
	return state;
}

size_t inflight(const struct doca_ctx *ctx)
{
	size_t count;

	OK(doca_ctx_get_num_inflight_tasks(ctx, &count));
	return count;
}

struct doca_pe *new_engine(struct doca_ctx *ctx)
{
	struct doca_pe *pe;

	OK(doca_pe_create(&pe));
	OK(doca_pe_connect_ctx(pe, ctx));
	return pe;
}

void stop(struct doca_ctx *ctx, struct doca_pe *pe)
{
	doca_error_t result = doca_ctx_stop(ctx);

	CHECK(result == DOCA_SUCCESS || result == DOCA_ERROR_IN_PROGRESS);
	UNTIL(state_of(ctx) == DOCA_CTX_STATE_IDLE, pe);
}
