// SPDX-License-Identifier: Apache-2.0

/* What the emulation does not have: each function says so by name, in the log of the library. */

#include "skin.h"

doca_error_t emu_refuse(const char *function, const char *reason)
{
	emu_log(DOCA_LOG_LEVEL_ERROR, "%s is not supported: %s", function + sizeof "emu_" - 1,
		reason);
	return DOCA_ERROR_NOT_SUPPORTED;
}

/* Define functions by their parameters, which are not used: with a result, or returning NULL. The
 * REASON is that of the functions that follow it. */
#define ABSENT(name, ...) \
	doca_error_t emu_##name(__VA_ARGS__) \
	{ \
		return EMU_REFUSE(REASON); \
	}
#define ABSENT_OBJECT(type, name, ...) \
	type *emu_##name(__VA_ARGS__) \
	{ \
		(void)EMU_REFUSE(REASON); \
		return NULL; \
	}

#define REASON "there is no engine for compression"
ABSENT(doca_compress_create, struct doca_dev *d, struct doca_compress **c)
ABSENT(doca_compress_destroy, struct doca_compress *c)
ABSENT_OBJECT(struct doca_ctx, doca_compress_as_ctx, struct doca_compress *c)
ABSENT(doca_compress_task_decompress_lz4_stream_set_conf, struct doca_compress *c,
       doca_compress_task_decompress_lz4_stream_completion_cb_t completed,
       doca_compress_task_decompress_lz4_stream_completion_cb_t failed, uint32_t n)
ABSENT(doca_compress_task_decompress_lz4_stream_alloc_init, struct doca_compress *c, uint8_t has,
       uint8_t are, struct doca_buf const *src, struct doca_buf *dst, union doca_data user_data,
       struct doca_compress_task_decompress_lz4_stream **t)
ABSENT_OBJECT(struct doca_task, doca_compress_task_decompress_lz4_stream_as_task,
	      struct doca_compress_task_decompress_lz4_stream *t)
ABSENT_OBJECT(struct doca_buf const, doca_compress_task_decompress_lz4_stream_get_src,
	      const struct doca_compress_task_decompress_lz4_stream *t)
ABSENT_OBJECT(struct doca_buf, doca_compress_task_decompress_lz4_stream_get_dst,
	      const struct doca_compress_task_decompress_lz4_stream *t)

#undef REASON
#define REASON "there is no engine for erasure coding"
ABSENT(doca_ec_create, struct doca_dev *d, struct doca_ec **e)
ABSENT(doca_ec_destroy, struct doca_ec *e)
ABSENT_OBJECT(struct doca_ctx, doca_ec_as_ctx, struct doca_ec *e)
ABSENT(doca_ec_matrix_create, struct doca_ec *e, enum doca_ec_matrix_type type, size_t n, size_t m,
       struct doca_ec_matrix **x)
ABSENT(doca_ec_matrix_destroy, struct doca_ec_matrix *x)
ABSENT(doca_ec_task_recover_set_conf, struct doca_ec *e,
       doca_ec_task_recover_completion_cb_t completed, doca_ec_task_recover_completion_cb_t failed,
       uint32_t n)
ABSENT(doca_ec_task_recover_allocate_init, struct doca_ec *e, const struct doca_ec_matrix *x,
       const struct doca_buf *available, struct doca_buf *recovered, union doca_data user_data,
       struct doca_ec_task_recover **t)
ABSENT_OBJECT(struct doca_task, doca_ec_task_recover_as_task, struct doca_ec_task_recover *t)
ABSENT_OBJECT(const struct doca_buf, doca_ec_task_recover_get_available_blocks,
	      const struct doca_ec_task_recover *t)
ABSENT_OBJECT(struct doca_buf, doca_ec_task_recover_get_recovered_data,
	      const struct doca_ec_task_recover *t)

#undef REASON
#define REASON "there is no DPA"
ABSENT(doca_sync_event_add_publisher_location_dpa, struct doca_sync_event *e, struct doca_dpa *d)
ABSENT(doca_sync_event_add_subscriber_location_dpa, struct doca_sync_event *e, struct doca_dpa *d)
ABSENT(doca_sync_event_get_dpa_handle, struct doca_sync_event *e, struct doca_dpa *d,
       doca_dpa_dev_sync_event_t *h)
ABSENT(doca_sync_event_remote_net_get_dpa_handle, struct doca_sync_event_remote_net *e,
       struct doca_dpa *d, doca_dpa_dev_sync_event_remote_net_t *h)

#undef REASON
#define REASON "there is no GPU"
ABSENT(doca_sync_event_add_publisher_location_gpu, struct doca_sync_event *e, struct doca_gpu *g)
ABSENT(doca_sync_event_add_subscriber_location_gpu, struct doca_sync_event *e, struct doca_gpu *g)
ABSENT(doca_sync_event_get_gpu_handle, struct doca_sync_event *e, struct doca_gpu *g,
       doca_gpu_dev_sync_event_t **h)
ABSENT(doca_sync_event_remote_net_get_gpu_handle, struct doca_sync_event_remote_net *e,
       struct doca_gpu *g, doca_gpu_dev_sync_event_remote_net_t *h)
