/* SPDX-License-Identifier: Apache-2.0 */

/* RDMA: reliable connections, over which contexts exchange messages, and read and write memory that
 * the peer has exported. */
#ifndef DOCA_RDMA_H_
#define DOCA_RDMA_H_

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* Programs rely on librdmacm's header, for its constants at least. Machines without it do without
 * them. */
#if __has_include(<rdma/rdma_cma.h>)
#include <rdma/rdma_cma.h>
#else
struct rdma_cm_id;
#endif

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_ctx;
struct doca_dev;
struct doca_devinfo;
struct doca_dpa_completion;
struct doca_gpu_dev_rdma;
struct doca_rdma;
struct doca_rdma_addr;
struct doca_rdma_connection;
struct doca_sync_event_remote_net;
struct doca_task;
struct rdma_cm_id;

#define DOCA_GID_BYTE_LENGTH 16

struct doca_rdma_gid {
	uint8_t raw[DOCA_GID_BYTE_LENGTH];
};

typedef uint64_t doca_dpa_dev_rdma_t;

enum doca_rdma_transport_type {
	DOCA_RDMA_TRANSPORT_TYPE_RC = 0,
	DOCA_RDMA_TRANSPORT_TYPE_DC = 1,
};

enum doca_rdma_addr_type {
	DOCA_RDMA_ADDR_TYPE_IPv4 = 0,
	DOCA_RDMA_ADDR_TYPE_IPv6 = 1,
	DOCA_RDMA_ADDR_TYPE_GID = 2,
};

/* What has taken a receive. */
enum doca_rdma_opcode {
	DOCA_RDMA_OPCODE_RECV_SEND = 0,
	DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM = 1,
	DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM = 2,
};

/* Events of connections by address. */
typedef void (*doca_rdma_connection_request_cb_t)(struct doca_rdma_connection *connection,
						  union doca_data ctx_user_data);
typedef void (*doca_rdma_connection_established_cb_t)(struct doca_rdma_connection *connection,
						      union doca_data connection_user_data,
						      union doca_data ctx_user_data);
typedef void (*doca_rdma_connection_failure_cb_t)(struct doca_rdma_connection *connection,
						  union doca_data connection_user_data,
						  union doca_data ctx_user_data);
typedef void (*doca_rdma_connection_disconnection_cb_t)(struct doca_rdma_connection *connection,
							union doca_data connection_user_data,
							union doca_data ctx_user_data);

doca_error_t doca_rdma_create(struct doca_dev *dev, struct doca_rdma **rdma);
/* BAD_STATE unless the context is idle. */
doca_error_t doca_rdma_destroy(struct doca_rdma *rdma);
struct doca_ctx *doca_rdma_as_ctx(struct doca_rdma *rdma);

/* Configuration, while the context is idle. permissions is a mask of the RDMA_ rights: what peers
 * may do at all. */
doca_error_t doca_rdma_set_permissions(struct doca_rdma *rdma, uint32_t permissions);
doca_error_t doca_rdma_set_gid_index(struct doca_rdma *rdma, uint32_t gid_index);
doca_error_t doca_rdma_set_max_num_connections(struct doca_rdma *rdma,
					       uint16_t max_num_connections);
/* A size becomes a power of two. It bounds the tasks in flight of each connection, or the receives
 * of the context; the submission of more fails with AGAIN. */
doca_error_t doca_rdma_set_send_queue_size(struct doca_rdma *rdma, uint32_t send_queue_size);
doca_error_t doca_rdma_set_recv_queue_size(struct doca_rdma *rdma, uint32_t recv_queue_size);
doca_error_t doca_rdma_set_max_send_buf_list_len(struct doca_rdma *rdma, uint32_t len);
/* NOT_SUPPORTED: RAW_ETHERNET. */
doca_error_t doca_rdma_set_mtu(struct doca_rdma *rdma, enum doca_mtu_size mtu);
/* 7 means without end. */
doca_error_t doca_rdma_set_rnr_retry_count(struct doca_rdma *rdma, uint8_t count);
doca_error_t doca_rdma_set_sl(struct doca_rdma *rdma, uint32_t service_level);
/* Bounds how long a connection by address takes. */
doca_error_t doca_rdma_set_connection_request_timeout(struct doca_rdma *rdma,
						      uint16_t milliseconds);
doca_error_t doca_rdma_set_grh_enabled(struct doca_rdma *rdma, uint8_t grh_enabled);
doca_error_t doca_rdma_set_transport_type(struct doca_rdma *rdma,
					  enum doca_rdma_transport_type transport_type);
/* request may be NULL for a context that does not listen. */
doca_error_t doca_rdma_set_connection_state_callbacks(
	struct doca_rdma *rdma, doca_rdma_connection_request_cb_t request,
	doca_rdma_connection_established_cb_t established,
	doca_rdma_connection_failure_cb_t failure,
	doca_rdma_connection_disconnection_cb_t disconnection);
doca_error_t doca_rdma_get_permissions(struct doca_rdma *rdma, uint32_t *permissions);
doca_error_t doca_rdma_get_max_num_connections(struct doca_rdma *rdma,
					       uint16_t *max_num_connections);
doca_error_t doca_rdma_get_gid_index(const struct doca_rdma *rdma, uint32_t *gid_index);
doca_error_t doca_rdma_get_send_queue_size(const struct doca_rdma *rdma, uint32_t *size);
doca_error_t doca_rdma_get_recv_queue_size(const struct doca_rdma *rdma, uint32_t *size);
doca_error_t doca_rdma_get_max_send_buf_list_len(const struct doca_rdma *rdma, uint32_t *len);
doca_error_t doca_rdma_get_mtu(const struct doca_rdma *rdma, enum doca_mtu_size *mtu);
doca_error_t doca_rdma_get_rnr_retry_count(const struct doca_rdma *rdma, uint8_t *count);
doca_error_t doca_rdma_get_sl(const struct doca_rdma *rdma, uint32_t *service_level);
doca_error_t doca_rdma_get_connection_request_timeout(const struct doca_rdma *rdma,
						      uint16_t *milliseconds);
doca_error_t doca_rdma_get_grh_enabled(const struct doca_rdma *rdma, uint8_t *grh_enabled);
doca_error_t doca_rdma_get_transport_type(const struct doca_rdma *rdma,
					  enum doca_rdma_transport_type *transport_type);

/* The emulation has neither a DPA nor a GPU: NOT_SUPPORTED. */
doca_error_t doca_rdma_get_dpa_handle(struct doca_rdma *rdma, doca_dpa_dev_rdma_t *handle);
doca_error_t doca_rdma_dpa_completion_attach(struct doca_rdma *rdma,
					     struct doca_dpa_completion *completion);
doca_error_t doca_rdma_get_gpu_handle(struct doca_rdma *rdma, struct doca_gpu_dev_rdma **handle);

/* Connections by details: both sides export a connection, exchange what describes it, and connect,
 * in any order. Nothing waits for the peer: what is sent before is queued. The details belong to
 * the context, and whoever knows them can connect. FULL: all connections are taken. */
doca_error_t doca_rdma_export(struct doca_rdma *rdma, const void **details, size_t *details_size,
			      struct doca_rdma_connection **connection);
doca_error_t doca_rdma_connect(struct doca_rdma *rdma, const void *peer_details,
			       size_t peer_details_size, struct doca_rdma_connection *connection);

/* Connections by address, whose outcome the callbacks tell. A connection lasts until its failure or
 * disconnection callback has returned, or its context is idle. */
doca_error_t doca_rdma_addr_create(enum doca_rdma_addr_type type, const char *address,
				   uint16_t port, struct doca_rdma_addr **addr);
doca_error_t doca_rdma_addr_destroy(struct doca_rdma_addr *addr);
/* The text lasts as long as the address. */
doca_error_t doca_rdma_addr_get_params(struct doca_rdma_addr *addr, enum doca_rdma_addr_type *type,
				       const char **address, uint16_t *port);
doca_error_t doca_rdma_start_listen_to_port(struct doca_rdma *rdma, uint16_t port);
doca_error_t doca_rdma_stop_listen_to_port(struct doca_rdma *rdma, uint16_t port);
doca_error_t doca_rdma_connect_to_addr(struct doca_rdma *rdma, struct doca_rdma_addr *addr,
				       union doca_data connection_user_data);
/* In the request callback or later, exactly one of both. */
doca_error_t doca_rdma_connection_accept(struct doca_rdma_connection *connection,
					 void *private_data, uint8_t private_data_len);
doca_error_t doca_rdma_connection_reject(struct doca_rdma_connection *connection);
doca_error_t doca_rdma_connection_disconnect(struct doca_rdma_connection *connection);
/* The address of the peer, which belongs to the connection. */
doca_error_t doca_rdma_connection_get_addr(const struct doca_rdma_connection *connection,
					   struct doca_rdma_addr **addr);

/* Connections by an rdma_cm_id. The emulation has none: NOT_SUPPORTED. */
doca_error_t doca_rdma_bridge_prepare_connection(struct doca_rdma *rdma, struct rdma_cm_id *cm_id,
						 struct doca_rdma_connection **connection);
doca_error_t doca_rdma_bridge_accept(struct doca_rdma *rdma, void *private_data,
				     uint8_t private_data_len,
				     struct doca_rdma_connection *connection);
doca_error_t doca_rdma_bridge_established(struct doca_rdma *rdma,
					  struct doca_rdma_connection *connection);

doca_error_t doca_rdma_connection_set_user_data(struct doca_rdma_connection *connection,
						union doca_data user_data);
doca_error_t doca_rdma_connection_get_user_data(const struct doca_rdma_connection *connection,
						union doca_data *user_data);
doca_error_t doca_rdma_connection_get_id(const struct doca_rdma_connection *connection,
					 uint32_t *id);

/* Capabilities. */
doca_error_t doca_rdma_cap_get_max_message_size(const struct doca_devinfo *info, uint32_t *size);
doca_error_t doca_rdma_cap_get_max_send_queue_size(const struct doca_devinfo *info, uint32_t *size);
doca_error_t doca_rdma_cap_get_max_recv_queue_size(const struct doca_devinfo *info, uint32_t *size);
doca_error_t doca_rdma_cap_get_max_send_buf_list_len(const struct doca_devinfo *info,
						     uint32_t *len);
doca_error_t doca_rdma_cap_get_gid_table_size(const struct doca_devinfo *info, uint32_t *size);
/* Copies count entries of the table. Empty ones are zero. */
doca_error_t doca_rdma_cap_get_gid(const struct doca_devinfo *info, uint32_t start, uint32_t count,
				   struct doca_rdma_gid *gids);
doca_error_t doca_rdma_cap_transport_type_is_supported(
	const struct doca_devinfo *info, enum doca_rdma_transport_type transport_type);

/* A receive takes the next message of any connection: to behind the window of dst, which may be
 * NULL. The results are there for the callback of a success. */
struct doca_rdma_task_receive;
typedef void (*doca_rdma_task_receive_completion_cb_t)(
	struct doca_rdma_task_receive *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_receive_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_cap_task_receive_get_max_dst_buf_list_len(
	const struct doca_devinfo *info, enum doca_rdma_transport_type transport_type,
	uint32_t *len);
doca_error_t doca_rdma_task_receive_set_dst_buf_list_len(struct doca_rdma *rdma, uint32_t len);
doca_error_t doca_rdma_task_receive_get_dst_buf_list_len(const struct doca_rdma *rdma,
							 uint32_t *len);
doca_error_t doca_rdma_task_receive_set_conf(struct doca_rdma *rdma,
					     doca_rdma_task_receive_completion_cb_t completed,
					     doca_rdma_task_receive_completion_cb_t failed,
					     uint32_t num_tasks);
doca_error_t doca_rdma_task_receive_allocate_init(struct doca_rdma *rdma, struct doca_buf *dst,
						  union doca_data user_data,
						  struct doca_rdma_task_receive **task);
struct doca_task *doca_rdma_task_receive_as_task(struct doca_rdma_task_receive *task);
void doca_rdma_task_receive_set_dst_buf(struct doca_rdma_task_receive *task, struct doca_buf *dst);
struct doca_buf *doca_rdma_task_receive_get_dst_buf(const struct doca_rdma_task_receive *task);
enum doca_rdma_opcode doca_rdma_task_receive_get_result_opcode(
	const struct doca_rdma_task_receive *task);
uint32_t doca_rdma_task_receive_get_result_len(const struct doca_rdma_task_receive *task);
doca_be32_t doca_rdma_task_receive_get_result_immediate_data(
	const struct doca_rdma_task_receive *task);
const struct doca_rdma_connection *doca_rdma_task_receive_get_result_rdma_connection(
	const struct doca_rdma_task_receive *task);

/* Sends the window of src, which may be NULL. It waits for a receive of the peer. */
struct doca_rdma_task_send;
typedef void (*doca_rdma_task_send_completion_cb_t)(
	struct doca_rdma_task_send *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_send_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_send_set_conf(struct doca_rdma *rdma,
					  doca_rdma_task_send_completion_cb_t completed,
					  doca_rdma_task_send_completion_cb_t failed,
					  uint32_t num_tasks);
doca_error_t doca_rdma_task_send_allocate_init(struct doca_rdma *rdma,
					       struct doca_rdma_connection *connection,
					       const struct doca_buf *src,
					       union doca_data user_data,
					       struct doca_rdma_task_send **task);
struct doca_task *doca_rdma_task_send_as_task(struct doca_rdma_task_send *task);
void doca_rdma_task_send_set_src_buf(struct doca_rdma_task_send *task, const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_send_get_src_buf(const struct doca_rdma_task_send *task);
void doca_rdma_task_send_set_rdma_connection(struct doca_rdma_task_send *task,
					     struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_send_get_rdma_connection(
	const struct doca_rdma_task_send *task);

/* The same, with immediate data. */
struct doca_rdma_task_send_imm;
typedef void (*doca_rdma_task_send_imm_completion_cb_t)(
	struct doca_rdma_task_send_imm *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_send_imm_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_send_imm_set_conf(struct doca_rdma *rdma,
					      doca_rdma_task_send_imm_completion_cb_t completed,
					      doca_rdma_task_send_imm_completion_cb_t failed,
					      uint32_t num_tasks);
doca_error_t doca_rdma_task_send_imm_allocate_init(struct doca_rdma *rdma,
						   struct doca_rdma_connection *connection,
						   const struct doca_buf *src,
						   doca_be32_t immediate_data,
						   union doca_data user_data,
						   struct doca_rdma_task_send_imm **task);
struct doca_task *doca_rdma_task_send_imm_as_task(struct doca_rdma_task_send_imm *task);
void doca_rdma_task_send_imm_set_src_buf(struct doca_rdma_task_send_imm *task,
					 const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_send_imm_get_src_buf(
	const struct doca_rdma_task_send_imm *task);
void doca_rdma_task_send_imm_set_immediate_data(struct doca_rdma_task_send_imm *task,
						doca_be32_t immediate_data);
doca_be32_t doca_rdma_task_send_imm_get_immediate_data(const struct doca_rdma_task_send_imm *task);
void doca_rdma_task_send_imm_set_rdma_connection(struct doca_rdma_task_send_imm *task,
						 struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_send_imm_get_rdma_connection(
	const struct doca_rdma_task_send_imm *task);

/* Reads the window of src, in memory of the peer, to behind the window of dst. */
struct doca_rdma_task_read;
typedef void (*doca_rdma_task_read_completion_cb_t)(
	struct doca_rdma_task_read *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_read_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_read_set_conf(struct doca_rdma *rdma,
					  doca_rdma_task_read_completion_cb_t completed,
					  doca_rdma_task_read_completion_cb_t failed,
					  uint32_t num_tasks);
doca_error_t doca_rdma_task_read_allocate_init(struct doca_rdma *rdma,
					       struct doca_rdma_connection *connection,
					       const struct doca_buf *src, struct doca_buf *dst,
					       union doca_data user_data,
					       struct doca_rdma_task_read **task);
struct doca_task *doca_rdma_task_read_as_task(struct doca_rdma_task_read *task);
void doca_rdma_task_read_set_src_buf(struct doca_rdma_task_read *task, const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_read_get_src_buf(const struct doca_rdma_task_read *task);
void doca_rdma_task_read_set_dst_buf(struct doca_rdma_task_read *task, struct doca_buf *dst);
struct doca_buf *doca_rdma_task_read_get_dst_buf(const struct doca_rdma_task_read *task);
void doca_rdma_task_read_set_rdma_connection(struct doca_rdma_task_read *task,
					     struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_read_get_rdma_connection(
	const struct doca_rdma_task_read *task);
uint32_t doca_rdma_task_read_get_result_len(const struct doca_rdma_task_read *task);

/* Writes the window of src to behind the window of dst, in memory of the peer. */
struct doca_rdma_task_write;
typedef void (*doca_rdma_task_write_completion_cb_t)(
	struct doca_rdma_task_write *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_write_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_write_set_conf(struct doca_rdma *rdma,
					   doca_rdma_task_write_completion_cb_t completed,
					   doca_rdma_task_write_completion_cb_t failed,
					   uint32_t num_tasks);
doca_error_t doca_rdma_task_write_allocate_init(struct doca_rdma *rdma,
						struct doca_rdma_connection *connection,
						const struct doca_buf *src, struct doca_buf *dst,
						union doca_data user_data,
						struct doca_rdma_task_write **task);
struct doca_task *doca_rdma_task_write_as_task(struct doca_rdma_task_write *task);
void doca_rdma_task_write_set_src_buf(struct doca_rdma_task_write *task,
				      const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_write_get_src_buf(const struct doca_rdma_task_write *task);
void doca_rdma_task_write_set_dst_buf(struct doca_rdma_task_write *task, struct doca_buf *dst);
struct doca_buf *doca_rdma_task_write_get_dst_buf(const struct doca_rdma_task_write *task);
void doca_rdma_task_write_set_rdma_connection(struct doca_rdma_task_write *task,
					      struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_write_get_rdma_connection(
	const struct doca_rdma_task_write *task);

/* The same; the immediate data take a receive of the peer. */
struct doca_rdma_task_write_imm;
typedef void (*doca_rdma_task_write_imm_completion_cb_t)(
	struct doca_rdma_task_write_imm *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_write_imm_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_write_imm_set_conf(struct doca_rdma *rdma,
					       doca_rdma_task_write_imm_completion_cb_t completed,
					       doca_rdma_task_write_imm_completion_cb_t failed,
					       uint32_t num_tasks);
doca_error_t doca_rdma_task_write_imm_allocate_init(struct doca_rdma *rdma,
						    struct doca_rdma_connection *connection,
						    const struct doca_buf *src,
						    struct doca_buf *dst,
						    doca_be32_t immediate_data,
						    union doca_data user_data,
						    struct doca_rdma_task_write_imm **task);
struct doca_task *doca_rdma_task_write_imm_as_task(struct doca_rdma_task_write_imm *task);
void doca_rdma_task_write_imm_set_src_buf(struct doca_rdma_task_write_imm *task,
					  const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_write_imm_get_src_buf(
	const struct doca_rdma_task_write_imm *task);
void doca_rdma_task_write_imm_set_dst_buf(struct doca_rdma_task_write_imm *task,
					  struct doca_buf *dst);
struct doca_buf *doca_rdma_task_write_imm_get_dst_buf(const struct doca_rdma_task_write_imm *task);
void doca_rdma_task_write_imm_set_immediate_data(struct doca_rdma_task_write_imm *task,
						 doca_be32_t immediate_data);
doca_be32_t doca_rdma_task_write_imm_get_immediate_data(
	const struct doca_rdma_task_write_imm *task);
void doca_rdma_task_write_imm_set_rdma_connection(struct doca_rdma_task_write_imm *task,
						  struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_write_imm_get_rdma_connection(
	const struct doca_rdma_task_write_imm *task);

/* Reads a sync event of the peer, 8 bytes, to behind the window of dst. */
struct doca_rdma_task_remote_net_sync_event_get;
typedef void (*doca_rdma_task_remote_net_sync_event_get_completion_cb_t)(
	struct doca_rdma_task_remote_net_sync_event_get *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_remote_net_sync_event_get_is_supported(
	const struct doca_devinfo *info);
doca_error_t doca_rdma_task_remote_net_sync_event_get_set_conf(
	struct doca_rdma *rdma, doca_rdma_task_remote_net_sync_event_get_completion_cb_t completed,
	doca_rdma_task_remote_net_sync_event_get_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_rdma_task_remote_net_sync_event_get_allocate_init(
	struct doca_rdma *rdma, struct doca_rdma_connection *connection,
	const struct doca_sync_event_remote_net *event, struct doca_buf *dst,
	union doca_data user_data, struct doca_rdma_task_remote_net_sync_event_get **task);
struct doca_task *doca_rdma_task_remote_net_sync_event_get_as_task(
	struct doca_rdma_task_remote_net_sync_event_get *task);
void doca_rdma_task_remote_net_sync_event_get_set_dst_buf(
	struct doca_rdma_task_remote_net_sync_event_get *task, struct doca_buf *dst);
struct doca_buf *doca_rdma_task_remote_net_sync_event_get_get_dst_buf(
	const struct doca_rdma_task_remote_net_sync_event_get *task);
void doca_rdma_task_remote_net_sync_event_get_set_sync_event(
	struct doca_rdma_task_remote_net_sync_event_get *task,
	const struct doca_sync_event_remote_net *event);
const struct doca_sync_event_remote_net *doca_rdma_task_remote_net_sync_event_get_get_sync_event(
	const struct doca_rdma_task_remote_net_sync_event_get *task);
void doca_rdma_task_remote_net_sync_event_get_set_rdma_connection(
	struct doca_rdma_task_remote_net_sync_event_get *task,
	struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_remote_net_sync_event_get_get_rdma_connection(
	const struct doca_rdma_task_remote_net_sync_event_get *task);
uint32_t doca_rdma_task_remote_net_sync_event_get_get_result_len(
	const struct doca_rdma_task_remote_net_sync_event_get *task);

/* Sets a sync event of the peer to the window of src, 8 bytes. */
struct doca_rdma_task_remote_net_sync_event_notify_set;
typedef void (*doca_rdma_task_remote_net_sync_event_notify_set_completion_cb_t)(
	struct doca_rdma_task_remote_net_sync_event_notify_set *task,
	union doca_data task_user_data, union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_remote_net_sync_event_notify_set_is_supported(
	const struct doca_devinfo *info);
doca_error_t doca_rdma_task_remote_net_sync_event_notify_set_set_conf(
	struct doca_rdma *rdma,
	doca_rdma_task_remote_net_sync_event_notify_set_completion_cb_t completed,
	doca_rdma_task_remote_net_sync_event_notify_set_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_rdma_task_remote_net_sync_event_notify_set_allocate_init(
	struct doca_rdma *rdma, struct doca_rdma_connection *connection,
	struct doca_sync_event_remote_net *event, const struct doca_buf *src,
	union doca_data user_data, struct doca_rdma_task_remote_net_sync_event_notify_set **task);
struct doca_task *doca_rdma_task_remote_net_sync_event_notify_set_as_task(
	struct doca_rdma_task_remote_net_sync_event_notify_set *task);
void doca_rdma_task_remote_net_sync_event_notify_set_set_src_buf(
	struct doca_rdma_task_remote_net_sync_event_notify_set *task, const struct doca_buf *src);
const struct doca_buf *doca_rdma_task_remote_net_sync_event_notify_set_get_src_buf(
	const struct doca_rdma_task_remote_net_sync_event_notify_set *task);
void doca_rdma_task_remote_net_sync_event_notify_set_set_sync_event(
	struct doca_rdma_task_remote_net_sync_event_notify_set *task,
	struct doca_sync_event_remote_net *event);
struct doca_sync_event_remote_net *doca_rdma_task_remote_net_sync_event_notify_set_get_sync_event(
	const struct doca_rdma_task_remote_net_sync_event_notify_set *task);
void doca_rdma_task_remote_net_sync_event_notify_set_set_rdma_connection(
	struct doca_rdma_task_remote_net_sync_event_notify_set *task,
	struct doca_rdma_connection *connection);
const struct doca_rdma_connection *
doca_rdma_task_remote_net_sync_event_notify_set_get_rdma_connection(
	const struct doca_rdma_task_remote_net_sync_event_notify_set *task);

/* Adds to a sync event of the peer, and stores what it was before behind the window of result. */
struct doca_rdma_task_remote_net_sync_event_notify_add;
typedef void (*doca_rdma_task_remote_net_sync_event_notify_add_completion_cb_t)(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task,
	union doca_data task_user_data, union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_remote_net_sync_event_notify_add_is_supported(
	const struct doca_devinfo *info);
doca_error_t doca_rdma_task_remote_net_sync_event_notify_add_set_conf(
	struct doca_rdma *rdma,
	doca_rdma_task_remote_net_sync_event_notify_add_completion_cb_t completed,
	doca_rdma_task_remote_net_sync_event_notify_add_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_rdma_task_remote_net_sync_event_notify_add_allocate_init(
	struct doca_rdma *rdma, struct doca_rdma_connection *connection,
	struct doca_sync_event_remote_net *event, struct doca_buf *result, uint64_t add_data,
	union doca_data user_data, struct doca_rdma_task_remote_net_sync_event_notify_add **task);
struct doca_task *doca_rdma_task_remote_net_sync_event_notify_add_as_task(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task);
void doca_rdma_task_remote_net_sync_event_notify_add_set_result_buf(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task, struct doca_buf *result);
struct doca_buf *doca_rdma_task_remote_net_sync_event_notify_add_get_result_buf(
	const struct doca_rdma_task_remote_net_sync_event_notify_add *task);
void doca_rdma_task_remote_net_sync_event_notify_add_set_sync_event(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task,
	struct doca_sync_event_remote_net *event);
struct doca_sync_event_remote_net *doca_rdma_task_remote_net_sync_event_notify_add_get_sync_event(
	const struct doca_rdma_task_remote_net_sync_event_notify_add *task);
void doca_rdma_task_remote_net_sync_event_notify_add_set_add_data(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task, uint64_t add_data);
uint64_t doca_rdma_task_remote_net_sync_event_notify_add_get_add_data(
	const struct doca_rdma_task_remote_net_sync_event_notify_add *task);
void doca_rdma_task_remote_net_sync_event_notify_add_set_rdma_connection(
	struct doca_rdma_task_remote_net_sync_event_notify_add *task,
	struct doca_rdma_connection *connection);
const struct doca_rdma_connection *
doca_rdma_task_remote_net_sync_event_notify_add_get_rdma_connection(
	const struct doca_rdma_task_remote_net_sync_event_notify_add *task);

/* Atomics change the 8 bytes at the data of dst, in memory of the peer that grants RDMA_ATOMIC, and
 * store what they were before behind the window of result. The bytes are aligned, and a number in
 * the order of the CPU. This one replaces them by swap_data if they equal cmp_data. */
struct doca_rdma_task_atomic_cmp_swp;
typedef void (*doca_rdma_task_atomic_cmp_swp_completion_cb_t)(
	struct doca_rdma_task_atomic_cmp_swp *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_atomic_cmp_swp_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_atomic_cmp_swp_set_conf(
	struct doca_rdma *rdma, doca_rdma_task_atomic_cmp_swp_completion_cb_t completed,
	doca_rdma_task_atomic_cmp_swp_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_rdma_task_atomic_cmp_swp_allocate_init(
	struct doca_rdma *rdma, struct doca_rdma_connection *connection, struct doca_buf *dst,
	struct doca_buf *result, uint64_t cmp_data, uint64_t swap_data, union doca_data user_data,
	struct doca_rdma_task_atomic_cmp_swp **task);
struct doca_task *doca_rdma_task_atomic_cmp_swp_as_task(struct doca_rdma_task_atomic_cmp_swp *task);
void doca_rdma_task_atomic_cmp_swp_set_dst_buf(struct doca_rdma_task_atomic_cmp_swp *task,
					       struct doca_buf *dst);
struct doca_buf *doca_rdma_task_atomic_cmp_swp_get_dst_buf(
	const struct doca_rdma_task_atomic_cmp_swp *task);
void doca_rdma_task_atomic_cmp_swp_set_result_buf(struct doca_rdma_task_atomic_cmp_swp *task,
						  struct doca_buf *result);
struct doca_buf *doca_rdma_task_atomic_cmp_swp_get_result_buf(
	const struct doca_rdma_task_atomic_cmp_swp *task);
void doca_rdma_task_atomic_cmp_swp_set_cmp_data(struct doca_rdma_task_atomic_cmp_swp *task,
						uint64_t cmp_data);
uint64_t doca_rdma_task_atomic_cmp_swp_get_cmp_data(
	const struct doca_rdma_task_atomic_cmp_swp *task);
void doca_rdma_task_atomic_cmp_swp_set_swap_data(struct doca_rdma_task_atomic_cmp_swp *task,
						 uint64_t swap_data);
uint64_t doca_rdma_task_atomic_cmp_swp_get_swap_data(
	const struct doca_rdma_task_atomic_cmp_swp *task);
void doca_rdma_task_atomic_cmp_swp_set_rdma_connection(struct doca_rdma_task_atomic_cmp_swp *task,
						       struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_atomic_cmp_swp_get_rdma_connection(
	const struct doca_rdma_task_atomic_cmp_swp *task);

/* This one adds add_data. */
struct doca_rdma_task_atomic_fetch_add;
typedef void (*doca_rdma_task_atomic_fetch_add_completion_cb_t)(
	struct doca_rdma_task_atomic_fetch_add *task, union doca_data task_user_data,
	union doca_data ctx_user_data);
doca_error_t doca_rdma_cap_task_atomic_fetch_add_is_supported(const struct doca_devinfo *info);
doca_error_t doca_rdma_task_atomic_fetch_add_set_conf(
	struct doca_rdma *rdma, doca_rdma_task_atomic_fetch_add_completion_cb_t completed,
	doca_rdma_task_atomic_fetch_add_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_rdma_task_atomic_fetch_add_allocate_init(
	struct doca_rdma *rdma, struct doca_rdma_connection *connection, struct doca_buf *dst,
	struct doca_buf *result, uint64_t add_data, union doca_data user_data,
	struct doca_rdma_task_atomic_fetch_add **task);
struct doca_task *doca_rdma_task_atomic_fetch_add_as_task(
	struct doca_rdma_task_atomic_fetch_add *task);
void doca_rdma_task_atomic_fetch_add_set_dst_buf(struct doca_rdma_task_atomic_fetch_add *task,
						 struct doca_buf *dst);
struct doca_buf *doca_rdma_task_atomic_fetch_add_get_dst_buf(
	const struct doca_rdma_task_atomic_fetch_add *task);
void doca_rdma_task_atomic_fetch_add_set_result_buf(struct doca_rdma_task_atomic_fetch_add *task,
						    struct doca_buf *result);
struct doca_buf *doca_rdma_task_atomic_fetch_add_get_result_buf(
	const struct doca_rdma_task_atomic_fetch_add *task);
void doca_rdma_task_atomic_fetch_add_set_add_data(struct doca_rdma_task_atomic_fetch_add *task,
						  uint64_t add_data);
uint64_t doca_rdma_task_atomic_fetch_add_get_add_data(
	const struct doca_rdma_task_atomic_fetch_add *task);
void doca_rdma_task_atomic_fetch_add_set_rdma_connection(
	struct doca_rdma_task_atomic_fetch_add *task, struct doca_rdma_connection *connection);
const struct doca_rdma_connection *doca_rdma_task_atomic_fetch_add_get_rdma_connection(
	const struct doca_rdma_task_atomic_fetch_add *task);

#ifdef __cplusplus
}
#endif
#endif
