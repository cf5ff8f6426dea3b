/* SPDX-License-Identifier: Apache-2.0 */

/* Types that several libraries share. */
#ifndef DOCA_TYPES_H_
#define DOCA_TYPES_H_

#include <stddef.h>
#include <stdint.h>
#include <linux/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an application attaches to objects: eight bytes that the library does not look at. */
union doca_data {
	void *ptr;
	uint64_t u64;
};

/* On Linux, a descriptor that poll and epoll can wait for. */
typedef int doca_event_handle_t;
#define doca_event_invalid_handle (-1)
typedef doca_event_handle_t doca_notification_handle_t;

typedef __be16 doca_be16_t;
typedef __be32 doca_be32_t;
typedef __be64 doca_be64_t;

/* Bytes of a global identifier of a port. */
#define DOCA_GID_BYTE_LENGTH 16

/* Pieces of memory, in order. */
struct doca_gather_list {
	void *addr;
	uint64_t len;
	struct doca_gather_list *next; /* or NULL */
};

/* Rights to memory, for doca_mmap_set_permissions. */
enum doca_access_flag {
	DOCA_ACCESS_FLAG_LOCAL_READ_ONLY = 0,
	DOCA_ACCESS_FLAG_LOCAL_READ_WRITE = 1 << 0,
	DOCA_ACCESS_FLAG_RDMA_READ = 1 << 1,
	DOCA_ACCESS_FLAG_RDMA_WRITE = 1 << 2,
	DOCA_ACCESS_FLAG_RDMA_ATOMIC = 1 << 3,
	DOCA_ACCESS_FLAG_PCI_READ_ONLY = 1 << 4,
	DOCA_ACCESS_FLAG_PCI_READ_WRITE = 1 << 5,
	DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING = 1 << 6,
};

enum doca_mtu_size {
	DOCA_MTU_SIZE_256_BYTES = 0,
	DOCA_MTU_SIZE_512_BYTES = 1,
	DOCA_MTU_SIZE_1K_BYTES = 2,
	DOCA_MTU_SIZE_2K_BYTES = 3,
	DOCA_MTU_SIZE_4K_BYTES = 4,
	DOCA_MTU_SIZE_RAW_ETHERNET = 5,
};

enum doca_pci_func_type {
	DOCA_PCI_FUNC_TYPE_PF = 0,
	DOCA_PCI_FUNC_TYPE_VF = 1,
	DOCA_PCI_FUNC_TYPE_SF = 2,
};

#ifdef __cplusplus
}
#endif
#endif
