// SPDX-License-Identifier: Apache-2.0

/* Logs: where the messages of the application and of the library go, and which of them. */

#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include <doca_log.h>

static int source = -1;

/* Logs a message of the application. */
static void say(uint32_t level, const char *text)
{
	OK(doca_log(level, source, "file.c", 12, "function", "%s", text));
}

/* Makes the library log an error. */
static void make_library_log(void)
{
	struct doca_dev *dev = open_own_device();
	struct doca_mmap *mmap;

	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_mmap_create_from_export(NULL, "nonsense", 8, dev, &mmap));
	OK(doca_dev_close(dev));
}

/* A pipe, for a backend. */
static int pipe_ends[2];

static void open_pipe(void)
{
	CHECK(pipe(pipe_ends) == 0);
	OK(doca_log_register_source("TEST::SOURCE", &source));
}

/* Checks what has been written to the pipe: nothing if text is NULL, or one line with that text. */
static void check_pipe(const char *level, const char *text)
{
	char got[4096];
	ssize_t length;

	CHECK(write(pipe_ends[1], "", 1) == 1); /* or nothing would be there to be read */
	length = read(pipe_ends[0], got, sizeof got);
	CHECK(length > 0 && got[length - 1] == '\0');
	if (text == NULL) {
		CHECK(length == 1);
		return;
	}
	if (strstr(got, level) == NULL || strstr(got, text) == NULL ||
	    strchr(got, '\n') != got + length - 2)
		fail(__FILE__, __LINE__, "the log is %s", got);
}

static void descriptor(void)
{
	struct doca_log_backend *backend;

	open_pipe();
	OK(doca_log_backend_create_with_fd(pipe_ends[1], &backend));
	say(DOCA_LOG_LEVEL_INFO, "shown");
	check_pipe("[INF][TEST::SOURCE][file.c:12][function]", " shown\n");
	say(DOCA_LOG_LEVEL_DEBUG, "hidden");
	make_library_log(); /* not a message of the application */
	check_pipe(NULL, NULL);
	expect_misuse("doca_log_backend_create_with_fd");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_backend_create_with_fd(-1, &backend));
	expect_misuse("doca_log");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log(0, source, "file.c", 1, "function", "no level"));
}

static void file(void)
{
	struct doca_log_backend *backend;
	FILE *stream;

	open_pipe();
	stream = fdopen(dup(pipe_ends[1]), "w");
	OK(doca_log_backend_create_with_file(stream, &backend));
	say(DOCA_LOG_LEVEL_CRIT, "shown at once");
	check_pipe("[CRIT]", " shown at once\n");
	expect_misuse("doca_log_backend_create_with_file");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_backend_create_with_file(NULL, &backend));
}

static char buffer[128];
static char flushed[4][128];
static int flushes;

static void on_flush(char *buf)
{
	CHECK(buf == buffer && flushes < 4);
	snprintf(flushed[flushes++], sizeof flushed[0], "%s", buf);
	say(DOCA_LOG_LEVEL_INFO, "from the handler"); /* not to this backend: the buffer is in use */
}

static void buffers(void)
{
	struct doca_log_backend *backend;
	char text[sizeof buffer];
	size_t fits;

	open_pipe();
	OK(doca_log_backend_create_with_buf(buffer, sizeof buffer, on_flush, &backend));
	say(DOCA_LOG_LEVEL_WARNING, "first");
	say(DOCA_LOG_LEVEL_WARNING, "2nd");
	CHECK(flushes == 2);
	CHECK(strcmp(flushed[0], "[DOCA][WRN][TEST::SOURCE][file.c:12][function] first\n") == 0);
	CHECK(strcmp(flushed[1], "[DOCA][WRN][TEST::SOURCE][file.c:12][function] 2nd\n") == 0);
	/* A message that does not fit is lost: one byte less fits. */
	memset(text, 'x', sizeof text);
	fits = sizeof buffer - 1 - (strlen(flushed[1]) - strlen("2nd"));
	text[fits] = '\0';
	say(DOCA_LOG_LEVEL_WARNING, text);
	CHECK(flushes == 3 && strlen(flushed[2]) == sizeof buffer - 1);
	text[fits] = 'x';
	text[fits + 1] = '\0';
	say(DOCA_LOG_LEVEL_WARNING, text);
	CHECK(flushes == 3);
	expect_misuse("doca_log_backend_create_with_buf");
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_log_backend_create_with_buf(buffer, 0, on_flush, &backend));
	expect_misuse("doca_log_backend_create_with_buf");
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_log_backend_create_with_buf(buffer, sizeof buffer, NULL, &backend));
}

/* These take the place of libc's for the library, too. */
static char identity[32], logged[256];
static int priority_logged;

void openlog(const char *name, int options, int facility)
{
	(void)options;
	CHECK(facility == LOG_USER);
	snprintf(identity, sizeof identity, "%s", name);
}

void syslog(int priority, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(logged, sizeof logged, format, arguments);
	va_end(arguments);
	priority_logged = priority;
}

/* What syslog is if the library is compiled with fortification. */
void __syslog_chk(int priority, int flag, const char *format, ...);
void __syslog_chk(int priority, int flag, const char *format, ...)
{
	va_list arguments;

	(void)flag;
	va_start(arguments, format);
	vsnprintf(logged, sizeof logged, format, arguments);
	va_end(arguments);
	priority_logged = priority;
}

static void to_syslog(void)
{
	static const struct {
		uint32_t level;
		int priority;
	} levels[] = {{DOCA_LOG_LEVEL_CRIT, LOG_CRIT},
		      {DOCA_LOG_LEVEL_ERROR, LOG_ERR},
		      {DOCA_LOG_LEVEL_WARNING, LOG_WARNING},
		      {DOCA_LOG_LEVEL_INFO, LOG_INFO},
		      {DOCA_LOG_LEVEL_DEBUG, LOG_DEBUG},
		      {DOCA_LOG_LEVEL_TRACE, LOG_DEBUG}};
	struct doca_log_backend *backend, *of_library;
	char name[] = "application";

	OK(doca_log_register_source("TEST::SOURCE", &source));
	OK(doca_log_backend_create_with_syslog(name, &backend));
	memset(name, 0, sizeof name); /* the backend has its own */
	OK(doca_log_backend_set_level_lower_limit(backend, DOCA_LOG_LEVEL_TRACE));
	OK(doca_log_backend_create_with_syslog_sdk("library", &of_library));
	for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
		say(levels[i].level, "50% of it");
		CHECK(strcmp(identity, "application") == 0);
		CHECK(priority_logged == levels[i].priority);
		CHECK(strstr(logged, " 50% of it") != NULL && strchr(logged, '\n') == NULL);
	}
	make_library_log();
	CHECK(strcmp(identity, "library") == 0 && priority_logged == LOG_ERR);
	CHECK(strstr(logged, "create mmap from export") != NULL);
	expect_misuse("doca_log_backend_create_with_syslog");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_backend_create_with_syslog(NULL, &backend));
}

/* Checks which levels a backend on the pipe shows. */
static void check_levels(uint32_t upper, uint32_t lower)
{
	for (uint32_t level = DOCA_LOG_LEVEL_CRIT; level <= DOCA_LOG_LEVEL_TRACE; level += 10) {
		say(level, "message");
		check_pipe("[DOCA]", level >= upper && level <= lower ? "message" : NULL);
	}
}

static void limits(void)
{
	struct doca_log_backend *backend;

	open_pipe();
	OK(doca_log_backend_create_with_fd(pipe_ends[1], &backend));
	check_levels(DOCA_LOG_LEVEL_CRIT, DOCA_LOG_LEVEL_INFO);
	OK(doca_log_backend_set_level_lower_limit(backend, DOCA_LOG_LEVEL_DEBUG));
	OK(doca_log_backend_set_level_upper_limit(backend, DOCA_LOG_LEVEL_WARNING));
	check_levels(DOCA_LOG_LEVEL_WARNING, DOCA_LOG_LEVEL_DEBUG);
	/* A strict limit only becomes narrower. */
	OK(doca_log_backend_set_level_lower_limit_strict(backend));
	IS(DOCA_ERROR_NOT_PERMITTED,
	   doca_log_backend_set_level_lower_limit(backend, DOCA_LOG_LEVEL_TRACE));
	OK(doca_log_backend_set_level_upper_limit(backend, DOCA_LOG_LEVEL_ERROR));
	OK(doca_log_backend_set_level_upper_limit_strict(backend));
	IS(DOCA_ERROR_NOT_PERMITTED,
	   doca_log_backend_set_level_upper_limit(backend, DOCA_LOG_LEVEL_CRIT));
	check_levels(DOCA_LOG_LEVEL_ERROR, DOCA_LOG_LEVEL_DEBUG);
	OK(doca_log_level_set_global_lower_limit(DOCA_LOG_LEVEL_TRACE));
	OK(doca_log_level_set_global_upper_limit(DOCA_LOG_LEVEL_CRIT));
	check_levels(DOCA_LOG_LEVEL_ERROR, DOCA_LOG_LEVEL_DEBUG);
	OK(doca_log_backend_set_level_lower_limit(backend, DOCA_LOG_LEVEL_WARNING));
	OK(doca_log_level_set_global_upper_limit(DOCA_LOG_LEVEL_WARNING));
	check_levels(DOCA_LOG_LEVEL_WARNING, DOCA_LOG_LEVEL_WARNING);
	OK(doca_log_backend_set_level_lower_limit(backend, DOCA_LOG_LEVEL_DISABLE));
	check_levels(DOCA_LOG_LEVEL_TRACE, DOCA_LOG_LEVEL_DISABLE);

	expect_misuse("doca_log_backend_set_level_lower_limit");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_backend_set_level_lower_limit(backend, 71));
	expect_misuse("doca_log_backend_set_level_upper_limit");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_backend_set_level_upper_limit(NULL, 20));
	expect_misuse("doca_log_backend_set_sdk_level");
	IS(DOCA_ERROR_NOT_PERMITTED,
	   doca_log_backend_set_sdk_level(backend, DOCA_LOG_LEVEL_WARNING));
}

static void global_limits(void)
{
	struct doca_log_backend *backend;

	CHECK(doca_log_level_get_global_lower_limit() == DOCA_LOG_LEVEL_INFO);
	CHECK(doca_log_level_get_global_upper_limit() == DOCA_LOG_LEVEL_CRIT);
	OK(doca_log_level_set_global_lower_limit(DOCA_LOG_LEVEL_WARNING));
	OK(doca_log_level_set_global_upper_limit(DOCA_LOG_LEVEL_ERROR));
	CHECK(doca_log_level_get_global_lower_limit() == DOCA_LOG_LEVEL_WARNING);
	CHECK(doca_log_level_get_global_upper_limit() == DOCA_LOG_LEVEL_ERROR);
	open_pipe();
	OK(doca_log_backend_create_with_fd(pipe_ends[1], &backend));
	check_levels(DOCA_LOG_LEVEL_ERROR, DOCA_LOG_LEVEL_WARNING); /* a new backend has them */
	OK(doca_log_level_set_global_lower_limit(DOCA_LOG_LEVEL_TRACE));
	check_levels(DOCA_LOG_LEVEL_ERROR, DOCA_LOG_LEVEL_TRACE); /* and an old one gets them */
	expect_misuse("doca_log_level_set_global_lower_limit");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_level_set_global_lower_limit(9));
	expect_misuse("doca_log_level_set_global_upper_limit");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_level_set_global_upper_limit(71));
	check_levels(DOCA_LOG_LEVEL_ERROR, DOCA_LOG_LEVEL_TRACE);
}

/* The standard backends obey the global limits, on stderr and stdout. */
static void standard(void)
{
	int before[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};

	open_pipe();
	OK(doca_log_backend_create_standard());
	OK(doca_log_backend_create_standard()); /* the second call changes nothing */
	OK(doca_log_level_set_global_lower_limit(DOCA_LOG_LEVEL_DEBUG));
	OK(doca_log_level_set_global_upper_limit(DOCA_LOG_LEVEL_ERROR));
	fflush(stdout);
	setbuf(stdout, NULL);
	CHECK(dup2(pipe_ends[1], STDOUT_FILENO) >= 0);
	for (uint32_t level = DOCA_LOG_LEVEL_CRIT; level <= DOCA_LOG_LEVEL_TRACE; level += 10) {
		bool is_shown = level == DOCA_LOG_LEVEL_INFO || level == DOCA_LOG_LEVEL_DEBUG;

		say(level, "to stdout");
		check_pipe("[DOCA]", is_shown ? "to stdout" : NULL);
	}
	CHECK(dup2(before[0], STDOUT_FILENO) >= 0);
	CHECK(dup2(pipe_ends[1], STDERR_FILENO) >= 0);
	for (uint32_t level = DOCA_LOG_LEVEL_CRIT; level <= DOCA_LOG_LEVEL_TRACE; level += 10) {
		bool is_shown = level == DOCA_LOG_LEVEL_ERROR || level == DOCA_LOG_LEVEL_WARNING;

		say(level, "to stderr");
		check_pipe("[DOCA]", is_shown ? "to stderr" : NULL);
	}
	CHECK(dup2(before[1], STDERR_FILENO) >= 0);
}

static void on_library_flush(char *buf)
{
	flushes++;
	CHECK(strstr(buf, "create mmap from export") != NULL);
}

/* Backends of the library have limits of their own. */
static void of_the_library(void)
{
	struct doca_log_backend *descriptor_backend, *buffer_backend;
	static char large[1024];

	CHECK(doca_log_level_get_global_sdk_limit() == DOCA_LOG_LEVEL_INFO);
	open_pipe();
	OK(doca_log_backend_create_with_fd_sdk(pipe_ends[1], &descriptor_backend));
	OK(doca_log_backend_create_with_buf_sdk(large, sizeof large, on_library_flush,
						&buffer_backend));
	say(DOCA_LOG_LEVEL_INFO, "not a message of the library");
	make_library_log();
	check_pipe("[ERR]", "create mmap from export");
	CHECK(flushes == 1);
	OK(doca_log_backend_set_sdk_level(descriptor_backend, DOCA_LOG_LEVEL_CRIT));
	make_library_log();
	check_pipe(NULL, NULL);
	CHECK(flushes == 2);
	OK(doca_log_level_set_global_sdk_limit(DOCA_LOG_LEVEL_ERROR));
	CHECK(doca_log_level_get_global_sdk_limit() == DOCA_LOG_LEVEL_ERROR);
	make_library_log();
	check_pipe("[ERR]", "create mmap from export");
	OK(doca_log_level_set_global_sdk_limit(DOCA_LOG_LEVEL_CRIT));
	make_library_log();
	check_pipe(NULL, NULL);
	CHECK(flushes == 3);
	expect_misuse("doca_log_level_set_global_sdk_limit");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_level_set_global_sdk_limit(0));
	expect_misuse("doca_log_backend_set_level_lower_limit_strict");
	IS(DOCA_ERROR_NOT_PERMITTED,
	   doca_log_backend_set_level_lower_limit_strict(descriptor_backend));
	expect_misuse("doca_log_backend_set_level_upper_limit_strict");
	IS(DOCA_ERROR_NOT_PERMITTED,
	   doca_log_backend_set_level_upper_limit_strict(buffer_backend));
}

/* The number of a source is free once it is not registered any more. */
static void sources(void)
{
	enum { MANY = 1000 };
	struct doca_log_backend *backend;
	int again;

	open_pipe();
	OK(doca_log_backend_create_with_fd(pipe_ends[1], &backend));
	OK(doca_log_unregister_source(source));
	say(DOCA_LOG_LEVEL_INFO, "without a source");
	check_pipe("[INF][?]", "without a source");
	for (int i = 0; i < MANY; i++) {
		OK(doca_log_register_source("TEST::AGAIN", &again));
		OK(doca_log_unregister_source(again));
	}
	expect_misuse("doca_log_unregister_source");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_unregister_source(again));
	expect_misuse("doca_log_unregister_source");
	IS(DOCA_ERROR_INVALID_VALUE, doca_log_unregister_source(-1));
	OK(doca_log_register_source("TEST::LAST", &source));
	say(DOCA_LOG_LEVEL_INFO, "with one");
	check_pipe("[INF][TEST::LAST]", "with one");
}

const struct test tests[] = {
	{"descriptor", descriptor},
	{"file", file},
	{"buffers", buffers},
	{"to_syslog", to_syslog},
	{"limits", limits},
	{"global_limits", global_limits},
	{"standard", standard},
	{"of_the_library", of_the_library},
	{"sources", sources},
	{NULL, NULL},
};
