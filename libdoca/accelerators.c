// SPDX-License-Identifier: Apache-2.0

/* What needs a DPA or a GPU. There is none: each function says so in the log of the library. */

#include "skin.h"

static const char no_dpa[] = "there is no DPA", no_gpu[] = "there is no GPU";

/* Refuses if pointer is a live context of any kind. */
static doca_error_t refuse_ctx(const struct doca_ctx *ctx, const char *reason, const char *function)
{
	return emu_is(ctx, EMU_CTX, function) ? emu_refuse(function, reason)
					      : DOCA_ERROR_INVALID_VALUE;
}

doca_error_t emu_doca_ctx_set_datapath_on_dpa(struct doca_ctx *ctx, struct doca_dpa *dpa)
{
	return refuse_ctx(ctx, no_dpa, __func__);
}

doca_error_t emu_doca_ctx_set_datapath_on_gpu(struct doca_ctx *ctx, struct doca_gpu *gpu)
{
	return refuse_ctx(ctx, no_gpu, __func__);
}

doca_error_t emu_doca_dma_get_gpu_handle(struct doca_dma *dma, struct doca_gpu_dma **handle)
{
	if (EMU_CTX_OF(dma, EMU_CTX_DMA) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return EMU_REFUSE(no_gpu);
}

/* Maps. */

doca_error_t emu_doca_mmap_set_dpa_memrange(struct doca_mmap *mmap, struct doca_dpa *dpa,
					    uint64_t dpa_addr, size_t len)
{
	return EMU_IS(mmap, EMU_MMAP) ? EMU_REFUSE(no_dpa) : DOCA_ERROR_INVALID_VALUE;
}

doca_error_t emu_doca_mmap_dev_get_dpa_handle(struct doca_mmap *mmap, const struct doca_dev *dev,
					      doca_dpa_dev_mmap_t *handle)
{
	if (!EMU_IS(mmap, EMU_MMAP) || !EMU_IS(dev, EMU_DEV))
		return DOCA_ERROR_INVALID_VALUE;
	return EMU_REFUSE(no_dpa);
}

/* Consumers and producers. */

/* Refuses if pointer is a live consumer or producer. */
static doca_error_t refuse_fast_path(const void *pointer, enum emu_ctx_kind kind,
				     const char *function)
{
	if (emu_ctx_of(pointer, kind, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(function, no_dpa);
}

doca_error_t emu_doca_comch_consumer_set_completion(
	struct doca_comch_consumer *consumer, struct doca_comch_consumer_completion *completion,
	uint32_t user_data)
{
	return refuse_fast_path(consumer, EMU_CTX_CONSUMER, __func__);
}

doca_error_t emu_doca_comch_consumer_set_dev_max_num_recv(struct doca_comch_consumer *consumer,
							  uint32_t dev_num_recv)
{
	return refuse_fast_path(consumer, EMU_CTX_CONSUMER, __func__);
}

doca_error_t emu_doca_comch_consumer_get_dpa_handle(struct doca_comch_consumer *consumer,
						    doca_dpa_dev_comch_consumer_t *handle)
{
	return refuse_fast_path(consumer, EMU_CTX_CONSUMER, __func__);
}

doca_error_t emu_doca_comch_producer_set_dev_max_num_send(struct doca_comch_producer *producer,
							  uint32_t dev_num_send)
{
	return refuse_fast_path(producer, EMU_CTX_PRODUCER, __func__);
}

doca_error_t
emu_doca_comch_producer_dpa_completion_attach(struct doca_comch_producer *producer,
					      struct doca_dpa_completion *completion)
{
	return refuse_fast_path(producer, EMU_CTX_PRODUCER, __func__);
}

doca_error_t emu_doca_comch_producer_get_dpa_handle(struct doca_comch_producer *producer,
						    doca_dpa_dev_comch_producer_t *handle)
{
	return refuse_fast_path(producer, EMU_CTX_PRODUCER, __func__);
}

/* Completions of consumers on a DPA, none of which can be created. */

typedef struct doca_comch_consumer_completion completion_t;

#define COMPLETION(name, ...) \
	doca_error_t emu_doca_comch_consumer_completion_##name(__VA_ARGS__) \
	{ \
		return EMU_REFUSE(no_dpa); \
	}

COMPLETION(create, completion_t **completion)
COMPLETION(destroy, completion_t *completion)
COMPLETION(start, completion_t *completion)
COMPLETION(stop, completion_t *completion)
COMPLETION(set_dpa_thread, completion_t *completion, struct doca_dpa_thread *thread)
COMPLETION(set_max_num_consumers, completion_t *completion, uint32_t max_num_consumers)
COMPLETION(get_max_num_consumers, const completion_t *completion, uint32_t *max_num_consumers)
COMPLETION(set_max_num_recv, completion_t *completion, uint32_t max_num_recv)
COMPLETION(get_max_num_recv, const completion_t *completion, uint32_t *max_num_recv)
COMPLETION(set_imm_data_len, completion_t *completion, uint32_t len)
COMPLETION(get_imm_data_len, const completion_t *completion, uint32_t *len)
COMPLETION(get_dpa_handle, completion_t *completion,
	   doca_dpa_dev_comch_consumer_completion_t *handle)
