/* SPDX-License-Identifier: Apache-2.0 */

/* The release of DOCA: of the headers, and of the loaded library. */
#ifndef DOCA_VERSION_H_
#define DOCA_VERSION_H_

#include <stddef.h>

#include "doca_compat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DOCA_VERSION_MAJOR 3
#define DOCA_VERSION_MINOR 3
#define DOCA_VERSION_PATCH 0
#define DOCA_VERSION_STRING "3.3.0"
#define DOCA_VERSION_CALC_EXACT(major, minor, patch) \
	(((size_t)(major) << 24) | ((size_t)(minor) << 16) | (size_t)(patch))
#define DOCA_VERSION_EXACT \
	DOCA_VERSION_CALC_EXACT(DOCA_VERSION_MAJOR, DOCA_VERSION_MINOR, DOCA_VERSION_PATCH)

/* Official releases, whose last number weighs a thousand. Not for #if, because of the type. */
#define DOCA_VERSION_CALC(major, minor, patch) \
	DOCA_VERSION_CALC_EXACT(major, minor, (size_t)(patch) * 1000)
#define DOCA_VERSION_OFFICIAL \
	DOCA_VERSION_CALC(DOCA_VERSION_MAJOR, DOCA_VERSION_MINOR, DOCA_VERSION_PATCH)
#define DOCA_VERSION_EQ_CURRENT(major, minor, patch) \
	(DOCA_VERSION_CALC(major, minor, patch) == DOCA_VERSION_OFFICIAL)
#define DOCA_VERSION_LTE_CURRENT(major, minor, patch) \
	(DOCA_VERSION_CALC(major, minor, patch) <= DOCA_VERSION_OFFICIAL)

/* Returns the release of the headers. */
static inline const char *doca_version(void)
{
	return DOCA_VERSION_STRING;
}

/* Returns a static string such as "3.0.0058". For messages, not for decisions. */
const char *doca_version_runtime(void);

#ifdef __cplusplus
}
#endif
#endif
