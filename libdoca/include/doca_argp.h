/* SPDX-License-Identifier: Apache-2.0 */

/* Command lines: options with a short or a long name, on the command line or in a JSON file, and
 * commands, which have options and commands of their own. */
#ifndef DOCA_ARGP_H_
#define DOCA_ARGP_H_

#include <stdarg.h>

#include "doca_dev.h"
#include "doca_error.h"
#include "doca_log.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_argp_cmd;
struct doca_argp_param;

/* What a callback gets a pointer to: char for a string, int, bool. */
enum doca_argp_type {
	DOCA_ARGP_TYPE_UNKNOWN = 0,
	DOCA_ARGP_TYPE_STRING = 1,
	DOCA_ARGP_TYPE_INT = 2,
	DOCA_ARGP_TYPE_BOOLEAN = 3,
	DOCA_ARGP_TYPE_JSON_OBJ = 4,
};

typedef doca_error_t (*doca_argp_param_cb_t)(void *value, void *config);
typedef doca_error_t (*doca_argp_cmd_cb_t)(void *config);
typedef doca_error_t (*doca_argp_validation_cb_t)(void *config);
typedef doca_error_t (*doca_argp_dpdk_cb_t)(int argc, char **argv);
typedef doca_error_t (*doca_argp_logger_cb_t)(enum doca_log_level level, const char *format,
					      va_list arguments);

/* config is passed to all callbacks. Without a name, the program has that of the first argument of
 * doca_argp_start. */
doca_error_t doca_argp_init(const char *program_name, void *config);
/* Frees the registered options and commands, too. */
doca_error_t doca_argp_destroy(void);

/* An option needs a name, a description, a callback, and a type. */
doca_error_t doca_argp_param_create(struct doca_argp_param **param);
/* BAD_STATE: it is registered. */
doca_error_t doca_argp_param_destroy(struct doca_argp_param *param);
void doca_argp_param_set_short_name(struct doca_argp_param *param, const char *name);
/* Also the key in a JSON file. */
void doca_argp_param_set_long_name(struct doca_argp_param *param, const char *name);
/* What the usage shows behind the name, for instance "<path>". */
void doca_argp_param_set_arguments(struct doca_argp_param *param, const char *arguments);
void doca_argp_param_set_description(struct doca_argp_param *param, const char *description);
void doca_argp_param_set_callback(struct doca_argp_param *param, doca_argp_param_cb_t callback);
void doca_argp_param_set_type(struct doca_argp_param *param, enum doca_argp_type type);
void doca_argp_param_set_mandatory(struct doca_argp_param *param);
/* The option may be given several times. */
void doca_argp_param_set_multiplicity(struct doca_argp_param *param);
/* A JSON file cannot have the option. */
void doca_argp_param_set_cli_only(struct doca_argp_param *param);
/* No other option can be given with it, and none has to be. */
void doca_argp_param_set_singular(struct doca_argp_param *param);
/* The option can be given to the commands of its command, too. */
void doca_argp_param_set_inherited(struct doca_argp_param *param);
/* The usage does not show it. */
void doca_argp_param_set_hidden(struct doca_argp_param *param);

/* A command needs a name and a description. Its callback is called before those of its options. */
doca_error_t doca_argp_cmd_create(struct doca_argp_cmd **cmd);
/* BAD_STATE: it is registered. */
doca_error_t doca_argp_cmd_destroy(struct doca_argp_cmd *cmd);
void doca_argp_cmd_set_name(struct doca_argp_cmd *cmd, const char *name);
void doca_argp_cmd_set_description(struct doca_argp_cmd *cmd, const char *description);
void doca_argp_cmd_set_callback(struct doca_argp_cmd *cmd, doca_argp_cmd_cb_t callback);
void doca_argp_cmd_set_hidden(struct doca_argp_cmd *cmd);

/* What is registered belongs to the library from now on, even if the call fails. A command gets its
 * options and commands before it is registered itself. */
doca_error_t doca_argp_register_param(struct doca_argp_param *param);
doca_error_t doca_argp_register_cmd(struct doca_argp_cmd *cmd);
doca_error_t doca_argp_cmd_register_param(struct doca_argp_cmd *cmd, struct doca_argp_param *param);
doca_error_t doca_argp_cmd_register_cmd(struct doca_argp_cmd *cmd, struct doca_argp_cmd *inner);
/* Called after all options have been handed out. */
doca_error_t doca_argp_register_validation_callback(doca_argp_validation_cb_t callback);
/* Called for --version. */
doca_error_t doca_argp_register_version_callback(doca_argp_param_cb_t callback);
/* Called with what is wrong with the command line, in place of stderr. */
doca_error_t doca_argp_register_logger_callback(doca_argp_logger_cb_t callback);
doca_error_t doca_argp_disable_logger_callback(void);
/* The program's arguments before "--" are for DPDK, or all if there is no "--", unless a JSON file
 * is given. The callback is the last one that is called, with the name of the program and them.
 * They last until doca_argp_destroy. */
void doca_argp_set_dpdk_program(doca_argp_dpdk_cb_t callback);

/* Parses the command line. No callback is called if it is wrong. */
doca_error_t doca_argp_start(int argc, char **argv);

/* Prints how to use the program, or the command that the command line names. */
void doca_argp_usage(void);

/* The levels of the command line, or those that hold without. */
doca_error_t doca_argp_get_log_level(int *level);
doca_error_t doca_argp_get_sdk_log_level(int *level);

#ifdef __cplusplus
}
#endif
#endif
