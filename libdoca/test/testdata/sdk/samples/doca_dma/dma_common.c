#include "dma_common.h"

#include "common.h"

struct doca_mmap *map(struct doca_dev *dev, void *memory, size_t size, uint32_t access)
{
	struct doca_mmap *mmap;

	OK(doca_mmap_create(&mmap));
	OK(doca_mmap_add_dev(mmap, dev));
	OK(doca_mmap_set_memrange(mmap, memory, size));
	OK(doca_mmap_set_permissions(mmap, access));
	OK(doca_mmap_start(mmap));
	return mmap;
}
