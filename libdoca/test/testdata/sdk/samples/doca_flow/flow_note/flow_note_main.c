/* A library that the emulation does not have. */

#include <doca_flow.h>

int main(void)
{
	return doca_flow_init(NULL) == DOCA_SUCCESS ? 0 : 1;
}
