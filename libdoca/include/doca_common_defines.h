/* SPDX-License-Identifier: Apache-2.0 */

/* Hints to the compiler. */
#ifndef DOCA_COMMON_DEFINES_H_
#define DOCA_COMMON_DEFINES_H_

#define doca_likely(condition) __builtin_expect(!!(condition), 1)
#define doca_unlikely(condition) __builtin_expect(!!(condition), 0)

#endif
