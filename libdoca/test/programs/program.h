/* SPDX-License-Identifier: Apache-2.0 */

/* What the test programs have in common. Each runs as two processes, "host" and "dpu", which have a
 * socket to each other besides what they test: tell and hear use it. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <doca_buf.h>
#include <doca_buf_inventory.h>
#include <doca_comch.h>
#include <doca_comch_consumer.h>
#include <doca_comch_producer.h>
#include <doca_ctx.h>
#include <doca_dev.h>
#include <doca_error.h>
#include <doca_mmap.h>
#include <doca_pe.h>

extern bool is_dpu;

/* Checks. They end the process with a message. */
_Noreturn void fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void check_result(doca_error_t expected, doca_error_t result, const char *call, const char *file,
		  int line);
#define IS(expected, call) check_result((expected), (call), #call, __FILE__, __LINE__)
#define OK(call) IS(DOCA_SUCCESS, call)
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			fail(__FILE__, __LINE__, "not true: %s", #condition); \
	} while (0)

/* Says that the library is about to report misuse of a function, which is an error otherwise. */
void expect_misuse(const char *function);

/* Progresses engines until a condition holds, for two minutes at most. */
double now(void);
void progress_each(struct doca_pe *const *engines, size_t count);
#define UNTIL(condition, ...) \
	do { \
		double deadline = now() + 120; \
		while (!(condition)) { \
			struct doca_pe *const engines[] = {__VA_ARGS__}; \
			if (now() > deadline) \
				fail(__FILE__, __LINE__, "two minutes without %s", #condition); \
			progress_each(engines, sizeof engines / sizeof engines[0]); \
		} \
	} while (0)

/* The other process. */
void tell(const void *data, size_t length);
size_t hear(void *data, size_t size);
/* Waits until the other process comes here, too. */
void meet(void);
/* Waits for it while engines are progressed. */
void meet_while(struct doca_pe *const *engines, size_t count);
#define MEET_WHILE(...) \
	meet_while((struct doca_pe *const[]){__VA_ARGS__}, \
		   sizeof((struct doca_pe *const[]){__VA_ARGS__}) / sizeof(struct doca_pe *))

/* Devices: the DPU's is 03:00.0, the host's b1:00.0. */
struct doca_dev *open_device(const char *pci);
struct doca_dev *open_own_device(void);
struct doca_dev_rep *open_representor(struct doca_dev *dev);

/* Memory: a started map with an inventory. */
struct memory {
	uint8_t *bytes; /* for imported memory, the exporter's address */
	size_t size;
	bool allocated;
	struct doca_mmap *mmap;
	struct doca_buf_inventory *inventory;
};

struct memory memory_over(struct doca_dev *dev, void *bytes, size_t size, uint32_t access);
struct memory memory_new(struct doca_dev *dev, size_t size, uint32_t access);
struct memory memory_import(struct doca_dev *dev, const void *desc, size_t length);
/* Ends what peers have of the memory, which stays allocated. */
void memory_revoke(struct memory *memory);
void memory_free(struct memory *memory);
struct doca_buf *memory_buf(const struct memory *memory, size_t offset, size_t length, size_t data);
void release(struct doca_buf *buf);

/* Contexts. */
enum doca_ctx_states state_of(const struct doca_ctx *ctx);
size_t inflight(const struct doca_ctx *ctx);
struct doca_pe *new_engine(struct doca_ctx *ctx);
/* Stops a context, and progresses its own engine until it is idle. Its tasks must be free. */
void stop(struct doca_ctx *ctx, struct doca_pe *pe);

enum { MAX_RECORDED = 256 };

/* A server or a client, and what it has been told. */
struct control {
	struct doca_dev *dev;
	struct doca_dev_rep *rep;
	struct doca_comch_server *server;
	struct doca_comch_client *client;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	struct doca_comch_connection *connection; /* the last one */
	int connects, disconnects, messages, sent, failed, consumers, expired, states;
	uint32_t consumer_ids[MAX_RECORDED], expired_ids[MAX_RECORDED];
	enum doca_ctx_states state[MAX_RECORDED];
	uint8_t last[4096];
	uint32_t last_length;
	/* Called for each message; it may be NULL. */
	void (*on_message)(struct control *control, const uint8_t *data, uint32_t length);
};

/* Creates a server (DPU) or client (host) that has not started. */
struct control *control_new(const char *name);
/* Starts it, and waits for the peer. */
void control_connect(struct control *control);
/* Creates both sides of a connection. */
struct control *control_open(const char *name);
void control_send(struct control *control, const void *data, size_t length);
/* Ends the connection from the host's side, with both sides progressing. */
void control_close(struct control *control);
void control_destroy(struct control *control);

/* A consumer or producer with an engine of its own. */
struct consumer {
	struct doca_comch_consumer *consumer;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	int received, failed, states;
	doca_error_t last_status;
	size_t inflight_at_failure;
	uint8_t last_immediate[32];
	uint32_t last_immediate_length;
	bool repost, free_tasks;
	/* Called for each message; it may be NULL. */
	void (*on_message)(struct consumer *consumer, struct doca_buf *buf);
	void *context;
};

struct producer {
	struct doca_comch_producer *producer;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	int sent, failed, states;
	size_t inflight_at_failure;
	enum doca_ctx_states state[MAX_RECORDED];
	bool free_tasks;
};

/* Both create the object; the caller starts its context. */
struct consumer *consumer_new(struct control *control, struct memory *memory, uint32_t tasks);
struct doca_task *consumer_post(struct consumer *consumer, struct doca_buf *buf);
void consumer_destroy(struct consumer *consumer);
struct producer *producer_new(struct control *control, uint32_t tasks);
struct doca_task *producer_send(struct producer *producer, struct doca_buf *buf, uint32_t to,
				const void *immediate, size_t length);
void producer_destroy(struct producer *producer);

/* A test of a program; main in program.c runs the one that its argument names. */
struct test {
	const char *name;
	void (*run)(void);
};
extern const struct test tests[];

#endif
