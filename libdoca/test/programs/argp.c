// SPDX-License-Identifier: Apache-2.0

/* Rule 19: command lines. */

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doca_argp.h>
#include <doca_log.h>
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

static struct doca_argp_param *make_param(const char *short_name, const char *long_name,
					  enum doca_argp_type type, doca_argp_param_cb_t callback)
{
	struct doca_argp_param *param;

	OK(doca_argp_param_create(&param));
	if (short_name != NULL)
		doca_argp_param_set_short_name(param, short_name);
	if (long_name != NULL)
		doca_argp_param_set_long_name(param, long_name);
	doca_argp_param_set_arguments(param, "<value>");
	doca_argp_param_set_description(param, "An option of the test");
	doca_argp_param_set_callback(param, callback);
	doca_argp_param_set_type(param, type);
	return param;
}

static void add(const char *short_name, const char *long_name, enum doca_argp_type type,
		doca_argp_param_cb_t callback, bool is_mandatory, bool is_multiple)
{
	struct doca_argp_param *param = make_param(short_name, long_name, type, callback);

	if (is_mandatory)
		doca_argp_param_set_mandatory(param);
	if (is_multiple)
		doca_argp_param_set_multiplicity(param);
	OK(doca_argp_register_param(param));
}

/* Splits a command line at its spaces. Returns the number of words. */
static int split(const char *line, char *words, size_t size, char **argv)
{
	char *state;
	int argc = 0;

	snprintf(words, size, "%s", line);
	for (char *word = strtok_r(words, " ", &state); word != NULL;
	     word = strtok_r(NULL, " ", &state))
		argv[argc++] = word;
	return argc;
}

/* Parses a command line. */
static struct config parse_as(const char *program, doca_error_t expected, const char *line)
{
	struct config config = {.count = 0};
	char words[512], *argv[32];
	int argc = split(line, words, sizeof words, argv);

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
	/* A param belongs to the library even if it cannot be registered. */
	OK(doca_argp_param_create(&param));
	expect_misuse("doca_argp_register_param");
	IS(DOCA_ERROR_INITIALIZATION, doca_argp_register_param(param));
	expect_misuse("doca_argp_param_set_long_name");
	doca_argp_param_set_long_name(param, "gone");
	param = make_param(NULL, "json", DOCA_ARGP_TYPE_INT, on_size);
	expect_misuse("doca_argp_register_param");
	IS(DOCA_ERROR_ALREADY_EXIST, doca_argp_register_param(param));
	param = make_param(NULL, "object", DOCA_ARGP_TYPE_JSON_OBJ, on_size);
	IS(DOCA_ERROR_NOT_SUPPORTED, doca_argp_register_param(param));
	param = make_param("o", NULL, DOCA_ARGP_TYPE_INT, on_size);
	OK(doca_argp_register_param(param));
	expect_misuse("doca_argp_register_param");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_register_param(param));
	expect_misuse("doca_argp_param_destroy");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_param_destroy(param));
	OK(doca_argp_param_create(&param));
	OK(doca_argp_param_destroy(param));
	expect_misuse("doca_argp_param_destroy");
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_param_destroy(param));
	OK(doca_argp_destroy());
}

/* What the callbacks of commands and their options have been told, in order. */
static char calls[256];

static doca_error_t note(const char *what, const char *value, void *config)
{
	size_t length = strlen(calls);

	CHECK(config == calls);
	snprintf(calls + length, sizeof calls - length, "%s%s%s ", what, *value != '\0' ? "=" : "",
		 value);
	return DOCA_SUCCESS;
}

#define NOTE_OPTION(name) \
	static doca_error_t on_##name(void *value, void *config) \
	{ \
		return note(#name, value, config); \
	}
#define NOTE_COMMAND(name) \
	static doca_error_t on_##name(void *config) \
	{ \
		return note(#name, "", config); \
	}
NOTE_OPTION(device)
NOTE_OPTION(root)
NOTE_OPTION(key)
NOTE_COMMAND(get)
NOTE_COMMAND(set)
NOTE_COMMAND(many)
NOTE_COMMAND(end_of_line)

static doca_error_t on_list(void *value, void *config)
{
	CHECK(*(bool *)value);
	return note("list", "", config);
}

static struct doca_argp_cmd *make_cmd(const char *name, doca_argp_cmd_cb_t callback)
{
	struct doca_argp_cmd *cmd;

	OK(doca_argp_cmd_create(&cmd));
	doca_argp_cmd_set_name(cmd, name);
	doca_argp_cmd_set_description(cmd, "A command of the test");
	if (callback != NULL)
		doca_argp_cmd_set_callback(cmd, callback);
	return cmd;
}

static void add_key(struct doca_argp_cmd *cmd, bool is_mandatory)
{
	struct doca_argp_param *param = make_param("k", "key", DOCA_ARGP_TYPE_STRING, on_key);

	if (is_mandatory)
		doca_argp_param_set_mandatory(param);
	OK(doca_argp_cmd_register_param(cmd, param));
}

/* A program with options of all kinds, and the commands get, set, set many, and a hidden one. */
static void open_commands(void)
{
	struct doca_argp_param *param;
	struct doca_argp_cmd *cmd, *inner;

	calls[0] = '\0';
	OK(doca_argp_init("program", calls));
	param = make_param("d", "device", DOCA_ARGP_TYPE_STRING, on_device);
	doca_argp_param_set_inherited(param);
	OK(doca_argp_register_param(param));
	param = make_param("r", "root", DOCA_ARGP_TYPE_STRING, on_root);
	doca_argp_param_set_hidden(param);
	OK(doca_argp_register_param(param));
	param = make_param(NULL, "list", DOCA_ARGP_TYPE_BOOLEAN, on_list);
	doca_argp_param_set_singular(param);
	doca_argp_param_set_cli_only(param);
	doca_argp_param_set_inherited(param);
	OK(doca_argp_register_param(param));
	cmd = make_cmd("get", on_get);
	add_key(cmd, true);
	OK(doca_argp_register_cmd(cmd));
	cmd = make_cmd("set", on_set);
	add_key(cmd, false);
	inner = make_cmd("many", on_many);
	add_key(inner, false);
	OK(doca_argp_cmd_register_cmd(cmd, inner));
	OK(doca_argp_register_cmd(cmd));
	cmd = make_cmd("secret", NULL);
	doca_argp_cmd_set_hidden(cmd);
	OK(doca_argp_register_cmd(cmd));
	OK(doca_argp_register_validation_callback(on_end_of_line));
}

static void check_commands(const char *line, const char *expected)
{
	char words[256];
	char *argv[32];

	open_commands();
	IS(expected != NULL ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE,
	   doca_argp_start(split(line, words, sizeof words, argv), argv));
	if (strcmp(calls, expected != NULL ? expected : "") != 0)
		fail(__FILE__, __LINE__, "%s calls %s", line, calls);
	OK(doca_argp_destroy());
}

static void commands(void)
{
	check_commands("p", "end_of_line ");
	check_commands("p get -k a", "get key=a end_of_line ");
	check_commands("p -r x -d y get --key=a", "root=x device=y get key=a end_of_line ");
	check_commands("p set", "set end_of_line ");
	check_commands("p set -k a many -k b -d c",
		       "set key=a many key=b device=c end_of_line ");
	check_commands("p set many -k b -d c", "set many key=b device=c end_of_line ");
	check_commands("p secret", "end_of_line ");
	check_commands("p set -l 60 many", "set many end_of_line ");
	check_commands("p --list", "list end_of_line ");
	check_commands("p get --list", "get list end_of_line "); /* not even a mandatory one */
	/* Nothing is called back if the line is wrong. */
	check_commands("p get", NULL);
	check_commands("p delete", NULL);
	check_commands("p many", NULL);
	check_commands("p -k a set", NULL);
	check_commands("p get -k a more", NULL);
	check_commands("p get -k a -r x", NULL);
	check_commands("p --list -d x", NULL);
	check_commands("p --list -l 60", NULL);
}

/* Returns what the usage says for a command line. */
static const char *usage_of(const char *line)
{
	static char text[8192];
	char words[256], *argv[32];
	int pipe_ends[2], before = dup(STDOUT_FILENO);
	ssize_t length;

	open_commands();
	if (line != NULL)
		OK(doca_argp_start(split(line, words, sizeof words, argv), argv));
	CHECK(pipe(pipe_ends) == 0 && fflush(stdout) == 0);
	CHECK(dup2(pipe_ends[1], STDOUT_FILENO) >= 0);
	doca_argp_usage();
	CHECK(fflush(stdout) == 0 && dup2(before, STDOUT_FILENO) >= 0);
	length = read(pipe_ends[0], text, sizeof text - 1);
	CHECK(length > 0);
	text[length] = '\0';
	CHECK(close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0 && close(before) == 0);
	OK(doca_argp_destroy());
	return text;
}

static void usage(void)
{
	const char *text = usage_of(NULL);

	CHECK(strncmp(text, "Usage: program [OPTION...] [COMMAND]\n", 37) == 0);
	CHECK(strstr(text, "--sdk-log-level") != NULL && strstr(text, "--device") != NULL);
	CHECK(strstr(text, "  get\n") != NULL && strstr(text, "  set\n") != NULL);
	CHECK(strstr(text, "--root") == NULL && strstr(text, "secret") == NULL); /* hidden */
	CHECK(strstr(text, "--key") == NULL && strstr(text, "many") == NULL);
	text = usage_of("p set many");
	CHECK(strncmp(text, "Usage: program set many [OPTION...]\n", 36) == 0);
	CHECK(strstr(text, "--device") != NULL && strstr(text, "-k, --key") != NULL);
	CHECK(strstr(text, "Commands:") == NULL);
	expect_misuse("doca_argp_usage");
	doca_argp_usage();
}

static void wrong_commands(void)
{
	struct doca_argp_cmd *cmd, *inner;

	expect_misuse("doca_argp_register_cmd");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_register_cmd(make_cmd("early", NULL)));
	open_commands();
	OK(doca_argp_cmd_create(&cmd));
	expect_misuse("doca_argp_register_cmd");
	IS(DOCA_ERROR_INITIALIZATION, doca_argp_register_cmd(cmd));
	expect_misuse("doca_argp_cmd_set_hidden"); /* it is gone */
	doca_argp_cmd_set_hidden(cmd);
	expect_misuse("doca_argp_register_cmd");
	IS(DOCA_ERROR_ALREADY_EXIST, doca_argp_register_cmd(make_cmd("get", NULL)));
	cmd = make_cmd("other", on_get);
	add_key(cmd, true);
	expect_misuse("doca_argp_cmd_register_param");
	IS(DOCA_ERROR_ALREADY_EXIST,
	   doca_argp_cmd_register_param(cmd, make_param("k", "kind", DOCA_ARGP_TYPE_INT, on_size)));
	inner = make_cmd("inner", NULL);
	OK(doca_argp_cmd_register_cmd(cmd, inner));
	expect_misuse("doca_argp_cmd_register_cmd");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_cmd_register_cmd(cmd, inner));
	expect_misuse("doca_argp_cmd_register_cmd");
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_cmd_register_cmd(cmd, cmd));
	expect_misuse("doca_argp_cmd_destroy");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_cmd_destroy(inner));
	OK(doca_argp_cmd_destroy(cmd));
	expect_misuse("doca_argp_cmd_set_name"); /* it has gone with its command */
	doca_argp_cmd_set_name(inner, "gone");
	cmd = make_cmd("last", NULL);
	OK(doca_argp_register_cmd(cmd));
	expect_misuse("doca_argp_cmd_set_callback");
	doca_argp_cmd_set_callback(cmd, on_get);
	expect_misuse("doca_argp_cmd_set_description");
	doca_argp_cmd_set_description(cmd, "too late");
	expect_misuse("doca_argp_cmd_register_param");
	IS(DOCA_ERROR_BAD_STATE,
	   doca_argp_cmd_register_param(cmd, make_param("z", NULL, DOCA_ARGP_TYPE_INT, on_size)));
	OK(doca_argp_destroy());
}

/* A file has the options of the command, but not those for the command line alone. */
static void file_of_a_command(void)
{
	char path[] = "/tmp/libdoca-argp-XXXXXX", line[64];
	FILE *stream = fdopen(mkstemp(path), "w");

	fputs("{\"doca_program_flags\": {\"key\": \"x\", \"device\": \"y\"}}", stream);
	CHECK(fflush(stream) == 0);
	snprintf(line, sizeof line, "p get -j %s", path);
	check_commands(line, "get device=y key=x end_of_line ");
	snprintf(line, sizeof line, "p -j %s", path);
	check_commands(line, NULL);
	CHECK(ftruncate(fileno(stream), 0) == 0);
	rewind(stream);
	fputs("{\"doca_program_flags\": {\"list\": true}}", stream);
	CHECK(fclose(stream) == 0);
	check_commands(line, NULL);
	CHECK(unlink(path) == 0);
}

static char complaint[256];

static doca_error_t on_complaint(enum doca_log_level level, const char *format, va_list arguments)
{
	CHECK(level == DOCA_LOG_LEVEL_ERROR);
	vsnprintf(complaint, sizeof complaint, format, arguments);
	return DOCA_SUCCESS;
}

static void logger(void)
{
	char *argv[] = {(char *)"p", (char *)"--unknown", NULL};

	expect_misuse("doca_argp_register_logger_callback");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_register_logger_callback(on_complaint));
	OK(doca_argp_init("program", NULL));
	expect_misuse("doca_argp_disable_logger_callback");
	IS(DOCA_ERROR_BAD_STATE, doca_argp_disable_logger_callback());
	OK(doca_argp_register_logger_callback(on_complaint));
	expect_misuse("doca_argp_register_logger_callback");
	IS(DOCA_ERROR_ALREADY_EXIST, doca_argp_register_logger_callback(on_complaint));
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_start(2, argv));
	CHECK(strcmp(complaint, "program: unknown option --unknown; see program --help") == 0);
	OK(doca_argp_disable_logger_callback());
	complaint[0] = '\0';
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_start(2, argv));
	CHECK(complaint[0] == '\0');
	OK(doca_argp_destroy());
}

static void levels(void)
{
	char words[64], *argv[32];
	int level;

	OK(doca_argp_init("program", NULL));
	OK(doca_argp_get_log_level(&level));
	CHECK(level == DOCA_LOG_LEVEL_INFO);
	OK(doca_argp_get_sdk_log_level(&level));
	CHECK(level == DOCA_LOG_LEVEL_INFO);
	OK(doca_argp_start(split("p -l 60 --sdk-log-level 30", words, sizeof words, argv), argv));
	OK(doca_argp_get_log_level(&level));
	CHECK(level == DOCA_LOG_LEVEL_DEBUG);
	CHECK(doca_log_level_get_global_lower_limit() == DOCA_LOG_LEVEL_DEBUG);
	OK(doca_argp_get_sdk_log_level(&level));
	CHECK(level == DOCA_LOG_LEVEL_ERROR);
	CHECK(doca_log_level_get_global_sdk_limit() == DOCA_LOG_LEVEL_ERROR);
	OK(doca_argp_destroy());
	OK(doca_argp_init("program", NULL));
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_argp_start(split("p -l 71", words, sizeof words, argv), argv));
	OK(doca_argp_destroy());
	expect_misuse("doca_argp_get_log_level");
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_get_log_level(NULL));
	expect_misuse("doca_argp_get_sdk_log_level");
	IS(DOCA_ERROR_INVALID_VALUE, doca_argp_get_sdk_log_level(NULL));
}

static doca_error_t on_dpdk(int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		OK(note("dpdk", argv[i], calls));
	CHECK(argv[argc] == NULL);
	return argc > 5 ? DOCA_ERROR_DRIVER : DOCA_SUCCESS;
}

static void check_dpdk(const char *line, doca_error_t result, const char *expected)
{
	char words[256], *argv[32];

	open_commands();
	doca_argp_set_dpdk_program(on_dpdk);
	IS(result, doca_argp_start(split(line, words, sizeof words, argv), argv));
	if (strcmp(calls, expected) != 0)
		fail(__FILE__, __LINE__, "%s calls %s", line, calls);
	OK(doca_argp_destroy());
}

static void dpdk(void)
{
	char path[] = "/tmp/libdoca-argp-XXXXXX", line[64];
	FILE *stream = fdopen(mkstemp(path), "w");

	check_dpdk("p -a 03:00.0 -- -d x", DOCA_SUCCESS,
		   "device=x end_of_line dpdk=p dpdk=-a dpdk=03:00.0 ");
	check_dpdk("p -d x --", DOCA_SUCCESS, "end_of_line dpdk=p dpdk=-d dpdk=x ");
	check_dpdk("p -d x", DOCA_SUCCESS, "end_of_line dpdk=p dpdk=-d dpdk=x ");
	check_dpdk("p -- get -k a", DOCA_SUCCESS, "get key=a end_of_line dpdk=p ");
	check_dpdk("p 1 2 3 4 5", DOCA_ERROR_DRIVER,
		   "end_of_line dpdk=p dpdk=1 dpdk=2 dpdk=3 dpdk=4 dpdk=5 ");
	check_dpdk("p 1 -- -a 03:00.0", DOCA_ERROR_INVALID_VALUE, "");
	check_commands("p -- -d x", NULL); /* without DPDK, there is nothing to separate */

	fputs("{\"doca_dpdk_flags\": {\"devices\": [{\"device\": \"sf\", \"id\": \"4\"}],"
	      " \"flags\": \"-x\"}, \"doca_program_flags\": {\"device\": \"y\"}}",
	      stream);
	CHECK(fclose(stream) == 0);
	snprintf(line, sizeof line, "p --json %s", path);
	check_dpdk(line, DOCA_SUCCESS,
		   "device=y end_of_line dpdk=p dpdk=-a dpdk=auxiliary:mlx5_core.sf.4 dpdk=-x ");
	check_commands(line, "device=y end_of_line ");
	snprintf(line, sizeof line, "p 1 -- --json %s", path);
	check_dpdk(line, DOCA_SUCCESS,
		   "device=y end_of_line dpdk=p dpdk=1 dpdk=-a dpdk=auxiliary:mlx5_core.sf.4 "
		   "dpdk=-x ");
	CHECK(unlink(path) == 0);
	expect_misuse("doca_argp_set_dpdk_program");
	doca_argp_set_dpdk_program(on_dpdk);
}

const struct test tests[] = {
	{"options", options},
	{"no_name", no_name},
	{"wrong_lines", wrong_lines},
	{"file", file},
	{"parse_line", parse_line},
	{"help_and_version", help_and_version},
	{"registration", registration},
	{"commands", commands},
	{"usage", usage},
	{"wrong_commands", wrong_commands},
	{"file_of_a_command", file_of_a_command},
	{"logger", logger},
	{"levels", levels},
	{"dpdk", dpdk},
	{NULL, NULL},
};
