// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE // dlvsym

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "library.h"

struct zc_functions zc_functions;

static const struct {
	const char *library, *version, *name;
	size_t offset; // in zc_functions
} functions[] = {
#define ZC_ENTRY(library, version, result, name, parameters, arguments) \
	{library, version, #name, offsetof(struct zc_functions, name)},
	ZC_FUNCTIONS(ZC_ENTRY)
#undef ZC_ENTRY
};

static void *find(void *library, const char *name, const char *version)
{
#ifdef __GLIBC__
	// dlsym would return the newest version of a function, whose interface may differ.
	return dlvsym(library, name, version);
#else
	return dlsym(library, name);
#endif
}

// load fills zc_functions with the functions of one library. It never closes the library, which
// cannot be unloaded safely. On failure it writes the reason.
static int load(const char *library, char *reason, size_t size)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		snprintf(reason, size, "%s", dlerror());
		return -1;
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].library, library) != 0)
			continue;
		void *function = find(handle, functions[i].name, functions[i].version);
		if (!function) {
			snprintf(reason, size, "%s has no function %s@%s", library,
				 functions[i].name, functions[i].version);
			return -1;
		}
		memcpy((char *)&zc_functions + functions[i].offset, &function, sizeof(function));
	}
	return 0;
}

int zc_load(struct zc_load_failure *failure)
{
	memset(failure, 0, sizeof(*failure));
	int verbs = load(ZC_IBVERBS, failure->ibverbs, sizeof(failure->ibverbs));
	int cm = load(ZC_RDMACM, failure->rdmacm, sizeof(failure->rdmacm));

	return verbs || cm ? -1 : 0;
}
