/* SPDX-License-Identifier: Apache-2.0 */

/* The machine that a program is built for. This file names its processor. What stands in front of it
 * with the pkg-config files for one role also defines DOCA_ARCH_DPU or DOCA_ARCH_HOST. */
#ifndef DOCA_BUILD_CONFIG_H_
#define DOCA_BUILD_CONFIG_H_

#if defined(__aarch64__)
#define DOCA_ARCH_ARM 1
#elif defined(__x86_64__)
#define DOCA_ARCH_X86 1
#endif

#endif
