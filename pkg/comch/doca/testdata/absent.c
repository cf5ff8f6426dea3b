// All functions of libdoca that instant.c does not define: they succeed and do nothing.

#include "functions.h"

uint64_t succeed(void) { return 0; }

#define X(need, library, name, result, arguments)                                                 \
	__attribute__((weak, alias("succeed"))) uint64_t doca_##name(void);
ZC_DOCA_FUNCTIONS(X)
