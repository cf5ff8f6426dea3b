/* Command lines. They are checked as a whole before any callback is called. The core reads JSON. */

#include "skin.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

enum { MAX_PARAMS = 256, MAX_VALUES = 4096, MAX_NAME = 64, MAX_TEXT = 1024 };

struct doca_argp_param {
	uint32_t magic;
	char short_name[MAX_NAME], long_name[MAX_NAME], arguments[MAX_NAME];
	char description[MAX_TEXT];
	doca_argp_param_cb_t callback;
	enum doca_argp_type type;
	bool is_mandatory, is_multiple, is_registered;
	uint32_t given; /* how often */
};

/* An option on the command line. */
struct value {
	struct doca_argp_param *param;
	char *text; /* points into the command line or the file */
};

static struct {
	bool is_initialized;
	char program[MAX_NAME];
	void *config;
	struct doca_argp_param *params[MAX_PARAMS];
	uint32_t num_params;
	doca_argp_validation_cb_t validate;
	doca_argp_param_cb_t version;
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

/* Returns the i-th option, or NULL behind the last. */
static struct doca_argp_param *param_at(uint32_t i)
{
	if (i < NUM_GENERIC)
		return generic[i];
	i -= NUM_GENERIC;
	return i < argp.num_params ? argp.params[i] : NULL;
}

static struct doca_argp_param *find(const char *name, size_t length, bool is_long)
{
	struct doca_argp_param *param;

	for (uint32_t i = 0; (param = param_at(i)) != NULL; i++) {
		const char *own = is_long ? param->long_name : param->short_name;

		if (length > 0 && strlen(own) == length && strncmp(own, name, length) == 0)
			return param;
	}
	return NULL;
}

doca_error_t emu_doca_argp_init(const char *program_name, void *config)
{
	if (argp.is_initialized) {
		emu_misuse(__func__, "it has been called before: call doca_argp_destroy first");
		return DOCA_ERROR_BAD_STATE;
	}
	argp.is_initialized = true;
	argp.config = config;
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

doca_error_t emu_doca_argp_destroy(void)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	for (uint32_t i = 0; i < argp.num_params; i++)
		emu_bury(argp.params[i], NULL);
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
		emu_misuse(function, "the option %s is registered", param->long_name);
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

void emu_doca_argp_param_set_mandatory(struct doca_argp_param *param)
{
	if (is_changeable(param, __func__))
		param->is_mandatory = true;
}

void emu_doca_argp_param_set_multiplicity(struct doca_argp_param *param)
{
	if (is_changeable(param, __func__))
		param->is_multiple = true;
}

doca_error_t emu_doca_argp_register_param(struct doca_argp_param *param)
{
	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (!is_changeable(param, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (param->long_name[0] == '\0' || param->callback == NULL ||
	    param->type == DOCA_ARGP_TYPE_UNKNOWN) {
		emu_misuse(__func__, "an option needs a long name, a callback, and a type");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (param->type > DOCA_ARGP_TYPE_BOOLEAN) {
		emu_log(DOCA_LOG_LEVEL_ERROR, "option %s: objects of JSON are not emulated",
			param->long_name);
		return DOCA_ERROR_NOT_SUPPORTED;
	}
	if (find(param->long_name, strlen(param->long_name), true) != NULL ||
	    find(param->short_name, strlen(param->short_name), false) != NULL) {
		emu_misuse(__func__, "another option is called %s or %s", param->long_name,
			   param->short_name);
		return DOCA_ERROR_ALREADY_EXIST;
	}
	if (argp.num_params == MAX_PARAMS)
		return DOCA_ERROR_NO_MEMORY;
	param->is_registered = true;
	argp.params[argp.num_params++] = param;
	return DOCA_SUCCESS;
}

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

/* Parsing. */

static doca_error_t complain(const char *what, const char *name)
{
	fprintf(stderr, "%s: %s %s; see %s --help\n", argp.program, what, name, argp.program);
	return DOCA_ERROR_INVALID_VALUE;
}

static void print_usage(void)
{
	struct doca_argp_param *param;

	printf("Usage: %s [OPTION...]\n\nOptions of all programs:\n", argp.program);
	for (uint32_t i = 0; (param = param_at(i)) != NULL; i++) {
		if (i == NUM_GENERIC)
			printf("\nOptions of this program:\n");
		printf("  %s%s%s--%s %s\n        %s%s\n", param->short_name[0] != '\0' ? "-" : "",
		       param->short_name, param->short_name[0] != '\0' ? ", " : "",
		       param->long_name, param->arguments, param->description,
		       param->is_mandatory ? " (required)" : "");
	}
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
		return complain("only once is possible:", param->long_name);
	if (param->type == DOCA_ARGP_TYPE_INT && !parse_int(text, &number))
		return complain("a number is needed for", param->long_name);
	if (argp.num_values == MAX_VALUES)
		return complain("too many options, from", param->long_name);
	argp.values[argp.num_values++] = (struct value){param, text};
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

		if (argv[i][0] != '-')
			return complain("unexpected argument", argv[i]);
		param = find(name, length, is_long);
		if (param == NULL)
			return complain("unknown option", argv[i]);
		if (value != NULL)
			value++;
		if (param->type == DOCA_ARGP_TYPE_BOOLEAN && value != NULL)
			return complain("no value is possible for", param->long_name);
		if (param->type != DOCA_ARGP_TYPE_BOOLEAN && value == NULL && i + 1 == argc)
			return complain("a value is needed for", param->long_name);
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
		struct doca_argp_param *param = find(name, strlen(name), true);

		if (param == NULL)
			return complain("unknown option in the file:", name);
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

doca_error_t emu_doca_argp_start(int argc, char **argv)
{
	struct doca_argp_param *param;
	doca_error_t result;

	if (!is_initialized(__func__))
		return DOCA_ERROR_BAD_STATE;
	if (argc < 1 || !EMU_HAS(argv))
		return DOCA_ERROR_INVALID_VALUE;
	if (argp.program[0] == '\0' && argv[0] != NULL)
		snprintf(argp.program, sizeof argp.program, "%s", file_name(argv[0]));
	result = parse_arguments(argc, argv);
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
	for (uint32_t i = 0; result == DOCA_SUCCESS && (param = param_at(i)) != NULL; i++) {
		if (param->is_mandatory && param->given == 0)
			result = complain("missing option", param->long_name);
	}
	for (uint32_t i = 0; result == DOCA_SUCCESS && i < argp.num_values; i++)
		result = call(&argp.values[i]);
	if (result == DOCA_SUCCESS && argp.validate != NULL)
		result = argp.validate(argp.config);
	return result;
}
