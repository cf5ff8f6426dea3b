/* Fails with a message. */

#include <doca_log.h>

#include "common.h"

DOCA_LOG_REGISTER(BROKEN::RESPONDER);

int main(void)
{
	OK(doca_log_backend_create_standard());
	DOCA_LOG_INFO("It begins");
	DOCA_LOG_ERR("The sample is broken on purpose");
	return EXIT_FAILURE;
}
