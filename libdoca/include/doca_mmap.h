/* SPDX-License-Identifier: Apache-2.0 */

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
struct doca_dpa;
struct doca_mmap;

/* The handle of a map on a DPA. */
typedef uint32_t doca_dpa_dev_mmap_t;

/* Frees the memory of a map. The type is that of a function, not of a pointer. */
typedef void(doca_mmap_memrange_free_cb_t)(void *addr, size_t len, void *cookie);

doca_error_t doca_mmap_create(struct doca_mmap **mmap);
/* Stops the map, too. NOT_PERMITTED while bufs refer to it. */
doca_error_t doca_mmap_destroy(struct doca_mmap *mmap);

/* Before doca_mmap_start: devices, the range (once), rights, and whether several threads may take
 * bufs of the map at the same time. */
doca_error_t doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev);
/* NOT_FOUND if the map does not have the device. */
doca_error_t doca_mmap_rm_dev(struct doca_mmap *mmap, struct doca_dev *dev);
/* Before the first start: NOT_PERMITTED later. */
doca_error_t doca_mmap_set_max_num_devices(struct doca_mmap *mmap, uint32_t max_num_devices);
doca_error_t doca_mmap_get_max_num_devices(const struct doca_mmap *mmap, uint32_t *max_num_devices);
doca_error_t doca_mmap_set_memrange(struct doca_mmap *mmap, void *addr, size_t len);
/* Alternatives: memory that the descriptor of a dma-buf stands for, and memory of a DPA. */
doca_error_t doca_mmap_set_dmabuf_memrange(struct doca_mmap *mmap, int dmabuf_fd, void *addr,
					   size_t dmabuf_offset, size_t len);
doca_error_t doca_mmap_set_dpa_memrange(struct doca_mmap *mmap, struct doca_dpa *dpa,
					uint64_t dpa_addr, size_t len);
/* Called when the map is destroyed, if it has been started since. */
doca_error_t doca_mmap_set_free_cb(struct doca_mmap *mmap, doca_mmap_memrange_free_cb_t *free_cb,
				   void *opaque);
doca_error_t doca_mmap_set_user_data(struct doca_mmap *mmap, union doca_data user_data);
doca_error_t doca_mmap_get_user_data(const struct doca_mmap *mmap, union doca_data *user_data);
doca_error_t doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t access_mask);
doca_error_t doca_mmap_enable_thread_safety(struct doca_mmap *mmap);

doca_error_t doca_mmap_start(struct doca_mmap *mmap);
/* Not for maps that have been exported: destroying them takes the memory away from peers. */
doca_error_t doca_mmap_stop(struct doca_mmap *mmap);

/* For an imported map: the address that the exporter knows. */
doca_error_t doca_mmap_get_memrange(const struct doca_mmap *mmap, void **addr, size_t *len);
/* Bufs that refer to the map. NOT_SUPPORTED after doca_mmap_enable_thread_safety. */
doca_error_t doca_mmap_get_num_bufs(const struct doca_mmap *mmap, uint32_t *num_bufs);
/* Whether the map has been exported since its start, and whether it was made from an export. */
doca_error_t doca_mmap_get_exported(const struct doca_mmap *mmap, uint8_t *exported);
doca_error_t doca_mmap_get_from_export(const struct doca_mmap *mmap, uint8_t *from_export);

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
/* For code on a DPA. */
doca_error_t doca_mmap_dev_get_dpa_handle(struct doca_mmap *mmap, const struct doca_dev *dev,
					  doca_dpa_dev_mmap_t *handle);

#ifdef __cplusplus
}
#endif
#endif
