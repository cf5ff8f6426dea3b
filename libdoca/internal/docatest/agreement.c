// SPDX-License-Identifier: Apache-2.0

/* The provider declares the functions of DOCA for itself (pkg/doca/functions.h). This file compiles
 * only if it means the same functions as the headers here, and tells tests which ones they are. */

#include "call.h"

#include "doca_comch.h"
#include "doca_comch_consumer.h"
#include "doca_comch_producer.h"
#include "doca_rdma.h"

#define ZC_DOCA_ABI_H /* the types are those of the headers */
#include "../../../pkg/doca/functions.h"

#define AGREE(need, library, name, result, arguments) \
	_Static_assert(__builtin_types_compatible_p(result arguments, __typeof__(doca_##name)), \
		       "doca_" #name " has another type here than in pkg/doca/functions.h");

ZC_DOCA_FUNCTIONS(AGREE)

#define ENTRY(need, library, name, result, arguments) {"doca_" #name, #need[0] == 'R'},

static const struct docatest_function functions[] = {ZC_DOCA_FUNCTIONS(ENTRY)};

const struct docatest_function *docatest_provider_functions(int *count)
{
	*count = sizeof functions / sizeof functions[0];
	return functions;
}
