// SPDX-License-Identifier: Apache-2.0

/* Sync events that the host and the DPU share over PCI: one number, wherever it is, that both
 * change and wait for. */

#include "program.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <doca_sync_event.h>

enum {
	PAGE = 4096,
	ACCESS = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
		 DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_ATOMIC |
		 DOCA_ACCESS_FLAG_PCI_READ_WRITE,
};

/* An event whose publisher is on the other side. */
static struct doca_sync_event *event_new(struct doca_dev *dev)
{
	struct doca_sync_event *event;

	OK(doca_sync_event_create(&event));
	OK(doca_sync_event_add_publisher_location_remote_pci(event));
	OK(doca_sync_event_add_subscriber_location_cpu(event, dev));
	return event;
}

static void tell_event(struct doca_sync_event *event, struct doca_dev *dev)
{
	const uint8_t *export;
	size_t size;

	OK(doca_sync_event_cap_is_export_to_remote_pci_supported(doca_dev_as_devinfo(dev)));
	OK(doca_sync_event_export_to_remote_pci(event, dev, &export, &size));
	tell(export, size);
}

static struct doca_sync_event *hear_event(struct doca_dev *dev)
{
	struct doca_sync_event *event;
	uint8_t export[1024];
	size_t size = hear(export, sizeof export);

	OK(doca_sync_event_cap_is_create_from_export_supported(doca_dev_as_devinfo(dev)));
	OK(doca_sync_event_create_from_export(dev, export, size, &event));
	return event;
}

static void add_often(struct doca_sync_event *event, int count)
{
	uint64_t fetched;

	while (count-- > 0)
		OK(doca_sync_event_update_add(event, UINT64_C(1) << 32, &fetched));
}

/* Both sides signal in turns, and then add at the same time: no addition is lost. */
static void use_from_both(struct doca_sync_event *event, bool exporter, int additions)
{
	uint64_t value;

	if (exporter) {
		OK(doca_sync_event_update_set(event, 1));
		OK(doca_sync_event_wait_eq_yield(event, 2, UINT64_MAX));
		OK(doca_sync_event_update_add(event, 40, &value));
		CHECK(value == 2);
		OK(doca_sync_event_wait_neq(event, 42, UINT64_MAX));
	} else {
		OK(doca_sync_event_wait_eq(event, 1, UINT64_MAX));
		OK(doca_sync_event_update_set(event, 2));
		OK(doca_sync_event_wait_gt_yield(event, 41, UINT64_MAX));
		OK(doca_sync_event_update_set(event, 7));
	}
	meet();
	add_often(event, additions);
	OK(doca_sync_event_wait_eq_yield(event, (uint64_t)2 * additions << 32 | 7, UINT64_MAX));
	meet();
	OK(doca_sync_event_get(event, &value));
	CHECK(value == ((uint64_t)2 * additions << 32 | 7));
	meet();
}

/* Shares an event, and takes it away. It is not destroyed. */
static void share(struct doca_sync_event *event, struct doca_dev *dev, int additions)
{
	OK(doca_sync_event_start(event));
	tell_event(event, dev);
	use_from_both(event, true, additions);
	OK(doca_sync_event_stop(event));
	meet();
}

/* How often both add to a number that the importer maps, or lets the exporter change. */
enum { MAPPED = 20000, REMOTE = 300 };

/* Reports whether this process maps memory of a file that has no name. */
static bool maps_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[1024];
	bool found = false;

	CHECK(maps != NULL);
	while (fgets(line, sizeof line, maps) != NULL)
		found = found || strstr(line, "/memfd:") != NULL;
	fclose(maps);
	return found;
}

static void use_shared(struct doca_dev *dev, int additions)
{
	struct doca_sync_event *event = hear_event(dev);
	uint64_t value;

	CHECK(maps_memory() == (additions == MAPPED));
	OK(doca_sync_event_start(event));
	use_from_both(event, false, additions);
	meet(); /* the exporter has stopped it */
	IS(DOCA_ERROR_IO_FAILED, doca_sync_event_get(event, &value));
	IS(DOCA_ERROR_IO_FAILED, doca_sync_event_update_set(event, 1));
	IS(DOCA_ERROR_IO_FAILED, doca_sync_event_wait_eq(event, 12345, UINT64_MAX));
	OK(doca_sync_event_stop(event));
	OK(doca_sync_event_destroy(event));
}

static void of_library(struct doca_dev *dev)
{
	struct doca_sync_event *event = event_new(dev);
	uint64_t value;

	for (int round = 0; round < 2; round++)
		share(event, dev, MAPPED);
	OK(doca_sync_event_start(event));
	OK(doca_sync_event_get(event, &value)); /* a stop keeps the number */
	CHECK((uint32_t)value == 7);
	OK(doca_sync_event_destroy(event));
}

/* A variable of the program, which the other process cannot map. */
static void of_program(struct doca_dev *dev)
{
	static uint64_t number;
	struct doca_sync_event *event = event_new(dev);

	OK(doca_sync_event_set_addr(event, &number));
	share(event, dev, REMOTE);
	CHECK(number == ((uint64_t)2 * REMOTE << 32 | 7));
	OK(doca_sync_event_destroy(event));
}

/* A number in shared memory of the program. */
static void of_file(struct doca_dev *dev)
{
	int descriptor = memfd_create("number", MFD_CLOEXEC);
	struct doca_sync_event *event = event_new(dev);
	uint64_t *numbers;

	CHECK(descriptor >= 0 && ftruncate(descriptor, PAGE) == 0);
	numbers = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	CHECK(numbers != MAP_FAILED);
	OK(doca_sync_event_set_addr(event, numbers + 5));
	share(event, dev, MAPPED);
	CHECK(numbers[5] == ((uint64_t)2 * MAPPED << 32 | 7));
	OK(doca_sync_event_destroy(event));
	CHECK(munmap(numbers, PAGE) == 0 && close(descriptor) == 0);
}

/* A number in memory that is exported itself, or not. */
static void of_buf(struct doca_dev *dev, bool exported)
{
	void *bytes;
	CHECK(posix_memalign(&bytes, PAGE, PAGE) == 0);
	struct memory memory = memory_over(dev, bytes, PAGE, ACCESS);
	struct doca_buf *buf = memory_buf(&memory, 64, 8, 8);
	struct doca_sync_event *event = event_new(dev);
	const void *desc;
	size_t size;

	if (exported)
		OK(doca_mmap_export_pci(memory.mmap, dev, &desc, &size));
	OK(doca_sync_event_set_doca_buf(event, buf));
	share(event, dev, exported ? MAPPED : REMOTE);
	CHECK((uint32_t)((uint64_t *)bytes)[8] == 7);
	expect_misuse("doca_buf_dec_refcount");
	IS(DOCA_ERROR_IN_USE, doca_buf_dec_refcount(buf, NULL));
	OK(doca_sync_event_destroy(event));
	release(buf);
	memory_free(&memory);
	free(bytes);
}

static void shared(bool exports)
{
	struct doca_dev *dev = open_own_device();

	if (exports) {
		of_library(dev);
		of_program(dev);
		of_file(dev);
		of_buf(dev, false);
		if (!is_dpu) /* which cannot export memory */
			of_buf(dev, true);
	} else {
		use_shared(dev, MAPPED);
		use_shared(dev, MAPPED);
		use_shared(dev, REMOTE);
		use_shared(dev, MAPPED);
		use_shared(dev, REMOTE);
		if (is_dpu)
			use_shared(dev, MAPPED);
	}
	OK(doca_dev_close(dev));
}

static void host_exports(void) { shared(!is_dpu); }

static void dpu_exports(void) { shared(is_dpu); }

/* A number in memory that the DPU has imported over PCI is that of the host. */
static void in_imported_memory(void)
{
	struct doca_dev *dev = open_own_device();
	struct doca_sync_event *event = event_new(dev);
	struct memory memory;
	struct doca_buf *buf;
	const void *desc;
	uint8_t received[1024];
	size_t size;
	void *bytes = NULL;
	uint64_t value;

	if (!is_dpu) {
		CHECK(posix_memalign(&bytes, PAGE, PAGE) == 0);
		memory = memory_over(dev, bytes, PAGE, ACCESS);
		OK(doca_mmap_export_pci(memory.mmap, dev, &desc, &size));
		tell(desc, size);
	} else {
		size = hear(received, sizeof received);
		memory = memory_import(dev, received, size);
	}
	buf = memory_buf(&memory, 128, 8, 8);
	OK(doca_sync_event_set_doca_buf(event, buf));
	OK(doca_sync_event_start(event));
	meet();
	if (is_dpu) {
		const uint8_t *export;

		expect_misuse("doca_sync_event_export_to_remote_pci");
		IS(DOCA_ERROR_NOT_PERMITTED,
		   doca_sync_event_export_to_remote_pci(event, dev, &export, &size));
	}
	use_from_both(event, is_dpu, MAPPED);
	if (is_dpu) {
		meet();
		IS(DOCA_ERROR_IO_FAILED, doca_sync_event_get(event, &value));
	}
	OK(doca_sync_event_destroy(event));
	release(buf);
	memory_free(&memory);
	free(bytes);
	if (!is_dpu)
		meet(); /* the memory is gone */
	OK(doca_dev_close(dev));
}

/* The exporter's process ends while the importer waits. */
static void exporter_ends(void)
{
	struct doca_dev *dev = open_own_device();
	struct doca_sync_event *event;

	if (!is_dpu) {
		event = event_new(dev);
		OK(doca_sync_event_start(event));
		tell_event(event, dev);
		meet();
		return;
	}
	event = hear_event(dev);
	OK(doca_sync_event_start(event));
	meet();
	IS(DOCA_ERROR_IO_FAILED, doca_sync_event_wait_neq(event, 0, UINT64_MAX));
	OK(doca_sync_event_destroy(event));
	OK(doca_dev_close(dev));
}

/* An event as a context, with the events of all its tasks. */
struct waiter {
	struct doca_sync_event *event;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	int completed;
	doca_error_t status; /* of the last failure */
	int failed;
};

static void on_done(struct doca_task *task, struct waiter *waiter)
{
	doca_error_t status = doca_task_get_status(task);

	if (status == DOCA_SUCCESS) {
		waiter->completed++;
	} else {
		waiter->failed++;
		waiter->status = status;
	}
	doca_task_free(task);
}

#define ON_DONE(type) \
	static void on_##type(struct doca_sync_event_task_##type *task, \
			      union doca_data task_data, union doca_data ctx_data) \
	{ \
		(void)task_data; \
		on_done(doca_sync_event_task_##type##_as_doca_task(task), ctx_data.ptr); \
	}
ON_DONE(get)
ON_DONE(notify_set)
ON_DONE(notify_add)
ON_DONE(wait_eq)
ON_DONE(wait_neq)

static void waiter_start(struct waiter *waiter, struct doca_sync_event *event)
{
	union doca_data data = {.ptr = waiter};

	*waiter = (struct waiter){.event = event, .ctx = doca_sync_event_as_ctx(event)};
	waiter->pe = new_engine(waiter->ctx);
	OK(doca_ctx_set_user_data(waiter->ctx, data));
	OK(doca_sync_event_task_get_set_conf(event, on_get, on_get, 4));
	OK(doca_sync_event_task_notify_set_set_conf(event, on_notify_set, on_notify_set, 4));
	OK(doca_sync_event_task_notify_add_set_conf(event, on_notify_add, on_notify_add, 4));
	OK(doca_sync_event_task_wait_eq_set_conf(event, on_wait_eq, on_wait_eq, 4));
	OK(doca_sync_event_task_wait_neq_set_conf(event, on_wait_neq, on_wait_neq, 4));
	OK(doca_pe_set_event_mode(waiter->pe, DOCA_PE_EVENT_MODE_PROGRESS_ALL));
	OK(doca_ctx_start(waiter->ctx));
	CHECK(state_of(waiter->ctx) == DOCA_CTX_STATE_RUNNING);
}

static void waiter_end(struct waiter *waiter)
{
	stop(waiter->ctx, waiter->pe);
	OK(doca_sync_event_destroy(waiter->event));
	OK(doca_pe_destroy(waiter->pe));
}

static const union doca_data none;

static void submit_wait(struct waiter *waiter, uint64_t value)
{
	struct doca_sync_event_task_wait_eq *wait;

	OK(doca_sync_event_task_wait_eq_alloc_init(waiter->event, value, UINT64_MAX, none, &wait));
	OK(doca_task_submit(doca_sync_event_task_wait_eq_as_doca_task(wait)));
}

static void submit_set(struct waiter *waiter, uint64_t value)
{
	struct doca_sync_event_task_notify_set *set;

	OK(doca_sync_event_task_notify_set_alloc_init(waiter->event, value, none, &set));
	OK(doca_task_submit(doca_sync_event_task_notify_set_as_doca_task(set)));
}

/* Waits for the descriptor of an engine, whose context has nothing else to do. */
static void sleep_until_done(struct waiter *waiter, int completed)
{
	doca_notification_handle_t handle;

	OK(doca_pe_get_notification_handle(waiter->pe, &handle));
	while (waiter->completed < completed) {
		struct pollfd polled = {.fd = handle, .events = POLLIN};

		OK(doca_pe_request_notification(waiter->pe));
		if (doca_pe_progress(waiter->pe) == 1)
			continue;
		CHECK(poll(&polled, 1, 120000) == 1);
		OK(doca_pe_clear_notification(waiter->pe, handle));
		while (doca_pe_progress(waiter->pe) == 1)
			;
	}
}

/* Tasks of both sides, which wait for one another: progressing, and asleep. */
static void tasks(void)
{
	struct doca_dev *dev = open_own_device();
	struct waiter waiter;
	uint64_t value = 99, fetched = 99;
	struct doca_sync_event_task_get *get;
	struct doca_sync_event_task_notify_add *add;
	struct doca_sync_event_task_wait_neq *neq;

	if (!is_dpu) {
		waiter_start(&waiter, event_new(dev));
		tell_event(waiter.event, dev);
	} else {
		waiter_start(&waiter, hear_event(dev));
	}
	for (uint64_t i = 0; i < 20; i++) {
		if ((i % 2 == 0) == is_dpu) {
			submit_wait(&waiter, i + 1);
			if (i < 10)
				UNTIL(waiter.completed == (int)i + 1, waiter.pe);
			else
				sleep_until_done(&waiter, (int)i + 1);
		} else {
			submit_set(&waiter, i + 1);
			UNTIL(waiter.completed == (int)i + 1, waiter.pe);
		}
	}
	meet();
	if (is_dpu) {
		OK(doca_sync_event_task_notify_add_alloc_init(waiter.event, 5, &fetched, none,
							      &add));
		OK(doca_task_submit(doca_sync_event_task_notify_add_as_doca_task(add)));
		UNTIL(waiter.completed == 21, waiter.pe);
		CHECK(fetched == 20);
	} else {
		OK(doca_sync_event_task_wait_neq_alloc_init(waiter.event, 20, 0xff, none, &neq));
		OK(doca_task_submit(doca_sync_event_task_wait_neq_as_doca_task(neq)));
		sleep_until_done(&waiter, 21);
	}
	OK(doca_sync_event_task_get_alloc_init(waiter.event, &value, none, &get));
	OK(doca_task_submit(doca_sync_event_task_get_as_doca_task(get)));
	UNTIL(waiter.completed == 22, waiter.pe);
	CHECK(value == 25 && waiter.failed == 0);
	meet();
	/* The DPU's tasks fail when the host stops the event, and the host's are flushed. */
	submit_wait(&waiter, 1);
	if (is_dpu) {
		UNTIL(waiter.failed == 1, waiter.pe);
		CHECK(waiter.status == DOCA_ERROR_IO_FAILED);
	}
	waiter_end(&waiter);
	CHECK(waiter.failed == 1 && (is_dpu || waiter.status == DOCA_ERROR_SHUTDOWN));
	OK(doca_dev_close(dev));
}

/* What is no export of an event over PCI cannot be imported. */
static void forged(void)
{
	struct doca_dev *dev = open_own_device();
	struct doca_sync_event *event;
	struct doca_sync_event_remote_net *remote;
	struct doca_mmap *mmap;
	uint8_t export[1024];
	size_t size;

	if (!is_dpu) {
		event = event_new(dev);
		OK(doca_sync_event_start(event));
		tell_event(event, dev);
		meet();
		OK(doca_sync_event_destroy(event));
		meet();
		OK(doca_dev_close(dev));
		return;
	}
	size = hear(export, sizeof export);
	for (size_t i = 0; i < size; i++) {
		doca_error_t result;

		export[i] ^= 0x40;
		result = doca_sync_event_create_from_export(dev, export, size, &event);
		CHECK(result == DOCA_ERROR_INVALID_VALUE || result == DOCA_ERROR_NOT_FOUND);
		export[i] ^= 0x40;
	}
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_sync_event_create_from_export(dev, export, size - 1, &event));
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_mmap_create_from_export(NULL, export, size, dev, &mmap));
	IS(DOCA_ERROR_INVALID_VALUE,
	   doca_sync_event_remote_net_create_from_export(dev, export, size, &remote));
	meet();
	meet(); /* the host has destroyed the event */
	IS(DOCA_ERROR_NOT_FOUND, doca_sync_event_create_from_export(dev, export, size, &event));
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"host_exports", host_exports},
	{"dpu_exports", dpu_exports},
	{"in_imported_memory", in_imported_memory},
	{"exporter_ends", exporter_ends},
	{"tasks", tasks},
	{"forged", forged},
	{NULL, NULL},
};
