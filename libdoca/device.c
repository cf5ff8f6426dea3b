// SPDX-License-Identifier: Apache-2.0

/* Devices and representors, as the configuration lists them. */

#include "skin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct emu_device *emu_devices;
uint32_t emu_num_devices;

/* Guards emu_device.open and doca_dev.opened: threads may open devices at the same time. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

doca_error_t emu_doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count)
{
	struct doca_devinfo **entries;

	if (!EMU_HAS(list) || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	emu_wait_until_configured();
	/* NULL ends the list for doca_devinfo_destroy_list. */
	entries = calloc(emu_num_devices + 1, sizeof *entries);
	if (entries == NULL)
		return DOCA_ERROR_NO_MEMORY;
	for (uint32_t i = 0; i < emu_num_devices; i++) {
		entries[i] = emu_new(EMU_DEVINFO, sizeof **entries);
		if (entries[i] == NULL) {
			emu_doca_devinfo_destroy_list(entries);
			return DOCA_ERROR_NO_MEMORY;
		}
		entries[i]->device = &emu_devices[i];
	}
	*list = entries;
	*count = emu_num_devices;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_destroy_list(struct doca_devinfo **list)
{
	if (!EMU_HAS(list))
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; list[i] != NULL; i++) {
		if (!EMU_IS(list[i], EMU_DEVINFO))
			return DOCA_ERROR_INVALID_VALUE;
		emu_bury(list[i], NULL);
	}
	free(list);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dev_open(struct doca_devinfo *info, struct doca_dev **dev)
{
	struct emu_device *device;

	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(dev))
		return DOCA_ERROR_INVALID_VALUE;
	device = info->device;
	pthread_mutex_lock(&opening);
	if (device->open == NULL) {
		struct doca_dev *opened = emu_new(EMU_DEV, sizeof *opened);

		if (opened == NULL) {
			pthread_mutex_unlock(&opening);
			return DOCA_ERROR_NO_MEMORY;
		}
		opened->device = device;
		opened->info.magic = EMU_DEVINFO;
		opened->info.device = device;
		device->open = opened;
	}
	device->open->opened++;
	*dev = device->open;
	pthread_mutex_unlock(&opening);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dev_close(struct doca_dev *dev)
{
	if (!EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&opening);
	if (dev->opened == 1) {
		uint32_t users = __atomic_load_n(&dev->users, __ATOMIC_SEQ_CST);

		if (users > 0) {
			pthread_mutex_unlock(&opening);
			emu_misuse(__func__,
				   "%u maps, contexts, and representors still use the device: "
				   "close it last",
				   users);
			return DOCA_ERROR_IN_USE;
		}
		dev->device->open = NULL;
		dev->info.magic = EMU_DEAD;
		emu_bury(dev, NULL);
	} else {
		dev->opened--;
	}
	pthread_mutex_unlock(&opening);
	return DOCA_SUCCESS;
}

struct doca_devinfo *emu_doca_dev_as_devinfo(const struct doca_dev *dev)
{
	if (!EMU_IS(dev, EMU_DEV))
		return NULL;
	return (struct doca_devinfo *)&dev->info;
}

bool emu_use_dev(struct doca_dev *dev, const char *function)
{
	if (!emu_is(dev, EMU_DEV, function))
		return false;
	__atomic_add_fetch(&dev->users, 1, __ATOMIC_SEQ_CST);
	return true;
}

void emu_release_dev(struct doca_dev *dev)
{
	__atomic_sub_fetch(&dev->users, 1, __ATOMIC_SEQ_CST);
}

/* Compares an address in either notation with one in the long one. */
static bool equal_pci(const char *address, const char *other)
{
	return strcasecmp(address, other) == 0 ||
	       (strncmp(address, "0000:", 5) == 0 && strcasecmp(address + 5, other) == 0);
}

/* Reports whether text is dddd:bb:dd.f or bb:dd.f. */
static bool is_pci(const char *text)
{
	static const char shape[] = "xxxx:xx:xx.x";
	size_t length = strnlen(text, sizeof shape);
	const char *expected = length == 7 ? shape + 5 : shape;

	if (length != 7 && length != 12)
		return false;
	for (; *expected != '\0'; expected++, text++) {
		if (*expected == 'x' ? strchr("0123456789abcdefABCDEF", *text) == NULL
				     : *text != *expected)
			return false;
	}
	return true;
}

static doca_error_t compare_pci(const char *own, const char *pci_addr, uint8_t *is_equal,
				const char *function)
{
	if (!is_pci(pci_addr)) {
		emu_misuse(function, "\"%.32s\" is no PCI address: use 0000:03:00.0 or 03:00.0",
			   pci_addr);
		return DOCA_ERROR_INVALID_VALUE;
	}
	*is_equal = equal_pci(own, pci_addr);
	return DOCA_SUCCESS;
}

/* Reports whether the application's buffer is large enough. */
static bool has_room(uint32_t size, uint32_t needed, const char *function)
{
	if (size < needed)
		emu_misuse(function, "the size is %u, but must be %u at least", size, needed);
	return size >= needed;
}

static doca_error_t copy_name(const char *name, char *out, uint32_t size, uint32_t needed,
			      const char *function)
{
	if (!has_room(size, needed, function))
		return DOCA_ERROR_INVALID_VALUE;
	snprintf(out, size, "%s", name);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_pci_addr_str(const struct doca_devinfo *info, char *pci_addr)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(pci_addr))
		return DOCA_ERROR_INVALID_VALUE;
	memcpy(pci_addr, info->device->pci, sizeof info->device->pci);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_is_equal_pci_addr(const struct doca_devinfo *info,
						const char *pci_addr, uint8_t *is_equal)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(pci_addr) || !EMU_HAS(is_equal))
		return DOCA_ERROR_INVALID_VALUE;
	if (compare_pci(info->device->pci, pci_addr, is_equal, __func__) != DOCA_SUCCESS)
		return DOCA_ERROR_INVALID_VALUE;
	*is_equal |= equal_pci(info->device->alias, pci_addr);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_ibdev_name(const struct doca_devinfo *info, char *name,
					     uint32_t size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(name))
		return DOCA_ERROR_INVALID_VALUE;
	return copy_name(info->device->ibdev, name, size, DOCA_DEVINFO_IBDEV_NAME_SIZE, __func__);
}

doca_error_t emu_doca_devinfo_get_iface_name(const struct doca_devinfo *info, char *name,
					     uint32_t size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(name))
		return DOCA_ERROR_INVALID_VALUE;
	return copy_name(info->device->iface, name, size, DOCA_DEVINFO_IFACE_NAME_SIZE, __func__);
}

doca_error_t emu_doca_devinfo_get_ipv4_addr(const struct doca_devinfo *info, uint8_t *addr,
					    uint32_t size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(addr) ||
	    !has_room(size, DOCA_DEVINFO_IPV4_ADDR_SIZE, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (!info->device->has_ipv4)
		return DOCA_ERROR_NOT_FOUND;
	memcpy(addr, info->device->ipv4, DOCA_DEVINFO_IPV4_ADDR_SIZE);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_ipv6_addr(const struct doca_devinfo *info, uint8_t *addr,
					    uint32_t size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(addr) ||
	    !has_room(size, DOCA_DEVINFO_IPV6_ADDR_SIZE, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (!info->device->has_ipv6)
		return DOCA_ERROR_NOT_FOUND;
	memcpy(addr, info->device->ipv6, DOCA_DEVINFO_IPV6_ADDR_SIZE);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_mac_addr(const struct doca_devinfo *info, uint8_t *addr,
					   uint32_t size)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(addr) ||
	    !has_room(size, DOCA_DEVINFO_MAC_ADDR_SIZE, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	if (info->device->lid != 0)
		return DOCA_ERROR_NOT_SUPPORTED;
	memcpy(addr, info->device->mac, DOCA_DEVINFO_MAC_ADDR_SIZE);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_lid(const struct doca_devinfo *info, uint16_t *lid)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(lid))
		return DOCA_ERROR_INVALID_VALUE;
	if (info->device->lid == 0)
		return DOCA_ERROR_NOT_SUPPORTED;
	*lid = info->device->lid;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_active_rate(const struct doca_devinfo *info, uint64_t *rate)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(rate))
		return DOCA_ERROR_INVALID_VALUE;
	*rate = info->device->active_rate;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_vhca_id(const struct doca_devinfo *info, uint16_t *vhca_id)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(vhca_id))
		return DOCA_ERROR_INVALID_VALUE;
	*vhca_id = info->device->vhca_id;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_pci_func_type(const struct doca_devinfo *info,
						enum doca_pci_func_type *type)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(type))
		return DOCA_ERROR_INVALID_VALUE;
	*type = info->device->type;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_get_sf_index(const struct doca_devinfo *info, uint32_t *index)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(index))
		return DOCA_ERROR_INVALID_VALUE;
	if (info->device->type != DOCA_PCI_FUNC_TYPE_SF)
		return DOCA_ERROR_NOT_SUPPORTED;
	*index = info->device->sf_index;
	return DOCA_SUCCESS;
}

/* What no device here can do. */
static doca_error_t answer_no(const struct doca_devinfo *info, uint8_t *is_supported,
			      const char *function)
{
	if (!emu_is(info, EMU_DEVINFO, function) ||
	    !emu_has(is_supported, "is_supported", function))
		return DOCA_ERROR_INVALID_VALUE;
	*is_supported = 0;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_cap_is_hotplug_manager_supported(const struct doca_devinfo *info,
								uint8_t *is_supported)
{
	return answer_no(info, is_supported, __func__);
}

doca_error_t
emu_doca_devinfo_cap_is_notification_moderation_supported(const struct doca_devinfo *info,
							  uint8_t *is_supported)
{
	return answer_no(info, is_supported, __func__);
}

doca_error_t
emu_doca_devinfo_cap_is_accelerate_resource_reclaim_supported(const struct doca_devinfo *info,
							      uint8_t *is_supported)
{
	return answer_no(info, is_supported, __func__);
}

doca_error_t emu_doca_dev_accelerate_resource_reclaim(struct doca_dev *dev)
{
	if (!EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	return EMU_REFUSE("the device gives back its resources at once as it is");
}

/* Representors. */

/* A DPU's device accepts every filter. */
static doca_error_t has_representors(const struct doca_devinfo *info, uint8_t *is_supported,
				     const char *function)
{
	if (!emu_is(info, EMU_DEVINFO, function) ||
	    !emu_has(is_supported, "is_supported", function))
		return DOCA_ERROR_INVALID_VALUE;
	*is_supported = info->device->role == EMU_ROLE_DPU;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_rep_cap_is_filter_all_supported(const struct doca_devinfo *info,
							      uint8_t *is_supported)
{
	return has_representors(info, is_supported, __func__);
}

doca_error_t emu_doca_devinfo_rep_cap_is_filter_net_supported(const struct doca_devinfo *info,
							      uint8_t *is_supported)
{
	return has_representors(info, is_supported, __func__);
}

doca_error_t
emu_doca_devinfo_rep_cap_is_filter_emulated_supported(const struct doca_devinfo *info,
						      uint8_t *is_supported)
{
	return has_representors(info, is_supported, __func__);
}

doca_error_t emu_doca_devinfo_rep_create_list(struct doca_dev *dev, int filter,
					      struct doca_devinfo_rep ***list, uint32_t *count)
{
	struct doca_devinfo_rep **entries;
	uint32_t listed;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(list) || !EMU_HAS(count))
		return DOCA_ERROR_INVALID_VALUE;
	if ((filter & ~(DOCA_DEVINFO_REP_FILTER_NET | DOCA_DEVINFO_REP_FILTER_EMULATED)) != 0) {
		emu_misuse(__func__, "filter %#x has unknown bits", (unsigned int)filter);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (dev->device->role != EMU_ROLE_DPU)
		return DOCA_ERROR_NOT_SUPPORTED;
	/* All representors here are of network functions. */
	listed = filter == DOCA_DEVINFO_REP_FILTER_EMULATED ? 0 : dev->device->num_reps;
	entries = calloc(listed + 1, sizeof *entries);
	if (entries == NULL)
		return DOCA_ERROR_NO_MEMORY;
	for (uint32_t i = 0; i < listed; i++) {
		entries[i] = emu_new(EMU_REP_INFO, sizeof **entries);
		if (entries[i] == NULL) {
			emu_doca_devinfo_rep_destroy_list(entries);
			return DOCA_ERROR_NO_MEMORY;
		}
		entries[i]->device = dev->device;
		entries[i]->rep = &dev->device->reps[i];
		entries[i]->dev = dev;
	}
	*list = entries;
	*count = listed;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_rep_destroy_list(struct doca_devinfo_rep **list)
{
	if (!EMU_HAS(list))
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; list[i] != NULL; i++) {
		if (!EMU_IS(list[i], EMU_REP_INFO))
			return DOCA_ERROR_INVALID_VALUE;
		emu_bury(list[i], NULL);
	}
	free(list);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dev_rep_open(struct doca_devinfo_rep *info, struct doca_dev_rep **rep)
{
	struct doca_dev_rep *opened;

	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(rep) || !emu_use_dev(info->dev, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	opened = emu_new(EMU_REP, sizeof *opened);
	if (opened == NULL) {
		emu_release_dev(info->dev);
		return DOCA_ERROR_NO_MEMORY;
	}
	opened->device = info->device;
	opened->rep = info->rep;
	opened->dev = info->dev;
	opened->info = (struct doca_devinfo_rep){.magic = EMU_REP_INFO,
						 .device = info->device,
						 .rep = info->rep,
						 .dev = info->dev};
	*rep = opened;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_dev_rep_close(struct doca_dev_rep *rep)
{
	if (!EMU_IS(rep, EMU_REP))
		return DOCA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&rep->users, __ATOMIC_SEQ_CST) > 0) {
		emu_misuse(__func__, "servers still use the representor: destroy them first");
		return DOCA_ERROR_IN_USE;
	}
	emu_release_dev(rep->dev);
	rep->info.magic = EMU_DEAD;
	emu_bury(rep, NULL);
	return DOCA_SUCCESS;
}

struct doca_devinfo_rep *emu_doca_dev_rep_as_devinfo(struct doca_dev_rep *rep)
{
	return EMU_IS(rep, EMU_REP) ? &rep->info : NULL;
}

doca_error_t emu_doca_devinfo_rep_get_pci_addr_str(const struct doca_devinfo_rep *info,
						   char *pci_addr)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(pci_addr))
		return DOCA_ERROR_INVALID_VALUE;
	memcpy(pci_addr, info->rep->pci, sizeof info->rep->pci);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_rep_is_equal_pci_addr(const struct doca_devinfo_rep *info,
						    const char *pci_addr, uint8_t *is_equal)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(pci_addr) || !EMU_HAS(is_equal))
		return DOCA_ERROR_INVALID_VALUE;
	return compare_pci(info->rep->pci, pci_addr, is_equal, __func__);
}

doca_error_t emu_doca_devinfo_rep_get_vuid(const struct doca_devinfo_rep *info, char *vuid,
					   uint32_t size)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(vuid))
		return DOCA_ERROR_INVALID_VALUE;
	return copy_name(info->rep->vuid, vuid, size, DOCA_DEVINFO_REP_VUID_SIZE, __func__);
}

doca_error_t emu_doca_devinfo_rep_get_pci_func_type(const struct doca_devinfo_rep *info,
						    enum doca_pci_func_type *type)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(type))
		return DOCA_ERROR_INVALID_VALUE;
	*type = info->rep->type;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_rep_get_is_hotplug(const struct doca_devinfo_rep *info,
						 uint8_t *is_hotplug)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(is_hotplug))
		return DOCA_ERROR_INVALID_VALUE;
	*is_hotplug = info->rep->is_hotplug;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_devinfo_rep_get_iface_name(const struct doca_devinfo_rep *info, char *name,
						 uint32_t size)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(name))
		return DOCA_ERROR_INVALID_VALUE;
	return copy_name(info->rep->iface, name, size, DOCA_DEVINFO_IFACE_NAME_SIZE, __func__);
}

doca_error_t emu_doca_devinfo_rep_get_vhca_id(const struct doca_devinfo_rep *info,
					      uint16_t *vhca_id)
{
	if (!EMU_IS(info, EMU_REP_INFO) || !EMU_HAS(vhca_id))
		return DOCA_ERROR_INVALID_VALUE;
	*vhca_id = info->rep->vhca_id;
	return DOCA_SUCCESS;
}
