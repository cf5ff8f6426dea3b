/* SPDX-License-Identifier: Apache-2.0 */

/* What a program needs to use the memory of DOCA through libibverbs. */
#ifndef DOCA_RDMA_BRIDGE_H_
#define DOCA_RDMA_BRIDGE_H_

#include <stdint.h>
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#else
struct ibv_pd;
#endif

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_dev;
struct doca_mmap;

/* The protection domain belongs to the device: do not deallocate it. */
doca_error_t doca_rdma_bridge_get_dev_pd(const struct doca_dev *dev, struct ibv_pd **pd);
/* Opens the device that a protection domain belongs to. */
doca_error_t doca_rdma_bridge_open_dev_from_pd(struct ibv_pd *pd, struct doca_dev **dev);
doca_error_t doca_rdma_bridge_get_buf_mkey(const struct doca_buf *buf, struct doca_dev *dev,
					   uint32_t *mkey);
doca_error_t doca_rdma_bridge_get_mmap_mkey_from_pd(const struct doca_mmap *mmap, struct ibv_pd *pd,
						    uint32_t *mkey); /* since 3.0 */

#ifdef __cplusplus
}
#endif
#endif
