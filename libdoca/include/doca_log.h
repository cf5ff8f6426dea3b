/* SPDX-License-Identifier: Apache-2.0 */

/* Logging. Messages of the application and of the library go to backends of their own. */
#ifndef DOCA_LOG_H_
#define DOCA_LOG_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "doca_error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum doca_log_level {
	DOCA_LOG_LEVEL_DISABLE = 10,
	DOCA_LOG_LEVEL_CRIT = 20,
	DOCA_LOG_LEVEL_ERROR = 30,
	DOCA_LOG_LEVEL_WARNING = 40,
	DOCA_LOG_LEVEL_INFO = 50,
	DOCA_LOG_LEVEL_DEBUG = 60,
	DOCA_LOG_LEVEL_TRACE = 70,
};

struct doca_log_backend;

/* Called with the buffer of a backend, which holds one message with its newline and a zero. What
 * the handler logs itself does not go to this backend. */
typedef void (*log_flush_callback)(char *buf);

/* Backends live as long as the process. The first function creates the standard ones of the
 * application: up to WARNING on stderr, the rest on stdout. Those ending in _sdk create backends
 * for messages of the library, and the others for messages of the application. A message that does
 * not fit into a buffer is lost. */
doca_error_t doca_log_backend_create_standard(void);
doca_error_t doca_log_backend_create_with_file(FILE *file, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_file_sdk(FILE *file, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_fd(int fd, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_buf(char *buf, size_t capacity,
					      log_flush_callback handler,
					      struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_buf_sdk(char *buf, size_t capacity,
						  log_flush_callback handler,
						  struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_syslog(const char *name,
						 struct doca_log_backend **backend);
doca_error_t doca_log_backend_create_with_syslog_sdk(const char *name,
						     struct doca_log_backend **backend);

/* A backend of the application shows levels from its upper limit, CRIT by default, to its lower
 * one, INFO by default. NOT_PERMITTED: a strict limit cannot be changed to show more. */
doca_error_t doca_log_backend_set_level_lower_limit(struct doca_log_backend *backend,
						    uint32_t level);
doca_error_t doca_log_backend_set_level_upper_limit(struct doca_log_backend *backend,
						    uint32_t level);
doca_error_t doca_log_backend_set_level_lower_limit_strict(struct doca_log_backend *backend);
doca_error_t doca_log_backend_set_level_upper_limit_strict(struct doca_log_backend *backend);
doca_error_t doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level);

/* The limits of all backends, except where a strict one forbids it, and of those to come. */
doca_error_t doca_log_level_set_global_lower_limit(uint32_t level);
doca_error_t doca_log_level_set_global_upper_limit(uint32_t level);
doca_error_t doca_log_level_set_global_sdk_limit(uint32_t level);
uint32_t doca_log_level_get_global_lower_limit(void);
uint32_t doca_log_level_get_global_upper_limit(void);
uint32_t doca_log_level_get_global_sdk_limit(void);

/* Registers a source of messages, and returns its number. May be called before main. */
doca_error_t doca_log_register_source(const char *name, int *source);
doca_error_t doca_log_unregister_source(int source);

doca_error_t doca_log(uint32_t level, int source, const char *file, int line, const char *function,
		      const char *format, ...)
#if defined(__GNUC__)
	__attribute__((format(printf, 6, 7)))
#endif
	;

/* Gives a file its source of messages. The name need not be an identifier. */
#define DOCA_LOG_REGISTER(name) \
	static int log_source; \
	static void __attribute__((constructor(101), used)) doca_log_register_this_file(void) \
	{ \
		(void)doca_log_register_source(#name, &log_source); \
	} \
	struct doca_log_registered

#define DOCA_LOG(level, ...) \
	((void)doca_log((level), log_source, __FILE__, __LINE__, __func__, __VA_ARGS__))
#define DOCA_LOG_CRIT(...) DOCA_LOG(DOCA_LOG_LEVEL_CRIT, __VA_ARGS__)
#define DOCA_LOG_ERR(...) DOCA_LOG(DOCA_LOG_LEVEL_ERROR, __VA_ARGS__)
#define DOCA_LOG_WARN(...) DOCA_LOG(DOCA_LOG_LEVEL_WARNING, __VA_ARGS__)
#define DOCA_LOG_INFO(...) DOCA_LOG(DOCA_LOG_LEVEL_INFO, __VA_ARGS__)
#define DOCA_LOG_DBG(...) DOCA_LOG(DOCA_LOG_LEVEL_DEBUG, __VA_ARGS__)
#ifdef DOCA_LOGGING_ALLOW_TRACE
#define DOCA_LOG_TRC(...) DOCA_LOG(DOCA_LOG_LEVEL_TRACE, __VA_ARGS__)
#else
#define DOCA_LOG_TRC(...) ((void)0)
#endif

#ifdef __cplusplus
}
#endif
#endif
