/* Prints the results of calls that may be made to fail: the first ones, in a constructor, and log
 * messages with arguments of every kind. */

#include <stdio.h>

#include <doca_log.h>
#include <doca_pe.h>

static doca_error_t early;
static struct doca_pe *pe;

__attribute__((constructor)) static void begin(void)
{
	early = doca_pe_create(&pe);
}

int main(void)
{
	struct doca_log_backend *backend;
	int source = 0;

	printf("first call %d, second call %d\n", (int)early, (int)doca_pe_create(&pe));
	fflush(stdout);
	if (doca_log_register_source("faults", &source) != DOCA_SUCCESS ||
	    doca_log_backend_create_with_file(stdout, &backend) != DOCA_SUCCESS)
		return 1;
	for (int i = 0; i < 3; i++) {
		doca_error_t result = doca_log(DOCA_LOG_LEVEL_ERROR, source, __FILE__, __LINE__,
					       __func__, "%.2f %s %d %d %d %.2f", 1.5, "text", i,
					       8, 9, 2.25);

		printf("log %d\n", (int)result);
		fflush(stdout);
	}
	return 0;
}
