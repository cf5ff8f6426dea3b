/* SPDX-License-Identifier: Apache-2.0 */

/* The skin: objects as C structs, the checks of arguments and states, and the calling of callbacks.
 * What has behaviour lies in the core, in Go; it reads and writes these structs, too.
 *
 * The functions that applications call are named emu_doca_..., so that no doca_ symbol exists in a
 * program that links this package. functions.h lists them. */
#ifndef EMU_SKIN_H
#define EMU_SKIN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "doca_argp.h"
#include "doca_buf.h"
#include "doca_buf_inventory.h"
#include "doca_comch.h"
#include "doca_comch_consumer.h"
#include "doca_comch_producer.h"
#include "doca_compress.h"
#include "doca_ctx.h"
#include "doca_dev.h"
#include "doca_dma.h"
#include "doca_erasure_coding.h"
#include "doca_error.h"
#include "doca_log.h"
#include "doca_mmap.h"
#include "doca_pe.h"
#include "doca_rdma.h"
#include "doca_rdma_bridge.h"
#include "doca_sync_event.h"
#include "doca_types.h"
#include "doca_version.h"

/* The headers give the types of the functions: a definition that differs does not compile. */
#define EMU_FUNCTION(library, name, first) extern __typeof__(name) emu_##name;
#include "functions.h"
#undef EMU_FUNCTION

/* Objects. Every object starts with its magic word, which changes when the object is destroyed. The
 * memory of destroyed objects is kept for a while (emu_bury), so that a stale pointer is told. */

enum emu_magic {
	EMU_DEVINFO = 0x646f6361, /* arbitrary, but unlikely in other memory */
	EMU_DEV,
	EMU_REP_INFO,
	EMU_REP,
	EMU_MMAP,
	EMU_INVENTORY,
	EMU_BUF,
	EMU_PE,
	EMU_CTX,
	EMU_TASK,
	EMU_TASK_BATCH, /* there are none: see doca_task_batch_submit */
	EMU_CONNECTION,
	EMU_RDMA_CONNECTION,
	EMU_RDMA_ADDR,
	EMU_SYNC_EVENT_REMOTE,
	EMU_ARGP_PARAM,
	EMU_ARGP_CMD,
	EMU_LOG_BACKEND,
	EMU_DEAD,
};

/* A function or a type of task that fails now and then. */
struct emu_fault {
	char *name;
	uint8_t *faulty; /* what the entry of the function looks at; NULL for a task */
	doca_error_t error;
	uint32_t every; /* calls or submissions */
	uint32_t count; /* atomic */
};

/* The settings of this process, which do not change while objects exist. */
struct emu_settings {
	int release; /* 100 * major + minor */
	const char *version;
	bool lose_wakeups;
	bool again;
	bool server_on_host;
	int idle_sleep_ns; /* after a row of empty progress calls; 0 never sleeps */
	struct emu_fault *faults;
	uint32_t num_faults;
};

enum emu_role { EMU_ROLE_DPU, EMU_ROLE_HOST };

struct emu_representor {
	char pci[DOCA_DEVINFO_REP_PCI_ADDR_SIZE];
	char vuid[DOCA_DEVINFO_REP_VUID_SIZE];
	char iface[DOCA_DEVINFO_IFACE_NAME_SIZE];
	enum doca_pci_func_type type;
	bool is_hotplug;
	uint16_t vhca_id;
};

/* What a device can do. Zero means not supported. */
struct emu_capabilities {
	uint32_t comch_name_len, comch_msg_size, comch_recv_queue, comch_send_tasks, comch_clients;
	uint32_t consumers, consumer_tasks, consumer_buf_size, imm_data_len;
	uint32_t producers, producer_tasks, producer_buf_size;
	uint64_t dma_buf_size;
	uint32_t dma_list_len, dma_tasks;
	uint32_t comch_list_len, completion_vectors;
	bool export_pci, import_pci, dma, rdma;
};

/* A device of the machine, of which lists and handles are views. */
struct emu_device {
	uint32_t index;
	enum emu_role role;
	char pci[DOCA_DEVINFO_PCI_ADDR_SIZE];
	char alias[DOCA_DEVINFO_PCI_ADDR_SIZE]; /* another address that it is found by, or "" */
	char ibdev[DOCA_DEVINFO_IBDEV_NAME_SIZE];
	char iface[DOCA_DEVINFO_IFACE_NAME_SIZE];
	uint8_t ipv4[DOCA_DEVINFO_IPV4_ADDR_SIZE];
	uint8_t ipv6[DOCA_DEVINFO_IPV6_ADDR_SIZE];
	uint8_t mac[DOCA_DEVINFO_MAC_ADDR_SIZE];
	bool has_ipv4, has_ipv6;
	uint16_t lid; /* 0 unless the port is InfiniBand, which has no MAC address */
	uint16_t vhca_id;
	uint64_t active_rate; /* bits per second */
	enum doca_pci_func_type type;
	uint32_t sf_index;
	struct emu_capabilities can;
	uint32_t num_reps;
	struct emu_representor *reps;
	struct doca_dev *open; /* or NULL */
};

extern struct emu_settings emu_settings;
/* Waits until the settings and the devices are there: after the library has been loaded, the core
 * needs a moment. What can be a program's first call calls it. */
void emu_wait_until_configured(void);
void emu_mark_configured(void);
extern struct emu_device *emu_devices;
extern uint32_t emu_num_devices;

struct doca_devinfo {
	uint32_t magic;
	struct emu_device *device;
};

struct doca_dev {
	uint32_t magic;
	struct emu_device *device;
	struct doca_devinfo info;
	uint32_t opened;
	uint32_t users; /* maps, contexts, representors; atomic */
};

struct doca_devinfo_rep {
	uint32_t magic;
	struct emu_device *device;
	struct emu_representor *rep;
	struct doca_dev *dev;
};

struct doca_dev_rep {
	uint32_t magic;
	struct emu_device *device;
	struct emu_representor *rep;
	struct doca_dev *dev;
	struct doca_devinfo_rep info;
	uint32_t users; /* servers; atomic */
};

enum { EMU_MAX_MMAP_DEVICES = 64, EMU_MAX_NAME = 121 };

enum emu_export { EMU_EXPORT_PCI, EMU_EXPORT_RDMA, EMU_EXPORTS };

struct doca_mmap {
	uint32_t magic;
	bool started, imported, thread_safe, has_range;
	bool of_peer; /* imported for RDMA: only tasks of RDMA can use it */
	uintptr_t addr; /* as the exporter knows it, if imported */
	size_t len;
	uint32_t access;
	union doca_data user_data;
	doca_mmap_memrange_free_cb_t *free_cb; /* or NULL */
	void *free_opaque;
	bool was_started;  /* ever */
	bool frees_memory; /* started since free_cb was set */
	uint32_t num_devs, max_devs;
	struct doca_dev *devs[EMU_MAX_MMAP_DEVICES];
	void *export_desc[EMU_EXPORTS]; /* or NULL */
	size_t export_len[EMU_EXPORTS];
	uint32_t num_bufs;   /* atomic */
	uintptr_t used_by;   /* the thread inside; atomic */
	uint32_t depth;
	uint32_t core;	     /* what the core knows of it, or 0 */
	uint32_t revoked;    /* the exporter has taken the memory away; atomic */
	uintptr_t mapped_at; /* where this process has the memory; 0 if nowhere */
};

struct doca_buf {
	uint32_t magic;
	uint16_t refcount;
	uint16_t in_tasks; /* tasks that are submitted with it */
	struct doca_buf_inventory *inventory;
	struct doca_mmap *mmap;
	uintptr_t head;
	size_t len;
	uintptr_t data;
	size_t data_len;
	struct doca_buf *next;	/* in a list, or among the free ones */
	struct doca_buf *first; /* of the list that it is in, or itself */
};

/* Bufs that an inventory has got at once: they cannot move. */
struct emu_buf_chunk {
	uint32_t magic; /* EMU_BUF */
	struct emu_buf_chunk *next;
	size_t count;
	struct doca_buf bufs[];
};

struct doca_buf_inventory {
	uint32_t magic;
	bool started;
	size_t count, free_count;
	union doca_data user_data;
	struct emu_buf_chunk *chunks; /* the newest first */
	struct doca_buf *free;
	uintptr_t used_by; /* the thread inside; atomic */
	uint32_t depth;
};

/* What happened, in the ring of an engine until progress tells the application. */
enum emu_entry_kind {
	EMU_ENTRY_TASK, /* object: the task, which has its status */
	EMU_ENTRY_STATE, /* value: the next state */
	EMU_ENTRY_CORE_IDLE, /* the core has nothing left of a stopping context */
	EMU_ENTRY_CONNECTED, /* object: the connection, value: successful */
	EMU_ENTRY_DISCONNECTED,
	EMU_ENTRY_MESSAGE, /* object: the connection, payload and value: bytes */
	EMU_ENTRY_CONSUMER_NEW, /* object: the connection, value: the id */
	EMU_ENTRY_CONSUMER_EXPIRED,
	EMU_ENTRY_RDMA_REQUEST, /* object: the connection */
	EMU_ENTRY_RDMA_ESTABLISHED,
	EMU_ENTRY_RDMA_FAILURE,
	EMU_ENTRY_RDMA_DISCONNECTED,
};

struct emu_entry {
	uint32_t kind;
	uint32_t number; /* of a message, for its credit */
	struct doca_ctx *ctx;
	void *object;
	uint64_t value;
	void *payload; /* malloc'ed */
};

struct doca_pe {
	uint32_t magic;
	uint32_t core;
	uintptr_t used_by; /* the thread inside; atomic */
	uint32_t depth;	   /* of calls by that thread */
	bool dispatching;  /* inside a callback */
	bool armed;
	bool collecting; /* what the core pushes does not ring the descriptor */
	enum doca_pe_event_mode mode;
	uint32_t num_ctxs;
	uint32_t inflight; /* of all its contexts; atomic */
	int descriptor;
	struct emu_entry *ring; /* capacity is a power of two; indices never wrap to it */
	uint32_t capacity, head, tail;
	struct doca_ctx *holding; /* contexts with tasks that wait for a flush, perhaps */
};

enum emu_task_state { EMU_TASK_FREE, EMU_TASK_HELD, EMU_TASK_SUBMITTED };

/* Every task callback has this shape: a union of eight bytes travels like a number. */
typedef void (*emu_task_cb)(void *task, union doca_data task_user_data,
			    union doca_data ctx_user_data);

struct doca_task {
	uint32_t magic;
	uint16_t state;
	uint16_t pool;
	doca_error_t status;
	struct doca_ctx *ctx;
	union doca_data user_data;
	struct doca_task *next; /* among the free ones, the submitted ones, or those of the core */
};

struct emu_pool {
	emu_task_cb completed, failed;
	struct emu_fault *fault; /* or NULL */
	uint32_t count;
	size_t stride;
	char *memory;
	struct doca_task *free;
};

enum { EMU_MAX_POOLS = 12 };

enum emu_ctx_kind {
	EMU_CTX_DMA,
	EMU_CTX_SERVER,
	EMU_CTX_CLIENT,
	EMU_CTX_CONSUMER,
	EMU_CTX_PRODUCER,
	EMU_CTX_RDMA,
	EMU_CTX_SYNC_EVENT,
};

struct doca_ctx {
	uint32_t magic;
	uint32_t kind;
	const struct emu_ctx_ops *ops;
	struct doca_pe *pe;
	struct doca_dev *dev; /* NULL for a sync event */
	enum doca_ctx_states state;
	bool core_idle;	   /* the core has nothing left of it */
	bool ending;	   /* an entry that makes it idle is in the ring */
	union doca_data user_data;
	doca_ctx_state_changed_callback_t state_changed;
	uint32_t core;	   /* what the core knows of it, or 0 */
	uint32_t allocated; /* tasks that are not free */
	uint32_t inflight;  /* tasks that are submitted */
	struct emu_pool pools[EMU_MAX_POOLS];
	uint32_t num_pools;
	struct doca_task *submitted, *submitted_last; /* that the core has not got */
	bool is_holding;
	struct doca_ctx *next_holding; /* of its engine */
};

/* What differs between kinds of contexts. */
struct emu_ctx_ops {
	const char *name; /* for messages, for instance "consumer" */
	/* Fails if something mandatory is not configured. */
	doca_error_t (*check)(struct doca_ctx *ctx, const char *function);
	/* Fails if a task cannot be submitted. May be NULL. */
	doca_error_t (*check_task)(struct doca_task *task, const char *function);
	/* Hands out what happened, unless it is a task or a change of state. May be NULL. */
	void (*dispatch)(struct doca_ctx *ctx, struct emu_entry *entry);
	/* Called with each submitted (or completed) task. May be NULL. */
	void (*hold)(struct doca_task *task, bool submitted);
	/* Called when a context is about to become idle. May be NULL. */
	void (*idle)(struct doca_ctx *ctx);
};

struct doca_dma {
	struct doca_ctx ctx; /* first */
};

struct doca_dma_task_memcpy {
	struct doca_task task; /* first */
	const struct doca_buf *src;
	struct doca_buf *dst;
};

enum { EMU_DEFAULT_RECV_QUEUE = 64 };

/* What servers and clients have in common. */
struct emu_control {
	struct doca_ctx ctx; /* first */
	struct doca_dev_rep *rep; /* of a server */
	char name[EMU_MAX_NAME];
	uint32_t max_msg_size, recv_queue_size; /* 0 means the default */
	doca_comch_event_msg_recv_cb_t received;
	doca_comch_event_connection_status_changed_cb_t connected, disconnected;
	doca_comch_event_consumer_cb_t consumer_new, consumer_expired;
	struct doca_comch_connection *connection; /* of a client that is not idle */
};

struct doca_comch_server {
	struct emu_control control; /* first */
};

struct doca_comch_client {
	struct emu_control control; /* first */
};

enum { EMU_COUNTERS = DOCA_COMCH_COUNTER_RECV_BYTES + 1 };

/* A connection ends when its server or client and all of its consumers and producers have let it
 * go. */
struct doca_comch_connection {
	uint32_t magic;
	uint32_t core;
	struct emu_control *owner; /* NULL once it has let the connection go */
	struct doca_dev *dev;
	bool has_consumer_events;
	union doca_data user_data;
	uint32_t established; /* atomic: it can have consumers and producers */
	bool ended;	      /* nothing can be sent any more */
	bool closing;	      /* this side has asked for its end */
	uint32_t references;  /* atomic */
	uint32_t children;    /* consumers and producers that exist; atomic */
	uint64_t counters[EMU_COUNTERS], refreshed[EMU_COUNTERS];
};

struct doca_comch_task_send {
	struct doca_task task; /* first */
	struct doca_comch_connection *connection;
	const void *msg;
	uint32_t len;
};

struct doca_comch_consumer {
	struct doca_ctx ctx; /* first */
	struct doca_comch_connection *connection;
	struct doca_mmap *mmap;
	uint32_t imm_data_len;
	uint32_t id; /* 0 until it runs */
};

enum { EMU_MAX_IMM = 32 };

struct doca_comch_consumer_task_post_recv {
	struct doca_task task; /* first */
	struct doca_buf *buf; /* or NULL */
	uint32_t producer_id, imm_data_len;
	uint8_t imm_data[EMU_MAX_IMM];
};

struct doca_comch_producer {
	struct doca_ctx ctx; /* first */
	struct doca_comch_connection *connection;
	uint32_t id;
};

struct doca_comch_producer_task_send {
	struct doca_task task; /* first */
	const struct doca_buf *buf; /* or NULL */
	uint32_t consumer_id, imm_data_len;
	uint8_t imm_data[EMU_MAX_IMM];
};

enum emu_rdma_pool {
	EMU_RDMA_RECEIVE,
	EMU_RDMA_SEND,
	EMU_RDMA_SEND_IMM,
	EMU_RDMA_READ,
	EMU_RDMA_WRITE,
	EMU_RDMA_WRITE_IMM,
	EMU_RDMA_EVENT_GET,
	EMU_RDMA_EVENT_SET,
	EMU_RDMA_EVENT_ADD,
	EMU_RDMA_COMPARE_SWAP,
	EMU_RDMA_FETCH_ADD,
};

struct doca_rdma {
	struct doca_ctx ctx; /* first */
	uint32_t permissions, gid_index, send_queue_size, recv_queue_size, service_level;
	uint16_t max_connections, request_timeout_ms;
	uint8_t grh_enabled, rnr_retries;
	enum doca_mtu_size mtu;
	uint32_t num_receives; /* that are submitted */
	doca_rdma_connection_request_cb_t request;
	doca_rdma_connection_established_cb_t established;
	doca_rdma_connection_failure_cb_t failure;
	doca_rdma_connection_disconnection_cb_t disconnection;
	struct doca_rdma_connection *connections;
	uint32_t num_connections, last_id;
};

enum emu_rdma_state {
	EMU_RDMA_EXPORTED,
	EMU_RDMA_REQUESTED,
	EMU_RDMA_CONNECTING, /* or connected: what is sent waits */
	EMU_RDMA_ENDED,
};

struct doca_rdma_addr {
	uint32_t magic;
	bool of_connection; /* it belongs to a connection */
	uint16_t port;
	enum doca_rdma_addr_type type;
	char text[64];
};

struct doca_rdma_connection {
	uint32_t magic;
	uint32_t core;
	struct doca_rdma *rdma;
	struct doca_rdma_connection *next;
	union doca_data user_data;
	uint32_t id;
	enum emu_rdma_state state;
	void *details; /* or NULL */
	size_t details_size;
	struct doca_rdma_addr addr; /* of the peer; its magic is 0 if there is none */
	uint32_t num_sends; /* tasks that are submitted */
};

/* All tasks of RDMA; the pool tells which. */
struct emu_rdma_task {
	struct doca_task task;			 /* first */
	struct doca_rdma_connection *connection; /* NULL for a receive */
	const struct doca_buf *src;		 /* or NULL */
	struct doca_buf *dst;			 /* or NULL */
	struct doca_buf *result;		 /* of an atomic */
	uint64_t operands[2];			 /* of an atomic */
	const struct doca_sync_event_remote_net *event;
	doca_be32_t immediate; /* to send, or received */
	uint32_t result_len;
	enum doca_rdma_opcode result_opcode;
	const struct doca_rdma_connection *result_connection;
};

enum { EMU_KEY_SIZE = 16 };

enum emu_event_use { EMU_EVENT_UNUSED, EMU_EVENT_ALONE, EMU_EVENT_CTX };

enum emu_location {
	EMU_LOCATION_NONE,
	EMU_LOCATION_CPU,
	EMU_LOCATION_REMOTE_PCI,
	EMU_LOCATION_REMOTE_NET,
};

/* Where a sync event is exported to. */
enum emu_event_export { EMU_EVENT_TO_PCI, EMU_EVENT_TO_NET, EMU_EVENT_EXPORTS };

struct doca_sync_event {
	struct doca_ctx ctx; /* first */
	enum emu_event_use use;
	enum emu_location publisher, subscriber;
	struct doca_dev *publisher_dev, *subscriber_dev; /* of the CPUs, or NULL */
	struct doca_dev *dev; /* that the event has been imported with, or NULL */
	bool started;	      /* atomic */
	uint32_t waiting;     /* threads that wait for the number; atomic */
	uint64_t *number;     /* atomic; NULL until the start, and if another process has it */
	void *page;	      /* that the library has made for the number, or NULL */
	const struct doca_buf *buf; /* that holds the number, or NULL */
	uint32_t foreign;     /* what the core knows of the exporter of the number, or 0 */
	uint32_t exports[EMU_EVENT_EXPORTS]; /* what the core knows of them, or 0 */
	void *desc[EMU_EVENT_EXPORTS];	     /* or NULL */
	size_t desc_size[EMU_EVENT_EXPORTS];
};

/* What is done to the number of an event. */
enum emu_event_operation { EMU_EVENT_GET, EMU_EVENT_SET, EMU_EVENT_ADD };

enum emu_event_pool {
	EMU_EVENT_POOL_GET,
	EMU_EVENT_POOL_SET,
	EMU_EVENT_POOL_ADD,
	EMU_EVENT_POOL_WAIT_EQ,
	EMU_EVENT_POOL_WAIT_NEQ,
};

/* All tasks of sync events; the pool tells which. */
struct emu_event_task {
	struct doca_task task; /* first */
	uint64_t value;	       /* to set, to add, or to wait for */
	uint64_t mask;
	uint64_t *result; /* where to store what was read */
};

struct doca_sync_event_remote_net {
	uint32_t magic;
	struct doca_dev *dev;
	uint8_t key[EMU_KEY_SIZE];
	uint64_t addr; /* as the exporter knows it */
};

/* Misuse: what the rules of DOCA forbid. Reports the function without its prefix, and the rule. */
void emu_misuse(const char *function, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Reports whether pointer is a live object of a kind, and the misuse if not. */
bool emu_is(const void *pointer, enum emu_magic magic, const char *function);
const char *emu_magic_name(enum emu_magic magic);
/* Reports a missing argument. */
bool emu_has(const void *pointer, const char *what, const char *function);
#define EMU_IS(pointer, magic) emu_is((pointer), (magic), __func__)
#define EMU_HAS(pointer) emu_has((pointer), #pointer, __func__)

/* Allocates a zeroed object, and counts it. NULL if there is no memory. */
void *emu_new(enum emu_magic magic, size_t size);
/* Ends an object. attached memory goes with it; it may be NULL. */
void emu_bury(void *object, void *attached);
uint32_t emu_live(enum emu_magic magic);

/* Marks the calling thread as the one inside an object that belongs to one thread at a time. Nested
 * calls are allowed. Returns false, and reports misuse, if another thread is inside. */
bool emu_enter(uintptr_t *used_by, uint32_t *depth, const char *what, const char *function);
void emu_leave(uintptr_t *used_by, uint32_t *depth);
bool emu_enter_pe(struct doca_pe *pe, const char *function);
void emu_leave_pe(struct doca_pe *pe);

/* Logging of the library itself. */
void emu_log(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says in the log of the library that a function is not emulated, and why. Returns
 * NOT_SUPPORTED. */
doca_error_t emu_refuse(const char *function, const char *reason);
#define EMU_REFUSE(reason) emu_refuse(__func__, (reason))
/* For the core, which cannot call variadic functions. */
void emu_log_error(const char *text);
void emu_log_misuse(const char *text);

/* Failures on request. */
bool emu_has_task(const char *name);
/* Returns what makes the tasks of a pool fail, or NULL. */
struct emu_fault *emu_fault_of(enum emu_ctx_kind kind, uint32_t pool);
/* Counts a call or a submission, and returns the error if it is to fail. */
doca_error_t emu_fault_strike(struct emu_fault *fault);
/* The same for the entry of a function. */
doca_error_t emu_strike(const uint8_t *faulty);

/* Devices. */
bool emu_use_dev(struct doca_dev *dev, const char *function);
void emu_release_dev(struct doca_dev *dev);

/* Memory. */
bool emu_mmap_has_dev(const struct doca_mmap *mmap, const struct doca_dev *dev);
void emu_hold_buf(const struct doca_buf *buf, bool held);

/* Contexts and tasks. */
doca_error_t emu_ctx_init(struct doca_ctx *ctx, enum emu_ctx_kind kind,
			  const struct emu_ctx_ops *ops, struct doca_dev *dev, const char *function);
doca_error_t emu_ctx_end(struct doca_ctx *ctx, doca_error_t busy, const char *function);
/* Returns ctx if it is a live context of a kind; reports misuse otherwise. */
void *emu_ctx_of(const void *pointer, enum emu_ctx_kind kind, const char *function);
#define EMU_CTX_OF(pointer, kind) emu_ctx_of((pointer), (kind), __func__)
/* Reports misuse unless the context is idle. */
bool emu_is_idle(const struct doca_ctx *ctx, const char *function);
doca_error_t emu_pool_configure(struct doca_ctx *ctx, uint32_t pool, size_t stride,
				emu_task_cb completed, emu_task_cb failed, uint32_t count,
				uint32_t limit, const char *function);
/* Takes a task from a pool; the task is zeroed behind its header. */
doca_error_t emu_pool_take(struct doca_ctx *ctx, uint32_t pool, struct doca_task **task,
			   const char *function);
void *emu_task_of(const void *pointer, enum emu_ctx_kind kind, const char *function);
#define EMU_TASK_OF(pointer, kind) emu_task_of((pointer), (kind), __func__)
/* Reports misuse unless the application owns the task. */
bool emu_is_held(const struct doca_task *task, const char *function);

/* Comch. */
struct doca_comch_connection *emu_connection_new(struct emu_control *owner, uint32_t core);
void emu_connection_release(struct doca_comch_connection *connection);
void emu_connection_establish(struct doca_comch_connection *connection);
void emu_connection_end(struct doca_comch_connection *connection);

/* RDMA. Makes a connection, or returns NULL if the context has as many as it may have. */
struct doca_rdma_connection *emu_rdma_connection_new(struct doca_rdma *rdma, uint32_t core,
						     enum emu_rdma_state state);
void emu_rdma_connection_free(struct doca_rdma_connection *connection);
/* Notes the address of the peer. */
void emu_rdma_set_addr(struct doca_rdma_connection *connection, enum doca_rdma_addr_type type,
		       const char *text, uint16_t port);

/* Sync events. Makes an event usable, and ends that: no peer and no thread uses it afterwards. */
doca_error_t emu_event_open(struct doca_sync_event *event);
void emu_event_close(struct doca_sync_event *event);
/* Fails if an event cannot be started. */
doca_error_t emu_event_check(const struct doca_sync_event *event, const char *function);

/* Adds to the ring of an engine. Only the thread inside the engine may call it. */
void emu_push(struct doca_pe *pe, struct emu_entry entry);
void emu_ring_grow(struct doca_pe *pe);
/* Puts a completed task into the ring. */
void emu_complete(struct doca_task *task, doca_error_t status);

#endif
