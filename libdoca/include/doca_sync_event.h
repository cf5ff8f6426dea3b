/* SPDX-License-Identifier: Apache-2.0 */

/* Sync events: numbers of 64 bits that one side sets and the other waits for. Either side is a CPU
 * of this machine, one on the other side of PCI, or a peer over RDMA.
 *
 * An event is used by itself (doca_sync_event_start), or as a context, whose tasks complete while
 * its engine is progressed; what it is used as first, it stays. The functions that wait and change
 * it at once work in both cases. */
#ifndef DOCA_SYNC_EVENT_H_
#define DOCA_SYNC_EVENT_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_ctx;
struct doca_dev;
struct doca_devinfo;
struct doca_dpa;
struct doca_gpu;
struct doca_sync_event;
struct doca_sync_event_remote_net;
struct doca_sync_event_task_get;
struct doca_sync_event_task_notify_add;
struct doca_sync_event_task_notify_set;
struct doca_sync_event_task_wait_eq;
struct doca_sync_event_task_wait_neq;
struct doca_task;

/* Handles of events on a DPA and on a GPU, which the emulation does not have. */
typedef uint64_t doca_dpa_dev_sync_event_t;
typedef uint64_t doca_dpa_dev_sync_event_remote_net_t;
typedef uint64_t doca_gpu_dev_sync_event_t;
typedef uint64_t doca_gpu_dev_sync_event_remote_net_t;

doca_error_t doca_sync_event_create(struct doca_sync_event **event);
/* Stops the event, too, unless it is used as a context: that must be idle. */
doca_error_t doca_sync_event_destroy(struct doca_sync_event *event);
/* The context, or NULL if doca_sync_event_start has been called. */
struct doca_ctx *doca_sync_event_as_ctx(struct doca_sync_event *event);

/* Before the start: who sets the number, and who waits. */
doca_error_t doca_sync_event_add_publisher_location_cpu(struct doca_sync_event *event,
							struct doca_dev *dev);
doca_error_t doca_sync_event_add_publisher_location_dpa(struct doca_sync_event *event,
							struct doca_dpa *dpa);
doca_error_t doca_sync_event_add_publisher_location_gpu(struct doca_sync_event *event,
							struct doca_gpu *gpu);
doca_error_t doca_sync_event_add_publisher_location_remote_pci(struct doca_sync_event *event);
doca_error_t doca_sync_event_add_publisher_location_remote_net(struct doca_sync_event *event);
doca_error_t doca_sync_event_add_subscriber_location_cpu(struct doca_sync_event *event,
							 struct doca_dev *dev);
doca_error_t doca_sync_event_add_subscriber_location_dpa(struct doca_sync_event *event,
							 struct doca_dpa *dpa);
doca_error_t doca_sync_event_add_subscriber_location_gpu(struct doca_sync_event *event,
							 struct doca_gpu *gpu);
doca_error_t doca_sync_event_add_subscriber_location_remote_pci(struct doca_sync_event *event);

/* Before the start: where the number is, if it is not the library that chooses. It is aligned to
 * eight bytes, which are the data of buf. Its map grants LOCAL_READ_WRITE and all RDMA_ rights; an
 * export over PCI needs PCI_READ_WRITE, too. */
doca_error_t doca_sync_event_set_addr(struct doca_sync_event *event, uint64_t *addr);
doca_error_t doca_sync_event_set_doca_buf(struct doca_sync_event *event, struct doca_buf *buf);

doca_error_t doca_sync_event_start(struct doca_sync_event *event);
/* Peers that have an export can use the number no more. */
doca_error_t doca_sync_event_stop(struct doca_sync_event *event);

/* Describes a started event to the other side of PCI. The description belongs to the event. */
doca_error_t doca_sync_event_export_to_remote_pci(struct doca_sync_event *event,
						  struct doca_dev *dev, const uint8_t **data,
						  size_t *size);
/* Such an event has no locations, and is started like any other. */
doca_error_t doca_sync_event_create_from_export(struct doca_dev *dev, const uint8_t *data,
						size_t size, struct doca_sync_event **event);
/* The same for a peer over RDMA. */
doca_error_t doca_sync_event_export_to_remote_net(struct doca_sync_event *event,
						  const uint8_t **data, size_t *size);
doca_error_t
doca_sync_event_remote_net_create_from_export(struct doca_dev *dev, const uint8_t *data,
					      size_t size,
					      struct doca_sync_event_remote_net **event);
doca_error_t doca_sync_event_remote_net_destroy(struct doca_sync_event_remote_net *event);
doca_error_t doca_sync_event_get_dpa_handle(struct doca_sync_event *event, struct doca_dpa *dpa,
					    doca_dpa_dev_sync_event_t *handle);
doca_error_t doca_sync_event_get_gpu_handle(struct doca_sync_event *event, struct doca_gpu *gpu,
					    doca_gpu_dev_sync_event_t **handle);
doca_error_t
doca_sync_event_remote_net_get_dpa_handle(struct doca_sync_event_remote_net *event,
					  struct doca_dpa *dpa,
					  doca_dpa_dev_sync_event_remote_net_t *handle);
doca_error_t
doca_sync_event_remote_net_get_gpu_handle(struct doca_sync_event_remote_net *event,
					  struct doca_gpu *gpu,
					  doca_gpu_dev_sync_event_remote_net_t *handle);

doca_error_t doca_sync_event_get(struct doca_sync_event *event, uint64_t *value);
doca_error_t doca_sync_event_update_set(struct doca_sync_event *event, uint64_t value);
doca_error_t doca_sync_event_update_add(struct doca_sync_event *event, uint64_t value,
					uint64_t *fetched);

/* Wait, without bound, until the number under the mask is greater than value, equal, or not equal.
 * They fail with DOCA_ERROR_BAD_STATE when another thread stops the event, and with
 * DOCA_ERROR_IO_FAILED when the exporter of the event has stopped it, or is gone. */
doca_error_t doca_sync_event_wait_gt(struct doca_sync_event *event, uint64_t value, uint64_t mask);
doca_error_t doca_sync_event_wait_eq(struct doca_sync_event *event, uint64_t value, uint64_t mask);
doca_error_t doca_sync_event_wait_neq(struct doca_sync_event *event, uint64_t value,
				      uint64_t mask);
/* The same; they yield the core between two looks. */
doca_error_t doca_sync_event_wait_gt_yield(struct doca_sync_event *event, uint64_t value,
					   uint64_t mask);
doca_error_t doca_sync_event_wait_eq_yield(struct doca_sync_event *event, uint64_t value,
					   uint64_t mask);
doca_error_t doca_sync_event_wait_neq_yield(struct doca_sync_event *event, uint64_t value,
					    uint64_t mask);

doca_error_t doca_sync_event_cap_is_create_from_export_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_cap_is_export_to_remote_pci_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_cap_is_export_to_remote_net_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_cap_is_export_to_dpa_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_cap_is_export_to_gpu_supported(const struct doca_devinfo *info);
doca_error_t
doca_sync_event_cap_remote_net_is_create_from_export_supported(const struct doca_devinfo *info);
doca_error_t
doca_sync_event_cap_remote_net_is_export_to_dpa_supported(const struct doca_devinfo *info);
doca_error_t
doca_sync_event_cap_remote_net_is_export_to_gpu_supported(const struct doca_devinfo *info);

/* Tasks. */

/* Stores the number at ret_val_ptr. */
typedef void (*doca_sync_event_task_get_completion_cb_t)(struct doca_sync_event_task_get *task,
							 union doca_data task_user_data,
							 union doca_data ctx_user_data);
doca_error_t doca_sync_event_cap_task_get_is_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_task_get_set_conf(struct doca_sync_event *event,
					       doca_sync_event_task_get_completion_cb_t completed,
					       doca_sync_event_task_get_completion_cb_t failed,
					       uint32_t num_tasks);
doca_error_t doca_sync_event_task_get_alloc_init(struct doca_sync_event *event,
						 uint64_t *ret_val_ptr, union doca_data user_data,
						 struct doca_sync_event_task_get **task);
struct doca_task *doca_sync_event_task_get_as_doca_task(struct doca_sync_event_task_get *task);
void doca_sync_event_task_get_set_ret_val_ptr(struct doca_sync_event_task_get *task,
					      uint64_t *ret_val_ptr);
uint64_t *doca_sync_event_task_get_get_ret_val_ptr(const struct doca_sync_event_task_get *task);

/* Sets the number. */
typedef void (*doca_sync_event_task_notify_set_completion_cb_t)(
	struct doca_sync_event_task_notify_set *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_sync_event_cap_task_notify_set_is_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_task_notify_set_set_conf(
	struct doca_sync_event *event, doca_sync_event_task_notify_set_completion_cb_t completed,
	doca_sync_event_task_notify_set_completion_cb_t failed, uint32_t num_tasks);
doca_error_t
doca_sync_event_task_notify_set_alloc_init(struct doca_sync_event *event, uint64_t set_val,
					   union doca_data user_data,
					   struct doca_sync_event_task_notify_set **task);
struct doca_task *
doca_sync_event_task_notify_set_as_doca_task(struct doca_sync_event_task_notify_set *task);
void doca_sync_event_task_notify_set_set_set_val(struct doca_sync_event_task_notify_set *task,
						 uint64_t set_val);
uint64_t
doca_sync_event_task_notify_set_get_set_val(const struct doca_sync_event_task_notify_set *task);

/* Adds to the number, and stores what it was before at fetched_val_ptr. */
typedef void (*doca_sync_event_task_notify_add_completion_cb_t)(
	struct doca_sync_event_task_notify_add *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_sync_event_cap_task_notify_add_is_supported(const struct doca_devinfo *info);
doca_error_t doca_sync_event_task_notify_add_set_conf(
	struct doca_sync_event *event, doca_sync_event_task_notify_add_completion_cb_t completed,
	doca_sync_event_task_notify_add_completion_cb_t failed, uint32_t num_tasks);
doca_error_t
doca_sync_event_task_notify_add_alloc_init(struct doca_sync_event *event, uint64_t inc_val,
					   uint64_t *fetched_val_ptr, union doca_data user_data,
					   struct doca_sync_event_task_notify_add **task);
struct doca_task *
doca_sync_event_task_notify_add_as_doca_task(struct doca_sync_event_task_notify_add *task);
void doca_sync_event_task_notify_add_set_inc_val(struct doca_sync_event_task_notify_add *task,
						 uint64_t inc_val);
uint64_t
doca_sync_event_task_notify_add_get_inc_val(const struct doca_sync_event_task_notify_add *task);
void doca_sync_event_task_notify_add_set_fetched_val_ptr(
	struct doca_sync_event_task_notify_add *task, uint64_t *fetched_val_ptr);
uint64_t *doca_sync_event_task_notify_add_get_fetched_val_ptr(
	const struct doca_sync_event_task_notify_add *task);

/* Completes once the number under the mask is equal to wait_val. The mask is 0, or 1, 2, 4, or 8
 * bytes 0xff without another one between them. */
typedef void (*doca_sync_event_task_wait_eq_completion_cb_t)(
	struct doca_sync_event_task_wait_eq *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_sync_event_cap_task_wait_eq_is_supported(const struct doca_devinfo *info);
doca_error_t
doca_sync_event_task_wait_eq_set_conf(struct doca_sync_event *event,
				      doca_sync_event_task_wait_eq_completion_cb_t completed,
				      doca_sync_event_task_wait_eq_completion_cb_t failed,
				      uint32_t num_tasks);
doca_error_t doca_sync_event_task_wait_eq_alloc_init(struct doca_sync_event *event,
						     uint64_t wait_val, uint64_t mask,
						     union doca_data user_data,
						     struct doca_sync_event_task_wait_eq **task);
struct doca_task *
doca_sync_event_task_wait_eq_as_doca_task(struct doca_sync_event_task_wait_eq *task);
void doca_sync_event_task_wait_eq_set_wait_val(struct doca_sync_event_task_wait_eq *task,
					       uint64_t wait_val);
uint64_t
doca_sync_event_task_wait_eq_get_wait_val(const struct doca_sync_event_task_wait_eq *task);
void doca_sync_event_task_wait_eq_set_mask(struct doca_sync_event_task_wait_eq *task,
					   uint64_t mask);
uint64_t doca_sync_event_task_wait_eq_get_mask(const struct doca_sync_event_task_wait_eq *task);

/* Completes once it is not equal. */
typedef void (*doca_sync_event_task_wait_neq_completion_cb_t)(
	struct doca_sync_event_task_wait_neq *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_sync_event_cap_task_wait_neq_is_supported(const struct doca_devinfo *info);
doca_error_t
doca_sync_event_task_wait_neq_set_conf(struct doca_sync_event *event,
				       doca_sync_event_task_wait_neq_completion_cb_t completed,
				       doca_sync_event_task_wait_neq_completion_cb_t failed,
				       uint32_t num_tasks);
doca_error_t doca_sync_event_task_wait_neq_alloc_init(struct doca_sync_event *event,
						      uint64_t wait_val, uint64_t mask,
						      union doca_data user_data,
						      struct doca_sync_event_task_wait_neq **task);
struct doca_task *
doca_sync_event_task_wait_neq_as_doca_task(struct doca_sync_event_task_wait_neq *task);
void doca_sync_event_task_wait_neq_set_wait_val(struct doca_sync_event_task_wait_neq *task,
						uint64_t wait_val);
uint64_t
doca_sync_event_task_wait_neq_get_wait_val(const struct doca_sync_event_task_wait_neq *task);
void doca_sync_event_task_wait_neq_set_mask(struct doca_sync_event_task_wait_neq *task,
					    uint64_t mask);
uint64_t doca_sync_event_task_wait_neq_get_mask(const struct doca_sync_event_task_wait_neq *task);

#ifdef __cplusplus
}
#endif
#endif
