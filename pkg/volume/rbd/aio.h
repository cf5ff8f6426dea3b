/* The asynchronous part of librbd, which go-ceph does not cover, in calls that a Go program can make
 * once for each request and once for each batch of completions. */

#ifndef ZC_RELAY_RBD_AIO_H
#define ZC_RELAY_RBD_AIO_H

#include <rbd/librbd.h>
#include <stdint.h>

enum zc_operation {
	ZC_READ,
	ZC_WRITE,
	ZC_FLUSH,
	ZC_DISCARD,
	ZC_WRITE_ZEROES, /* may free the space */
	ZC_WRITE_ZEROES_ALLOCATED,
};

/* The outcome of a request: a number of bytes, or a negative error number. */
struct zc_result {
	uint64_t slot;
	int64_t value;
};

/* Starts a request. It does not block. buffer must stay valid until the request has completed,
 * except for a write, whose data librbd copies. Returns 0 or a negative error number, after which no
 * result follows. */
int zc_rbd_submit(rbd_image_t image, enum zc_operation operation, uint64_t offset, uint64_t length,
		  char *buffer, uint64_t slot);

/* Waits until the eventfd of the image's notifications has been written to, and fills results with
 * completed requests, at most max. Returns their number, which may be 0, or a negative error
 * number. If more is not 0, it does not wait. */
int zc_rbd_wait(rbd_image_t image, int eventfd, int more, struct zc_result *results, int max);

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
