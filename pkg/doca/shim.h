/* SPDX-License-Identifier: Apache-2.0 */

// The C side of the provider. Callbacks of libdoca exist here only. A callback writes a plain
// record for Go and returns; it neither calls Go nor makes progress. Go takes the records in
// batches, with one call per turn of its loop.
//
// All memory that these objects share with Go is C memory, so no Go pointer crosses. Each object
// belongs to one thread at a time, the thread that makes progress on its engine.

#ifndef ZC_DOCA_SHIM_H
#define ZC_DOCA_SHIM_H

#include "functions.h"

// An engine is a doca_pe.
struct zcd_engine {
	const struct zcd_functions *f;
	struct doca_pe *pe;
	int descriptor; // -1 if a thread cannot sleep on the engine
};

doca_error_t zcd_engine_open(const struct zcd_functions *f, int wait, struct zcd_engine *engine);

// A context is what is common to all doca_ctx. It is the first member of each object below, and its
// address is the user data of the doca_ctx.
struct zcd_context {
	struct zcd_engine *engine;
	struct doca_ctx *ctx;
	uint32_t state;   // as the last callback reported it
	uint32_t failed;  // doca_error_t of the first operation that failed late
	uint32_t busy;    // the owner is in a turn
	uint32_t revoked; // the owner has no turns any more
};

// zcd_context_revoke takes the context away from the thread that owns it, for another thread to
// stop and close it: from then on turns do nothing and completions leave no records. Returns 1 once
// no turn is in progress.
uint32_t zcd_context_revoke(struct zcd_context *context);

// zcd_context_progress makes up to budget steps of progress. Returns how many there were.
uint32_t zcd_context_progress(struct zcd_context *context, uint32_t budget);
doca_error_t zcd_context_start(struct zcd_context *context);
doca_error_t zcd_context_stop(struct zcd_context *context);

// zcd_context_arm requests a notification, and makes one more step of progress: what was completed
// before the request need not signal. Returns 1 if there was something, and then takes the request
// back.
uint32_t zcd_context_arm(struct zcd_context *context);
void zcd_context_clear(struct zcd_context *context);

// A control is a Comch server or client.
struct zcd_control {
	struct zcd_context context;
	struct doca_comch_server *server; // either this
	struct doca_comch_client *client; // or this
	struct zcd_note *notes;           // oldest first
	struct zcd_note **last;
};

enum {
	ZCD_NOTE_CONNECTED = 1,
	ZCD_NOTE_DISCONNECTED,
	ZCD_NOTE_MESSAGE,
	ZCD_NOTE_SENT,
	ZCD_NOTE_CONSUMER,
	ZCD_NOTE_CONSUMER_EXPIRED,
};

// A note is an event of a control. The receiver frees it.
struct zcd_note {
	struct zcd_note *next;
	struct doca_comch_connection *connection;
	uint32_t kind;
	uint32_t code; // doca_error_t of SENT; not 0 if CONNECTED or DISCONNECTED has failed
	uint64_t user; // of SENT
	uint32_t id;   // of the consumer
	uint32_t length;
	uint8_t bytes[];
};

struct zcd_control_config {
	struct doca_dev *device;
	struct doca_dev_rep *representor; // NULL for a client
	const char *name;
	uint32_t max_message_size;
	uint32_t receive_queue;
	uint32_t sends;
};

// zcd_control_open creates and configures a server or a client. If it fails, *step is what failed.
doca_error_t zcd_control_open(struct zcd_engine *engine, const struct zcd_control_config *config,
			      struct zcd_control *control, const char **step);
doca_error_t zcd_control_start(struct zcd_control *control);
doca_error_t zcd_control_stop(struct zcd_control *control);
uint32_t zcd_control_arm(struct zcd_control *control); // see zcd_context_arm
doca_error_t zcd_control_close(struct zcd_control *control);

// zcd_control_connection returns the connection of a running client.
doca_error_t zcd_control_connection(struct zcd_control *control,
				    struct doca_comch_connection **connection);
doca_error_t zcd_control_disconnect(struct zcd_control *control,
				    struct doca_comch_connection *connection);

// zcd_control_turn makes up to budget steps of progress and returns the notes since the last turn.
struct zcd_note *zcd_control_turn(struct zcd_control *control, uint32_t budget);
void zcd_notes_free(struct zcd_note *notes);

// zcd_control_send submits a copy of a message. Its note SENT carries user.
doca_error_t zcd_control_send(struct zcd_control *control, struct doca_comch_connection *connection,
			      const void *message, uint32_t length, uint64_t user);

// A memory is message memory that is registered with a device, and an inventory of buffers in it.
struct zcd_memory {
	uint8_t *bytes;
	size_t length;
	struct doca_mmap *mmap;
	struct doca_buf_inventory *inventory;
};

doca_error_t zcd_memory_open(const struct zcd_functions *f, struct doca_dev *device, void *bytes,
			     size_t length, uint32_t buffers, struct zcd_memory *memory,
			     const char **step);
doca_error_t zcd_memory_close(const struct zcd_functions *f, struct zcd_memory *memory);

enum { ZCD_MAX_IMMEDIATE = 32 };

// A receive is a task of a consumer and its buffer.
struct zcd_receive {
	struct doca_comch_consumer_task_post_recv *task;
	struct doca_buf *buffer;
	uint32_t offset; // of the buffer
	uint32_t length;
	uint32_t submitted;
};

struct zcd_post {
	uint32_t slot; // index of the receive
	uint32_t offset;
	uint32_t length;
};

struct zcd_received {
	uint32_t slot;
	uint32_t code; // doca_error_t
	uint32_t length;
	uint32_t producer;
	uint32_t immediate_length;
	uint8_t immediate[ZCD_MAX_IMMEDIATE];
};

struct zcd_consumer {
	struct zcd_context context;
	struct doca_comch_consumer *consumer;
	struct zcd_memory memory;
	uint32_t count; // receives
	uint32_t mask;  // length of done, a power of two, less one
	uint32_t head;  // oldest record in done; Go advances it
	uint32_t tail;
	struct zcd_receive *receives;
	struct zcd_post *posts; // what Go wants to post: count of them
	struct zcd_received *done;
};

struct zcd_consumer_config {
	struct doca_comch_connection *connection;
	struct doca_dev *device;
	void *memory;
	size_t memory_length;
	uint32_t receives;
	uint32_t immediate_length;
};

doca_error_t zcd_consumer_open(struct zcd_engine *engine, const struct zcd_consumer_config *config,
			       struct zcd_consumer *consumer, const char **step);

// zcd_consumer_turn posts the first posts entries of consumer->posts, and then makes progress until
// done holds want records, but at most budget steps. If a post fails, context.failed is set.
void zcd_consumer_turn(struct zcd_consumer *consumer, uint32_t posts, uint32_t want,
		       uint32_t budget);

// zcd_consumer_stop takes back the posted receives and frees their tasks, without waiting.
doca_error_t zcd_consumer_stop(struct zcd_consumer *consumer);

// zcd_consumer_free_tasks frees the tasks that libdoca has given back. Returns how many it has not.
uint32_t zcd_consumer_free_tasks(struct zcd_consumer *consumer);
doca_error_t zcd_consumer_close(struct zcd_consumer *consumer, const char **step);
void zcd_consumer_free(struct zcd_consumer *consumer); // what close leaves: the records

// A send is a task of a producer, and where its message lies in the producer's memory.
struct zcd_send {
	struct doca_comch_producer_task_send *task;
	struct doca_buf *buffer;
	uint32_t offset;
	uint32_t length;
	uint32_t submitted;
	uint32_t completed;
	uint32_t immediate_length;
	uint32_t immediate_set; // the task carries immediate data
	uint8_t immediate[ZCD_MAX_IMMEDIATE];
};

// Sends are numbered. Send n is entry n & mask of sends, and the numbers wrap around.
struct zcd_producer {
	struct zcd_context context;
	struct doca_comch_producer *producer;
	struct zcd_memory memory;
	uint32_t target;    // the consumer's id
	uint32_t count;     // of sends, a power of two
	uint32_t mask;      // count - 1
	uint32_t submitted; // the next send to submit
	uint32_t completed; // all sends before it are complete
	uint32_t succeeded; // how many have been sent
	struct zcd_send *sends;
};

struct zcd_producer_config {
	struct doca_comch_connection *connection;
	struct doca_dev *device;
	void *memory;
	size_t memory_length;
	uint32_t sends;
	uint32_t target;
};

doca_error_t zcd_producer_open(struct zcd_engine *engine, const struct zcd_producer_config *config,
			       struct zcd_producer *producer, const char **step);

// zcd_producer_turn submits the sends before written as far as libdoca accepts them, and makes up
// to budget steps of progress. Returns how many steps there were.
uint32_t zcd_producer_turn(struct zcd_producer *producer, uint32_t written, uint32_t budget);
uint32_t zcd_producer_free_tasks(struct zcd_producer *producer);
doca_error_t zcd_producer_close(struct zcd_producer *producer, const char **step);
void zcd_producer_free(struct zcd_producer *producer); // what close leaves: the records

// A segment is a range of a memory map.
struct zcd_segment {
	struct doca_mmap *mmap;
	uint64_t address;
	uint64_t length;
};

// A copy is a memcpy task of a copier.
struct zcd_copy {
	struct doca_dma_task_memcpy *task;
	struct doca_buf *source; // head of the list
	struct doca_buf *destination;
	uint32_t submitted;
};

struct zcd_copied {
	uint32_t slot;
	uint32_t code; // doca_error_t
};

// A copier is a doca_dma.
struct zcd_copier {
	struct zcd_context context;
	struct doca_dma *dma;
	struct doca_buf_inventory *inventory;
	uint32_t count; // copies
	uint32_t mask;  // length of done, a power of two, less one
	uint32_t head;  // oldest record in done; Go advances it
	uint32_t tail;
	uint32_t max_sources;
	struct zcd_copy *copies;
	struct zcd_segment *segments; // of the copy to submit: the destination, then the sources
	struct zcd_copied *done;
};

doca_error_t zcd_copier_open(struct zcd_engine *engine, struct doca_dev *device, uint32_t copies,
			     uint32_t max_sources, struct zcd_copier *copier, const char **step);
doca_error_t zcd_copier_submit(struct zcd_copier *copier, uint32_t slot, uint32_t sources);
void zcd_copier_turn(struct zcd_copier *copier, uint32_t want, uint32_t budget);
uint32_t zcd_copier_free_tasks(struct zcd_copier *copier);
doca_error_t zcd_copier_close(struct zcd_copier *copier, const char **step);
void zcd_copier_free(struct zcd_copier *copier); // what close leaves: the records

// What a work of an rdma does.
enum {
	ZCD_RDMA_RECEIVE = 1,
	ZCD_RDMA_SEND,
	ZCD_RDMA_WRITE,
	ZCD_RDMA_READ,
};

// A work is a request that was submitted to an rdma. Its buffers are out until it has ended.
struct zcd_work {
	struct doca_buf *local; // NULL for a message without bytes
	struct doca_buf *remote;
	uint32_t submitted;
};

struct zcd_worked {
	uint32_t slot;
	uint32_t code;   // doca_error_t
	uint32_t length; // bytes received
};

// An rdma is a doca_rdma with one connection.
struct zcd_rdma {
	struct zcd_context context;
	struct doca_rdma *rdma;
	struct doca_rdma_connection *connection;
	struct doca_buf_inventory *inventory;
	uint32_t count; // works
	uint32_t mask;  // length of done, a power of two, less one
	uint32_t head;  // oldest record in done; Go advances it
	uint32_t tail;
	struct zcd_work *works;
	struct zcd_worked *done;
};

struct zcd_rdma_config {
	struct doca_dev *device;
	uint32_t works;       // receives, sends, writes, and reads that can be in flight together
	uint32_t receives;    // of these
	uint32_t sends;       // sends, writes, and reads of these
	uint32_t reads;       // of sends
	uint32_t permissions; // what the peer may do
	int32_t gid_index;    // or -1 for the default
	uint32_t mtu;         // bytes of a packet, or 0 for the default
	uint8_t rnr_retries;  // or 0 for the default
};

doca_error_t zcd_rdma_open(struct zcd_engine *engine, const struct zcd_rdma_config *config,
			   struct zcd_rdma *rdma, const char **step);

// zcd_rdma_export describes the connection of a running rdma to the peer.
doca_error_t zcd_rdma_export(struct zcd_rdma *rdma, const void **details, size_t *length);
doca_error_t zcd_rdma_connect(struct zcd_rdma *rdma, const void *details, size_t length);

// zcd_rdma_submit starts a work in a slot that is not in flight. A local map that is NULL stands
// for no bytes. AGAIN means that it can be tried later.
doca_error_t zcd_rdma_submit(struct zcd_rdma *rdma, uint32_t kind, uint32_t slot,
			     const struct zcd_segment *local, const struct zcd_segment *remote);

// zcd_rdma_turn makes progress until done holds want records, but at most budget steps.
void zcd_rdma_turn(struct zcd_rdma *rdma, uint32_t want, uint32_t budget);
doca_error_t zcd_rdma_close(struct zcd_rdma *rdma, const char **step);
void zcd_rdma_free(struct zcd_rdma *rdma); // what close leaves: the records

// zcd_mmap_key asks for the key of a memory map by the newest way that the release has. *step names
// the function that answered last.
doca_error_t zcd_mmap_key(const struct zcd_functions *f, struct doca_mmap *mmap,
			  struct doca_dev *device, uint32_t *key, const char **step);

#endif
