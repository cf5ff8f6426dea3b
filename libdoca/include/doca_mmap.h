/* Memory maps: memory that devices may access. */
#ifndef DOCA_MMAP_H_
#define DOCA_MMAP_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_devinfo;
struct doca_mmap;

doca_error_t doca_mmap_create(struct doca_mmap **mmap);
/* Stops the map, too. NOT_PERMITTED while bufs refer to it. */
doca_error_t doca_mmap_destroy(struct doca_mmap *mmap);

/* Before doca_mmap_start: devices, the range (once), rights, and whether several threads may take
 * bufs of the map at the same time. */
doca_error_t doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev);
doca_error_t doca_mmap_set_memrange(struct doca_mmap *mmap, void *addr, size_t len);
doca_error_t doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t access_mask);
doca_error_t doca_mmap_enable_thread_safety(struct doca_mmap *mmap);

doca_error_t doca_mmap_start(struct doca_mmap *mmap);
/* Invalidates all exports, and what peers have made of them. */
doca_error_t doca_mmap_stop(struct doca_mmap *mmap);

/* For an imported map: the address that the exporter knows. */
doca_error_t doca_mmap_get_memrange(const struct doca_mmap *mmap, void **addr, size_t *len);

/* An export describes a started map to a peer; it belongs to the map. Copy it. */
doca_error_t doca_mmap_export_pci(struct doca_mmap *mmap, const struct doca_dev *dev,
				  const void **desc, size_t *desc_len);
doca_error_t doca_mmap_export_rdma(struct doca_mmap *mmap, const struct doca_dev *dev,
				   const void **desc, size_t *desc_len);
/* Makes a started map of a peer's memory, which the CPU cannot address. user_data may be NULL. */
doca_error_t doca_mmap_create_from_export(const union doca_data *user_data, const void *desc,
					  size_t desc_len, struct doca_dev *dev,
					  struct doca_mmap **mmap);

doca_error_t doca_mmap_cap_is_export_pci_supported(const struct doca_devinfo *info,
						   uint8_t *is_supported);
doca_error_t doca_mmap_cap_is_create_from_export_pci_supported(const struct doca_devinfo *info,
								uint8_t *is_supported);

/* The key of the memory on a device, in host byte order. Since 3.2. */
doca_error_t doca_mmap_get_mkey(struct doca_mmap *mmap, struct doca_dev *dev, uint32_t *mkey);

#ifdef __cplusplus
}
#endif
#endif
