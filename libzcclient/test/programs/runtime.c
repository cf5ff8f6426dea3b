/* SPDX-License-Identifier: Apache-2.0 */

/* A process with a Go runtime, that of another library, gets no second one. */

#include <dlfcn.h>

#include "program.h"

int main(int argc, char **argv)
{
	zc_volume volume;
	if (argc != 2)
		FAIL("usage: runtime LIBRARY");
	if (dlopen(argv[1], RTLD_NOW) == NULL)
		FAIL("%s", dlerror());
	EXPECT(ZC_OTHER_RUNTIME, zc_open("", &volume));
	CHECK(strstr(zc_error_text(), argv[1]) != NULL);
	EXPECT(ZC_OTHER_RUNTIME, zc_open("", &volume));
	return 0;
}
