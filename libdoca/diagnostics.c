/* Misuse, the life of objects, error names, the version, and logging. */

#include "skin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"

struct emu_settings emu_settings;

static bool configured; /* atomic */

void emu_mark_configured(void)
{
	__atomic_store_n(&configured, true, __ATOMIC_RELEASE);
}

void emu_wait_until_configured(void)
{
	if (!__atomic_load_n(&configured, __ATOMIC_ACQUIRE))
		emuConfigure();
}

static const char *const magic_names[] = {
	"devinfo",
	"dev",
	"devinfo_rep",
	"dev_rep",
	"mmap",
	"buf_inventory",
	"buf",
	"pe",
	"ctx",
	"task",
	"task_batch",
	"comch_connection",
	"rdma_connection",
	"rdma_addr",
	"sync_event_remote_net",
	"argp_param",
	"log_backend",
};

enum { MAGICS = sizeof magic_names / sizeof magic_names[0] };

const char *emu_magic_name(enum emu_magic magic)
{
	return magic_names[magic - EMU_DEVINFO];
}

void emu_misuse(const char *function, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (strncmp(function, "emu_", 4) == 0)
		function += 4;
	emuReport((char *)function, text);
}

bool emu_has(const void *pointer, const char *what, const char *function)
{
	if (pointer == NULL)
		emu_misuse(function, "%s is NULL", what);
	return pointer != NULL;
}

bool emu_is(const void *pointer, enum emu_magic magic, const char *function)
{
	uint32_t found;

	if (pointer == NULL) {
		emu_misuse(function, "the %s is NULL", emu_magic_name(magic));
		return false;
	}
	found = *(const uint32_t *)pointer;
	if (found == (uint32_t)magic)
		return true;
	if (found == EMU_DEAD)
		emu_misuse(function, "the %s has been destroyed", emu_magic_name(magic));
	else if (found >= EMU_DEVINFO && found < EMU_DEAD)
		emu_misuse(function, "the %s is a %s", emu_magic_name(magic),
			   emu_magic_name((enum emu_magic)found));
	else
		emu_misuse(function, "%p is no %s", pointer, emu_magic_name(magic));
	return false;
}

/* The graveyard keeps the memory of the objects that were destroyed last. */
enum { GRAVES = 1024 };

static struct {
	pthread_mutex_t lock;
	void *objects[GRAVES], *attached[GRAVES];
	uint32_t next;
} graveyard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t live[MAGICS];

void *emu_new(enum emu_magic magic, size_t size)
{
	uint32_t *object;

	emu_wait_until_configured();
	object = calloc(1, size);
	if (object == NULL)
		return NULL;
	*object = magic;
	__atomic_add_fetch(&live[magic - EMU_DEVINFO], 1, __ATOMIC_SEQ_CST);
	return object;
}

uint32_t emu_live(enum emu_magic magic)
{
	return __atomic_load_n(&live[magic - EMU_DEVINFO], __ATOMIC_SEQ_CST);
}

void emu_bury(void *object, void *attached)
{
	uint32_t magic = *(uint32_t *)object;
	void *old, *old_attached;

	*(uint32_t *)object = EMU_DEAD;
	pthread_mutex_lock(&graveyard.lock);
	old = graveyard.objects[graveyard.next];
	old_attached = graveyard.attached[graveyard.next];
	graveyard.objects[graveyard.next] = object;
	graveyard.attached[graveyard.next] = attached;
	graveyard.next = (graveyard.next + 1) % GRAVES;
	pthread_mutex_unlock(&graveyard.lock);
	free(old);
	free(old_attached);
	__atomic_sub_fetch(&live[magic - EMU_DEVINFO], 1, __ATOMIC_SEQ_CST);
}

/* Its address identifies a thread. */
static __thread char self_marker;

bool emu_enter(uintptr_t *used_by, uint32_t *depth, const char *what, const char *function)
{
	uintptr_t self = (uintptr_t)&self_marker, nobody = 0;

	if (__atomic_load_n(used_by, __ATOMIC_RELAXED) == self) {
		++*depth;
		return true;
	}
	if (__atomic_compare_exchange_n(used_by, &nobody, self, false, __ATOMIC_ACQUIRE,
					__ATOMIC_RELAXED)) {
		*depth = 1;
		return true;
	}
	emu_misuse(function,
		   "another thread is inside this %s: it belongs to one thread at a time", what);
	return false;
}

void emu_leave(uintptr_t *used_by, uint32_t *depth)
{
	if (--*depth == 0)
		__atomic_store_n(used_by, 0, __ATOMIC_RELEASE);
}

/* Errors. */

static const struct {
	const char *name, *description;
} errors[] = {
	{"DOCA_SUCCESS", "Success"},
	{"DOCA_ERROR_UNKNOWN", "Unknown error"},
	{"DOCA_ERROR_NOT_PERMITTED", "Operation not permitted"},
	{"DOCA_ERROR_IN_USE", "Resource in use"},
	{"DOCA_ERROR_NOT_SUPPORTED", "Operation not supported"},
	{"DOCA_ERROR_AGAIN", "Resource temporarily unavailable, try again"},
	{"DOCA_ERROR_INVALID_VALUE", "Invalid input"},
	{"DOCA_ERROR_NO_MEMORY", "Memory allocation failure"},
	{"DOCA_ERROR_INITIALIZATION", "Resource initialization failure"},
	{"DOCA_ERROR_TIME_OUT", "Timer expired waiting for resource"},
	{"DOCA_ERROR_SHUTDOWN", "Shut down in process or completed"},
	{"DOCA_ERROR_CONNECTION_RESET", "Connection reset by peer"},
	{"DOCA_ERROR_CONNECTION_ABORTED", "Connection aborted"},
	{"DOCA_ERROR_CONNECTION_INPROGRESS", "Connection in progress"},
	{"DOCA_ERROR_NOT_CONNECTED", "Not connected"},
	{"DOCA_ERROR_NO_LOCK", "Unable to acquire the lock"},
	{"DOCA_ERROR_NOT_FOUND", "Resource not found"},
	{"DOCA_ERROR_IO_FAILED", "Input or output failed"},
	{"DOCA_ERROR_BAD_STATE", "Bad state"},
	{"DOCA_ERROR_UNSUPPORTED_VERSION", "Unsupported version"},
	{"DOCA_ERROR_OPERATING_SYSTEM", "Operating system call failure"},
	{"DOCA_ERROR_DRIVER", "Driver call failure"},
	{"DOCA_ERROR_UNEXPECTED", "Unexpected scenario"},
	{"DOCA_ERROR_ALREADY_EXIST", "Resource already exists"},
	{"DOCA_ERROR_FULL", "No more space in the resource"},
	{"DOCA_ERROR_EMPTY", "No entry in the resource"},
	{"DOCA_ERROR_IN_PROGRESS", "Operation in progress"},
	{"DOCA_ERROR_TOO_BIG", "Too big"},
	{"DOCA_ERROR_AUTHENTICATION", "Authentication failure"},
	{"DOCA_ERROR_BAD_CONFIG", "Bad configuration"},
	{"DOCA_ERROR_SKIPPED", "Skipped"},
	{"DOCA_ERROR_DEVICE_FATAL_ERROR", "Fatal error of the device"},
};

/* Returns the number of errors that the release knows. */
static uint32_t error_count(void)
{
	emu_wait_until_configured();
	return emu_settings.release >= 302 ? 32 : 31;
}

const char *emu_doca_error_get_name(doca_error_t error)
{
	return (uint32_t)error < error_count() ? errors[error].name : "DOCA_ERROR_UNKNOWN";
}

const char *emu_doca_error_get_descr(doca_error_t error)
{
	return (uint32_t)error < error_count() ? errors[error].description : "Unknown error code";
}

const char *emu_doca_version_runtime(void)
{
	emu_wait_until_configured();
	return emu_settings.version;
}

/* Logging. */

enum { MAX_SOURCES = 256, MAX_SOURCE_NAME = 64 };

struct doca_log_backend {
	uint32_t magic;
	FILE *file; /* or NULL */
	int descriptor;
	uint32_t level;
	struct doca_log_backend *next;
};

static struct {
	pthread_mutex_t lock;
	bool standard;
	uint32_t level, sdk_level; /* 0 before they are set: then INFO, and what each backend has */
	struct doca_log_backend *sdk;
	char sources[MAX_SOURCES][MAX_SOURCE_NAME];
	int num_sources;
} logs = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

doca_error_t emu_doca_log_backend_create_standard(void)
{
	pthread_mutex_lock(&logs.lock);
	logs.standard = true;
	pthread_mutex_unlock(&logs.lock);
	return DOCA_SUCCESS;
}

static doca_error_t add_sdk_backend(FILE *file, int descriptor, struct doca_log_backend **backend)
{
	struct doca_log_backend *added = calloc(1, sizeof *added);

	if (added == NULL)
		return DOCA_ERROR_NO_MEMORY;
	added->magic = EMU_LOG_BACKEND; /* never destroyed, so not counted */
	added->file = file;
	added->descriptor = descriptor;
	added->level = DOCA_LOG_LEVEL_WARNING;
	pthread_mutex_lock(&logs.lock);
	added->next = logs.sdk;
	logs.sdk = added;
	pthread_mutex_unlock(&logs.lock);
	*backend = added;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_backend_create_with_file_sdk(FILE *file,
						       struct doca_log_backend **backend)
{
	if (!EMU_HAS(file) || !EMU_HAS(backend))
		return DOCA_ERROR_INVALID_VALUE;
	return add_sdk_backend(file, -1, backend);
}

doca_error_t emu_doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend)
{
	if (!EMU_HAS(backend))
		return DOCA_ERROR_INVALID_VALUE;
	if (fd < 0) {
		emu_misuse(__func__, "descriptor %d is negative", fd);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return add_sdk_backend(NULL, fd, backend);
}

doca_error_t emu_doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level)
{
	if (!EMU_IS(backend, EMU_LOG_BACKEND))
		return DOCA_ERROR_INVALID_VALUE;
	if (level < DOCA_LOG_LEVEL_DISABLE || level > DOCA_LOG_LEVEL_TRACE) {
		emu_misuse(__func__, "%u is no level", level);
		return DOCA_ERROR_INVALID_VALUE;
	}
	__atomic_store_n(&backend->level, level, __ATOMIC_RELAXED);
	return DOCA_SUCCESS;
}

doca_error_t emu_set_log_level(int level, bool sdk)
{
	if (level < DOCA_LOG_LEVEL_DISABLE || level > DOCA_LOG_LEVEL_TRACE)
		return DOCA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&logs.lock);
	*(sdk ? &logs.sdk_level : &logs.level) = (uint32_t)level;
	pthread_mutex_unlock(&logs.lock);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_log_register_source(const char *name, int *source)
{
	doca_error_t result = DOCA_SUCCESS;

	if (!EMU_HAS(name) || !EMU_HAS(source))
		return DOCA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&logs.lock);
	if (logs.num_sources == MAX_SOURCES) {
		result = DOCA_ERROR_NO_MEMORY;
	} else {
		snprintf(logs.sources[logs.num_sources], MAX_SOURCE_NAME, "%s", name);
		*source = logs.num_sources++;
	}
	pthread_mutex_unlock(&logs.lock);
	return result;
}

doca_error_t emu_doca_log(uint32_t level, int source, const char *file, int line,
			  const char *function, const char *format, ...)
{
	char text[1024];
	va_list arguments;
	FILE *out = level <= DOCA_LOG_LEVEL_WARNING ? stderr : stdout;

	if (!EMU_HAS(format))
		return DOCA_ERROR_INVALID_VALUE;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	pthread_mutex_lock(&logs.lock);
	if (logs.standard && level <= (logs.level != 0 ? logs.level : DOCA_LOG_LEVEL_INFO))
		fprintf(out, "[DOCA][%s][%s][%s:%d][%s] %s\n", level_name(level),
			source >= 0 && source < logs.num_sources ? logs.sources[source] : "?",
			file != NULL ? file : "?", line, function != NULL ? function : "?", text);
	pthread_mutex_unlock(&logs.lock);
	return DOCA_SUCCESS;
}

void emu_log(uint32_t level, const char *format, ...)
{
	char text[1024];
	int length;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text - 1, format, arguments);
	va_end(arguments);
	length = (int)strlen(text);
	text[length++] = '\n';
	pthread_mutex_lock(&logs.lock);
	for (struct doca_log_backend *b = logs.sdk; b != NULL; b = b->next) {
		if (level > (logs.sdk_level != 0 ? logs.sdk_level
						 : __atomic_load_n(&b->level, __ATOMIC_RELAXED)))
			continue;
		if (b->file != NULL) {
			fprintf(b->file, "[DOCA][%s][libdoca emulated] %.*s", level_name(level),
				length, text);
			fflush(b->file);
		} else {
			dprintf(b->descriptor, "[DOCA][%s][libdoca emulated] %.*s",
				level_name(level), length, text);
		}
	}
	pthread_mutex_unlock(&logs.lock);
}

void emu_log_error(const char *text)
{
	emu_log(DOCA_LOG_LEVEL_ERROR, "%s", text);
}

void emu_log_misuse(const char *text)
{
	emu_log(DOCA_LOG_LEVEL_WARNING, "misuse: %s", text);
}
