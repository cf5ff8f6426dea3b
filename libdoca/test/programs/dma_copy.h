/* SPDX-License-Identifier: Apache-2.0 */

/* What both sides of DOCA's DMA Copy application have in common. The environment configures them:
 *
 *	FILE     the file to copy, or to create
 *	HOLD     a stage: wait there until the other side is gone, and say "held" before
 *	OUTCOME  how the copy is to end: success; failure, which the other side reports; rejected,
 *	         which this side reports; or gone, which the other side is
 */
#ifndef DMA_COPY_H
#define DMA_COPY_H

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The messages are structures; 64-bit numbers are big-endian. */
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

static inline const char *setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value != NULL ? value : otherwise;
}

static inline bool is_set(const char *name, const char *value)
{
	return strcmp(setting(name, ""), value) == 0;
}

/* Fails unless the copy is to end like this. */
static inline void ends_with(const char *outcome)
{
	const char *expected = setting("OUTCOME", "success");

	if (strcmp(outcome, expected) != 0)
		fail(__FILE__, __LINE__, "the copy ends with %s, not %s", outcome, expected);
}

static inline bool has_file(void)
{
	return access(getenv("FILE"), R_OK) == 0;
}

static inline size_t file_size(void)
{
	FILE *file = fopen(getenv("FILE"), "rb");
	long size;

	CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
	size = ftell(file);
	CHECK(size >= 0 && fclose(file) == 0);
	return (size_t)size;
}

static inline void read_file(uint8_t *bytes, size_t size)
{
	FILE *file = fopen(getenv("FILE"), "rb");

	CHECK(file != NULL && fread(bytes, 1, size, file) == size && fclose(file) == 0);
}

static inline void write_file(const uint8_t *bytes, size_t size)
{
	FILE *file = fopen(getenv("FILE"), "wb");

	CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static inline bool is_gone(const struct control *control)
{
	return is_dpu ? control->disconnects > 0
		      : state_of(control->ctx) == DOCA_CTX_STATE_IDLE;
}

/* Waits for the next message. Returns false if the other side is gone instead. */
static inline bool next_message(struct control *control)
{
	static int messages; /* that have been taken */

	UNTIL(control->messages > messages || is_gone(control), control->pe);
	return control->messages > messages++;
}

/* Reports whether the last message is a status, and which. */
static inline bool is_status(const struct control *control, bool *is_success)
{
	struct status status;

	if (control->last_length != sizeof status)
		return false;
	memcpy(&status, control->last, sizeof status);
	*is_success = status.is_success != 0;
	return status.type == STATUS;
}

/* If the copy is to be held here, waits until the other side is gone, and returns true. */
static inline bool held(struct control *control, const char *stage)
{
	if (!is_set("HOLD", stage))
		return false;
	printf("held\n");
	CHECK(fflush(stdout) == 0);
	UNTIL(is_gone(control), control->pe);
	return true;
}

#endif
