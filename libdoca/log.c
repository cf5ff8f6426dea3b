// SPDX-License-Identifier: Apache-2.0

/* Logging: messages of the application and of the library go to backends of their own. */

#include "skin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

enum { MAX_SOURCES = 256, MAX_SOURCE_NAME = 64, MAX_TEXT = 1024, MAX_RECORD = 2048 };

enum sink { SINK_STANDARD, SINK_FILE, SINK_DESCRIPTOR, SINK_BUFFER, SINK_SYSLOG };

/* Backends are never destroyed, so they are not counted. */
struct doca_log_backend {
	uint32_t magic;
	bool is_sdk;
	bool is_lower_strict, is_upper_strict;
	bool is_flushing; /* the handler of a buffer is being called */
	enum sink sink;
	FILE *file;
	int descriptor;
	char *buffer;
	size_t capacity;
	log_flush_callback flush;
	char *name; /* of syslog */
	/* Levels from upper to lower are shown: the lower one is the more verbose one. */
	uint32_t lower, upper;
	struct doca_log_backend *next;
};

static struct {
	pthread_mutex_t lock;
	struct doca_log_backend *backends;
	bool has_standard;
	uint32_t lower, upper, sdk; /* of new backends */
	char sources[MAX_SOURCES][MAX_SOURCE_NAME];
	bool is_registered[MAX_SOURCES];
} logs = {.lock = PTHREAD_MUTEX_INITIALIZER,
	  .lower = DOCA_LOG_LEVEL_INFO,
	  .upper = DOCA_LOG_LEVEL_CRIT,
	  .sdk = DOCA_LOG_LEVEL_INFO};

/* The handler of a buffer may log itself. */
static __thread uint32_t lock_depth;

static void lock(void)
{
	if (lock_depth++ == 0)
		pthread_mutex_lock(&logs.lock);
}

static void unlock(void)
{
	if (--lock_depth == 0)
		pthread_mutex_unlock(&logs.lock);
}

static const char *level_name(uint32_t level)
{
	switch (level) {
	case DOCA_LOG_LEVEL_CRIT:
		return "CRIT";
	case DOCA_LOG_LEVEL_ERROR:
		return "ERR";
	case DOCA_LOG_LEVEL_WARNING:
		return "WRN";
	case DOCA_LOG_LEVEL_INFO:
		return "INF";
	case DOCA_LOG_LEVEL_DEBUG:
		return "DBG";
	}
	return "TRC";
}

static int syslog_priority(uint32_t level)
{
	switch (level) {
	case DOCA_LOG_LEVEL_CRIT:
		return LOG_CRIT;
	case DOCA_LOG_LEVEL_ERROR:
		return LOG_ERR;
	case DOCA_LOG_LEVEL_WARNING:
		return LOG_WARNING;
	case DOCA_LOG_LEVEL_INFO:
		return LOG_INFO;
	}
	return LOG_DEBUG;
}

static bool is_level(uint32_t level, const char *function)
{
	if (level >= DOCA_LOG_LEVEL_DISABLE && level <= DOCA_LOG_LEVEL_TRACE)
		return true;
	emu_misuse(function, "%u is no level", level);
	return false;
}

/* Backends. */

static doca_error_t add(struct doca_log_backend contents, struct doca_log_backend **backend)
{
	struct doca_log_backend *added = calloc(1, sizeof *added);

	if (added == NULL)
		return DOCA_ERROR_NO_MEMORY;
	contents.magic = EMU_LOG_BACKEND;
	*added = contents;
	lock();
	added->lower = added->is_sdk ? logs.sdk : logs.lower;
	added->upper = added->is_sdk ? DOCA_LOG_LEVEL_CRIT : logs.upper;
	added->next = logs.backends;
	logs.backends = added;
	unlock();
	*backend = added;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_backend_create_standard(void)
{
	struct doca_log_backend *backend;
	doca_error_t result = DOCA_SUCCESS;

	lock();
	if (!logs.has_standard)
		result = add((struct doca_log_backend){.sink = SINK_STANDARD}, &backend);
	logs.has_standard = result == DOCA_SUCCESS;
	unlock();
	return result;
}

static doca_error_t add_file(FILE *file, bool is_sdk, struct doca_log_backend **backend,
			     const char *function)
{
	if (!emu_has(file, "file", function) || !emu_has(backend, "backend", function))
		return DOCA_ERROR_INVALID_VALUE;
	return add((struct doca_log_backend){.is_sdk = is_sdk, .sink = SINK_FILE, .file = file},
		   backend);
}

doca_error_t emu_doca_log_backend_create_with_file(FILE *file, struct doca_log_backend **backend)
{
	return add_file(file, false, backend, __func__);
}

doca_error_t emu_doca_log_backend_create_with_file_sdk(FILE *file,
						       struct doca_log_backend **backend)
{
	return add_file(file, true, backend, __func__);
}

static doca_error_t add_descriptor(int fd, bool is_sdk, struct doca_log_backend **backend,
				   const char *function)
{
	if (!emu_has(backend, "backend", function))
		return DOCA_ERROR_INVALID_VALUE;
	if (fd < 0) {
		emu_misuse(function, "descriptor %d is negative", fd);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return add((struct doca_log_backend){.is_sdk = is_sdk,
					     .sink = SINK_DESCRIPTOR,
					     .descriptor = fd},
		   backend);
}

doca_error_t emu_doca_log_backend_create_with_fd(int fd, struct doca_log_backend **backend)
{
	return add_descriptor(fd, false, backend, __func__);
}

doca_error_t emu_doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend)
{
	return add_descriptor(fd, true, backend, __func__);
}

static doca_error_t add_buffer(char *buf, size_t capacity, log_flush_callback flush, bool is_sdk,
			       struct doca_log_backend **backend, const char *function)
{
	if (!emu_has(buf, "buf", function) || !emu_has(flush, "handler", function) ||
	    !emu_has(backend, "backend", function))
		return DOCA_ERROR_INVALID_VALUE;
	if (capacity == 0) {
		emu_misuse(function, "a capacity of 0 holds no message");
		return DOCA_ERROR_INVALID_VALUE;
	}
	return add((struct doca_log_backend){.is_sdk = is_sdk,
					     .sink = SINK_BUFFER,
					     .buffer = buf,
					     .capacity = capacity,
					     .flush = flush},
		   backend);
}

doca_error_t emu_doca_log_backend_create_with_buf(char *buf, size_t capacity,
						  log_flush_callback handler,
						  struct doca_log_backend **backend)
{
	return add_buffer(buf, capacity, handler, false, backend, __func__);
}

doca_error_t emu_doca_log_backend_create_with_buf_sdk(char *buf, size_t capacity,
						      log_flush_callback handler,
						      struct doca_log_backend **backend)
{
	return add_buffer(buf, capacity, handler, true, backend, __func__);
}

static doca_error_t add_syslog(const char *name, bool is_sdk, struct doca_log_backend **backend,
			       const char *function)
{
	char *copy;
	doca_error_t result;

	if (!emu_has(name, "name", function) || !emu_has(backend, "backend", function))
		return DOCA_ERROR_INVALID_VALUE;
	copy = strdup(name);
	if (copy == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = add(
		(struct doca_log_backend){.is_sdk = is_sdk, .sink = SINK_SYSLOG, .name = copy},
		backend);
	if (result != DOCA_SUCCESS)
		free(copy);
	return result;
}

doca_error_t emu_doca_log_backend_create_with_syslog(const char *name,
						     struct doca_log_backend **backend)
{
	return add_syslog(name, false, backend, __func__);
}

doca_error_t emu_doca_log_backend_create_with_syslog_sdk(const char *name,
							 struct doca_log_backend **backend)
{
	return add_syslog(name, true, backend, __func__);
}

/* Levels. */

static void set_level(uint32_t *level, uint32_t value)
{
	lock();
	*level = value;
	unlock();
}

static uint32_t get_level(const uint32_t *level)
{
	uint32_t value;

	lock();
	value = *level;
	unlock();
	return value;
}

/* A strict limit only becomes narrower. Returns whether it has changed. */
static bool set_lower(struct doca_log_backend *backend, uint32_t level)
{
	if (backend->is_lower_strict && level > backend->lower)
		return false;
	backend->lower = level;
	return true;
}

static bool set_upper(struct doca_log_backend *backend, uint32_t level)
{
	if (backend->is_upper_strict && level < backend->upper)
		return false;
	backend->upper = level;
	return true;
}

/* Reports misuse unless a backend is for messages of the library (sdk), or of the application. */
static doca_error_t check_backend(const struct doca_log_backend *backend, bool is_sdk,
				  const char *function)
{
	if (!emu_is(backend, EMU_LOG_BACKEND, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (backend->is_sdk == is_sdk)
		return DOCA_SUCCESS;
	emu_misuse(function, "the backend is one for messages of the %s",
		   is_sdk ? "application" : "library");
	return DOCA_ERROR_NOT_PERMITTED;
}

static doca_error_t set_limit(struct doca_log_backend *backend, uint32_t level,
			      bool (*set)(struct doca_log_backend *, uint32_t),
			      const char *function)
{
	doca_error_t result = check_backend(backend, false, function);

	if (result != DOCA_SUCCESS)
		return result;
	if (!is_level(level, function))
		return DOCA_ERROR_INVALID_VALUE;
	lock();
	if (!set(backend, level))
		result = DOCA_ERROR_NOT_PERMITTED;
	unlock();
	return result;
}

doca_error_t emu_doca_log_backend_set_level_lower_limit(struct doca_log_backend *backend,
							uint32_t level)
{
	return set_limit(backend, level, set_lower, __func__);
}

doca_error_t emu_doca_log_backend_set_level_upper_limit(struct doca_log_backend *backend,
							uint32_t level)
{
	return set_limit(backend, level, set_upper, __func__);
}

doca_error_t emu_doca_log_backend_set_level_lower_limit_strict(struct doca_log_backend *backend)
{
	doca_error_t result = check_backend(backend, false, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	lock();
	backend->is_lower_strict = true;
	unlock();
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_backend_set_level_upper_limit_strict(struct doca_log_backend *backend)
{
	doca_error_t result = check_backend(backend, false, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	lock();
	backend->is_upper_strict = true;
	unlock();
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level)
{
	doca_error_t result = check_backend(backend, true, __func__);

	if (result == DOCA_SUCCESS && !is_level(level, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (result == DOCA_SUCCESS)
		set_level(&backend->lower, level);
	return result;
}

/* Sets a limit of the backends that exist, and of those to come. */
static void set_global(uint32_t *limit, uint32_t level, bool is_sdk,
		       bool (*set)(struct doca_log_backend *, uint32_t))
{
	lock();
	*limit = level;
	for (struct doca_log_backend *b = logs.backends; b != NULL; b = b->next) {
		if (b->is_sdk == is_sdk)
			(void)set(b, level);
	}
	unlock();
}

doca_error_t emu_doca_log_level_set_global_lower_limit(uint32_t level)
{
	if (!is_level(level, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	set_global(&logs.lower, level, false, set_lower);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_level_set_global_upper_limit(uint32_t level)
{
	if (!is_level(level, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	set_global(&logs.upper, level, false, set_upper);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_level_set_global_sdk_limit(uint32_t level)
{
	if (!is_level(level, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	set_global(&logs.sdk, level, true, set_lower);
	return DOCA_SUCCESS;
}

uint32_t emu_doca_log_level_get_global_lower_limit(void)
{
	return get_level(&logs.lower);
}

uint32_t emu_doca_log_level_get_global_upper_limit(void)
{
	return get_level(&logs.upper);
}

uint32_t emu_doca_log_level_get_global_sdk_limit(void)
{
	return get_level(&logs.sdk);
}

/* Sources. */

doca_error_t emu_doca_log_register_source(const char *name, int *source)
{
	int i = 0;

	if (!EMU_HAS(name) || !EMU_HAS(source))
		return DOCA_ERROR_INVALID_VALUE;
	lock();
	while (i < MAX_SOURCES && logs.is_registered[i])
		i++;
	if (i < MAX_SOURCES) {
		logs.is_registered[i] = true;
		snprintf(logs.sources[i], MAX_SOURCE_NAME, "%s", name);
		*source = i;
	}
	unlock();
	return i < MAX_SOURCES ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

static bool is_source(int source)
{
	return source >= 0 && source < MAX_SOURCES && logs.is_registered[source];
}

doca_error_t emu_doca_log_unregister_source(int source)
{
	bool was_registered;

	lock();
	was_registered = is_source(source);
	if (was_registered)
		logs.is_registered[source] = false;
	unlock();
	if (was_registered)
		return DOCA_SUCCESS;
	emu_misuse(__func__, "no source has the number %d", source);
	return DOCA_ERROR_INVALID_VALUE;
}

/* Messages. */

/* Writes a record, which ends with a newline. */
static void write_record(struct doca_log_backend *backend, uint32_t level, const char *record)
{
	size_t length = strlen(record);

	switch (backend->sink) {
	case SINK_STANDARD:
		fputs(record, level <= DOCA_LOG_LEVEL_WARNING ? stderr : stdout);
		break;
	case SINK_FILE:
		fputs(record, backend->file);
		fflush(backend->file);
		break;
	case SINK_DESCRIPTOR:
		dprintf(backend->descriptor, "%s", record);
		break;
	case SINK_BUFFER:
		/* A handler that logs would find its own message in the buffer. */
		if (backend->is_flushing || length + 1 > backend->capacity)
			break;
		memcpy(backend->buffer, record, length + 1);
		backend->is_flushing = true;
		backend->flush(backend->buffer);
		backend->is_flushing = false;
		break;
	case SINK_SYSLOG:
		openlog(backend->name, 0, LOG_USER);
		syslog(syslog_priority(level), "%.*s", (int)length - 1, record);
		break;
	}
}

static void deliver(bool is_sdk, uint32_t level, const char *record)
{
	lock();
	for (struct doca_log_backend *b = logs.backends; b != NULL; b = b->next) {
		if (b->is_sdk == is_sdk && level >= b->upper && level <= b->lower)
			write_record(b, level, record);
	}
	unlock();
}

doca_error_t emu_doca_log(uint32_t level, int source, const char *file, int line,
			  const char *function, const char *format, ...)
{
	char text[MAX_TEXT], record[MAX_RECORD];
	va_list arguments;

	if (!EMU_HAS(format) || !is_level(level, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	lock();
	snprintf(record, sizeof record, "[DOCA][%s][%s][%.256s:%d][%.256s] %s\n",
		 level_name(level), is_source(source) ? logs.sources[source] : "?",
		 file != NULL ? file : "?", line, function != NULL ? function : "?", text);
	deliver(false, level, record);
	unlock();
	return DOCA_SUCCESS;
}

void emu_log(uint32_t level, const char *format, ...)
{
	char text[MAX_TEXT], record[MAX_RECORD];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	snprintf(record, sizeof record, "[DOCA][%s][libdoca emulated] %s\n", level_name(level),
		 text);
	deliver(true, level, record);
}

void emu_log_error(const char *text)
{
	emu_log(DOCA_LOG_LEVEL_ERROR, "%s", text);
}

void emu_log_misuse(const char *text)
{
	emu_log(DOCA_LOG_LEVEL_WARNING, "misuse: %s", text);
}
