/* What the samples have in common. */
#ifndef COMMON_H_
#define COMMON_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <doca_dev.h>
#include <doca_error.h>

/* Ends the process with a message unless a call succeeds. */
#define OK(call) \
	do { \
		doca_error_t result = (call); \
		if (result != DOCA_SUCCESS) { \
			fprintf(stderr, "error: %s: %s\n", #call, doca_error_get_descr(result)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

/* Opens the first device that has a capability. */
struct doca_dev *open_capable(doca_error_t (*is_capable)(const struct doca_devinfo *info));
void write_file(const char *name, const void *data, size_t length);
size_t read_file(const char *name, void *data, size_t size);

#endif
