// A libdoca for benchmarks whose device takes no time. A client is connected once it is started,
// and its peer has one consumer. Each receive and each send completes in the next step of progress.

#include <stdlib.h>
#include <string.h>

#include "functions.h"

enum { LENGTH = 64, MAX = 8192 };

struct doca_task {
	union doca_data data;
	struct doca_ctx *ctx;
	struct doca_buf *buf; // of a receive
};

struct doca_ctx {
	struct doca_pe *pe;
	uint32_t state;
	union doca_data data;
	void (*complete)(struct doca_task *, union doca_data, union doca_data);
	doca_comch_event_consumer_cb_t announce; // of a client
};

struct doca_pe {
	struct doca_ctx *ctx;
	uint32_t head, tail;
	struct doca_task *submitted[MAX];
};

struct doca_buf {
	size_t length;
};

static struct doca_devinfo {
	int unused;
} device;
static struct doca_devinfo *devices[] = {&device};

doca_error_t doca_devinfo_create_list(struct doca_devinfo ***list, uint32_t *count)
{
	*list = devices;
	*count = 1;
	return DOCA_SUCCESS;
}

doca_error_t doca_devinfo_get_pci_addr_str(const struct doca_devinfo *info, char *address)
{
	strcpy(address, "0000:b1:00.0");
	return DOCA_SUCCESS;
}

#define LIMIT(name, value)                                                                        \
	doca_error_t doca_##name(const struct doca_devinfo *info, uint32_t *limit)                \
	{                                                                                         \
		*limit = value;                                                                   \
		return DOCA_SUCCESS;                                                              \
	}
LIMIT(comch_cap_get_max_clients, 16)
LIMIT(comch_cap_get_max_msg_size, 4080)
LIMIT(comch_cap_get_max_name_len, 120)
LIMIT(comch_cap_get_max_recv_queue_size, 64)
LIMIT(comch_cap_get_max_send_tasks, 64)
LIMIT(comch_consumer_cap_get_max_buf_size, 1 << 20)
LIMIT(comch_consumer_cap_get_max_consumers, 16)
LIMIT(comch_consumer_cap_get_max_imm_data_len, 32)
LIMIT(comch_consumer_cap_get_max_num_tasks, MAX)
LIMIT(comch_producer_cap_get_max_buf_size, 1 << 20)
LIMIT(comch_producer_cap_get_max_num_tasks, MAX)
LIMIT(comch_producer_cap_get_max_producers, 16)

// Objects without behavior have an address.
#define OBJECT()                                                                                  \
	{                                                                                         \
		*(void **)out = &device;                                                          \
		return DOCA_SUCCESS;                                                              \
	}
doca_error_t doca_dev_open(struct doca_devinfo *info, struct doca_dev **out) OBJECT()
doca_error_t doca_mmap_create(struct doca_mmap **out) OBJECT()
doca_error_t doca_buf_inventory_create(size_t bufs, struct doca_buf_inventory **out) OBJECT()
doca_error_t doca_comch_client_get_connection(const struct doca_comch_client *client,
					      struct doca_comch_connection **out) OBJECT()

struct doca_devinfo *doca_dev_as_devinfo(const struct doca_dev *dev) { return &device; }

doca_error_t doca_buf_inventory_buf_get_by_args(struct doca_buf_inventory *inventory,
						struct doca_mmap *mmap, void *address,
						size_t length, void *data, size_t data_length,
						struct doca_buf **buf)
{
	*buf = calloc(1, sizeof(**buf));
	return DOCA_SUCCESS;
}

doca_error_t doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *count)
{
	free(buf);
	return DOCA_SUCCESS;
}

doca_error_t doca_buf_get_data_len(const struct doca_buf *buf, size_t *length)
{
	*length = buf->length;
	return DOCA_SUCCESS;
}

doca_error_t doca_pe_create(struct doca_pe **pe)
{
	*pe = calloc(1, sizeof(**pe));
	return DOCA_SUCCESS;
}

doca_error_t doca_pe_destroy(struct doca_pe *pe)
{
	free(pe);
	return DOCA_SUCCESS;
}

doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx)
{
	pe->ctx = ctx;
	ctx->pe = pe;
	return DOCA_SUCCESS;
}

uint8_t doca_pe_progress(struct doca_pe *pe)
{
	if (pe->head == pe->tail) {
		if (!pe->ctx || pe->ctx->state != DOCA_CTX_STATE_RUNNING || !pe->ctx->announce)
			return 0;
		pe->ctx->announce(NULL, (struct doca_comch_connection *)&device, 1);
		pe->ctx->announce = NULL;
		return 1;
	}
	struct doca_task *task = pe->submitted[pe->head++ % MAX];

	if (task->buf)
		task->buf->length = LENGTH;
	task->ctx->complete(task, task->data, task->ctx->data);
	return 1;
}

doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data data)
{
	ctx->data = data;
	return DOCA_SUCCESS;
}

doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *data)
{
	*data = ctx->data;
	return DOCA_SUCCESS;
}

doca_error_t doca_ctx_start(struct doca_ctx *ctx)
{
	ctx->state = DOCA_CTX_STATE_RUNNING;
	return DOCA_SUCCESS;
}

doca_error_t doca_ctx_stop(struct doca_ctx *ctx)
{
	ctx->state = DOCA_CTX_STATE_IDLE;
	return DOCA_SUCCESS;
}

doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx, uint32_t *state)
{
	*state = ctx->state;
	return DOCA_SUCCESS;
}

// A client, a consumer, and a producer are contexts.
#define CONTEXT(name, ...)                                                                        \
	doca_error_t doca_##name##_create(__VA_ARGS__, struct doca_##name **object)               \
	{                                                                                         \
		*object = calloc(1, sizeof(struct doca_ctx));                                     \
		return DOCA_SUCCESS;                                                              \
	}                                                                                         \
	struct doca_ctx *doca_##name##_as_ctx(struct doca_##name *object)                         \
	{                                                                                         \
		return (struct doca_ctx *)object;                                                 \
	}                                                                                         \
	doca_error_t doca_##name##_destroy(struct doca_##name *object)                            \
	{                                                                                         \
		free(object);                                                                     \
		return DOCA_SUCCESS;                                                              \
	}
CONTEXT(comch_client, struct doca_dev *dev, const char *name)
CONTEXT(comch_consumer, struct doca_comch_connection *connection, struct doca_mmap *mmap)
CONTEXT(comch_producer, struct doca_comch_connection *connection)

doca_error_t doca_comch_client_event_consumer_register(struct doca_comch_client *client,
						       doca_comch_event_consumer_cb_t created,
						       doca_comch_event_consumer_cb_t expired)
{
	((struct doca_ctx *)client)->announce = created;
	return DOCA_SUCCESS;
}

doca_error_t doca_comch_consumer_get_id(const struct doca_comch_consumer *consumer, uint32_t *id)
{
	*id = 1;
	return DOCA_SUCCESS;
}

doca_error_t doca_comch_producer_get_id(const struct doca_comch_producer *producer, uint32_t *id)
{
	*id = 1;
	return DOCA_SUCCESS;
}

// Receives and sends are tasks.
#define TASK(object, task)                                                                        \
	doca_error_t doca_##object##_##task##_set_conf(                                           \
		struct doca_##object *o, doca_##object##_##task##_completion_cb_t succeeded,      \
		doca_##object##_##task##_completion_cb_t failed, uint32_t count)                  \
	{                                                                                         \
		((struct doca_ctx *)o)->complete = (void *)succeeded;                             \
		return DOCA_SUCCESS;                                                              \
	}                                                                                         \
	struct doca_task *doca_##object##_##task##_as_task(struct doca_##object##_##task *t)      \
	{                                                                                         \
		return (struct doca_task *)t;                                                     \
	}

TASK(comch_consumer, task_post_recv)
TASK(comch_producer, task_send)

static struct doca_task *allocate(void *ctx, struct doca_buf *buf)
{
	struct doca_task *task = calloc(1, sizeof(*task));

	task->ctx = ctx;
	task->buf = buf;
	return task;
}

doca_error_t doca_comch_consumer_task_post_recv_alloc_init(
	struct doca_comch_consumer *consumer, struct doca_buf *buf,
	struct doca_comch_consumer_task_post_recv **task)
{
	*task = (void *)allocate(consumer, buf);
	return DOCA_SUCCESS;
}

void doca_comch_consumer_task_post_recv_set_buf(struct doca_comch_consumer_task_post_recv *task,
						struct doca_buf *buf)
{
	((struct doca_task *)task)->buf = buf;
}

doca_error_t doca_comch_producer_task_send_alloc_init(struct doca_comch_producer *producer,
						      const struct doca_buf *buf, uint8_t *immediate,
						      uint32_t length, uint32_t consumer,
						      struct doca_comch_producer_task_send **task)
{
	*task = (void *)allocate(producer, NULL);
	return DOCA_SUCCESS;
}

void doca_task_set_user_data(struct doca_task *task, union doca_data data) { task->data = data; }

doca_error_t doca_task_submit(struct doca_task *task)
{
	struct doca_pe *pe = task->ctx->pe;

	pe->submitted[pe->tail++ % MAX] = task;
	return DOCA_SUCCESS;
}

doca_error_t doca_task_submit_ex(struct doca_task *task, uint32_t flags)
{
	return doca_task_submit(task);
}

void doca_task_free(struct doca_task *task) { free(task); }
