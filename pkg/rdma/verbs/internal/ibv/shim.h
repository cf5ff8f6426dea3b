/* SPDX-License-Identifier: Apache-2.0 */

// C side of the bindings: one call per batch on the data path, and the calls whose arguments Go
// cannot build, because they are unions or hold pointers to Go memory.
//
// Work requests and completions cross as records without pointers, so that Go can keep them in its
// own memory.

#ifndef ZC_VERBS_SHIM_H
#define ZC_VERBS_SHIM_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

// Layouts shared with Go, which checks their sizes at compile time.

struct zc_send {
	uint64_t work_id;
	uint64_t address;
	uint64_t remote_address;
	uint32_t length;
	uint32_t local_key;
	uint32_t remote_key;
	uint16_t opcode; // enum ibv_wr_opcode
	uint16_t flags;  // enum ibv_send_flags
};

struct zc_receive {
	uint64_t work_id;
	uint64_t address;
	uint32_t length;
	uint32_t local_key;
};

struct zc_completion {
	uint64_t work_id;
	uint32_t status; // enum ibv_wc_status
	uint32_t vendor_error;
	uint32_t length;
	uint32_t reserved;
};

// How many records are converted to verbs structures at a time, on the stack.
enum { ZC_BATCH = 64 };

// zc_errno converts the result of posting to an errno: some drivers negate it.
static inline int zc_errno(int failed) { return failed < 0 ? -failed : failed; }

// zc_post_send posts a chain and rings the doorbell once per ZC_BATCH. Returns an errno; the
// requests before the offending one have been posted.
static inline int zc_post_send(struct ibv_qp *qp, const struct zc_send *sends, int count)
{
	struct ibv_send_wr requests[ZC_BATCH];
	struct ibv_sge segments[ZC_BATCH];
	struct ibv_send_wr *bad;

	while (count > 0) {
		int n = count < ZC_BATCH ? count : ZC_BATCH;

		for (int i = 0; i < n; i++) {
			const struct zc_send *s = &sends[i];
			struct ibv_send_wr *r = &requests[i];

			segments[i].addr = s->address;
			segments[i].length = s->length;
			segments[i].lkey = s->local_key;
			memset(r, 0, sizeof(*r));
			r->wr_id = s->work_id;
			r->next = i + 1 < n ? r + 1 : NULL;
			r->sg_list = &segments[i];
			r->num_sge = s->length > 0;
			r->opcode = s->opcode;
			r->send_flags = s->flags;
			r->wr.rdma.remote_addr = s->remote_address;
			r->wr.rdma.rkey = s->remote_key;
		}
		int failed = ibv_post_send(qp, requests, &bad);
		if (failed)
			return zc_errno(failed);
		sends += n;
		count -= n;
	}
	return 0;
}

// zc_post_receive does the same for the receive queue. Even a receive of length 0 has a segment,
// because libsiw rejects a receive without one.
static inline int zc_post_receive(struct ibv_qp *qp, const struct zc_receive *receives, int count)
{
	struct ibv_recv_wr requests[ZC_BATCH];
	struct ibv_sge segments[ZC_BATCH];
	struct ibv_recv_wr *bad;

	while (count > 0) {
		int n = count < ZC_BATCH ? count : ZC_BATCH;

		for (int i = 0; i < n; i++) {
			segments[i].addr = receives[i].address;
			segments[i].length = receives[i].length;
			segments[i].lkey = receives[i].local_key;
			requests[i].wr_id = receives[i].work_id;
			requests[i].next = i + 1 < n ? &requests[i + 1] : NULL;
			requests[i].sg_list = &segments[i];
			requests[i].num_sge = 1;
		}
		int failed = ibv_post_recv(qp, requests, &bad);
		if (failed)
			return zc_errno(failed);
		receives += n;
		count -= n;
	}
	return 0;
}

// zc_poll polls for up to ZC_BATCH completions. Returns their number, or a negative number on
// failure.
static inline int zc_poll(struct ibv_cq *cq, struct zc_completion *completions, int count)
{
	struct ibv_wc done[ZC_BATCH];
	int n = ibv_poll_cq(cq, count < ZC_BATCH ? count : ZC_BATCH, done);

	for (int i = 0; i < n; i++) {
		completions[i].work_id = done[i].wr_id;
		completions[i].status = done[i].status;
		completions[i].vendor_error = done[i].vendor_err;
		completions[i].length = done[i].byte_len;
	}
	return n;
}

// zc_consume_cq_events consumes the notifications pending in a channel with a nonblocking
// descriptor. Returns their number, which the caller must acknowledge.
static inline int zc_consume_cq_events(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;
	int n = 0;

	while (ibv_get_cq_event(channel, &cq, &context) == 0)
		n++;
	return n;
}

static inline int zc_set_nonblocking(int descriptor)
{
	int flags = fcntl(descriptor, F_GETFL);

	if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)
		return errno;
	return 0;
}

// zc_domain_at exists because Go must not make pointers of integers.
static inline struct ibv_pd *zc_domain_at(uintptr_t address) { return (struct ibv_pd *)address; }

struct zc_async_event {
	uint32_t type; // enum ibv_event_type
	uint32_t queue_pair;
	uint32_t port;
};

// zc_next_async_event copies the next event of a context with a nonblocking descriptor, and
// acknowledges it. Returns an errno.
static inline int zc_next_async_event(struct ibv_context *context, struct zc_async_event *out)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context, &event))
		return errno ? errno : EIO;
	memset(out, 0, sizeof(*out));
	out->type = event.event_type;
	switch (event.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->queue_pair = event.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = event.element.port_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&event);
	return 0;
}

// The longest private data that any transport delivers: rdma_conn_param holds its length in a byte.
enum { ZC_MAX_PRIVATE_DATA = 255 };

struct zc_cm_event {
	uint64_t handle;            // of the identifier; for a connection request, of the listener
	struct rdma_cm_id *request; // new identifier, for a connection request
	uint32_t type;              // enum rdma_cm_event_type
	int32_t status;             // negative errno, or a reject reason on InfiniBand and RoCE
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t private_length;
	uint8_t private_data[ZC_MAX_PRIVATE_DATA];
};

// The context of an identifier is the number by which Go refers to it.
static inline void *zc_handle_context(uint64_t handle) { return (void *)(uintptr_t)handle; }

static inline int zc_create_id(struct rdma_event_channel *channel, uint64_t handle,
			       struct rdma_cm_id **id)
{
	return rdma_create_id(channel, id, zc_handle_context(handle), RDMA_PS_TCP) ? errno : 0;
}

static inline void zc_set_handle(struct rdma_cm_id *id, uint64_t handle)
{
	id->context = zc_handle_context(handle);
}

// zc_next_cm_event copies the next event of a channel with a nonblocking descriptor, and
// acknowledges it. Returns an errno.
static inline int zc_next_cm_event(struct rdma_event_channel *channel, struct zc_cm_event *out)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		return errno ? errno : EIO;
	memset(out, 0, sizeof(*out));
	out->type = event->event;
	out->status = event->status;
	out->handle = (uintptr_t)event->id->context;
	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		out->request = event->id;
		out->handle = (uintptr_t)event->listen_id->context;
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		break;
	default:
		goto done;
	}
	out->responder_resources = event->param.conn.responder_resources;
	out->initiator_depth = event->param.conn.initiator_depth;
	if (event->param.conn.private_data) {
		out->private_length = event->param.conn.private_data_len;
		memcpy(out->private_data, event->param.conn.private_data, out->private_length);
	}
done:
	rdma_ack_cm_event(event);
	return 0;
}

struct zc_connection_parameters {
	uint32_t queue_pair;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t private_length;
	uint8_t private_data[ZC_MAX_PRIVATE_DATA];
};

static inline struct rdma_conn_param zc_parameters(const struct zc_connection_parameters *p)
{
	struct rdma_conn_param c = {
		.private_data = p->private_length ? p->private_data : NULL,
		.private_data_len = p->private_length,
		.responder_resources = p->responder_resources,
		.initiator_depth = p->initiator_depth,
		.flow_control = 1,
		.retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
		.qp_num = p->queue_pair,
	};
	return c;
}

// zc_connect sends a connection request with all signals blocked. siw makes the TCP connection
// within the call. The Go runtime sends many signals, and one of them would interrupt the attempt
// and restart the call, which then finds its port in use. Worse, a half-open connection that closes
// takes down a listener of siw.
static inline int zc_connect(struct rdma_cm_id *id, const struct zc_connection_parameters *p)
{
	struct rdma_conn_param c = zc_parameters(p);
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = rdma_connect(id, &c) ? errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed;
}

static inline int zc_accept(struct rdma_cm_id *id, const struct zc_connection_parameters *p)
{
	struct rdma_conn_param c = zc_parameters(p);

	return rdma_accept(id, &c) ? errno : 0;
}

// zc_address builds a socket address from 4 or 16 address bytes in network order, a port in host
// order, and, for link-local IPv6, an interface index.
static inline void zc_address(struct sockaddr_storage *out, const uint8_t *address, int length,
			      uint16_t port, uint32_t scope)
{
	memset(out, 0, sizeof(*out));
	if (length == 4) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)out;

		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		memcpy(&v4->sin_addr, address, 4);
		return;
	}
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	v6->sin6_scope_id = scope;
	memcpy(&v6->sin6_addr, address, 16);
}

// zc_read_address is the inverse of zc_address. Returns the length of the address in bytes, or 0
// for a family other than IP.
static inline int zc_read_address(const struct sockaddr *in, uint8_t *address, uint16_t *port)
{
	if (in->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)in;

		memcpy(address, &v4->sin_addr, 4);
		*port = ntohs(v4->sin_port);
		return 4;
	}
	if (in->sa_family == AF_INET6) {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)in;

		memcpy(address, &v6->sin6_addr, 16);
		*port = ntohs(v6->sin6_port);
		return 16;
	}
	return 0;
}

static inline struct sockaddr *zc_local_address(struct rdma_cm_id *id)
{
	return &id->route.addr.src_addr;
}

static inline struct sockaddr *zc_peer_address(struct rdma_cm_id *id)
{
	return &id->route.addr.dst_addr;
}

// zc_device_name returns NULL until an address has selected a device.
static inline const char *zc_device_name(struct rdma_cm_id *id)
{
	return id->verbs ? ibv_get_device_name(id->verbs->device) : NULL;
}

#endif
