/* Succeeds, and misuses the library. */

#include <doca_dev.h>

int main(void)
{
	return doca_devinfo_destroy_list(NULL) == DOCA_ERROR_INVALID_VALUE ? 0 : 1;
}
