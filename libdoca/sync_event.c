/* Sync events. The core lets peers reach them over RDMA. */

#include "skin.h"

#include <stdlib.h>
#include <time.h>

#include "_cgo_export.h"

doca_error_t emu_doca_sync_event_create(struct doca_sync_event **event)
{
	if (!EMU_HAS(event))
		return DOCA_ERROR_INVALID_VALUE;
	*event = emu_new(EMU_SYNC_EVENT, sizeof **event);
	return *event == NULL ? DOCA_ERROR_NO_MEMORY : DOCA_SUCCESS;
}

/* Checks the state of an event. */
static doca_error_t check(const struct doca_sync_event *event, bool started, const char *function)
{
	if (!emu_is(event, EMU_SYNC_EVENT, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&event->started, __ATOMIC_SEQ_CST) == started)
		return DOCA_SUCCESS;
	emu_misuse(function, "the sync event is %s", started ? "not started" : "started");
	return DOCA_ERROR_BAD_STATE;
}

static void pause_briefly(void)
{
	const struct timespec pause = {.tv_nsec = 20000};

	nanosleep(&pause, NULL);
}

/* Stops an event, and returns when no thread waits for it any more. */
static void stop(struct doca_sync_event *event)
{
	if (event->core != 0)
		emuSyncEventStop(event->core);
	event->core = 0;
	__atomic_store_n(&event->started, false, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&event->waiting, __ATOMIC_SEQ_CST) > 0)
		pause_briefly();
}

doca_error_t emu_doca_sync_event_destroy(struct doca_sync_event *event)
{
	if (!EMU_IS(event, EMU_SYNC_EVENT))
		return DOCA_ERROR_INVALID_VALUE;
	stop(event);
	if (event->dev != NULL)
		emu_release_dev(event->dev);
	emu_bury(event, event->desc);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_add_publisher_location_remote_net(struct doca_sync_event *event)
{
	doca_error_t result = check(event, false, __func__);

	if (result == DOCA_SUCCESS)
		event->has_publisher = true;
	return result;
}

doca_error_t emu_doca_sync_event_add_subscriber_location_cpu(struct doca_sync_event *event,
							     struct doca_dev *dev)
{
	doca_error_t result = check(event, false, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (event->dev != NULL) {
		emu_misuse(__func__, "the sync event has a subscriber");
		return DOCA_ERROR_BAD_STATE;
	}
	if (!emu_use_dev(dev, __func__))
		return DOCA_ERROR_INVALID_VALUE;
	event->dev = dev;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_start(struct doca_sync_event *event)
{
	doca_error_t result = check(event, false, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (event->dev == NULL || !event->has_publisher) {
		emu_misuse(__func__, "the sync event has no %s",
			   event->dev == NULL ? "subscriber" : "publisher");
		return DOCA_ERROR_BAD_STATE;
	}
	__atomic_store_n(&event->started, true, __ATOMIC_SEQ_CST);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_stop(struct doca_sync_event *event)
{
	doca_error_t result = check(event, true, __func__);

	if (result == DOCA_SUCCESS)
		stop(event);
	return result;
}

doca_error_t emu_doca_sync_event_export_to_remote_net(struct doca_sync_event *event,
						      const uint8_t **data, size_t *size)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(data) || !EMU_HAS(size))
		return DOCA_ERROR_INVALID_VALUE;
	if (event->core == 0) {
		free(event->desc);
		emuSyncEventExport(event);
	}
	*data = event->desc;
	*size = event->desc_size;
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

doca_error_t emu_doca_sync_event_get(struct doca_sync_event *event, uint64_t *value)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(value))
		return DOCA_ERROR_INVALID_VALUE;
	*value = __atomic_load_n(&event->value, __ATOMIC_ACQUIRE);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_update_set(struct doca_sync_event *event, uint64_t value)
{
	doca_error_t result = check(event, true, __func__);

	if (result == DOCA_SUCCESS)
		__atomic_store_n(&event->value, value, __ATOMIC_RELEASE);
	return result;
}

doca_error_t emu_doca_sync_event_update_add(struct doca_sync_event *event, uint64_t value,
					    uint64_t *fetched)
{
	doca_error_t result = check(event, true, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_HAS(fetched))
		return DOCA_ERROR_INVALID_VALUE;
	*fetched = __atomic_fetch_add(&event->value, value, __ATOMIC_ACQ_REL);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_sync_event_wait_gt(struct doca_sync_event *event, uint64_t value,
					 uint64_t mask)
{
	doca_error_t result;

	if (!EMU_IS(event, EMU_SYNC_EVENT))
		return DOCA_ERROR_INVALID_VALUE;
	__atomic_fetch_add(&event->waiting, 1, __ATOMIC_SEQ_CST);
	result = check(event, true, __func__);
	while (result == DOCA_SUCCESS &&
	       (__atomic_load_n(&event->value, __ATOMIC_ACQUIRE) & mask) <= value) {
		pause_briefly();
		if (!__atomic_load_n(&event->started, __ATOMIC_SEQ_CST))
			result = DOCA_ERROR_BAD_STATE;
	}
	__atomic_fetch_sub(&event->waiting, 1, __ATOMIC_SEQ_CST);
	return result;
}
