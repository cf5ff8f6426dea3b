/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes of functions, and structures that carry the release they were compiled for.
 *
 * Every header includes this one, and programs rely on the headers of the C library that come with
 * it. */
#ifndef DOCA_COMPAT_H_
#define DOCA_COMPAT_H_

#include "doca_config.h"

#define DOCA_USED __attribute__((used))
#define DOCA_STABLE __attribute__((visibility("default"))) DOCA_USED

/* Callers of such functions get a warning unless they define DOCA_ALLOW_EXPERIMENTAL_API. The
 * functions of the emulation do not carry the attribute; those of a program may. */
#ifdef DOCA_ALLOW_EXPERIMENTAL_API
#define DOCA_EXPERIMENTAL DOCA_STABLE
#else
#define DOCA_EXPERIMENTAL __attribute__((deprecated("experimental"))) DOCA_STABLE
#endif

/* The same for functions that will be removed, with DOCA_ALLOW_DEPRECATED_API. */
#ifdef DOCA_ALLOW_DEPRECATED_API
#define DOCA_DEPRECATED DOCA_STABLE
#else
#define DOCA_DEPRECATED __attribute__((deprecated)) DOCA_STABLE
#endif

#ifdef DOCA_COMPAT_HELPERS

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "doca_version.h"

/* The first member of such a structure, and how to fill it in. */
#define DOCA_STRUCT_START size_t __doca_api_version
#define DOCA_STRUCT_GET_VERSION(structure) ((structure)->__doca_api_version)
#define DOCA_STRUCT_CTOR(structure) ((structure).__doca_api_version = DOCA_VERSION_EXACT)
#define DOCA_STRUCT_PTR_CTOR(structure) DOCA_STRUCT_CTOR(*(structure))
#define DOCA_STRUCT_CTOR_LIST_START .__doca_api_version = DOCA_VERSION_EXACT
/* Zeroes the rest of it. */
#define DOCA_STRUCT_MEMSET_CTOR(structure) \
	do { \
		memset(&(structure), 0, sizeof(structure)); \
		DOCA_STRUCT_CTOR(structure); \
	} while (0)
#define DOCA_STRUCT_PTR_MEMSET_CTOR(structure) DOCA_STRUCT_MEMSET_CTOR(*(structure))

#endif

#endif
