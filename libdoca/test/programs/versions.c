// SPDX-License-Identifier: Apache-2.0

/* The library has all functions, under all names and version nodes that programs of any release ask
 * for, and is loaded once. */

#include "program.h"

#include <dlfcn.h>
#include <stdio.h>

static const char *const functions[] = {
#define EMU_FUNCTION(library, name, first) #name,
#include "../../../libdoca/functions.h"
#undef EMU_FUNCTION
};

enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static void both_nodes(void)
{
	void *library = dlopen("libdoca_common.so.2", RTLD_NOW);

	CHECK(library != NULL);
	for (int i = 0; i < FUNCTIONS; i++) {
		void *stable = dlvsym(library, functions[i], "DOCA_2");
		void *experimental = dlvsym(library, functions[i], "EXPERIMENTAL");

		if (stable == NULL || stable != experimental || dlsym(library, functions[i]) != stable)
			fail(__FILE__, __LINE__, "%s: %p in DOCA_2, %p in EXPERIMENTAL",
			     functions[i], stable, experimental);
	}
	/* Nothing else is visible. */
	CHECK(dlsym(library, "emu_doca_pe_create") == NULL);
	CHECK(dlclose(library) == 0);
}

static void one_library(void)
{
	static const char *const names[] = {"common", "comch", "rdma", "dma", "argp"};
	static const char *const suffixes[] = {"so", "so.2", "so.3"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		for (size_t j = 0; j < sizeof suffixes / sizeof suffixes[0]; j++) {
			char name[64];
			void *library;

			snprintf(name, sizeof name, "libdoca_%s.%s", names[i], suffixes[j]);
			library = dlopen(name, RTLD_NOW);
			CHECK(library != NULL);
			CHECK(dlsym(library, "doca_pe_create") == (void *)doca_pe_create);
			CHECK(dlclose(library) == 0);
		}
	}
}

const struct test tests[] = {
	{"both_nodes", both_nodes},
	{"one_library", one_library},
	{NULL, NULL},
};
