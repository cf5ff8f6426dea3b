/* SPDX-License-Identifier: Apache-2.0 */

/* Codes, and the last error of each thread. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local struct zc_core_error last;
static _Thread_local const char *text = "";

static const struct {
	int code;
	const char *name;
	int number;
} codes[] = {
	{ ZC_SUCCESS, "SUCCESS", 0 },
	{ ZC_UNKNOWN, "UNKNOWN", EIO },
	{ ZC_NOT_PERMITTED, "NOT_PERMITTED", EPERM },
	{ ZC_IN_USE, "IN_USE", EBUSY },
	{ ZC_NOT_SUPPORTED, "NOT_SUPPORTED", EOPNOTSUPP },
	{ ZC_AGAIN, "AGAIN", EAGAIN },
	{ ZC_INVALID_VALUE, "INVALID_VALUE", EINVAL },
	{ ZC_NO_MEMORY, "NO_MEMORY", ENOMEM },
	{ ZC_INITIALIZATION, "INITIALIZATION", ENOSYS },
	{ ZC_TIME_OUT, "TIME_OUT", ETIMEDOUT },
	{ ZC_SHUTDOWN, "SHUTDOWN", ESHUTDOWN },
	{ ZC_CONNECTION_RESET, "CONNECTION_RESET", ECONNRESET },
	{ ZC_CONNECTION_ABORTED, "CONNECTION_ABORTED", ECONNABORTED },
	{ ZC_CONNECTION_INPROGRESS, "CONNECTION_INPROGRESS", EINPROGRESS },
	{ ZC_NOT_CONNECTED, "NOT_CONNECTED", ENOTCONN },
	{ ZC_NO_LOCK, "NO_LOCK", ENOLCK },
	{ ZC_NOT_FOUND, "NOT_FOUND", ENOENT },
	{ ZC_IO_FAILED, "IO_FAILED", EIO },
	{ ZC_BAD_STATE, "BAD_STATE", EINVAL },
	{ ZC_UNSUPPORTED_VERSION, "UNSUPPORTED_VERSION", EPROTONOSUPPORT },
	{ ZC_OPERATING_SYSTEM, "OPERATING_SYSTEM", EIO },
	{ ZC_DRIVER, "DRIVER", EIO },
	{ ZC_UNEXPECTED, "UNEXPECTED", EPROTO },
	{ ZC_ALREADY_EXIST, "ALREADY_EXIST", EEXIST },
	{ ZC_FULL, "FULL", ENOSPC },
	{ ZC_EMPTY, "EMPTY", ENODATA },
	{ ZC_IN_PROGRESS, "IN_PROGRESS", EINPROGRESS },
	{ ZC_TOO_BIG, "TOO_BIG", E2BIG },
	{ ZC_AUTHENTICATION, "AUTHENTICATION", EACCES },
	{ ZC_BAD_CONFIG, "BAD_CONFIG", EINVAL },
	{ ZC_SKIPPED, "SKIPPED", ECANCELED },
	{ ZC_CLOSED, "CLOSED", EBADF },
	{ ZC_FORKED, "FORKED", ECHILD },
	{ ZC_WRITES_LOST, "WRITES_LOST", EIO },
	{ ZC_MEMORY_REPLACED, "MEMORY_REPLACED", ESTALE },
	{ ZC_PREEMPTED, "PREEMPTED", ESHUTDOWN },
	{ ZC_ANOTHER_VOLUME, "ANOTHER_VOLUME", ENODEV },
	{ ZC_OTHER_RUNTIME, "OTHER_RUNTIME", EALREADY },
};

enum { CODES = sizeof codes / sizeof codes[0] };

const char *zc_code_name(int code)
{
	for (int i = 0; i < CODES; i++)
		if (codes[i].code == code)
			return codes[i].name;
	return "UNKNOWN";
}

int zc_errno_of(int code)
{
	for (int i = 0; i < CODES; i++)
		if (codes[i].code == code)
			return codes[i].number;
	return EIO;
}

const char *zc_error_text(void) { return text; }

int zc_error_number(void) { return last.number; }

int zc_fail_plainly(int code, const char *constant)
{
	last.code = code;
	last.number = zc_errno_of(code);
	text = constant;
	return code;
}

int zc_fail(int code, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(last.text, sizeof last.text, format, arguments);
	va_end(arguments);
	return zc_fail_plainly(code, last.text);
}

struct zc_core_error *zc_error_buffer(void)
{
	last = (struct zc_core_error){ 0 };
	return &last;
}

int zc_fail_as_told(void)
{
	if (last.number == 0)
		last.number = zc_errno_of(last.code);
	text = last.text;
	return last.code;
}
