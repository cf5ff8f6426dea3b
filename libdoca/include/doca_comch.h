/* SPDX-License-Identifier: Apache-2.0 */

/* Comch: the channel between clients on a host and servers on its DPU. This is the control path;
 * see doca_comch_consumer.h and doca_comch_producer.h for the fast path. */
#ifndef DOCA_COMCH_H_
#define DOCA_COMCH_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_ctx;
struct doca_dev;
struct doca_dev_rep;
struct doca_devinfo;
struct doca_task;

struct doca_comch_client;
struct doca_comch_connection;
struct doca_comch_event_connection_status_changed;
struct doca_comch_event_consumer;
struct doca_comch_event_msg_recv;
struct doca_comch_server;
struct doca_comch_task_send;

/* Of a connection, counted from its beginning. */
enum doca_comch_counter {
	DOCA_COMCH_COUNTER_SENT_MESSAGES = 1,
	DOCA_COMCH_COUNTER_SENT_BYTES = 2,
	DOCA_COMCH_COUNTER_RECV_MESSAGES = 3,
	DOCA_COMCH_COUNTER_RECV_BYTES = 4,
};

typedef void (*doca_comch_task_send_completion_cb_t)(struct doca_comch_task_send *task,
						     union doca_data task_user_data,
						     union doca_data ctx_user_data);
/* recv_buffer is valid in the callback only. */
typedef void (*doca_comch_event_msg_recv_cb_t)(struct doca_comch_event_msg_recv *event,
					       uint8_t *recv_buffer, uint32_t msg_len,
					       struct doca_comch_connection *connection);
typedef void (*doca_comch_event_connection_status_changed_cb_t)(
	struct doca_comch_event_connection_status_changed *event,
	struct doca_comch_connection *connection, uint8_t change_successful);
typedef void (*doca_comch_event_consumer_cb_t)(struct doca_comch_event_consumer *event,
					       struct doca_comch_connection *connection,
					       uint32_t id);

/* What a device can do. */
doca_error_t doca_comch_cap_server_is_supported(const struct doca_devinfo *info);
doca_error_t doca_comch_cap_client_is_supported(const struct doca_devinfo *info);
doca_error_t doca_comch_cap_get_max_name_len(const struct doca_devinfo *info, uint32_t *len);
doca_error_t doca_comch_cap_get_max_msg_size(const struct doca_devinfo *info, uint32_t *size);
doca_error_t doca_comch_cap_get_max_recv_queue_size(const struct doca_devinfo *info,
						    uint32_t *size);
doca_error_t doca_comch_cap_get_max_send_tasks(const struct doca_devinfo *info, uint32_t *count);
doca_error_t doca_comch_cap_get_max_clients(const struct doca_devinfo *info, uint32_t *count);

/* A server listens on a DPU's device for clients on the function that rep stands for. */
doca_error_t doca_comch_server_create(struct doca_dev *dev, struct doca_dev_rep *rep,
				      const char *name, struct doca_comch_server **server);
doca_error_t doca_comch_server_destroy(struct doca_comch_server *server);
struct doca_ctx *doca_comch_server_as_ctx(struct doca_comch_server *server);
doca_error_t doca_comch_server_set_max_msg_size(struct doca_comch_server *server, uint32_t size);
doca_error_t doca_comch_server_get_max_msg_size(const struct doca_comch_server *server,
						uint32_t *size);
doca_error_t doca_comch_server_set_recv_queue_size(struct doca_comch_server *server, uint32_t size);
doca_error_t doca_comch_server_get_recv_queue_size(const struct doca_comch_server *server,
						   uint32_t *size);
doca_error_t doca_comch_server_get_device(const struct doca_comch_server *server,
					  struct doca_dev **dev);
/* Before 2.9, it had another name. */
doca_error_t doca_comch_server_get_device_rep(const struct doca_comch_server *server,
					      struct doca_dev_rep **rep);
doca_error_t doca_comch_server_task_send_set_conf(struct doca_comch_server *server,
						  doca_comch_task_send_completion_cb_t completed,
						  doca_comch_task_send_completion_cb_t failed,
						  uint32_t num_tasks);
doca_error_t
doca_comch_server_event_msg_recv_register(struct doca_comch_server *server,
					  doca_comch_event_msg_recv_cb_t callback);
doca_error_t doca_comch_server_event_connection_status_changed_register(
	struct doca_comch_server *server,
	doca_comch_event_connection_status_changed_cb_t connected,
	doca_comch_event_connection_status_changed_cb_t disconnected);
doca_error_t doca_comch_server_event_consumer_register(struct doca_comch_server *server,
						       doca_comch_event_consumer_cb_t created,
						       doca_comch_event_consumer_cb_t expired);
/* The message is copied. */
doca_error_t doca_comch_server_task_send_alloc_init(struct doca_comch_server *server,
						    struct doca_comch_connection *peer,
						    const void *msg, uint32_t len,
						    struct doca_comch_task_send **task);
/* IN_USE while consumers or producers of the connection exist. */
doca_error_t doca_comch_server_disconnect(struct doca_comch_server *server,
					  struct doca_comch_connection *connection);
/* NULL if the connection is a client's. */
struct doca_comch_server *
doca_comch_server_get_server_ctx(const struct doca_comch_connection *connection);

/* A client connects a host's device to a server by its name. */
doca_error_t doca_comch_client_create(struct doca_dev *dev, const char *name,
				      struct doca_comch_client **client);
doca_error_t doca_comch_client_destroy(struct doca_comch_client *client);
struct doca_ctx *doca_comch_client_as_ctx(struct doca_comch_client *client);
doca_error_t doca_comch_client_set_max_msg_size(struct doca_comch_client *client, uint32_t size);
doca_error_t doca_comch_client_get_max_msg_size(const struct doca_comch_client *client,
						uint32_t *size);
doca_error_t doca_comch_client_set_recv_queue_size(struct doca_comch_client *client, uint32_t size);
doca_error_t doca_comch_client_get_recv_queue_size(const struct doca_comch_client *client,
						   uint32_t *size);
doca_error_t doca_comch_client_get_device(const struct doca_comch_client *client,
					  struct doca_dev **dev);
doca_error_t doca_comch_client_task_send_set_conf(struct doca_comch_client *client,
						  doca_comch_task_send_completion_cb_t completed,
						  doca_comch_task_send_completion_cb_t failed,
						  uint32_t num_tasks);
doca_error_t
doca_comch_client_event_msg_recv_register(struct doca_comch_client *client,
					  doca_comch_event_msg_recv_cb_t callback);
doca_error_t doca_comch_client_event_consumer_register(struct doca_comch_client *client,
						       doca_comch_event_consumer_cb_t created,
						       doca_comch_event_consumer_cb_t expired);
doca_error_t doca_comch_client_task_send_alloc_init(struct doca_comch_client *client,
						    struct doca_comch_connection *peer,
						    const void *msg, uint32_t len,
						    struct doca_comch_task_send **task);
/* After doca_ctx_start. */
doca_error_t doca_comch_client_get_connection(const struct doca_comch_client *client,
					      struct doca_comch_connection **connection);
/* NULL if the connection is a server's. */
struct doca_comch_client *
doca_comch_client_get_client_ctx(const struct doca_comch_connection *connection);

struct doca_task *doca_comch_task_send_as_task(struct doca_comch_task_send *task);

doca_error_t doca_comch_connection_set_user_data(struct doca_comch_connection *connection,
						 union doca_data user_data);
union doca_data
doca_comch_connection_get_user_data(const struct doca_comch_connection *connection);
/* Refreshes the counters, which are those of the last refresh. */
doca_error_t doca_comch_connection_update_info(struct doca_comch_connection *connection);
doca_error_t doca_comch_connection_get_counter(const struct doca_comch_connection *connection,
					       enum doca_comch_counter type, uint64_t *value);

#ifdef __cplusplus
}
#endif
#endif
