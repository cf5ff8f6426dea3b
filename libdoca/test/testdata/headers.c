/* Uses what programs use without including its headers. */

#include <doca_buf.h>
#include <doca_common_defines.h>
#include <doca_compat.h>
#include <doca_config.h>
#include <doca_dma.h>
#include <doca_log.h>
#include <doca_rdma.h>
#include <doca_version.h>

struct versioned {
	DOCA_STRUCT_START;
	int value;
};

DOCA_EXPERIMENTAL int experimental(void);
DOCA_DEPRECATED int deprecated(void);

DOCA_STABLE int main(void)
{
	struct versioned one = {DOCA_STRUCT_CTOR_LIST_START, .value = 1}, two;
	char *text = strdup("text");
	uint64_t number = 5;

	static_assert(DOCA_VERSION_EQ_CURRENT(3, 3, 0) && DOCA_VERSION_LTE_CURRENT(3, 2, 9) &&
		      !DOCA_VERSION_LTE_CURRENT(3, 3, 1) && !DOCA_VERSION_LTE_CURRENT(4, 0, 0) &&
		      !DOCA_VERSION_EQ_CURRENT(3, 2, 0), "releases are compared");
	static_assert(DOCA_VERSION_CALC(3, 2, 1) == 0x03020000 + 1000 &&
		      DOCA_VERSION_OFFICIAL == DOCA_VERSION_CALC(3, 3, 0), "official releases");
#if defined(__x86_64__) && !defined(DOCA_ARCH_X86) || defined(__aarch64__) && !defined(DOCA_ARCH_ARM)
#error "the processor has no name"
#endif
#ifdef HAS_RDMA
	static_assert(IB_DEVICE_NAME_MAX > 0, "librdmacm's header is there");
#endif
	DOCA_STRUCT_MEMSET_CTOR(two);
	if (doca_unlikely(DOCA_STRUCT_GET_VERSION(&one) != DOCA_STRUCT_GET_VERSION(&two)) ||
	    two.value != 0)
		abort();
	printf("%s %" PRIu64 "\n", text, number);
	free(text);
	return 0;
}
