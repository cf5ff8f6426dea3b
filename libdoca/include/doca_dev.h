/* SPDX-License-Identifier: Apache-2.0 */

/* Devices, and the representors through which a DPU sees the functions of its host. */
#ifndef DOCA_DEV_H_
#define DOCA_DEV_H_

#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes, with the terminating zero of what is text. */
#define DOCA_DEVINFO_PCI_ADDR_SIZE 13
#define DOCA_DEVINFO_PCI_BDF_SIZE 8 /* of the form 3a:00.0 */
#define DOCA_DEVINFO_IBDEV_NAME_SIZE 64
#define DOCA_DEVINFO_IFACE_NAME_SIZE 256
#define DOCA_DEVINFO_VUID_SIZE 128
#define DOCA_DEVINFO_IPV4_ADDR_SIZE 4
#define DOCA_DEVINFO_IPV6_ADDR_SIZE 16
#define DOCA_DEVINFO_MAC_ADDR_SIZE 6
#define DOCA_DEVINFO_REP_PCI_ADDR_SIZE 13
#define DOCA_DEVINFO_REP_PCI_BDF_SIZE 8
#define DOCA_DEVINFO_REP_VUID_SIZE 128

struct doca_dev;
struct doca_devinfo;
struct doca_dev_rep;
struct doca_devinfo_rep;

/* Which representors a list contains; the values can be combined. */
enum doca_devinfo_rep_filter {
	DOCA_DEVINFO_REP_FILTER_ALL = 0,
	DOCA_DEVINFO_REP_FILTER_NET = 1 << 1,
	DOCA_DEVINFO_REP_FILTER_EMULATED = 1 << 2,
};

/* A list is an array of pointers. Destroying it invalidates its entries, but not the devices that
 * have been opened from them. */
doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count);
doca_error_t doca_devinfo_destroy_list(struct doca_devinfo **list);

/* Every open counts; the last close closes. doca_dev_close fails with IN_USE while objects use the
 * device. */
doca_error_t doca_dev_open(struct doca_devinfo *info, struct doca_dev **dev);
doca_error_t doca_dev_close(struct doca_dev *dev);
struct doca_devinfo *doca_dev_as_devinfo(const struct doca_dev *dev);
/* Lets the device give back its resources sooner. Since 3.0. */
doca_error_t doca_dev_accelerate_resource_reclaim(struct doca_dev *dev);

/* pci_addr has at least DOCA_DEVINFO_PCI_ADDR_SIZE bytes and gets the form 0000:3a:00.0. */
doca_error_t doca_devinfo_get_pci_addr_str(const struct doca_devinfo *info, char *pci_addr);
/* Takes both 0000:3a:00.0 and 3a:00.0. */
doca_error_t doca_devinfo_is_equal_pci_addr(const struct doca_devinfo *info, const char *pci_addr,
					    uint8_t *is_equal);
/* size is at least the constant above, else INVALID_VALUE. */
doca_error_t doca_devinfo_get_ibdev_name(const struct doca_devinfo *info, char *name, uint32_t size);
doca_error_t doca_devinfo_get_iface_name(const struct doca_devinfo *info, char *name, uint32_t size);
doca_error_t doca_devinfo_get_ipv4_addr(const struct doca_devinfo *info, uint8_t *addr,
					uint32_t size);
doca_error_t doca_devinfo_get_ipv6_addr(const struct doca_devinfo *info, uint8_t *addr,
					uint32_t size);
/* NOT_SUPPORTED if the port is InfiniBand. */
doca_error_t doca_devinfo_get_mac_addr(const struct doca_devinfo *info, uint8_t *addr,
				       uint32_t size);
/* NOT_SUPPORTED unless the port is InfiniBand. */
doca_error_t doca_devinfo_get_lid(const struct doca_devinfo *info, uint16_t *lid);
/* In bits per second. Since 3.0. */
doca_error_t doca_devinfo_get_active_rate(const struct doca_devinfo *info, uint64_t *rate);
/* The number of the function in the device. Since 3.0. */
doca_error_t doca_devinfo_get_vhca_id(const struct doca_devinfo *info, uint16_t *vhca_id);
doca_error_t doca_devinfo_get_pci_func_type(const struct doca_devinfo *info,
					    enum doca_pci_func_type *type); /* since 3.1 */
/* NOT_SUPPORTED unless the function is an SF. */
doca_error_t doca_devinfo_get_sf_index(const struct doca_devinfo *info,
				       uint32_t *index); /* since 3.1 */

doca_error_t doca_devinfo_cap_is_hotplug_manager_supported(const struct doca_devinfo *info,
							    uint8_t *is_supported);
/* Since 3.0. */
doca_error_t doca_devinfo_cap_is_notification_moderation_supported(const struct doca_devinfo *info,
								   uint8_t *is_supported);
doca_error_t
doca_devinfo_cap_is_accelerate_resource_reclaim_supported(const struct doca_devinfo *info,
							  uint8_t *is_supported);

/* Lists the representors of an open device. NOT_SUPPORTED on a host. */
doca_error_t doca_devinfo_rep_create_list(struct doca_dev *dev, int filter,
					  struct doca_devinfo_rep ***list, uint32_t *count);
doca_error_t doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **list);
doca_error_t doca_dev_rep_open(struct doca_devinfo_rep *info, struct doca_dev_rep **rep);
doca_error_t doca_dev_rep_close(struct doca_dev_rep *rep);
struct doca_devinfo_rep *doca_dev_rep_as_devinfo(struct doca_dev_rep *rep);
doca_error_t doca_devinfo_rep_get_pci_addr_str(const struct doca_devinfo_rep *info, char *pci_addr);
doca_error_t doca_devinfo_rep_is_equal_pci_addr(const struct doca_devinfo_rep *info,
						const char *pci_addr, uint8_t *is_equal);
doca_error_t doca_devinfo_rep_get_vuid(const struct doca_devinfo_rep *info, char *vuid,
				       uint32_t size);
doca_error_t doca_devinfo_rep_get_pci_func_type(const struct doca_devinfo_rep *info,
						enum doca_pci_func_type *type);
doca_error_t doca_devinfo_rep_get_is_hotplug(const struct doca_devinfo_rep *info,
					     uint8_t *is_hotplug);
/* Of the representor itself, on the DPU. Since 3.0. */
doca_error_t doca_devinfo_rep_get_iface_name(const struct doca_devinfo_rep *info, char *name,
					     uint32_t size);
/* Of the function that is represented. Since 3.0. */
doca_error_t doca_devinfo_rep_get_vhca_id(const struct doca_devinfo_rep *info, uint16_t *vhca_id);
/* Which filters doca_devinfo_rep_create_list accepts. */
doca_error_t doca_devinfo_rep_cap_is_filter_all_supported(const struct doca_devinfo *info,
							  uint8_t *is_supported);
doca_error_t doca_devinfo_rep_cap_is_filter_net_supported(const struct doca_devinfo *info,
							  uint8_t *is_supported);
doca_error_t doca_devinfo_rep_cap_is_filter_emulated_supported(const struct doca_devinfo *info,
								uint8_t *is_supported);

#ifdef __cplusplus
}
#endif
#endif
