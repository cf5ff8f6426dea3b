// SPDX-License-Identifier: Apache-2.0

/* Memory maps. The core makes exports and imports, and copies. */

#include "skin.h"

#include "_cgo_export.h"

doca_error_t emu_doca_mmap_create(struct doca_mmap **mmap)
{
	struct doca_mmap *created;

	if (!EMU_HAS(mmap))
		return DOCA_ERROR_INVALID_VALUE;
	created = emu_new(EMU_MMAP, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	created->max_devs = EMU_MAX_MMAP_DEVICES;
	*mmap = created;
	return DOCA_SUCCESS;
}

/* Reports whether the map can be configured; it is neither started nor imported then. */
static doca_error_t check_idle(struct doca_mmap *mmap, const char *function)
{
	if (!emu_is(mmap, EMU_MMAP, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (mmap->imported) {
		emu_misuse(function, "the map is imported: its exporter has configured it");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (mmap->started) {
		emu_misuse(function, "the map is started: configure it before");
		return DOCA_ERROR_BAD_STATE;
	}
	return DOCA_SUCCESS;
}

bool emu_mmap_has_dev(const struct doca_mmap *mmap, const struct doca_dev *dev)
{
	for (uint32_t i = 0; i < mmap->num_devs; i++) {
		if (mmap->devs[i] == dev)
			return true;
	}
	return false;
}

doca_error_t emu_doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	if (emu_mmap_has_dev(mmap, dev)) {
		emu_misuse(__func__, "the map has the device already");
		return DOCA_ERROR_ALREADY_EXIST;
	}
	if (mmap->num_devs == mmap->max_devs)
		return DOCA_ERROR_NO_MEMORY;
	emu_use_dev(dev, __func__);
	mmap->devs[mmap->num_devs++] = dev;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_rm_dev(struct doca_mmap *mmap, struct doca_dev *dev)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < mmap->num_devs; i++) {
		if (mmap->devs[i] != dev)
			continue;
		mmap->devs[i] = mmap->devs[--mmap->num_devs];
		emu_release_dev(dev);
		return DOCA_SUCCESS;
	}
	return DOCA_ERROR_NOT_FOUND;
}

doca_error_t emu_doca_mmap_set_max_num_devices(struct doca_mmap *mmap, uint32_t max_num_devices)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result == DOCA_ERROR_BAD_STATE ? DOCA_ERROR_NOT_PERMITTED : result;
	if (mmap->was_started) {
		emu_misuse(__func__, "the map has been started: set it before the first start");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (max_num_devices == 0 || max_num_devices < mmap->num_devs ||
	    max_num_devices > EMU_MAX_MMAP_DEVICES) {
		emu_misuse(__func__, "%u devices are not between those that the map has and %u",
			   max_num_devices, EMU_MAX_MMAP_DEVICES);
		return DOCA_ERROR_INVALID_VALUE;
	}
	mmap->max_devs = max_num_devices;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_get_max_num_devices(const struct doca_mmap *mmap,
					       uint32_t *max_num_devices)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(max_num_devices))
		return DOCA_ERROR_INVALID_VALUE;
	*max_num_devices = mmap->max_devs;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_set_user_data(struct doca_mmap *mmap, union doca_data user_data)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result == DOCA_SUCCESS)
		mmap->user_data = user_data;
	return result;
}

doca_error_t emu_doca_mmap_get_user_data(const struct doca_mmap *mmap, union doca_data *user_data)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(user_data))
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = mmap->user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_set_memrange(struct doca_mmap *mmap, void *addr, size_t len)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(addr))
		return DOCA_ERROR_INVALID_VALUE;
	if (len == 0 || (uintptr_t)addr + len < (uintptr_t)addr) {
		emu_misuse(__func__, "%zu bytes at %p are no range", len, addr);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (mmap->has_range) {
		emu_misuse(__func__, "the range has been set: it can be set once");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	mmap->has_range = true;
	mmap->addr = (uintptr_t)addr;
	mmap->mapped_at = (uintptr_t)addr;
	mmap->len = len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_set_dmabuf_memrange(struct doca_mmap *mmap, int dmabuf_fd, void *addr,
					       size_t dmabuf_offset, size_t len)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	return EMU_REFUSE("there are no devices that export their memory as a dma-buf");
}

doca_error_t emu_doca_mmap_set_free_cb(struct doca_mmap *mmap,
				       doca_mmap_memrange_free_cb_t *free_cb, void *opaque)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(free_cb))
		return DOCA_ERROR_INVALID_VALUE;
	mmap->free_cb = free_cb;
	mmap->free_opaque = opaque;
	mmap->frees_memory = false;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t access_mask)
{
	const uint32_t both = DOCA_ACCESS_FLAG_PCI_READ_ONLY | DOCA_ACCESS_FLAG_PCI_READ_WRITE;
	const uint32_t all = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
			     DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_ATOMIC | both |
			     DOCA_ACCESS_FLAG_PCI_RELAXED_ORDERING;
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if ((access_mask & ~all) != 0) {
		emu_misuse(__func__, "rights %#x have unknown bits", access_mask);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if ((access_mask & both) == both) {
		emu_misuse(__func__, "PCI_READ_ONLY and PCI_READ_WRITE exclude each other");
		return DOCA_ERROR_INVALID_VALUE;
	}
	mmap->access = access_mask;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_enable_thread_safety(struct doca_mmap *mmap)
{
	if (!EMU_IS(mmap, EMU_MMAP))
		return DOCA_ERROR_INVALID_VALUE;
	if ((mmap->started && !mmap->imported) ||
	    __atomic_load_n(&mmap->num_bufs, __ATOMIC_SEQ_CST) > 0) {
		emu_misuse(__func__, "the map is started or has bufs: call it before");
		return DOCA_ERROR_BAD_STATE;
	}
	mmap->thread_safe = true;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_start(struct doca_mmap *mmap)
{
	doca_error_t result = check_idle(mmap, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!mmap->has_range || mmap->num_devs == 0) {
		emu_misuse(__func__, "the map has no %s", mmap->has_range ? "device" : "range");
		return DOCA_ERROR_INVALID_VALUE;
	}
	result = (doca_error_t)emuMmapStart(mmap);
	if (result != DOCA_SUCCESS) {
		emu_misuse(__func__, "%zu bytes at %#zx are not all mapped", mmap->len,
			   (size_t)mmap->addr);
		return result;
	}
	mmap->started = mmap->was_started = true;
	mmap->frees_memory = mmap->free_cb != NULL;
	return DOCA_SUCCESS;
}

/* Ends what peers have of a map. */
static doca_error_t end_mmap(struct doca_mmap *mmap, const char *function)
{
	uint32_t bufs = __atomic_load_n(&mmap->num_bufs, __ATOMIC_SEQ_CST);

	if (bufs > 0) {
		emu_misuse(function, "%u bufs refer to the map: release them first", bufs);
		return DOCA_ERROR_NOT_PERMITTED;
	}
	emuMmapRelease(mmap);
	for (int i = 0; i < EMU_EXPORTS; i++) {
		emuFreeExport(mmap->export_desc[i]);
		mmap->export_desc[i] = NULL;
	}
	mmap->started = false;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_stop(struct doca_mmap *mmap)
{
	if (!EMU_IS(mmap, EMU_MMAP))
		return DOCA_ERROR_INVALID_VALUE;
	if (!mmap->started) {
		emu_misuse(__func__, "the map is not started");
		return DOCA_ERROR_BAD_STATE;
	}
	for (int i = 0; i < EMU_EXPORTS && !mmap->imported; i++) {
		if (mmap->export_desc[i] != NULL) {
			emu_misuse(__func__, "the map has been exported: destroy it");
			return DOCA_ERROR_NOT_PERMITTED;
		}
	}
	return end_mmap(mmap, __func__);
}

doca_error_t emu_doca_mmap_destroy(struct doca_mmap *mmap)
{
	struct doca_mmap ended;
	doca_error_t result;

	if (!EMU_IS(mmap, EMU_MMAP))
		return DOCA_ERROR_INVALID_VALUE;
	result = end_mmap(mmap, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	for (uint32_t i = 0; i < mmap->num_devs; i++)
		emu_release_dev(mmap->devs[i]);
	ended = *mmap;
	emu_bury(mmap, NULL);
	/* Nothing of the map is left that a callback could disturb. */
	if (ended.frees_memory)
		ended.free_cb((void *)ended.addr, ended.len, ended.free_opaque);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_get_num_bufs(const struct doca_mmap *mmap, uint32_t *num_bufs)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(num_bufs))
		return DOCA_ERROR_INVALID_VALUE;
	if (mmap->thread_safe)
		return EMU_REFUSE("a map that threads share does not count its bufs");
	*num_bufs = __atomic_load_n(&mmap->num_bufs, __ATOMIC_SEQ_CST);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_get_exported(const struct doca_mmap *mmap, uint8_t *exported)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(exported))
		return DOCA_ERROR_INVALID_VALUE;
	*exported = 0;
	for (int i = 0; i < EMU_EXPORTS; i++)
		*exported |= mmap->export_desc[i] != NULL;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_get_from_export(const struct doca_mmap *mmap, uint8_t *from_export)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(from_export))
		return DOCA_ERROR_INVALID_VALUE;
	*from_export = mmap->imported;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_get_memrange(const struct doca_mmap *mmap, void **addr, size_t *len)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(addr) || !EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	if (!mmap->has_range) {
		emu_misuse(__func__, "the map has no range");
		return DOCA_ERROR_BAD_STATE;
	}
	*addr = (void *)mmap->addr;
	*len = mmap->len;
	return DOCA_SUCCESS;
}

static doca_error_t export(struct doca_mmap *mmap, const struct doca_dev *dev, const void **desc,
			   size_t *desc_len, enum emu_export kind, const char *function)
{
	doca_error_t result;

	if (!emu_is(mmap, EMU_MMAP, function) || !emu_is(dev, EMU_DEV, function) ||
	    !emu_has(desc, "desc", function) || !emu_has(desc_len, "desc_len", function))
		return DOCA_ERROR_INVALID_VALUE;
	if (!mmap->started) {
		emu_misuse(function, "the map is not started");
		return DOCA_ERROR_BAD_STATE;
	}
	if (!emu_mmap_has_dev(mmap, dev)) {
		emu_misuse(function, "the map does not have the device");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (mmap->export_desc[kind] == NULL) {
		result = (doca_error_t)emuMmapExport(mmap, kind, &mmap->export_desc[kind],
						     &mmap->export_len[kind]);
		if (result != DOCA_SUCCESS)
			return result;
	}
	*desc = mmap->export_desc[kind];
	*desc_len = mmap->export_len[kind];
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_export_pci(struct doca_mmap *mmap, const struct doca_dev *dev,
				      const void **desc, size_t *desc_len)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	if (!dev->device->can.export_pci)
		return DOCA_ERROR_NOT_SUPPORTED;
	if (mmap->imported) {
		emu_misuse(__func__, "the map is imported: only its owner can export it to PCI");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if ((mmap->access &
	     (DOCA_ACCESS_FLAG_PCI_READ_ONLY | DOCA_ACCESS_FLAG_PCI_READ_WRITE)) == 0) {
		emu_misuse(__func__, "the map grants no PCI_ right");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return export(mmap, dev, desc, desc_len, EMU_EXPORT_PCI, __func__);
}

doca_error_t emu_doca_mmap_export_rdma(struct doca_mmap *mmap, const struct doca_dev *dev,
				       const void **desc, size_t *desc_len)
{
	if (!EMU_IS(mmap, EMU_MMAP))
		return DOCA_ERROR_INVALID_VALUE;
	if (mmap->of_peer) {
		emu_misuse(__func__, "the map is memory of a peer: only the peer can export it");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if ((mmap->access & (DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE |
			     DOCA_ACCESS_FLAG_RDMA_ATOMIC)) == 0) {
		emu_misuse(__func__, "the map grants no RDMA_ right");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return export(mmap, dev, desc, desc_len, EMU_EXPORT_RDMA, __func__);
}

doca_error_t emu_doca_mmap_create_from_export(const union doca_data *user_data, const void *desc,
					      size_t desc_len, struct doca_dev *dev,
					      struct doca_mmap **mmap)
{
	struct doca_mmap *created;
	doca_error_t result;

	if (!EMU_HAS(desc) || !EMU_HAS(mmap) || !EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	created = emu_new(EMU_MMAP, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	if (user_data != NULL)
		created->user_data = *user_data;
	created->imported = true;
	created->max_devs = 1;
	result = (doca_error_t)emuMmapImport(created, (void *)desc, desc_len,
					     dev->device->can.import_pci);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, NULL);
		return result;
	}
	created->has_range = true;
	created->started = true;
	emu_use_dev(dev, __func__);
	created->devs[created->num_devs++] = dev;
	*mmap = created;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_cap_is_export_pci_supported(const struct doca_devinfo *info,
						       uint8_t *is_supported)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(is_supported))
		return DOCA_ERROR_INVALID_VALUE;
	*is_supported = info->device->can.export_pci;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_mmap_cap_is_create_from_export_pci_supported(const struct doca_devinfo *info,
								    uint8_t *is_supported)
{
	if (!EMU_IS(info, EMU_DEVINFO) || !EMU_HAS(is_supported))
		return DOCA_ERROR_INVALID_VALUE;
	*is_supported = info->device->can.import_pci;
	return DOCA_SUCCESS;
}

/* The bridge to verbs: keys of the memory, from the hook that the configuration gives. */

static doca_error_t get_mkey(const struct doca_mmap *mmap, const struct doca_dev *dev,
			     uint32_t *mkey, const char *function)
{
	if (!mmap->started) {
		emu_misuse(function, "the map is not started");
		return DOCA_ERROR_BAD_STATE;
	}
	if (!emu_mmap_has_dev(mmap, dev)) {
		emu_misuse(function, "the map does not have the device");
		return DOCA_ERROR_INVALID_VALUE;
	}
	return (doca_error_t)emuMmapKey((struct doca_mmap *)mmap, dev->device->index, mkey);
}

doca_error_t emu_doca_mmap_get_mkey(struct doca_mmap *mmap, struct doca_dev *dev, uint32_t *mkey)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_IS(dev, EMU_DEV) || !EMU_HAS(mkey))
		return DOCA_ERROR_INVALID_VALUE;
	return get_mkey(mmap, dev, mkey, __func__);
}

doca_error_t emu_doca_rdma_bridge_get_buf_mkey(const struct doca_buf *buf, struct doca_dev *dev,
					       uint32_t *mkey)
{
	if (!EMU_IS(buf, EMU_BUF) || !EMU_IS(dev, EMU_DEV) || !EMU_HAS(mkey))
		return DOCA_ERROR_INVALID_VALUE;
	if (buf->refcount == 0) {
		emu_misuse(__func__, "the buf has been returned to its inventory");
		return DOCA_ERROR_BAD_STATE;
	}
	return get_mkey(buf->mmap, dev, mkey, __func__);
}

doca_error_t emu_doca_rdma_bridge_get_dev_pd(const struct doca_dev *dev, struct ibv_pd **pd)
{
	void *found = NULL;
	doca_error_t result;

	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(pd))
		return DOCA_ERROR_INVALID_VALUE;
	result = (doca_error_t)emuProtectionDomain(dev->device->index, &found);
	if (result == DOCA_SUCCESS)
		*pd = found;
	return result;
}

doca_error_t emu_doca_rdma_bridge_open_dev_from_pd(struct ibv_pd *pd, struct doca_dev **dev)
{
	if (!EMU_HAS(pd) || !EMU_HAS(dev))
		return DOCA_ERROR_INVALID_VALUE;
	emu_wait_until_configured();
	for (uint32_t i = 0; i < emu_num_devices; i++) {
		struct doca_devinfo info = {.magic = EMU_DEVINFO, .device = &emu_devices[i]};
		void *found = NULL;
		doca_error_t result = (doca_error_t)emuProtectionDomain(i, &found);

		if (result == DOCA_ERROR_NOT_SUPPORTED)
			return emu_refuse(__func__, "there is no bridge to verbs");
		if (result == DOCA_SUCCESS && found == pd)
			return emu_doca_dev_open(&info, dev);
	}
	return DOCA_ERROR_NOT_FOUND;
}

doca_error_t emu_doca_rdma_bridge_get_mmap_mkey_from_pd(const struct doca_mmap *mmap,
							struct ibv_pd *pd, uint32_t *mkey)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(pd) || !EMU_HAS(mkey))
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < mmap->num_devs; i++) {
		void *found = NULL;
		doca_error_t result =
			(doca_error_t)emuProtectionDomain(mmap->devs[i]->device->index, &found);

		if (result == DOCA_ERROR_NOT_SUPPORTED)
			return result;
		if (result == DOCA_SUCCESS && found == pd)
			return get_mkey(mmap, mmap->devs[i], mkey, __func__);
	}
	return DOCA_ERROR_NOT_FOUND;
}
