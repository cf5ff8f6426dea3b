/* SPDX-License-Identifier: Apache-2.0 */

/* The asynchronous part of librbd, which go-ceph does not cover, in one call for each request. A
 * request ends on a thread of librbd, which leaves it where Go finds it without a call. */

#ifndef ZC_RELAY_RBD_AIO_H
#define ZC_RELAY_RBD_AIO_H

#include <rbd/librbd.h>
#include <stdatomic.h>
#include <stdint.h>

enum zc_operation {
	ZC_READ,
	ZC_WRITE,
	ZC_FLUSH,
	ZC_DISCARD,
	ZC_WRITE_ZEROES, /* may free the space */
	ZC_WRITE_ZEROES_ALLOCATED,
};

/* Where the requests of a queue end. */
struct zc_collection {
	_Atomic uint32_t newest; /* number of the request that ended last, plus 1, or 0 */
	_Atomic uint32_t armed;  /* ring the doorbell at the end of a request */
	_Atomic uint32_t ending; /* threads that may still use the doorbell */
	int32_t doorbell;        /* an eventfd */
};

/* A request in flight. */
struct zc_request {
	struct zc_collection *collection;
	uint32_t number;
	uint32_t next; /* in the collection: the request that ended before, plus 1, or 0 */
	int64_t value; /* the outcome: a number of bytes, or a negative error number */
};

/* Starts a request. It does not block. buffer must stay valid until the request has ended, except
 * for a write, whose data librbd copies. Returns 0 or a negative error number, after which the
 * request does not get to its collection. */
int zc_rbd_submit(rbd_image_t image, enum zc_operation operation, uint64_t offset, uint64_t length,
		  char *buffer, struct zc_request *request);

/* A range of an image in bytes. */
struct zc_range {
	uint64_t offset;
	uint64_t length;
};

/* Finds the parts of a range of the image that have data, its parents' included, in ascending order,
 * at most max of them. It blocks for about as long as a request for each object takes. Returns their
 * number, or a negative error number: -EDOM if the parts are not in order, as with striping. */
int zc_rbd_find_data(rbd_image_t image, uint64_t offset, uint64_t length, struct zc_range *data,
		     int max);

#endif
