/* SPDX-License-Identifier: Apache-2.0 */

/* What the headers are configured with. */
#ifndef DOCA_CONFIG_H_
#define DOCA_CONFIG_H_

#include "doca_build_config.h"

/* Programs get the helpers of doca_compat.h; those on a DPA have no C library for them. */
#ifndef DOCA_DPA_DEVICE
#define DOCA_COMPAT_HELPERS
#endif

#endif
