/* Command lines: options with a short and a long name, on the command line or in a JSON file. */
#ifndef DOCA_ARGP_H_
#define DOCA_ARGP_H_

#include "doca_error.h"

#ifdef __cplusplus
extern "C" {
#endif

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
typedef doca_error_t (*doca_argp_validation_cb_t)(void *config);

/* config is passed to all callbacks. Without a name, the program has that of the first argument of
 * doca_argp_start. */
doca_error_t doca_argp_init(const char *program_name, void *config);
/* Frees the registered options, too. */
doca_error_t doca_argp_destroy(void);

doca_error_t doca_argp_param_create(struct doca_argp_param **param);
void doca_argp_param_set_short_name(struct doca_argp_param *param, const char *name);
/* Mandatory; also the key in a JSON file. */
void doca_argp_param_set_long_name(struct doca_argp_param *param, const char *name);
/* What the usage shows behind the name, for instance "<path>". */
void doca_argp_param_set_arguments(struct doca_argp_param *param, const char *arguments);
void doca_argp_param_set_description(struct doca_argp_param *param, const char *description);
void doca_argp_param_set_callback(struct doca_argp_param *param, doca_argp_param_cb_t callback);
void doca_argp_param_set_type(struct doca_argp_param *param, enum doca_argp_type type);
void doca_argp_param_set_mandatory(struct doca_argp_param *param);
/* The option may be given several times. */
void doca_argp_param_set_multiplicity(struct doca_argp_param *param);

/* The option belongs to the library from now on. */
doca_error_t doca_argp_register_param(struct doca_argp_param *param);
/* Called after all options have been handed out. */
doca_error_t doca_argp_register_validation_callback(doca_argp_validation_cb_t callback);
/* Called for --version. */
doca_error_t doca_argp_register_version_callback(doca_argp_param_cb_t callback);

/* Parses the command line. No callback is called if it is wrong. */
doca_error_t doca_argp_start(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
