// SPDX-License-Identifier: Apache-2.0

//go:build ceph

#include "aio.h"

#include <errno.h>
#include <unistd.h>

/* Is called on a thread of librbd. After the request is in the list, its queue may be closed as soon
 * as this thread has left. */
static void end(rbd_completion_t completion, void *argument)
{
	static const uint64_t one = 1;
	struct zc_request *r = argument;
	struct zc_collection *c = r->collection;
	uint32_t newest = atomic_load(&c->newest);

	r->value = rbd_aio_get_return_value(completion);
	rbd_aio_release(completion);
	atomic_fetch_add(&c->ending, 1);
	do
		r->next = newest;
	while (!atomic_compare_exchange_weak(&c->newest, &newest, r->number + 1));
	if (atomic_load(&c->armed) && atomic_exchange(&c->armed, 0))
		while (write(c->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	atomic_fetch_sub(&c->ending, 1);
}

int zc_rbd_submit(rbd_image_t image, enum zc_operation operation, uint64_t offset, uint64_t length,
		  char *buffer, struct zc_request *request)
{
	rbd_completion_t completion;
	int error = rbd_aio_create_completion(request, end, &completion);

	if (error < 0)
		return error;
	switch (operation) {
	case ZC_READ:
		error = rbd_aio_read(image, offset, length, buffer, completion);
		break;
	case ZC_WRITE:
		error = rbd_aio_write(image, offset, length, buffer, completion);
		break;
	case ZC_FLUSH:
		error = rbd_aio_flush(image, completion);
		break;
	case ZC_DISCARD:
		error = rbd_aio_discard(image, offset, length, completion);
		break;
	case ZC_WRITE_ZEROES:
		error = rbd_aio_write_zeroes(image, offset, length, completion, 0, 0);
		break;
	case ZC_WRITE_ZEROES_ALLOCATED:
		error = rbd_aio_write_zeroes(image, offset, length, completion,
					     RBD_WRITE_ZEROES_FLAG_THICK_PROVISION, 0);
		break;
	default:
		error = -EINVAL;
	}
	if (error < 0)
		rbd_aio_release(completion);
	return error < 0 ? error : 0;
}

struct search {
	struct zc_range *data;
	int max;
	int count;
};

static int add_extent(uint64_t offset, size_t length, int exists, void *argument)
{
	struct search *s = argument;
	struct zc_range *last = s->data + s->count - 1;

	if (!exists)
		return 0;
	if (s->count > 0 && offset < last->offset + last->length)
		return -EDOM;
	if (s->count > 0 && offset == last->offset + last->length) {
		last->length += length;
		return 0;
	}
	if (s->count == s->max)
		return -ERANGE;
	s->data[s->count++] = (struct zc_range){ offset, length };
	return 0;
}

int zc_rbd_find_data(rbd_image_t image, uint64_t offset, uint64_t length, struct zc_range *data,
		     int max)
{
	struct search s = { data, max, 0 };
	int error;

	/* With whole_object set, librbd would trust the object map, which is wrong in some releases
	 * if there are snapshots. */
	error = rbd_diff_iterate2(image, NULL, offset, length, 1, 0, add_extent, &s);
	if (error < 0 && !(error == -ERANGE && s.count == max))
		return error;
	return s.count;
}
