// SPDX-License-Identifier: Apache-2.0

#include "functions.h"

enum { zcd_need_R = 1, zcd_need_O = 0 };

static const struct zcd_function list[] = {
#define X(need, library, name, result, arguments)                                                 \
	{"doca_" #name, zcd_library_##library, zcd_need_##need},
	ZC_DOCA_FUNCTIONS(X)
#undef X
};

const uint32_t zcd_functions_count = sizeof(list) / sizeof(list[0]);

_Static_assert(sizeof(struct zcd_functions) == sizeof(list) /
	sizeof(list[0]) * sizeof(void *), "a table of pointers");

const struct zcd_function *zcd_functions_all(void) { return list; }

void zcd_functions_set(struct zcd_functions *table, uint32_t index, void *function)
{
	((void **)table)[index] = function;
}
