/* SPDX-License-Identifier: Apache-2.0 */

/* Bufs: a window of valid data inside a buffer of a memory map. A task reads the window of its
 * source, and appends to the window of its destination. */
#ifndef DOCA_BUF_H_
#define DOCA_BUF_H_

#include <stddef.h>
#include <stdint.h>

#include "doca_error.h"
#include "doca_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;

/* The count before the call is stored in *refcount unless that is NULL. The last reference returns
 * the buf, and the bufs chained to it, to the inventory. */
doca_error_t doca_buf_inc_refcount(struct doca_buf *buf, uint16_t *refcount);
doca_error_t doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *refcount);
doca_error_t doca_buf_get_refcount(const struct doca_buf *buf, uint16_t *refcount);

doca_error_t doca_buf_get_head(const struct doca_buf *buf, void **head);
doca_error_t doca_buf_get_len(const struct doca_buf *buf, size_t *len);
doca_error_t doca_buf_get_data(const struct doca_buf *buf, void **data);
doca_error_t doca_buf_get_data_len(const struct doca_buf *buf, size_t *data_len);

/* The window must stay inside the buffer. */
doca_error_t doca_buf_set_data(struct doca_buf *buf, void *data, size_t data_len);
doca_error_t doca_buf_set_data_len(struct doca_buf *buf, size_t data_len);
doca_error_t doca_buf_reset_data_len(struct doca_buf *buf);

/* Appends list2, which has one reference, to list1. From then on only the head of list1 is
 * counted. */
doca_error_t doca_buf_chain_list(struct doca_buf *list1, struct doca_buf *list2);
/* The same for a list whose last buf is known. Since 3.0. */
doca_error_t doca_buf_chain_list_tail(struct doca_buf *list1_head, struct doca_buf *list1_tail,
				      struct doca_buf *list2);
/* Makes what begins with list2, which lies behind list1, a list of its own, with one reference. */
doca_error_t doca_buf_unchain_list(struct doca_buf *list1, struct doca_buf *list2);

/* NULL behind the last buf. */
doca_error_t doca_buf_get_next_in_list(struct doca_buf *buf, struct doca_buf **next);
doca_error_t doca_buf_get_last_in_list(struct doca_buf *buf, struct doca_buf **last);
/* Only of the head: NOT_PERMITTED otherwise. */
doca_error_t doca_buf_get_list_len(const struct doca_buf *buf, uint32_t *num_elements);
/* A buf that is alone is both first and last, but not in a list. */
doca_error_t doca_buf_is_first_in_list(const struct doca_buf *buf, uint8_t *is_first);
doca_error_t doca_buf_is_last_in_list(const struct doca_buf *buf, uint8_t *is_last);
doca_error_t doca_buf_is_in_list(const struct doca_buf *buf, uint8_t *is_in_list);

#ifdef __cplusplus
}
#endif
#endif
