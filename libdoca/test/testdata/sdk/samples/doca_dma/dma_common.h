/* What both sides of the copy know. */
#ifndef DMA_COMMON_H_
#define DMA_COMMON_H_

#include <doca_mmap.h>

#define DESCRIPTOR_FILE "note_descriptor"
#define NOTE "a note in the memory of the host"
enum { NOTE_SIZE = 4096, MAX_DESCRIPTOR = 1024 };

/* Makes a started map of memory. */
struct doca_mmap *map(struct doca_dev *dev, void *memory, size_t size, uint32_t access);

#endif
