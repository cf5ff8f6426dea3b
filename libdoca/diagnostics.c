// SPDX-License-Identifier: Apache-2.0

/* Misuse, the life of objects, error names, and the version. */

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
	"argp_cmd",
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
