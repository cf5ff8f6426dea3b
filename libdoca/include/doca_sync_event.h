/* Sync events: numbers that one side sets and the other waits for. Here, a CPU waits, and it or a
 * peer over RDMA sets the number. */
#ifndef DOCA_SYNC_EVENT_H_
#define DOCA_SYNC_EVENT_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_sync_event;
struct doca_sync_event_remote_net;

doca_error_t doca_sync_event_create(struct doca_sync_event **event);
/* Stops the event, too. */
doca_error_t doca_sync_event_destroy(struct doca_sync_event *event);

/* Before doca_sync_event_start: who sets the number, and who waits. */
doca_error_t doca_sync_event_add_publisher_location_remote_net(struct doca_sync_event *event);
doca_error_t doca_sync_event_add_subscriber_location_cpu(struct doca_sync_event *event,
							 struct doca_dev *dev);
doca_error_t doca_sync_event_start(struct doca_sync_event *event);
/* Peers that have the export can set the number no more. */
doca_error_t doca_sync_event_stop(struct doca_sync_event *event);

/* Describes a started event to a peer. The description belongs to the event. */
doca_error_t doca_sync_event_export_to_remote_net(struct doca_sync_event *event,
						  const uint8_t **data, size_t *size);
doca_error_t
doca_sync_event_remote_net_create_from_export(struct doca_dev *dev, const uint8_t *data,
					      size_t size,
					      struct doca_sync_event_remote_net **event);
doca_error_t doca_sync_event_remote_net_destroy(struct doca_sync_event_remote_net *event);

doca_error_t doca_sync_event_get(struct doca_sync_event *event, uint64_t *value);
doca_error_t doca_sync_event_update_set(struct doca_sync_event *event, uint64_t value);
doca_error_t doca_sync_event_update_add(struct doca_sync_event *event, uint64_t value,
					uint64_t *fetched);
/* Waits, without bound, until the number under the mask is greater than value. Fails with
 * DOCA_ERROR_BAD_STATE when another thread stops the event. */
doca_error_t doca_sync_event_wait_gt(struct doca_sync_event *event, uint64_t value, uint64_t mask);

#ifdef __cplusplus
}
#endif
#endif
