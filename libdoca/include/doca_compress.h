/* SPDX-License-Identifier: Apache-2.0 */

/* Decompression. The emulation does not have it: doca_compress_create fails with NOT_SUPPORTED. */
#ifndef DOCA_COMPRESS_H_
#define DOCA_COMPRESS_H_

#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_compress;
struct doca_compress_task_decompress_lz4_stream;
struct doca_ctx;
struct doca_dev;
struct doca_task;

typedef void (*doca_compress_task_decompress_lz4_stream_completion_cb_t)(
	struct doca_compress_task_decompress_lz4_stream *task, union doca_data task_user_data,
	union doca_data ctx_user_data);

doca_error_t doca_compress_create(struct doca_dev *dev, struct doca_compress **compress);
doca_error_t doca_compress_destroy(struct doca_compress *compress);
struct doca_ctx *doca_compress_as_ctx(struct doca_compress *compress);

doca_error_t doca_compress_task_decompress_lz4_stream_set_conf(
	struct doca_compress *compress,
	doca_compress_task_decompress_lz4_stream_completion_cb_t completed,
	doca_compress_task_decompress_lz4_stream_completion_cb_t failed, uint32_t num_tasks);
doca_error_t doca_compress_task_decompress_lz4_stream_alloc_init(
	struct doca_compress *compress, uint8_t has_block_checksum, uint8_t are_blocks_independent,
	struct doca_buf const *src, struct doca_buf *dst, union doca_data user_data,
	struct doca_compress_task_decompress_lz4_stream **task);
struct doca_task *doca_compress_task_decompress_lz4_stream_as_task(
	struct doca_compress_task_decompress_lz4_stream *task);
struct doca_buf const *doca_compress_task_decompress_lz4_stream_get_src(
	const struct doca_compress_task_decompress_lz4_stream *task);
struct doca_buf *doca_compress_task_decompress_lz4_stream_get_dst(
	const struct doca_compress_task_decompress_lz4_stream *task);

#ifdef __cplusplus
}
#endif
#endif
