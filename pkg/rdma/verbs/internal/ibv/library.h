/* SPDX-License-Identifier: Apache-2.0 */

// The functions of libibverbs and librdmacm, which zc_load looks up at run time. A program that
// links them would not start where they are not installed.

#ifndef ZC_VERBS_LIBRARY_H
#define ZC_VERBS_LIBRARY_H

#include "abi.h"

#define ZC_IBVERBS "libibverbs.so.1"
#define ZC_RDMACM "librdmacm.so.1"

// Each function with its library, the symbol version that abi.h describes, result, parameters, and
// arguments.
// clang-format off
#define ZC_FUNCTIONS(F) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_device **, ibv_get_device_list, (int *count), (count)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", void, ibv_free_device_list, (struct ibv_device **list), (list)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", const char *, ibv_get_device_name, \
	  (struct ibv_device *device), (device)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_context *, ibv_open_device, \
	  (struct ibv_device *device), (device)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_close_device, (struct ibv_context *context), (context)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_query_device, \
	  (struct ibv_context *context, struct ibv_device_attr *attributes), (context, attributes)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_query_port, \
	  (struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes), \
	  (context, port, attributes)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_query_gid, \
	  (struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid), \
	  (context, port, index, gid)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_get_async_event, \
	  (struct ibv_context *context, struct ibv_async_event *event), (context, event)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", void, ibv_ack_async_event, (struct ibv_async_event *event), (event)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", const char *, ibv_event_type_str, (uint32_t type), (type)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_pd *, ibv_alloc_pd, \
	  (struct ibv_context *context), (context)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_mr *, ibv_reg_mr, \
	  (struct ibv_pd *pd, void *address, size_t length, int access), \
	  (pd, address, length, access)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_dereg_mr, (struct ibv_mr *mr), (mr)) \
	F(ZC_IBVERBS, "IBVERBS_1.0", struct ibv_comp_channel *, ibv_create_comp_channel, \
	  (struct ibv_context *context), (context)) \
	F(ZC_IBVERBS, "IBVERBS_1.0", int, ibv_destroy_comp_channel, \
	  (struct ibv_comp_channel *channel), (channel)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_cq *, ibv_create_cq, \
	  (struct ibv_context *context, int capacity, void *cq_context, \
	   struct ibv_comp_channel *channel, int vector), \
	  (context, capacity, cq_context, channel, vector)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_destroy_cq, (struct ibv_cq *cq), (cq)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_get_cq_event, \
	  (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context), \
	  (channel, cq, cq_context)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", void, ibv_ack_cq_events, \
	  (struct ibv_cq *cq, unsigned int count), (cq, count)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", struct ibv_qp *, ibv_create_qp, \
	  (struct ibv_pd *pd, struct ibv_qp_init_attr *attributes), (pd, attributes)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_destroy_qp, (struct ibv_qp *qp), (qp)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_query_qp, \
	  (struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask, \
	   struct ibv_qp_init_attr *initial), (qp, attributes, mask, initial)) \
	F(ZC_IBVERBS, "IBVERBS_1.1", int, ibv_modify_qp, \
	  (struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask), (qp, attributes, mask)) \
	F(ZC_RDMACM, "RDMACM_1.0", struct rdma_event_channel *, rdma_create_event_channel, (void), ()) \
	F(ZC_RDMACM, "RDMACM_1.0", void, rdma_destroy_event_channel, \
	  (struct rdma_event_channel *channel), (channel)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_get_cm_event, \
	  (struct rdma_event_channel *channel, struct rdma_cm_event **event), (channel, event)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_ack_cm_event, (struct rdma_cm_event *event), (event)) \
	F(ZC_RDMACM, "RDMACM_1.0", const char *, rdma_event_str, (uint32_t type), (type)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_create_id, \
	  (struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, \
	   uint32_t port_space), (channel, id, context, port_space)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_destroy_id, (struct rdma_cm_id *id), (id)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_bind_addr, \
	  (struct rdma_cm_id *id, struct sockaddr *address), (id, address)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_listen, (struct rdma_cm_id *id, int backlog), (id, backlog)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_resolve_addr, \
	  (struct rdma_cm_id *id, struct sockaddr *source, struct sockaddr *destination, \
	   int timeout_ms), (id, source, destination, timeout_ms)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_resolve_route, \
	  (struct rdma_cm_id *id, int timeout_ms), (id, timeout_ms)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_connect, \
	  (struct rdma_cm_id *id, struct rdma_conn_param *parameters), (id, parameters)) \
	F(ZC_RDMACM, "RDMACM_1.2", int, rdma_establish, (struct rdma_cm_id *id), (id)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_accept, \
	  (struct rdma_cm_id *id, struct rdma_conn_param *parameters), (id, parameters)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_reject, \
	  (struct rdma_cm_id *id, const void *private_data, uint8_t length), \
	  (id, private_data, length)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_disconnect, (struct rdma_cm_id *id), (id)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_notify, (struct rdma_cm_id *id, uint32_t event), (id, event)) \
	F(ZC_RDMACM, "RDMACM_1.0", int, rdma_set_option, \
	  (struct rdma_cm_id *id, int level, int name, void *value, size_t length), \
	  (id, level, name, value, length)) \
	F(ZC_RDMACM, "RDMACM_1.2", int, rdma_init_qp_attr, \
	  (struct rdma_cm_id *id, struct ibv_qp_attr *attributes, int *mask), (id, attributes, mask))
// clang-format on

#define ZC_MEMBER(library, version, result, name, parameters, arguments) result(*name) parameters;
struct zc_functions {
	ZC_FUNCTIONS(ZC_MEMBER)
};
#undef ZC_MEMBER

extern struct zc_functions zc_functions;

// Wrappers with the names of the libraries' functions, because Go cannot call function pointers.
#define ZC_WRAPPER(library, version, result, name, parameters, arguments) \
	static inline result name parameters { return zc_functions.name arguments; }
ZC_FUNCTIONS(ZC_WRAPPER)
#undef ZC_WRAPPER

// The public headers define these as inline functions: they call the driver, not the library.

static inline int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *requests,
				struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, requests, bad);
}

static inline int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *requests,
				struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, requests, bad);
}

static inline int ibv_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
	return cq->context->ops.poll_cq(cq, count, completions);
}

static inline int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return cq->context->ops.req_notify_cq(cq, solicited_only);
}

// What zc_load could not find: for each library, why it cannot be loaded or which function it
// lacks, or "".
struct zc_load_failure {
	char ibverbs[256];
	char rdmacm[256];
};

// zc_load loads both libraries and fills zc_functions. Returns 0, or -1 and the failure.
int zc_load(struct zc_load_failure *failure);

#endif
