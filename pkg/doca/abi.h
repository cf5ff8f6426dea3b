/* SPDX-License-Identifier: Apache-2.0 */

// The C interface of libdoca as far as the provider uses it, declared here so that building needs
// no DOCA headers. Names, types, and values are DOCA's (2.9 to 3.3).

#ifndef ZC_DOCA_ABI_H
#define ZC_DOCA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t doca_error_t;

enum {
	DOCA_SUCCESS = 0,
	DOCA_ERROR_NOT_SUPPORTED = 4,
	DOCA_ERROR_AGAIN = 5,
	DOCA_ERROR_INVALID_VALUE = 6,
	DOCA_ERROR_NO_MEMORY = 7,
	DOCA_ERROR_NOT_CONNECTED = 14,
	DOCA_ERROR_NOT_FOUND = 16,
	DOCA_ERROR_BAD_STATE = 18,
	DOCA_ERROR_FULL = 24,
	DOCA_ERROR_IN_PROGRESS = 26,
};

enum {
	DOCA_ACCESS_FLAG_LOCAL_READ_WRITE = 1,
	DOCA_ACCESS_FLAG_RDMA_READ = 2,
	DOCA_ACCESS_FLAG_RDMA_WRITE = 4,
	DOCA_ACCESS_FLAG_PCI_READ_ONLY = 16,
	DOCA_ACCESS_FLAG_PCI_READ_WRITE = 32,
};

enum { // doca_ctx_states
	DOCA_CTX_STATE_IDLE = 0,
	DOCA_CTX_STATE_STARTING = 1,
	DOCA_CTX_STATE_RUNNING = 2,
	DOCA_CTX_STATE_STOPPING = 3,
};

enum {
	DOCA_DEVINFO_PCI_ADDR_SIZE = 13,
	DOCA_DEVINFO_IBDEV_NAME_SIZE = 64,
	DOCA_DEVINFO_IFACE_NAME_SIZE = 256,
	DOCA_DEVINFO_REP_VUID_SIZE = 128,
	DOCA_DEVINFO_REP_FILTER_NET = 2,
	DOCA_TASK_SUBMIT_FLAG_NONE = 0,
	DOCA_PE_EVENT_MODE_PROGRESS_ALL = 1,
};

// On Linux a notification handle is a descriptor.
typedef int doca_notification_handle_t;

union doca_data {
	void *ptr;
	uint64_t u64;
};

struct doca_buf;
struct doca_buf_inventory;
struct doca_ctx;
struct doca_dev;
struct doca_dev_rep;
struct doca_devinfo;
struct doca_devinfo_rep;
struct doca_log_backend;
struct doca_mmap;
struct doca_pe;
struct doca_task;
struct ibv_pd;

struct doca_comch_client;
struct doca_comch_connection;
struct doca_comch_consumer;
struct doca_comch_consumer_task_post_recv;
struct doca_comch_event_connection_status_changed;
struct doca_comch_event_consumer;
struct doca_comch_event_msg_recv;
struct doca_comch_producer;
struct doca_comch_producer_task_send;
struct doca_comch_server;
struct doca_comch_task_send;

struct doca_dma;
struct doca_dma_task_memcpy;

struct doca_rdma;
struct doca_rdma_connection;
struct doca_rdma_gid {
	uint8_t raw[16];
};
struct doca_rdma_task_read;
struct doca_rdma_task_receive;
struct doca_rdma_task_send;
struct doca_rdma_task_write;

typedef void (*doca_ctx_state_changed_callback_t)(const union doca_data user_data,
						  struct doca_ctx *ctx, uint32_t previous,
						  uint32_t next);
typedef void (*doca_comch_task_send_completion_cb_t)(struct doca_comch_task_send *task,
						     union doca_data task_data,
						     union doca_data ctx_data);
typedef void (*doca_comch_event_msg_recv_cb_t)(struct doca_comch_event_msg_recv *event,
					       uint8_t *message, uint32_t length,
					       struct doca_comch_connection *connection);
typedef void (*doca_comch_event_connection_status_changed_cb_t)(
	struct doca_comch_event_connection_status_changed *event,
	struct doca_comch_connection *connection, uint8_t successful);
typedef void (*doca_comch_event_consumer_cb_t)(struct doca_comch_event_consumer *event,
					       struct doca_comch_connection *connection,
					       uint32_t id);
typedef void (*doca_comch_consumer_task_post_recv_completion_cb_t)(
	struct doca_comch_consumer_task_post_recv *task, union doca_data task_data,
	union doca_data ctx_data);
typedef void (*doca_comch_producer_task_send_completion_cb_t)(
	struct doca_comch_producer_task_send *task, union doca_data task_data,
	union doca_data ctx_data);
typedef void (*doca_dma_task_memcpy_completion_cb_t)(struct doca_dma_task_memcpy *task,
						     union doca_data task_data,
						     union doca_data ctx_data);
typedef void (*doca_rdma_task_read_completion_cb_t)(struct doca_rdma_task_read *task,
						    union doca_data task_data,
						    union doca_data ctx_data);
typedef void (*doca_rdma_task_receive_completion_cb_t)(struct doca_rdma_task_receive *task,
						       union doca_data task_data,
						       union doca_data ctx_data);
typedef void (*doca_rdma_task_send_completion_cb_t)(struct doca_rdma_task_send *task,
						    union doca_data task_data,
						    union doca_data ctx_data);
typedef void (*doca_rdma_task_write_completion_cb_t)(struct doca_rdma_task_write *task,
						     union doca_data task_data,
						     union doca_data ctx_data);

#endif
