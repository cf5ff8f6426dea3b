// SPDX-License-Identifier: Apache-2.0

/* Command lines: options, commands with options of their own, and what DPDK gets. They are checked
 * as a whole before any callback is called. The core reads JSON. */

#include "skin.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

enum { MAX_VALUES = 4096, MAX_NAME = 64, MAX_TEXT = 1024 };

struct doca_argp_param {
	uint32_t magic;
	char short_name[MAX_NAME], long_name[MAX_NAME], arguments[MAX_NAME];
	char description[MAX_TEXT];
	doca_argp_param_cb_t callback;
	enum doca_argp_type type;
	bool is_mandatory, is_multiple, is_registered;
	bool is_cli_only, is_singular, is_inherited, is_hidden;
	uint32_t given; /* how often */
	struct doca_argp_param *next; /* of the same command */
};

struct doca_argp_cmd {
	uint32_t magic;
	char name[MAX_NAME], description[MAX_TEXT];
	doca_argp_cmd_cb_t callback; /* or NULL */
	bool is_hidden, is_registered;
	struct doca_argp_param *params;
	struct doca_argp_cmd *parent; /* NULL for the root */
	struct doca_argp_cmd *cmds, *next;
};

/* An option or a command on the command line. */
struct value {
	struct doca_argp_param *param;
	struct doca_argp_cmd *cmd;
	char *text; /* of an option; points into the command line or the file */
};

static struct {
	bool is_initialized;
	char program[MAX_NAME];
	void *config;
	struct doca_argp_cmd root;     /* the program itself */
	struct doca_argp_cmd *current; /* the last one on the command line, or NULL */
	doca_argp_validation_cb_t validate;
	doca_argp_param_cb_t version;
	doca_argp_logger_cb_t logger;
	doca_argp_dpdk_cb_t dpdk; /* or NULL */
	char **dpdk_argv;	  /* ends with NULL */
	int dpdk_argc;
	struct value values[MAX_VALUES];
	uint32_t num_values;
	char *file; /* what a JSON file holds: names and values, each with its terminator */
	size_t file_size;
} argp;

/* The options that every program has. */

static bool is_log_level(int level)
{
	return level >= DOCA_LOG_LEVEL_DISABLE && level <= DOCA_LOG_LEVEL_TRACE;
}

static doca_error_t set_log_level(void *value, void *config)
{
	int level = *(int *)value;

	(void)config;
	return is_log_level(level) ? emu_doca_log_level_set_global_lower_limit((uint32_t)level)
				   : DOCA_ERROR_INVALID_VALUE;
}

static doca_error_t set_sdk_log_level(void *value, void *config)
{
	int level = *(int *)value;

	(void)config;
	return is_log_level(level) ? emu_doca_log_level_set_global_sdk_limit((uint32_t)level)
				   : DOCA_ERROR_INVALID_VALUE;
}

static struct doca_argp_param help = {.short_name = "h",
				      .long_name = "help",
				      .description = "Print this help",
				      .type = DOCA_ARGP_TYPE_BOOLEAN};
static struct doca_argp_param version = {.short_name = "v",
					 .long_name = "version",
					 .description = "Print the version",
					 .type = DOCA_ARGP_TYPE_BOOLEAN};
static struct doca_argp_param json = {.short_name = "j",
				      .long_name = "json",
				      .arguments = "<path>",
				      .description = "Read options from a JSON file",
				      .type = DOCA_ARGP_TYPE_STRING};
static struct doca_argp_param log_level = {.short_name = "l",
					   .long_name = "log-level",
					   .arguments = "<10-70>",
					   .description = "Log level of the program",
					   .type = DOCA_ARGP_TYPE_INT,
					   .callback = set_log_level};
static struct doca_argp_param sdk_log_level = {.long_name = "sdk-log-level",
					       .arguments = "<10-70>",
					       .description = "Log level of the library",
					       .type = DOCA_ARGP_TYPE_INT,
					       .callback = set_sdk_log_level};
static struct doca_argp_param *const generic[] = {&help, &version, &json, &log_level,
						  &sdk_log_level};

enum { NUM_GENERIC = sizeof generic / sizeof generic[0] };

static const char *name_of(const struct doca_argp_param *param)
{
	return param->long_name[0] != '\0' ? param->long_name : param->short_name;
}

static bool has_name(const struct doca_argp_param *param, const char *name, size_t length,
		     bool is_long)
{
	const char *own = is_long ? param->long_name : param->short_name;

	return length > 0 && strlen(own) == length && strncmp(own, name, length) == 0;
}

/* Returns an option that can be given to a command: its own, one that it inherits, or one that
 * every program has. */
static struct doca_argp_param *find(const struct doca_argp_cmd *cmd, const char *name,
				    size_t length, bool is_long)
{
	for (const struct doca_argp_cmd *c = cmd; c != NULL; c = c->parent) {
		for (struct doca_argp_param *p = c->params; p != NULL; p = p->next) {
			if ((c == cmd || p->is_inherited) && has_name(p, name, length, is_long))
				return p;
		}
	}
	for (uint32_t i = 0; i < NUM_GENERIC; i++) {
		if (has_name(generic[i], name, length, is_long))
			return generic[i];
	}
	return NULL;
}

static struct doca_argp_cmd *find_cmd(const struct doca_argp_cmd *parent, const char *name)
{
	struct doca_argp_cmd *cmd = parent->cmds;

	while (cmd != NULL && strcmp(cmd->name, name) != 0)
		cmd = cmd->next;
	return cmd;
}

doca_error_t emu_doca_argp_init(const char *program_name, void *config)
{
	if (argp.is_initialized) {
		emu_misuse(__func__, "it has been called before: call doca_argp_destroy first");
		return DOCA_ERROR_BAD_STATE;
	}
	argp.is_initialized = true;
	argp.config = config;
	argp.root.magic = EMU_ARGP_CMD;
	if (program_name != NULL)
		snprintf(argp.program, sizeof argp.program, "%s", program_name);
	return DOCA_SUCCESS;
}

static bool is_initialized(const char *function)
{
	if (!argp.is_initialized)
		emu_misuse(function, "doca_argp_init has not been called");
	return argp.is_initialized;
}

/* Destroys the options and commands of a command. */
static void empty(struct doca_argp_cmd *cmd)
{
	while (cmd->params != NULL) {
		struct doca_argp_param *param = cmd->params;

		cmd->params = param->next;
		emu_bury(param, NULL);
	}
	while (cmd->cmds != NULL) {
		struct doca_argp_cmd *inner = cmd->cmds;

		cmd->cmds = inner->next;
		empty(inner);
		emu_bury(inner, NULL);
	}
}

doca_error_t emu_doca_argp_destroy(void)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	empty(&argp.root);
	free(argp.dpdk_argv);
	for (uint32_t i = 0; i < NUM_GENERIC; i++)
		generic[i]->given = 0;
	free(argp.file);
	memset(&argp, 0, sizeof argp);
	return DOCA_SUCCESS;
}

/* Options. */

doca_error_t emu_doca_argp_param_create(struct doca_argp_param **param)
{
	if (!EMU_HAS(param))
		return DOCA_ERROR_INVALID_VALUE;
	*param = emu_new(EMU_ARGP_PARAM, sizeof **param);
	return *param == NULL ? DOCA_ERROR_NO_MEMORY : DOCA_SUCCESS;
}

/* Returns whether an option may still be changed. */
static bool is_changeable(struct doca_argp_param *param, const char *function)
{
	if (!emu_is(param, EMU_ARGP_PARAM, function))
		return false;
	if (param->is_registered)
		emu_misuse(function, "the option %s is registered", name_of(param));
	return !param->is_registered;
}

#define TEXT_SETTER(field) \
	void emu_doca_argp_param_set_##field(struct doca_argp_param *param, const char *text) \
	{ \
		if (is_changeable(param, __func__) && EMU_HAS(text)) \
			snprintf(param->field, sizeof param->field, "%s", text); \
	}
TEXT_SETTER(short_name)
TEXT_SETTER(long_name)
TEXT_SETTER(arguments)
TEXT_SETTER(description)

void emu_doca_argp_param_set_callback(struct doca_argp_param *param, doca_argp_param_cb_t callback)
{
	if (is_changeable(param, __func__) && EMU_HAS(callback))
		param->callback = callback;
}

void emu_doca_argp_param_set_type(struct doca_argp_param *param, enum doca_argp_type type)
{
	if (is_changeable(param, __func__))
		param->type = type;
}

#define FLAG_SETTER(property, field) \
	void emu_doca_argp_param_set_##property(struct doca_argp_param *param) \
	{ \
		if (is_changeable(param, __func__)) \
			param->field = true; \
	}
FLAG_SETTER(mandatory, is_mandatory)
FLAG_SETTER(multiplicity, is_multiple)
FLAG_SETTER(cli_only, is_cli_only)
FLAG_SETTER(singular, is_singular)
FLAG_SETTER(inherited, is_inherited)
FLAG_SETTER(hidden, is_hidden)

doca_error_t emu_doca_argp_param_destroy(struct doca_argp_param *param)
{
	if (!EMU_IS(param, EMU_ARGP_PARAM))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_changeable(param, __func__))
		return DOCA_ERROR_BAD_STATE;
	emu_bury(param, NULL);
	return DOCA_SUCCESS;
}

static doca_error_t add_param(struct doca_argp_cmd *cmd, struct doca_argp_param *param,
			      const char *function)
{
	struct doca_argp_param **link = &cmd->params;

	if (name_of(param)[0] == '\0' || param->description[0] == '\0' ||
	    param->callback == NULL || param->type == DOCA_ARGP_TYPE_UNKNOWN) {
		emu_misuse(function, "an option needs a name, a description, a callback, and a "
				     "type");
		return DOCA_ERROR_INITIALIZATION;
	}
	if (param->type > DOCA_ARGP_TYPE_BOOLEAN) {
		emu_log(DOCA_LOG_LEVEL_ERROR, "option %s: objects of JSON are not emulated",
			name_of(param));
		return DOCA_ERROR_NOT_SUPPORTED;
	}
	if (find(cmd, param->long_name, strlen(param->long_name), true) != NULL ||
	    find(cmd, param->short_name, strlen(param->short_name), false) != NULL) {
		emu_misuse(function, "another option is called %s or %s", param->long_name,
			   param->short_name);
		return DOCA_ERROR_ALREADY_EXIST;
	}
	while (*link != NULL)
		link = &(*link)->next;
	*link = param;
	param->is_registered = true;
	return DOCA_SUCCESS;
}

/* Registers an option with a command, or with the program if cmd is NULL. It belongs to the library
 * from then on, even if that fails. */
static doca_error_t register_param(struct doca_argp_cmd *cmd, struct doca_argp_param *param,
				   bool can_register, const char *function)
{
	doca_error_t result = DOCA_ERROR_BAD_STATE;

	if (!emu_is(param, EMU_ARGP_PARAM, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_changeable(param, function))
		return DOCA_ERROR_BAD_STATE;
	if (can_register)
		result = add_param(cmd, param, function);
	if (result != DOCA_SUCCESS)
		emu_bury(param, NULL);
	return result;
}

doca_error_t emu_doca_argp_register_param(struct doca_argp_param *param)
{
	return register_param(&argp.root, param, is_initialized(__func__), __func__);
}

/* Commands. */

doca_error_t emu_doca_argp_cmd_create(struct doca_argp_cmd **cmd)
{
	if (!EMU_HAS(cmd))
		return DOCA_ERROR_INVALID_VALUE;
	*cmd = emu_new(EMU_ARGP_CMD, sizeof **cmd);
	return *cmd == NULL ? DOCA_ERROR_NO_MEMORY : DOCA_SUCCESS;
}

/* Returns whether a command may still be changed. */
static bool is_cmd_changeable(struct doca_argp_cmd *cmd, const char *function)
{
	if (!emu_is(cmd, EMU_ARGP_CMD, function))
		return false;
	if (cmd->is_registered)
		emu_misuse(function, "the command %s is registered", cmd->name);
	return !cmd->is_registered;
}

doca_error_t emu_doca_argp_cmd_destroy(struct doca_argp_cmd *cmd)
{
	if (!EMU_IS(cmd, EMU_ARGP_CMD))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_cmd_changeable(cmd, __func__))
		return DOCA_ERROR_BAD_STATE;
	empty(cmd);
	emu_bury(cmd, NULL);
	return DOCA_SUCCESS;
}

#define CMD_TEXT_SETTER(field) \
	void emu_doca_argp_cmd_set_##field(struct doca_argp_cmd *cmd, const char *text) \
	{ \
		if (is_cmd_changeable(cmd, __func__) && EMU_HAS(text)) \
			snprintf(cmd->field, sizeof cmd->field, "%s", text); \
	}
CMD_TEXT_SETTER(name)
CMD_TEXT_SETTER(description)

void emu_doca_argp_cmd_set_callback(struct doca_argp_cmd *cmd, doca_argp_cmd_cb_t callback)
{
	if (is_cmd_changeable(cmd, __func__) && EMU_HAS(callback))
		cmd->callback = callback;
}

void emu_doca_argp_cmd_set_hidden(struct doca_argp_cmd *cmd)
{
	if (is_cmd_changeable(cmd, __func__))
		cmd->is_hidden = true;
}

doca_error_t emu_doca_argp_cmd_register_param(struct doca_argp_cmd *cmd,
					      struct doca_argp_param *param)
{
	if (!EMU_IS(cmd, EMU_ARGP_CMD))
		return DOCA_ERROR_INVALID_VALUE;
	return register_param(cmd, param, is_cmd_changeable(cmd, __func__), __func__);
}

static doca_error_t add_cmd(struct doca_argp_cmd *parent, struct doca_argp_cmd *cmd,
			    const char *function)
{
	struct doca_argp_cmd **link = &parent->cmds;

	if (cmd->name[0] == '\0' || cmd->description[0] == '\0') {
		emu_misuse(function, "a command needs a name and a description");
		return DOCA_ERROR_INITIALIZATION;
	}
	if (find_cmd(parent, cmd->name) != NULL) {
		emu_misuse(function, "another command is called %s", cmd->name);
		return DOCA_ERROR_ALREADY_EXIST;
	}
	while (*link != NULL)
		link = &(*link)->next;
	*link = cmd;
	cmd->parent = parent;
	cmd->is_registered = true;
	return DOCA_SUCCESS;
}

/* Like register_param. */
static doca_error_t register_cmd(struct doca_argp_cmd *parent, struct doca_argp_cmd *cmd,
				 bool can_register, const char *function)
{
	doca_error_t result = DOCA_ERROR_BAD_STATE;

	if (!emu_is(cmd, EMU_ARGP_CMD, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_cmd_changeable(cmd, function))
		return DOCA_ERROR_BAD_STATE;
	if (can_register)
		result = add_cmd(parent, cmd, function);
	if (result != DOCA_SUCCESS) {
		empty(cmd);
		emu_bury(cmd, NULL);
	}
	return result;
}

doca_error_t emu_doca_argp_register_cmd(struct doca_argp_cmd *cmd)
{
	return register_cmd(&argp.root, cmd, is_initialized(__func__), __func__);
}

doca_error_t emu_doca_argp_cmd_register_cmd(struct doca_argp_cmd *parent, struct doca_argp_cmd *cmd)
{
	if (!EMU_IS(parent, EMU_ARGP_CMD))
		return DOCA_ERROR_INVALID_VALUE;
	if (parent == cmd) {
		emu_misuse(__func__, "a command cannot be one of its own commands");
		return DOCA_ERROR_INVALID_VALUE;
	}
	return register_cmd(parent, cmd, is_cmd_changeable(parent, __func__), __func__);
}

/* What else a program registers. */

doca_error_t emu_doca_argp_register_validation_callback(doca_argp_validation_cb_t callback)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (!EMU_HAS(callback))
		return DOCA_ERROR_INVALID_VALUE;
	argp.validate = callback;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_argp_register_version_callback(doca_argp_param_cb_t callback)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (!EMU_HAS(callback))
		return DOCA_ERROR_INVALID_VALUE;
	argp.version = callback;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_argp_register_logger_callback(doca_argp_logger_cb_t callback)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (!EMU_HAS(callback))
		return DOCA_ERROR_INVALID_VALUE;
	if (argp.logger != NULL) {
		emu_misuse(__func__, "a logger is registered");
		return DOCA_ERROR_ALREADY_EXIST;
	}
	argp.logger = callback;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_argp_disable_logger_callback(void)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (argp.logger == NULL) {
		emu_misuse(__func__, "no logger is registered");
		return DOCA_ERROR_BAD_STATE;
	}
	argp.logger = NULL;
	return DOCA_SUCCESS;
}

void emu_doca_argp_set_dpdk_program(doca_argp_dpdk_cb_t callback)
{
	if (is_initialized(__func__) && EMU_HAS(callback))
		argp.dpdk = callback;
}

/* The options of the levels set those of the library, so both are the same. */

doca_error_t emu_doca_argp_get_log_level(int *level)
{
	if (!EMU_HAS(level))
		return DOCA_ERROR_INVALID_VALUE;
	*level = (int)emu_doca_log_level_get_global_lower_limit();
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_argp_get_sdk_log_level(int *level)
{
	if (!EMU_HAS(level))
		return DOCA_ERROR_INVALID_VALUE;
	*level = (int)emu_doca_log_level_get_global_sdk_limit();
	return DOCA_SUCCESS;
}

/* Parsing. */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	if (argp.logger != NULL) {
		(void)argp.logger(DOCA_LOG_LEVEL_ERROR, format, arguments);
	} else {
		vfprintf(stderr, format, arguments);
		fputc('\n', stderr);
	}
	va_end(arguments);
}

static doca_error_t complain(const char *what, const char *name)
{
	say("%s: %s %s; see %s --help", argp.program, what, name, argp.program);
	return DOCA_ERROR_INVALID_VALUE;
}

static void print_param(const struct doca_argp_param *param)
{
	bool has_short = param->short_name[0] != '\0', has_long = param->long_name[0] != '\0';

	printf("  %s%s%s%s%s %s\n        %s%s\n", has_short ? "-" : "", param->short_name,
	       has_short && has_long ? ", " : "", has_long ? "--" : "", param->long_name,
	       param->arguments, param->description, param->is_mandatory ? " (required)" : "");
}

/* Prints the options that can be given to a command. */
static void print_params(const struct doca_argp_cmd *cmd)
{
	const char *title = cmd == &argp.root ? "\nOptions of this program:\n"
					      : "\nOptions of this command:\n";

	for (const struct doca_argp_cmd *c = cmd; c != NULL; c = c->parent) {
		for (const struct doca_argp_param *p = c->params; p != NULL; p = p->next) {
			if (p->is_hidden || (c != cmd && !p->is_inherited))
				continue;
			fputs(title, stdout);
			title = "";
			print_param(p);
		}
	}
}

static void print_path(const struct doca_argp_cmd *cmd)
{
	if (cmd == &argp.root) {
		fputs(argp.program, stdout);
		return;
	}
	print_path(cmd->parent);
	printf(" %s", cmd->name);
}

/* Prints how to use the program, or the command that the command line has reached. */
static void print_usage(void)
{
	const struct doca_argp_cmd *cmd = argp.current != NULL ? argp.current : &argp.root;
	const char *title = "\nCommands:\n";

	fputs("Usage: ", stdout);
	print_path(cmd);
	printf("%s [OPTION...]%s\n\nOptions of all programs:\n",
	       argp.dpdk != NULL ? " [DPDK OPTION...] --" : "",
	       cmd->cmds != NULL ? " [COMMAND]" : "");
	for (uint32_t i = 0; i < NUM_GENERIC; i++)
		print_param(generic[i]);
	print_params(cmd);
	for (const struct doca_argp_cmd *c = cmd->cmds; c != NULL; c = c->next) {
		if (c->is_hidden)
			continue;
		printf("%s  %s\n        %s\n", title, c->name, c->description);
		title = "";
	}
}

void emu_doca_argp_usage(void)
{
	if (is_initialized(__func__))
		print_usage();
}

static bool parse_int(const char *text, int *number)
{
	char *end;
	long parsed;

	errno = 0;
	parsed = strtol(text, &end, 0);
	*number = (int)parsed;
	return errno == 0 && *text != '\0' && *end == '\0' && parsed >= INT_MIN &&
	       parsed <= INT_MAX;
}

/* Takes an option and its value. */
static doca_error_t take(struct doca_argp_param *param, char *text)
{
	int number;

	if (param->given++ > 0 && !param->is_multiple)
		return complain("only once is possible:", name_of(param));
	if (param->type == DOCA_ARGP_TYPE_INT && !parse_int(text, &number))
		return complain("a number is needed for", name_of(param));
	if (argp.num_values == MAX_VALUES)
		return complain("too many options, from", name_of(param));
	argp.values[argp.num_values++] = (struct value){.param = param, .text = text};
	return DOCA_SUCCESS;
}

static doca_error_t take_cmd(const char *name)
{
	struct doca_argp_cmd *cmd = find_cmd(argp.current, name);

	if (cmd == NULL)
		return complain(argp.current->cmds != NULL ? "unknown command"
							   : "unexpected argument",
				name);
	if (argp.num_values == MAX_VALUES)
		return complain("too many options, from", name);
	argp.values[argp.num_values++] = (struct value){.cmd = cmd};
	argp.current = cmd;
	return DOCA_SUCCESS;
}

static doca_error_t parse_arguments(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		bool is_long = strncmp(argv[i], "--", 2) == 0;
		char *name = argv[i] + (is_long ? 2 : 1);
		char *value = is_long ? strchr(name, '=') : NULL;
		size_t length = value != NULL ? (size_t)(value - name) : strlen(name);
		struct doca_argp_param *param;
		doca_error_t result;

		if (argv[i][0] != '-') {
			result = take_cmd(argv[i]);
			if (result != DOCA_SUCCESS)
				return result;
			continue;
		}
		param = find(argp.current, name, length, is_long);
		if (param == NULL)
			return complain("unknown option", argv[i]);
		if (value != NULL)
			value++;
		if (param->type == DOCA_ARGP_TYPE_BOOLEAN && value != NULL)
			return complain("no value is possible for", name_of(param));
		if (param->type != DOCA_ARGP_TYPE_BOOLEAN && value == NULL && i + 1 == argc)
			return complain("a value is needed for", name_of(param));
		if (param->type != DOCA_ARGP_TYPE_BOOLEAN && value == NULL)
			value = argv[++i];
		result = take(param, value);
		if (result != DOCA_SUCCESS)
			return result;
	}
	return DOCA_SUCCESS;
}

/* Takes the options of the JSON file, if one is given. */
static doca_error_t parse_file(void)
{
	char *path = NULL;
	doca_error_t result = DOCA_SUCCESS;

	for (uint32_t i = 0; i < argp.num_values; i++)
		path = argp.values[i].param == &json ? argp.values[i].text : path;
	if (path == NULL)
		return DOCA_SUCCESS;
	if (emuReadArguments(path, &argp.file, &argp.file_size) != DOCA_SUCCESS)
		return complain("it is no file of options:", path);
	for (char *name = argp.file; name < argp.file + argp.file_size && result == DOCA_SUCCESS;) {
		char *value = name + strlen(name) + 1;
		struct doca_argp_param *param = find(argp.current, name, strlen(name), true);

		if (name[0] == '\0') { /* what DPDK gets */
			name = value + strlen(value) + 1;
			continue;
		}
		if (param == NULL)
			return complain("unknown option in the file:", name);
		if (param->is_cli_only)
			return complain("only on the command line is possible:", name);
		if (param->type != DOCA_ARGP_TYPE_BOOLEAN || strcmp(value, "true") == 0)
			result = take(param, value);
		else if (strcmp(value, "false") != 0)
			return complain("true or false is needed for", name);
		name = value + strlen(value) + 1;
	}
	return result;
}

static doca_error_t call(const struct value *value)
{
	bool is_set = true;
	int number = 0;

	if (value->cmd != NULL)
		return value->cmd->callback == NULL ? DOCA_SUCCESS
						    : value->cmd->callback(argp.config);
	if (value->param->callback == NULL)
		return DOCA_SUCCESS; /* --json */
	switch (value->param->type) {
	case DOCA_ARGP_TYPE_STRING:
		return value->param->callback(value->text, argp.config);
	case DOCA_ARGP_TYPE_INT:
		(void)parse_int(value->text, &number);
		return value->param->callback(&number, argp.config);
	default:
		return value->param->callback(&is_set, argp.config);
	}
}

static doca_error_t print_version(void)
{
	if (argp.version != NULL)
		return argp.version(NULL, argp.config);
	printf("%s: libdoca %s, emulated\n", argp.program, emu_doca_version_runtime());
	return DOCA_SUCCESS;
}

/* Returns the last element of a path. */
static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash == NULL ? path : slash + 1;
}

static bool is_json(const char *argument)
{
	return strcmp(argument, "-j") == 0 || strcmp(argument, "--json") == 0 ||
	       strncmp(argument, "--json=", strlen("--json=")) == 0;
}

/* Returns how many of the arguments are for DPDK: those before "--", or all if there is none,
 * unless a file is given. */
static int count_dpdk_arguments(int argc, char **argv)
{
	bool has_file = false;

	if (argp.dpdk == NULL)
		return 0;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--") == 0)
			return i - 1;
		has_file = has_file || is_json(argv[i]);
	}
	return has_file ? 0 : argc - 1;
}

/* Collects the arguments for DPDK, behind the name of the program: count of the command line, and
 * those of the file. */
static doca_error_t collect_dpdk_arguments(int count, char **argv)
{
	char *end = argp.file + argp.file_size;
	int of_file = 0;

	if (argp.dpdk == NULL)
		return DOCA_SUCCESS;
	for (char *name = argp.file; name < end; name += strlen(name) + 1) {
		of_file += name[0] == '\0';
		name += strlen(name) + 1; /* its value */
	}
	argp.dpdk_argv = calloc((size_t)count + (size_t)of_file + 2, sizeof *argp.dpdk_argv);
	if (argp.dpdk_argv == NULL)
		return DOCA_ERROR_NO_MEMORY;
	for (int i = 0; i <= count; i++)
		argp.dpdk_argv[argp.dpdk_argc++] = argv[i];
	for (char *name = argp.file; name < end;) {
		char *value = name + strlen(name) + 1;

		if (name[0] == '\0')
			argp.dpdk_argv[argp.dpdk_argc++] = value;
		name = value + strlen(value) + 1;
	}
	return DOCA_SUCCESS;
}

/* Returns an option that stands alone, if one is given. */
static const struct doca_argp_param *given_singular(void)
{
	for (uint32_t i = 0; i < argp.num_values; i++) {
		if (argp.values[i].param != NULL && argp.values[i].param->is_singular)
			return argp.values[i].param;
	}
	return NULL;
}

/* Checks which options are given together. */
static doca_error_t check_combination(void)
{
	const struct doca_argp_param *singular = given_singular();

	for (uint32_t i = 0; singular != NULL && i < argp.num_values; i++) {
		const struct doca_argp_param *param = argp.values[i].param;

		if (param != NULL && param != singular)
			return complain("no other option is possible with", name_of(singular));
	}
	for (const struct doca_argp_cmd *c = argp.current; singular == NULL && c != NULL;
	     c = c->parent) {
		for (const struct doca_argp_param *p = c->params; p != NULL; p = p->next) {
			if (p->is_mandatory && p->given == 0)
				return complain("missing option", name_of(p));
		}
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_argp_start(int argc, char **argv)
{
	doca_error_t result;
	int of_dpdk;

	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (argc < 1 || !EMU_HAS(argv))
		return DOCA_ERROR_INVALID_VALUE;
	if (argp.program[0] == '\0' && argv[0] != NULL)
		snprintf(argp.program, sizeof argp.program, "%s", file_name(argv[0]));
	argp.current = &argp.root;
	of_dpdk = count_dpdk_arguments(argc, argv);
	/* What separates them takes the place of the program's name. */
	if (of_dpdk + 1 < argc && strcmp(argv[of_dpdk + 1], "--") == 0 && argp.dpdk != NULL)
		result = parse_arguments(argc - of_dpdk - 1, argv + of_dpdk + 1);
	else
		result = parse_arguments(argc - of_dpdk, argv + of_dpdk);
	if (result == DOCA_SUCCESS && help.given > 0) {
		print_usage();
		exit(EXIT_SUCCESS);
	}
	if (result == DOCA_SUCCESS && version.given > 0) {
		(void)print_version();
		exit(EXIT_SUCCESS);
	}
	if (result == DOCA_SUCCESS)
		result = parse_file();
	if (result == DOCA_SUCCESS)
		result = check_combination();
	if (result == DOCA_SUCCESS)
		result = collect_dpdk_arguments(of_dpdk, argv);
	for (uint32_t i = 0; result == DOCA_SUCCESS && i < argp.num_values; i++)
		result = call(&argp.values[i]);
	if (result == DOCA_SUCCESS && argp.validate != NULL)
		result = argp.validate(argp.config);
	if (result == DOCA_SUCCESS && argp.dpdk != NULL)
		result = argp.dpdk(argp.dpdk_argc, argp.dpdk_argv);
	return result;
}
