/* Prints each device with the capabilities that depend on its role, as programs look for them. */

#include <stdio.h>

#include <doca_comch.h>
#include <doca_comch_consumer.h>
#include <doca_dev.h>
#include <doca_dma.h>
#include <doca_mmap.h>
#include <doca_rdma.h>
#include <doca_version.h>

#ifdef DOCA_ARCH_DPU
static const char built_for[] = "dpu";
#elif defined(DOCA_ARCH_HOST)
static const char built_for[] = "host";
#else
static const char built_for[] = "either";
#endif

static void print(const char *name, doca_error_t result)
{
	if (result == DOCA_SUCCESS)
		printf(" %s", name);
}

int main(void)
{
	struct doca_devinfo **list;
	uint32_t count;

	printf("%s, release %.3s\n", built_for, doca_version_runtime());
	if (doca_devinfo_create_list(&list, &count) != DOCA_SUCCESS)
		return EXIT_FAILURE;
	for (uint32_t i = 0; i < count; i++) {
		char pci[DOCA_DEVINFO_PCI_ADDR_SIZE], name[DOCA_DEVINFO_IBDEV_NAME_SIZE];
		uint8_t exports, imports;

		if (doca_devinfo_get_pci_addr_str(list[i], pci) != DOCA_SUCCESS ||
		    doca_devinfo_get_ibdev_name(list[i], name, sizeof name) != DOCA_SUCCESS ||
		    doca_mmap_cap_is_export_pci_supported(list[i], &exports) != DOCA_SUCCESS ||
		    doca_mmap_cap_is_create_from_export_pci_supported(list[i], &imports) !=
			    DOCA_SUCCESS)
			return EXIT_FAILURE;
		printf("%s %s", pci, name);
		print("server", doca_comch_cap_server_is_supported(list[i]));
		print("client", doca_comch_cap_client_is_supported(list[i]));
		print("consumer", doca_comch_consumer_cap_is_supported(list[i]));
		print("dma", doca_dma_cap_task_memcpy_is_supported(list[i]));
		print("rdma", doca_rdma_cap_task_write_is_supported(list[i]));
		printf("%s%s\n", exports ? " exports" : "", imports ? " imports" : "");
	}
	return doca_devinfo_destroy_list(list) == DOCA_SUCCESS ? EXIT_SUCCESS : EXIT_FAILURE;
}
