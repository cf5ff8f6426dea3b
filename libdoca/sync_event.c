// SPDX-License-Identifier: Apache-2.0

/* Sync events: what they are made of, where their number is, and who may use it. The core exports
 * it to others, and reaches a number that another process has. */

#include "skin.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "_cgo_export.h"

/* States. */

/* Checks whether an event is started. */
static doca_error_t check(const struct doca_sync_event *event, bool started, const char *function)
{
	if (emu_ctx_of(event, EMU_CTX_SYNC_EVENT, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&event->started, __ATOMIC_SEQ_CST) == started)
		return DOCA_SUCCESS;
	emu_misuse(function, "the sync event is %s", started ? "not started" : "started");
	return DOCA_ERROR_BAD_STATE;
}

/* Checks whether an event can be configured. */
static doca_error_t check_idle(const struct doca_sync_event *event, const char *function)
{
	doca_error_t result = check(event, false, function);

	if (result != DOCA_SUCCESS)
		return result;
	if (!emu_is_idle(&event->ctx, function))
		return DOCA_ERROR_BAD_STATE;
	if (event->dev != NULL) {
		emu_misuse(function, "the sync event is imported: its exporter has configured it");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_event_check(const struct doca_sync_event *event, const char *function)
{
	if (event->dev != NULL || (event->publisher != EMU_LOCATION_NONE &&
				   event->subscriber != EMU_LOCATION_NONE))
		return DOCA_SUCCESS;
	emu_misuse(function, "the sync event has no %s",
		   event->subscriber == EMU_LOCATION_NONE ? "subscriber" : "publisher");
	return DOCA_ERROR_BAD_STATE;
}

static void pause_briefly(void)
{
	const struct timespec pause = {.tv_nsec = 20000};

	nanosleep(&pause, NULL);
}

/* A number of the library's own has a page for itself, so that other processes can map it. */
static bool make_page(struct doca_sync_event *event)
{
	void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return false;
	event->page = page;
	event->number = page;
	return true;
}

doca_error_t emu_event_open(struct doca_sync_event *event)
{
	if (event->number == NULL && event->foreign == 0 && !make_page(event))
		return DOCA_ERROR_NO_MEMORY;
	__atomic_store_n(&event->started, true, __ATOMIC_SEQ_CST);
	return DOCA_SUCCESS;
}

void emu_event_close(struct doca_sync_event *event)
{
	for (int i = 0; i < EMU_EVENT_EXPORTS; i++) {
		if (event->exports[i] != 0)
			emuEventUnexport(i, event->exports[i]);
		event->exports[i] = 0;
	}
	__atomic_store_n(&event->started, false, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&event->waiting, __ATOMIC_SEQ_CST) > 0)
		pause_briefly();
}

/* The life of events. */

static doca_error_t context_check(struct doca_ctx *ctx, const char *function)
{
	return emu_event_check((struct doca_sync_event *)ctx, function);
}

/* Reports whether a mask is one that a device can wait with. */
static bool is_mask(uint64_t mask)
{
	int bytes = 0;

	while (mask != 0 && (mask & 0xff) == 0)
		mask >>= 8;
	for (; (mask & 0xff) == 0xff; mask >>= 8)
		bytes++;
	return mask == 0 && (bytes & (bytes - 1)) == 0;
}

static doca_error_t check_task(struct doca_task *task, const char *function)
{
	const struct emu_event_task *checked = (const struct emu_event_task *)task;
	bool has_result = task->pool == EMU_EVENT_POOL_GET || task->pool == EMU_EVENT_POOL_ADD;

	if (has_result && checked->result == NULL) {
		emu_misuse(function, "the task has nowhere to store the number");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (!is_mask(checked->mask)) {
		emu_misuse(function, "the mask %#llx is not 0, 1, 2, 4, or 8 bytes 0xff in a row",
			   (unsigned long long)checked->mask);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return DOCA_SUCCESS;
}

static const struct emu_ctx_ops ops = {
	.name = "sync event", .check = context_check, .check_task = check_task};

static struct doca_sync_event *new_event(const char *function)
{
	struct doca_sync_event *event = emu_new(EMU_CTX, sizeof *event);

	if (event != NULL)
		(void)emu_ctx_init(&event->ctx, EMU_CTX_SYNC_EVENT, &ops, NULL, function);
	return event;
}

doca_error_t emu_doca_sync_event_create(struct doca_sync_event **event)
{
	if (!EMU_HAS(event))
		return DOCA_ERROR_INVALID_VALUE;
	*event = new_event(__func__);
	return *event == NULL ? DOCA_ERROR_NO_MEMORY : DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_destroy(struct doca_sync_event *event)
{
	struct doca_dev *devs[3];
	struct doca_sync_event ended;
	doca_error_t result;

	if (EMU_CTX_OF(event, EMU_CTX_SYNC_EVENT) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (event->use == EMU_EVENT_ALONE)
		emu_event_close(event);
	ended = *event;
	result = emu_ctx_end(&event->ctx, DOCA_ERROR_BAD_STATE, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (ended.foreign != 0)
		emuEventForget(ended.foreign);
	emu_hold_buf(ended.buf, false);
	if (ended.page != NULL)
		munmap(ended.page, (size_t)sysconf(_SC_PAGESIZE));
	for (int i = 0; i < EMU_EVENT_EXPORTS; i++)
		free(ended.desc[i]);
	memcpy(devs, (struct doca_dev *[]){ended.publisher_dev, ended.subscriber_dev, ended.dev},
	       sizeof devs);
	for (int i = 0; i < 3; i++) {
		if (devs[i] != NULL)
			emu_release_dev(devs[i]);
	}
	return DOCA_SUCCESS;
}

struct doca_ctx *emu_doca_sync_event_as_ctx(struct doca_sync_event *event)
{
	if (EMU_CTX_OF(event, EMU_CTX_SYNC_EVENT) == NULL)
		return NULL;
	if (event->use == EMU_EVENT_ALONE) {
		emu_misuse(__func__, "doca_sync_event_start has been called: the sync event "
				     "cannot become a context any more");
		return NULL;
	}
	event->use = EMU_EVENT_CTX;
	return &event->ctx;
}

doca_error_t emu_doca_sync_event_start(struct doca_sync_event *event)
{
	doca_error_t result = check(event, false, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (event->use == EMU_EVENT_CTX) {
		emu_misuse(__func__, "the sync event is a context: call doca_ctx_start");
		return DOCA_ERROR_BAD_STATE;
	}
	result = emu_event_check(event, __func__);
	if (result == DOCA_SUCCESS)
		result = emu_event_open(event);
	if (result == DOCA_SUCCESS)
		event->use = EMU_EVENT_ALONE;
	return result;
}

doca_error_t emu_doca_sync_event_stop(struct doca_sync_event *event)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (event->use == EMU_EVENT_CTX) {
		emu_misuse(__func__, "the sync event is a context: call doca_ctx_stop");
		return DOCA_ERROR_BAD_STATE;
	}
	emu_event_close(event);
	return DOCA_SUCCESS;
}

/* Locations. */

static doca_error_t locate(struct doca_sync_event *event, bool publisher,
			   enum emu_location location, struct doca_dev *dev, const char *function)
{
	enum emu_location *located;
	doca_error_t result = check_idle(event, function);

	if (result != DOCA_SUCCESS)
		return result;
	located = publisher ? &event->publisher : &event->subscriber;
	if (*located != EMU_LOCATION_NONE) {
		emu_misuse(function, "the sync event has a %s",
			   publisher ? "publisher" : "subscriber");
		return DOCA_ERROR_BAD_STATE;
	}
	if (location == EMU_LOCATION_CPU && !emu_use_dev(dev, function))
		return DOCA_ERROR_INVALID_VALUE;
	*located = location;
	*(publisher ? &event->publisher_dev : &event->subscriber_dev) = dev;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_add_publisher_location_cpu(struct doca_sync_event *event,
							    struct doca_dev *dev)
{
	return locate(event, true, EMU_LOCATION_CPU, dev, __func__);
}

doca_error_t emu_doca_sync_event_add_publisher_location_remote_pci(struct doca_sync_event *event)
{
	return locate(event, true, EMU_LOCATION_REMOTE_PCI, NULL, __func__);
}

doca_error_t emu_doca_sync_event_add_publisher_location_remote_net(struct doca_sync_event *event)
{
	return locate(event, true, EMU_LOCATION_REMOTE_NET, NULL, __func__);
}

doca_error_t emu_doca_sync_event_add_subscriber_location_cpu(struct doca_sync_event *event,
							     struct doca_dev *dev)
{
	return locate(event, false, EMU_LOCATION_CPU, dev, __func__);
}

doca_error_t emu_doca_sync_event_add_subscriber_location_remote_pci(struct doca_sync_event *event)
{
	return locate(event, false, EMU_LOCATION_REMOTE_PCI, NULL, __func__);
}

/* Where the number is. */

/* Puts the number to address, which may be that of a buf. */
static doca_error_t place(struct doca_sync_event *event, uintptr_t address,
			  const struct doca_buf *buf, const char *function)
{
	if (address % sizeof *event->number != 0) {
		emu_misuse(function, "%#zx is not aligned to 8 bytes", (size_t)address);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (event->foreign != 0)
		emuEventForget(event->foreign);
	event->foreign = 0;
	emu_hold_buf(event->buf, false);
	event->buf = buf;
	emu_hold_buf(buf, true);
	event->number = (uint64_t *)address;
	if (buf != NULL && buf->mmap->imported)
		event->foreign = emuEventOfMap(buf->mmap, address);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_set_addr(struct doca_sync_event *event, uint64_t *addr)
{
	doca_error_t result = check_idle(event, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(addr))
		return DOCA_ERROR_INVALID_VALUE;
	return place(event, (uintptr_t)addr, NULL, __func__);
}

/* Reports whether the bytes of a buf can be the number of an event. */
static doca_error_t check_buf(const struct doca_buf *buf, const char *function)
{
	const uint32_t rights = DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE |
				DOCA_ACCESS_FLAG_RDMA_ATOMIC;
	const struct doca_mmap *map = buf->mmap;
	const uint32_t needed = rights | (map->imported ? DOCA_ACCESS_FLAG_PCI_READ_WRITE
							: DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);

	if (buf->next != NULL || buf->first != buf) {
		emu_misuse(function, "the buf is in a list");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (buf->data_len != sizeof(uint64_t)) {
		emu_misuse(function, "the data of the buf has %zu bytes instead of 8",
			   buf->data_len);
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (map->of_peer) {
		emu_misuse(function, "the memory is a peer's: only tasks of RDMA can use it");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if ((map->access & needed) != needed) {
		emu_misuse(function, "the map of the buf grants %#x of the rights %#x",
			   map->access & needed, needed);
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (map->mapped_at == 0)
		return emu_refuse(function, "this process cannot map the memory of the exporter");
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_set_doca_buf(struct doca_sync_event *event, struct doca_buf *buf)
{
	doca_error_t result = check_idle(event, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_IS(buf, EMU_BUF))
		return DOCA_ERROR_INVALID_VALUE;
	if (buf->refcount == 0) {
		emu_misuse(__func__, "the buf has been returned to its inventory");
		return DOCA_ERROR_INVALID_VALUE;
	}
	result = check_buf(buf, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	return place(event, buf->mmap->mapped_at + (buf->data - buf->mmap->addr), buf, __func__);
}

/* Exports and imports. */

static doca_error_t export(struct doca_sync_event *event, enum emu_event_export kind,
			   const uint8_t **data, size_t *size)
{
	doca_error_t result;

	if (event->exports[kind] == 0) {
		free(event->desc[kind]);
		event->desc[kind] = NULL;
		result = (doca_error_t)emuEventExport(event, kind);
		if (result != DOCA_SUCCESS)
			return result;
	}
	*data = event->desc[kind];
	*size = event->desc_size[kind];
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_export_to_remote_net(struct doca_sync_event *event,
						      const uint8_t **data, size_t *size)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(data) || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	if (event->publisher != EMU_LOCATION_REMOTE_NET) {
		emu_misuse(__func__, "the publisher of the sync event is not a peer over RDMA");
		return DOCA_ERROR_BAD_STATE;
	}
	return export(event, EMU_EVENT_TO_NET, data, size);
}

/* Events travel in either direction, unlike memory. */
static bool has_pci(const struct emu_device *device)
{
	return device->can.export_pci || device->can.import_pci;
}

doca_error_t emu_doca_sync_event_export_to_remote_pci(struct doca_sync_event *event,
						      struct doca_dev *dev, const uint8_t **data,
						      size_t *size)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_IS(dev, EMU_DEV) || !EMU_HAS(data) || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	if (!has_pci(dev->device))
		return DOCA_ERROR_NOT_SUPPORTED;
	if (event->dev != NULL || event->publisher == EMU_LOCATION_REMOTE_NET) {
		emu_misuse(__func__,
			   event->dev != NULL
				   ? "the sync event is imported: only its owner can export it"
				   : "the publisher of the sync event is a peer over RDMA");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	if (event->buf != NULL &&
	    (event->foreign != 0 ||
	     (event->buf->mmap->access & DOCA_ACCESS_FLAG_PCI_READ_WRITE) == 0)) {
		emu_misuse(__func__, event->foreign != 0
					     ? "the number is in memory that is imported"
					     : "the map of the number grants no PCI_READ_WRITE");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return export(event, EMU_EVENT_TO_PCI, data, size);
}

doca_error_t emu_doca_sync_event_create_from_export(struct doca_dev *dev, const uint8_t *data,
						    size_t size, struct doca_sync_event **event)
{
	struct doca_sync_event *created;
	doca_error_t result;

	if (!EMU_HAS(data) || !EMU_HAS(event) || !EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	if (!has_pci(dev->device))
		return DOCA_ERROR_NOT_SUPPORTED;
	created = new_event(__func__);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = (doca_error_t)emuEventImport(created, (void *)data, size);
	if (result != DOCA_SUCCESS) {
		(void)emu_ctx_end(&created->ctx, DOCA_ERROR_BAD_STATE, __func__);
		return result;
	}
	emu_use_dev(dev, __func__);
	created->dev = dev;
	*event = created;
	return DOCA_SUCCESS;
}

doca_error_t
emu_doca_sync_event_remote_net_create_from_export(struct doca_dev *dev, const uint8_t *data,
						  size_t size,
						  struct doca_sync_event_remote_net **event)
{
	struct doca_sync_event_remote_net *created;
	doca_error_t result;

	if (!EMU_HAS(data) || !EMU_HAS(event) || !EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	created = emu_new(EMU_SYNC_EVENT_REMOTE, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = (doca_error_t)emuSyncEventImport(created, (void *)data, size);
	if (result != DOCA_SUCCESS) {
		emu_bury(created, NULL);
		return result;
	}
	emu_use_dev(dev, __func__);
	created->dev = dev;
	*event = created;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_remote_net_destroy(struct doca_sync_event_remote_net *event)
{
	if (!EMU_IS(event, EMU_SYNC_EVENT_REMOTE))
		return DOCA_ERROR_INVALID_VALUE;
	emu_release_dev(event->dev);
	emu_bury(event, NULL);
	return DOCA_SUCCESS;
}

/* What is done at once. */

static doca_error_t operate(struct doca_sync_event *event, enum emu_event_operation operation,
			    uint64_t value, uint64_t *read)
{
	if (event->foreign != 0)
		return (doca_error_t)emuEventOperate(event->foreign, operation, value, read);
	if (operation == EMU_EVENT_SET)
		__atomic_store_n(event->number, value, __ATOMIC_SEQ_CST);
	else if (operation == EMU_EVENT_ADD)
		*read = __atomic_fetch_add(event->number, value, __ATOMIC_SEQ_CST);
	else
		*read = __atomic_load_n(event->number, __ATOMIC_SEQ_CST);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_get(struct doca_sync_event *event, uint64_t *value)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(value))
		return DOCA_ERROR_INVALID_VALUE;
	return operate(event, EMU_EVENT_GET, 0, value);
}

doca_error_t emu_doca_sync_event_update_set(struct doca_sync_event *event, uint64_t value)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	return operate(event, EMU_EVENT_SET, value, NULL);
}

doca_error_t emu_doca_sync_event_update_add(struct doca_sync_event *event, uint64_t value,
					    uint64_t *fetched)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(fetched))
		return DOCA_ERROR_INVALID_VALUE;
	return operate(event, EMU_EVENT_ADD, value, fetched);
}

static bool is_greater(uint64_t number, uint64_t value) { return number > value; }
static bool is_equal(uint64_t number, uint64_t value) { return number == value; }
static bool is_unequal(uint64_t number, uint64_t value) { return number != value; }

/* How often a thread yields its core before it sleeps between two looks: beside a program that
 * never gives its core away, yielding takes milliseconds. */
enum { YIELDS = 1000 };

static doca_error_t wait(struct doca_sync_event *event, uint64_t value, uint64_t mask,
			 bool (*fits)(uint64_t, uint64_t), uint32_t yields, const char *function)
{
	doca_error_t result;
	uint64_t number;

	if (emu_ctx_of(event, EMU_CTX_SYNC_EVENT, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	__atomic_fetch_add(&event->waiting, 1, __ATOMIC_SEQ_CST);
	result = check(event, true, function);
	while (result == DOCA_SUCCESS) {
		result = operate(event, EMU_EVENT_GET, 0, &number);
		if (result != DOCA_SUCCESS || fits(number & mask, value))
			break;
		if (yields > 0) {
			yields--;
			sched_yield();
		} else {
			pause_briefly();
		}
		if (!__atomic_load_n(&event->started, __ATOMIC_SEQ_CST))
			result = DOCA_ERROR_BAD_STATE;
	}
	__atomic_fetch_sub(&event->waiting, 1, __ATOMIC_SEQ_CST);
	return result;
}

#define WAIT(name, fits, yields) \
	doca_error_t emu_doca_sync_event_wait_##name(struct doca_sync_event *event, \
						     uint64_t value, uint64_t mask) \
	{ \
		return wait(event, value, mask, (fits), (yields), __func__); \
	}

WAIT(gt, is_greater, 0)
WAIT(eq, is_equal, 0)
WAIT(neq, is_unequal, 0)
WAIT(gt_yield, is_greater, YIELDS)
WAIT(eq_yield, is_equal, YIELDS)
WAIT(neq_yield, is_unequal, YIELDS)

/* Capabilities. */

#define CAPABILITY(name, device, condition) \
	doca_error_t emu_doca_sync_event_cap_##name##_supported(const struct doca_devinfo *info) \
	{ \
		const struct emu_device *device; \
		if (!EMU_IS(info, EMU_DEVINFO)) \
			return DOCA_ERROR_INVALID_VALUE; \
		device = info->device; \
		(void)device; \
		return (condition) ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED; \
	}

CAPABILITY(is_export_to_remote_pci, device, has_pci(device))
CAPABILITY(is_create_from_export, device, has_pci(device))
CAPABILITY(is_export_to_remote_net, device, true)
CAPABILITY(remote_net_is_create_from_export, device, true)
CAPABILITY(task_get_is, device, true)
CAPABILITY(task_notify_set_is, device, true)
CAPABILITY(task_notify_add_is, device, true)
CAPABILITY(task_wait_eq_is, device, true)
CAPABILITY(task_wait_neq_is, device, true)

/* Says in the log, to whoever wants to know, why a device cannot do something. */
#define INCAPABILITY(name, reason) \
	doca_error_t emu_doca_sync_event_cap_##name##_supported(const struct doca_devinfo *info) \
	{ \
		if (!EMU_IS(info, EMU_DEVINFO)) \
			return DOCA_ERROR_INVALID_VALUE; \
		emu_log(DOCA_LOG_LEVEL_INFO, "%s: no, %s", __func__ + sizeof "emu_" - 1, \
			(reason)); \
		return DOCA_ERROR_NOT_SUPPORTED; \
	}

INCAPABILITY(is_export_to_dpa, "there is no DPA")
INCAPABILITY(is_export_to_gpu, "there is no GPU")
INCAPABILITY(remote_net_is_export_to_dpa, "there is no DPA")
INCAPABILITY(remote_net_is_export_to_gpu, "there is no GPU")

/* Tasks. */

enum { MAX_TASKS = 1 << 16 };

static doca_error_t configure(struct doca_sync_event *event, enum emu_event_pool pool,
			      emu_task_cb completed, emu_task_cb failed, uint32_t num_tasks,
			      const char *function)
{
	doca_error_t result;

	if (emu_ctx_of(event, EMU_CTX_SYNC_EVENT, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	result = emu_pool_configure(&event->ctx, pool, sizeof(struct emu_event_task), completed,
				    failed, num_tasks, MAX_TASKS, function);
	return result == DOCA_ERROR_BAD_STATE ? DOCA_ERROR_NOT_PERMITTED : result;
}

static doca_error_t take(struct doca_sync_event *event, enum emu_event_pool pool,
			 struct emu_event_task contents, union doca_data user_data, void *task,
			 const char *function)
{
	struct doca_task *taken;
	doca_error_t result;

	if (emu_ctx_of(event, EMU_CTX_SYNC_EVENT, function) == NULL ||
	    !emu_has(task, "task", function))
		return DOCA_ERROR_INVALID_VALUE;
	result = emu_pool_take(&event->ctx, pool, &taken, function);
	if (result != DOCA_SUCCESS)
		return result;
	contents.task = *taken;
	contents.task.user_data = user_data;
	*(struct emu_event_task *)taken = contents;
	*(void **)task = taken;
	return DOCA_SUCCESS;
}

/* Returns a task of a pool, or NULL. */
static struct emu_event_task *task_of(const void *pointer, enum emu_event_pool pool,
				      const char *function)
{
	struct emu_event_task *task = emu_task_of(pointer, EMU_CTX_SYNC_EVENT, function);

	if (task == NULL || task->task.pool == pool)
		return task;
	emu_misuse(function, "the task is of another type");
	return NULL;
}

/* Defines what all types of tasks have; a task is allocated after its event with what follows. */
#define TASK(type, pool, contents, ...) \
	doca_error_t emu_doca_sync_event_task_##type##_set_conf( \
		struct doca_sync_event *event, \
		doca_sync_event_task_##type##_completion_cb_t completed, \
		doca_sync_event_task_##type##_completion_cb_t failed, uint32_t num_tasks) \
	{ \
		return configure(event, (pool), (emu_task_cb)completed, (emu_task_cb)failed, \
				 num_tasks, __func__); \
	} \
	doca_error_t emu_doca_sync_event_task_##type##_alloc_init( \
		struct doca_sync_event *event, __VA_ARGS__, union doca_data user_data, \
		struct doca_sync_event_task_##type **task) \
	{ \
		return take(event, (pool), (struct emu_event_task)contents, user_data, task, \
			    __func__); \
	} \
	struct doca_task *emu_doca_sync_event_task_##type##_as_doca_task( \
		struct doca_sync_event_task_##type *task) \
	{ \
		return (struct doca_task *)task_of(task, (pool), __func__); \
	}
#define CONTENTS(...) {__VA_ARGS__}

/* Defines a setter and a getter of a field. */
#define PROPERTY(type, pool, property, field, value_type) \
	void emu_doca_sync_event_task_##type##_set_##property( \
		struct doca_sync_event_task_##type *task, value_type value) \
	{ \
		struct emu_event_task *changed = task_of(task, (pool), __func__); \
		if (changed != NULL && emu_is_held(&changed->task, __func__)) \
			changed->field = value; \
	} \
	value_type emu_doca_sync_event_task_##type##_get_##property( \
		const struct doca_sync_event_task_##type *task) \
	{ \
		struct emu_event_task *found = task_of(task, (pool), __func__); \
		return found == NULL ? (value_type)0 : found->field; \
	}

TASK(get, EMU_EVENT_POOL_GET, CONTENTS(.result = result), uint64_t *result)
PROPERTY(get, EMU_EVENT_POOL_GET, ret_val_ptr, result, uint64_t *)
TASK(notify_set, EMU_EVENT_POOL_SET, CONTENTS(.value = value), uint64_t value)
PROPERTY(notify_set, EMU_EVENT_POOL_SET, set_val, value, uint64_t)
TASK(notify_add, EMU_EVENT_POOL_ADD, CONTENTS(.value = value, .result = result), uint64_t value,
     uint64_t *result)
PROPERTY(notify_add, EMU_EVENT_POOL_ADD, inc_val, value, uint64_t)
PROPERTY(notify_add, EMU_EVENT_POOL_ADD, fetched_val_ptr, result, uint64_t *)
TASK(wait_eq, EMU_EVENT_POOL_WAIT_EQ, CONTENTS(.value = value, .mask = mask), uint64_t value,
     uint64_t mask)
PROPERTY(wait_eq, EMU_EVENT_POOL_WAIT_EQ, wait_val, value, uint64_t)
PROPERTY(wait_eq, EMU_EVENT_POOL_WAIT_EQ, mask, mask, uint64_t)
TASK(wait_neq, EMU_EVENT_POOL_WAIT_NEQ, CONTENTS(.value = value, .mask = mask), uint64_t value,
     uint64_t mask)
PROPERTY(wait_neq, EMU_EVENT_POOL_WAIT_NEQ, wait_val, value, uint64_t)
PROPERTY(wait_neq, EMU_EVENT_POOL_WAIT_NEQ, mask, mask, uint64_t)
