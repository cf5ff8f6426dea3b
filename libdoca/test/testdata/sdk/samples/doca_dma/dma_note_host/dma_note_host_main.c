/* Exports memory, and waits for a key while the DPU copies it. */

#include <string.h>

#include "common.h"
#include "dma_common.h"
#include <doca_dma.h>

int main(void)
{
	/* As for every program that needs no particular device: the first that copies. */
	struct doca_dev *dev = open_capable(doca_dma_cap_task_memcpy_is_supported);
	char *memory = aligned_alloc(NOTE_SIZE, NOTE_SIZE);
	struct doca_mmap *mmap;
	const void *descriptor;
	size_t length;

#ifndef DOCA_ARCH_HOST
	fprintf(stderr, "error: this sample runs on the host alone\n");
	return EXIT_FAILURE;
#endif
	strcpy(memory, NOTE);
	mmap = map(dev, memory, NOTE_SIZE,
		   DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_PCI_READ_WRITE);
	OK(doca_mmap_export_pci(mmap, dev, &descriptor, &length));
	write_file(DESCRIPTOR_FILE, descriptor, length);
	printf("Press enter after the DPU has finished\n");
	while (getchar() != '\n')
		;
	OK(doca_mmap_destroy(mmap));
	OK(doca_dev_close(dev));
	free(memory);
	return EXIT_SUCCESS;
}
