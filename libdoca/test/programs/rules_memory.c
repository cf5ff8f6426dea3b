// SPDX-License-Identifier: Apache-2.0

/* What programs for DOCA rely on: the rules of devices, memory, and logging. The numbers are those
 * of docs/guides/libdoca.md. */

#include "program.h"

#include <pthread.h>
#include <string.h>

#include <doca_log.h>

DOCA_LOG_REGISTER(TEST::RULES);

/* Rule 20: messages can be logged by constructors, before main. */
static doca_error_t logged_early = DOCA_ERROR_UNKNOWN;

static void __attribute__((constructor)) log_early(void)
{
	logged_early = doca_log_backend_create_standard();
	DOCA_LOG_INFO("a constructor knows %s", doca_error_get_name(DOCA_ERROR_AGAIN));
}

static void logs_early(void)
{
	struct doca_log_backend *backend;

	OK(logged_early);
	OK(doca_log_backend_create_with_file_sdk(stderr, &backend));
	OK(doca_log_backend_set_sdk_level(backend, DOCA_LOG_LEVEL_WARNING));
	DOCA_LOG_WARN("%d words of %s", 3, "main");
}

/* Rule 10: reusing a buf makes its window the data, or empties it. */
static void reuse(void)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, 4096, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
	struct doca_buf *buf = memory_buf(&memory, 0, 64, 0);
	void *data;
	size_t length;

	OK(doca_buf_inventory_buf_reuse_by_data(buf, memory.bytes + 1001, 77));
	OK(doca_buf_get_data(buf, &data));
	OK(doca_buf_get_data_len(buf, &length));
	CHECK(data == memory.bytes + 1001 && length == 77);
	OK(doca_buf_inventory_buf_reuse_by_addr(buf, memory.bytes, 4096));
	OK(doca_buf_get_data(buf, &data));
	OK(doca_buf_get_data_len(buf, &length));
	CHECK(data == memory.bytes && length == 0);
	expect_misuse("doca_buf_inventory_buf_reuse_by_args");
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_buf_inventory_buf_reuse_by_data(buf, memory.bytes + 1, 4096));
	release(buf);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Rule 17: maps cover any memory, for instance a string on the stack, and may share a page. */
static void any_memory(void)
{
	struct doca_dev *dev = open_own_device();
	char words[3][17] = {"on the stack, 1", "on the stack, 2", "on the stack, 3"};
	struct memory maps[3];
	void *address;
	size_t length;

	for (int i = 0; i < 3; i++) {
		maps[i] = memory_over(dev, words[i], sizeof words[i],
				      DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
		OK(doca_mmap_get_memrange(maps[i].mmap, &address, &length));
		CHECK(address == words[i] && length == 17);
	}
	for (int i = 0; i < 3; i++)
		memory_free(&maps[i]);
	OK(doca_dev_close(dev));
}

/* Rule 18: each thread has its inventory; an exhausted one has NO_MEMORY, and one whose bufs are
 * out is IN_USE. */
static struct memory shared;
static uint8_t shared_bytes[64];

static void *take_bufs(void *unused)
{
	struct doca_buf_inventory *inventory;
	struct doca_buf *bufs[2], *third;

	OK(doca_buf_inventory_create(2, &inventory));
	OK(doca_buf_inventory_start(inventory));
	for (int round = 0; round < 1000; round++) {
		for (int i = 0; i < 2; i++)
			OK(doca_buf_inventory_buf_get_by_data(inventory, shared.mmap, shared.bytes,
							      64, &bufs[i]));
		IS(DOCA_ERROR_NO_MEMORY,
		   doca_buf_inventory_buf_get_by_addr(inventory, shared.mmap, shared.bytes, 64,
						      &third));
		for (int i = 0; i < 2; i++)
			release(bufs[i]);
	}
	OK(doca_buf_inventory_buf_get_by_data(inventory, shared.mmap, shared.bytes, 64, bufs));
	OK(doca_buf_inventory_stop(inventory));
	expect_misuse("doca_buf_inventory_destroy");
	IS(DOCA_ERROR_IN_USE, doca_buf_inventory_destroy(inventory));
	release(bufs[0]);
	OK(doca_buf_inventory_destroy(inventory));
	return unused;
}

static void inventories(void)
{
	struct doca_dev *dev = open_own_device();
	pthread_t threads[4];

	shared.bytes = shared_bytes;
	OK(doca_mmap_create(&shared.mmap));
	OK(doca_mmap_add_dev(shared.mmap, dev));
	OK(doca_mmap_set_memrange(shared.mmap, shared_bytes, sizeof shared_bytes));
	OK(doca_mmap_enable_thread_safety(shared.mmap));
	OK(doca_mmap_start(shared.mmap));
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, take_bufs, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	OK(doca_mmap_destroy(shared.mmap));
	OK(doca_dev_close(dev));
}

/* Rule 21: devices are found by address, RDMA name, and interface; the DPU's has representors. */
static void devices(void)
{
	struct doca_devinfo **list;
	uint32_t count, found = 0;

	OK(doca_devinfo_create_list(&list, &count));
	for (uint32_t i = 0; i < count; i++) {
		char ibdev[DOCA_DEVINFO_IBDEV_NAME_SIZE], iface[DOCA_DEVINFO_IFACE_NAME_SIZE];
		char pci[DOCA_DEVINFO_PCI_ADDR_SIZE];
		uint8_t equal;

		OK(doca_devinfo_get_ibdev_name(list[i], ibdev, sizeof ibdev));
		OK(doca_devinfo_get_iface_name(list[i], iface, sizeof iface));
		OK(doca_devinfo_get_pci_addr_str(list[i], pci));
		OK(doca_devinfo_is_equal_pci_addr(list[i], pci, &equal));
		CHECK(equal && ibdev[0] != '\0' && iface[0] != '\0');
		OK(doca_devinfo_is_equal_pci_addr(list[i], is_dpu ? "03:00.0" : "b1:00.0", &equal));
		found += equal;
		/* The only device of a machine is found by the other side's address, too. */
		OK(doca_devinfo_is_equal_pci_addr(list[i], is_dpu ? "0000:b1:00.0" : "03:00.0",
						  &equal));
		CHECK(equal);
		OK(doca_devinfo_is_equal_pci_addr(list[i], "3b:00.0", &equal));
		CHECK(!equal);
	}
	CHECK(found == 1);
	OK(doca_devinfo_destroy_list(list));
	if (is_dpu) {
		struct doca_dev *dev = open_own_device();
		uint8_t supported;

		OK(doca_devinfo_rep_cap_is_filter_net_supported(doca_dev_as_devinfo(dev),
								&supported));
		CHECK(supported == 1);
		OK(doca_dev_rep_close(open_representor(dev)));
		OK(doca_dev_close(dev));
	}
}

const struct test tests[] = {
	{"logs_early", logs_early},
	{"reuse", reuse},
	{"any_memory", any_memory},
	{"inventories", inventories},
	{"devices", devices},
	{NULL, NULL},
};
