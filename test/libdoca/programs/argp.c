/* Rule 19: command lines. */

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doca_argp.h>
#include <doca_version.h>

struct config {
	char names[4][32];
	int count, size, validations;
	bool is_fast;
};

static doca_error_t on_name(void *value, void *config)
{
	struct config *c = config;

	CHECK(c->count < 4);
	snprintf(c->names[c->count++], 32, "%s", (char *)value);
	return DOCA_SUCCESS;
}

static doca_error_t on_size(void *value, void *config)
{
	((struct config *)config)->size = *(int *)value;
	return *(int *)value < 1000 ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE;
}

static doca_error_t on_fast(void *value, void *config)
{
	((struct config *)config)->is_fast = *(bool *)value;
	return DOCA_SUCCESS;
}

static doca_error_t on_end(void *config)
{
	((struct config *)config)->validations++;
	return DOCA_SUCCESS;
}

static doca_error_t on_version(void *value, void *config)
{
	(void)value;
	(void)config;
	CHECK(strcmp(doca_version(), DOCA_VERSION_STRING) == 0);
	exit(strcmp(doca_version_runtime(), "3.3.0000") == 0 ? 42 : 1);
}

static void add(const char *short_name, const char *long_name, enum doca_argp_type type,
		doca_argp_param_cb_t callback, bool is_mandatory, bool is_multiple)
{
	struct doca_argp_param *param;

	OK(doca_argp_param_create(&param));
	if (short_name != NULL)
		doca_argp_param_set_short_name(param, short_name);
	doca_argp_param_set_long_name(param, long_name);
	doca_argp_param_set_arguments(param, "<value>");
	doca_argp_param_set_description(param, "An option of the test");
	doca_argp_param_set_callback(param, callback);
	doca_argp_param_set_type(param, type);
	if (is_mandatory)
		doca_argp_param_set_mandatory(param);
	if (is_multiple)
		doca_argp_param_set_multiplicity(param);
	OK(doca_argp_register_param(param));
}

/* Parses a command line, whose words are separated by spaces. */
static struct config parse_as(const char *program, doca_error_t expected, const char *line)
{
	struct config config = {.count = 0};
	char words[512], *argv[32], *state;
	int argc = 0;

	snprintf(words, sizeof words, "%s", line);
	for (char *word = strtok_r(words, " ", &state); word != NULL;
	     word = strtok_r(NULL, " ", &state))
		argv[argc++] = word;
	OK(doca_argp_init(program, &config));
	add("n", "name", DOCA_ARGP_TYPE_STRING, on_name, true, true);
	add(NULL, "size", DOCA_ARGP_TYPE_INT, on_size, false, false);
	add("f", "fast", DOCA_ARGP_TYPE_BOOLEAN, on_fast, false, false);
	OK(doca_argp_register_validation_callback(on_end));
	OK(doca_argp_register_version_callback(on_version));
	IS(expected, doca_argp_start(argc, argv));
	OK(doca_argp_destroy());
	return config;
}

static struct config parse(doca_error_t expected, const char *line)
{
	return parse_as("program", expected, line);
}

/* Samples since 3.0 give no name. That of the first argument then begins every complaint. */
static void no_name(void)
{
	char complaint[256] = "";
	int pipe_ends[2], stderr_before = dup(STDERR_FILENO);

	CHECK(parse_as(NULL, DOCA_SUCCESS, "/usr/bin/sample -n one").count == 1);
	CHECK(pipe(pipe_ends) == 0 && dup2(pipe_ends[1], STDERR_FILENO) >= 0);
	parse_as(NULL, DOCA_ERROR_INVALID_VALUE, "/usr/bin/sample -n one --unknown");
	CHECK(dup2(stderr_before, STDERR_FILENO) >= 0);
	CHECK(read(pipe_ends[0], complaint, sizeof complaint - 1) > 0);
	CHECK(strncmp(complaint, "sample: ", 8) == 0);
	CHECK(close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0 && close(stderr_before) == 0);
}

static void options(void)
{
	struct config config =
		parse(DOCA_SUCCESS, "p -n one --name=two --size -7 -f --name three -l 60 "
				    "--sdk-log-level 50");

	CHECK(config.count == 3 && config.size == -7 && config.is_fast && config.validations == 1);
	CHECK(strcmp(config.names[0], "one") == 0 && strcmp(config.names[1], "two") == 0 &&
	      strcmp(config.names[2], "three") == 0);
	config = parse(DOCA_SUCCESS, "p --size 0x10 -n x");
	CHECK(config.size == 16 && !config.is_fast);
}

/* Nothing is called back if the command line is wrong. */
static void wrong_lines(void)
{
	static const char *const lines[] = {
		"p",		   "p -n a --unknown",	 "p -n a -x",	"p -n a stray",
		"p -n a --size",   "p -n a --size 1x",	 "p -n a --size 99999999999",
		"p -n a --fast=1", "p -n a -f --fast", "p -n a --size 1 --size 2", "p -n a -l x",
		"p -n a -j /does/not/exist",
	};

	for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
		struct config config = parse(DOCA_ERROR_INVALID_VALUE, lines[i]);

		CHECK(config.count == 0 && config.size == 0 && config.validations == 0);
	}
	/* The error of a callback is that of the call. */
	CHECK(parse(DOCA_ERROR_INVALID_VALUE, "p -n a --size 1000").validations == 0);
}

static void file(void)
{
	char path[] = "/tmp/libdoca-argp-XXXXXX", line[64];
	FILE *stream = fdopen(mkstemp(path), "w");
	struct config config;

	fputs("{\"doca_general_flags\": {\"log-level\": 40},"
	      " \"doca_program_flags\": {\"name\": [\"x\", \"y\"], \"size\": 12, \"fast\": false}}",
	      stream);
	CHECK(fclose(stream) == 0);
	snprintf(line, sizeof line, "p --json %s -f", path);
	config = parse(DOCA_SUCCESS, line);
	CHECK(config.count == 2 && config.size == 12 && config.is_fast);
	CHECK(unlink(path) == 0);
}

/* In a process of its own, for help_and_version: it must not return from parse. */
static void parse_line(void)
{
	const char *line = getenv("LINE");

	if (line == NULL)
		return; /* it is not a test by itself */
	parse(DOCA_SUCCESS, line);
	_exit(99);
}

/* Returns the exit code of a process that parses a command line. */
static int exit_code(const char *line)
{
	pid_t child;
	int status;

	/* Other threads may hold any lock when this one forks: the child must do nothing but exec. */
	setenv("LINE", line, 1);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		execl("/proc/self/exe", "argp", "host", "parse_line", NULL);
		_exit(98);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void help_and_version(void)
{
	CHECK(exit_code("p --help") == 0);
	CHECK(exit_code("p -h") == 0);
	CHECK(exit_code("p -v") == 42);
	CHECK(exit_code("p --version") == 42);
}

static void registration(void)
{
	struct doca_argp_param *param;

	expect_misuse("doca_argp_start");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_start(0, NULL));
	OK(doca_argp_init("program", NULL));
	OK(doca_argp_param_create(&param));
	expect_misuse("doca_argp_register_param");
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_register_param(param));
	doca_argp_param_set_long_name(param, "json");
	doca_argp_param_set_callback(param, on_size);
	doca_argp_param_set_type(param, DOCA_ARGP_TYPE_INT);
	expect_misuse("doca_argp_register_param");
	IS(DOCA_ERROR_ALREADY_EXIST, doca_argp_register_param(param));
	doca_argp_param_set_long_name(param, "object");
	doca_argp_param_set_type(param, DOCA_ARGP_TYPE_JSON_OBJ);
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_argp_register_param(param));
	doca_argp_param_set_type(param, DOCA_ARGP_TYPE_INT);
	OK(doca_argp_register_param(param));
	OK(doca_argp_destroy());
}

const struct test tests[] = {
	{"options", options},
	{"no_name", no_name},
	{"wrong_lines", wrong_lines},
	{"file", file},
	{"parse_line", parse_line},
	{"help_and_version", help_and_version},
	{"registration", registration},
	{NULL, NULL},
};
