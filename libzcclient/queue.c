/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The data path. Requests wait in a ring of the queue until a turn of the private part sends them,
 * which also collects completions: one crossing from C to Go for a whole batch.
 */

#include <stdint.h>

#include "internal.h"

/* claim begins a call for an open queue, which drop ends. */
static int claim(zc_queue queue, struct zc_queue_slot **slot)
{
	enum { SLOTS = ZC_CORE_VOLUMES * ZC_CORE_QUEUES_PER_VOLUME };
	if (zc_is_forked())
		return zc_fail_plainly(ZC_FORKED, "the queue belongs to the parent of this process");
	uint32_t low = (uint32_t)queue.handle, index = low & 0xffffff;
	if (low >> 24 != ZC_KIND_QUEUE || index >= SLOTS)
		return zc_fail_plainly(ZC_INVALID_VALUE, "this is no queue: zc_get_queue returns one");
	struct zc_queue_slot *q = &zc_queues[index];
	if (atomic_exchange_explicit(&q->busy, 1, memory_order_acquire) != 0)
		return zc_fail_plainly(ZC_IN_USE, "another thread is in a call for the queue");
	if (atomic_load_explicit(&q->handle, memory_order_relaxed) != queue.handle) {
		atomic_store_explicit(&q->busy, 0, memory_order_release);
		return zc_fail_plainly(ZC_CLOSED, "the volume of the queue was closed");
	}
	*slot = q;
	return ZC_SUCCESS;
}

static void drop(struct zc_queue_slot *q)
{
	atomic_store_explicit(&q->busy, 0, memory_order_release);
}

static uint32_t index_of(const struct zc_queue_slot *q) { return (uint32_t)(q - zc_queues); }

/* turn makes the private part send what is pending, and collect completions. */
static uint32_t turn(struct zc_queue_slot *q, struct zc_completion *completions, size_t capacity,
	int milliseconds)
{
	q->turn.completions = completions;
	q->turn.capacity = capacity < UINT32_MAX / 2 ? (uint32_t)capacity : UINT32_MAX / 2;
	q->turn.milliseconds = milliseconds;
	uint32_t count = zc_core.zc_core_turn(index_of(q), &q->turn);
	for (uint32_t i = 0; i < count; i++)
		if (completions[i].code != ZC_SUCCESS && completions[i].error_number == 0)
			completions[i].error_number = zc_errno_of(completions[i].code);
	q->outstanding -= count;
	return count;
}

/* check_range fails for a range that is not blocks of the volume, or only partly inside of it. */
static int check_range(struct zc_queue_slot *q, const struct zc_request *r)
{
	if (((r->offset | r->length) & (q->block_size - 1)) != 0)
		return zc_fail(ZC_INVALID_VALUE, "a request of %llu bytes at offset %llu: the volume has "
			"blocks of %u bytes", (unsigned long long)r->length, (unsigned long long)r->offset,
			q->block_size);
	if (r->length == 0)
		return zc_fail_plainly(ZC_INVALID_VALUE, "a request of 0 bytes");
	for (int is_current = 0;; is_current = 1) {
		uint64_t size = q->turn.volume_size;
		if (r->length <= size && r->offset <= size - r->length)
			return ZC_SUCCESS;
		if (is_current)
			return zc_fail(ZC_INVALID_VALUE, "a request of %llu bytes at offset %llu: the volume "
				"has only %llu bytes", (unsigned long long)r->length,
				(unsigned long long)r->offset, (unsigned long long)size);
		turn(q, NULL, 0, 0); /* it may have grown */
	}
}

/* check_memory fails for data that is not in the queue's memory, and finds its offset there. */
static int check_memory(const struct zc_queue_slot *q, const struct zc_request *r,
	uint64_t *offset)
{
	if (r->length > q->buffer_size)
		return zc_fail(ZC_TOO_BIG, "a request moves %llu bytes, and one can move %u (the key "
			"buffer_size)", (unsigned long long)r->length, q->buffer_size);
	uintptr_t at = (uintptr_t)r->memory, begin = (uintptr_t)q->memory;
	if (at < begin || r->length > q->memory_length || at - begin > q->memory_length - r->length)
		return zc_fail(ZC_INVALID_VALUE, "the memory of a request, %p and %llu bytes, is not "
			"within that of the queue, %p and %llu bytes", r->memory,
			(unsigned long long)r->length, (void *)q->memory,
			(unsigned long long)q->memory_length);
	*offset = at - begin;
	return ZC_SUCCESS;
}

/* take checks a request and puts it into the ring. */
static int take(struct zc_queue_slot *q, const struct zc_request *r)
{
	struct zc_core_request taken = { .operation = r->operation, .flags = r->flags,
		.offset = r->offset, .length = r->length, .cookie = r->cookie };
	int code = ZC_SUCCESS;
	if (r->flags & ~(ZC_FUA | ZC_DEALLOCATE))
		return zc_fail(ZC_INVALID_VALUE, "a request has the flags %#x, which are none", r->flags);
	if (r->reserved[0] != 0 || r->reserved[1] != 0 || r->reserved[2] != 0)
		return zc_fail_plainly(ZC_INVALID_VALUE, "a request's field reserved is not zero");
	switch (r->operation) {
	case ZC_FLUSH:
		break;
	case ZC_READ:
	case ZC_WRITE:
		code = check_range(q, r);
		if (code == ZC_SUCCESS)
			code = check_memory(q, r, &taken.memory);
		break;
	case ZC_DISCARD:
	case ZC_WRITE_ZEROES:
		code = check_range(q, r);
		if (code == ZC_SUCCESS && r->length > UINT32_MAX)
			return zc_fail(ZC_TOO_BIG, "a request of %llu bytes: one can have less than 4 GiB",
				(unsigned long long)r->length);
		break;
	default:
		return zc_fail(ZC_INVALID_VALUE, "a request has the operation %u, which is none",
			r->operation);
	}
	if (code != ZC_SUCCESS)
		return code;
	if (q->outstanding == q->turn.depth)
		return zc_fail_plainly(ZC_AGAIN, "the queue is full: collect completions first");
	q->turn.pending[q->turn.tail++ % q->turn.depth] = taken;
	q->outstanding++;
	return ZC_SUCCESS;
}

int zc_submit(zc_queue queue, const struct zc_request *requests, size_t count)
{
	if (requests == NULL && count > 0)
		return zc_fail_plainly(ZC_INVALID_VALUE, "submit requests: requests is NULL");
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	int taken = 0;
	while ((size_t)taken < count && (code = take(q, &requests[taken])) == ZC_SUCCESS)
		taken++;
	drop(q);
	return taken > 0 || count == 0 ? taken : code;
}

int zc_ring(zc_queue queue)
{
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	turn(q, NULL, 0, 0);
	drop(q);
	return ZC_SUCCESS;
}

int zc_poll(zc_queue queue, struct zc_completion *completions, size_t capacity)
{
	return zc_wait(queue, completions, capacity, 0);
}

int zc_wait(zc_queue queue, struct zc_completion *completions, size_t capacity, int milliseconds)
{
	if (completions == NULL || capacity == 0)
		return zc_fail_plainly(ZC_INVALID_VALUE, "collect completions: there is no room for them");
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	int count = (int)turn(q, completions, capacity, q->outstanding > 0 ? milliseconds : 0);
	drop(q);
	return count;
}

int zc_get_descriptor(zc_queue queue, int *descriptor)
{
	if (descriptor == NULL)
		return zc_fail_plainly(ZC_INVALID_VALUE, "get a descriptor: descriptor is NULL");
	*descriptor = -1;
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	int32_t result = zc_core.zc_core_descriptor(index_of(q), zc_error_buffer());
	q->has_descriptor = result >= 0;
	drop(q);
	if (result < 0)
		return zc_fail_as_told();
	*descriptor = result;
	return ZC_SUCCESS;
}

int zc_arm(zc_queue queue)
{
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	if (!q->has_descriptor) {
		drop(q);
		return zc_fail_plainly(ZC_BAD_STATE,
			"arm a queue: call zc_get_descriptor before, whose descriptor to wait for");
	}
	int is_armed = zc_core.zc_core_arm(index_of(q), &q->turn);
	drop(q);
	return is_armed;
}

static int memory_of(zc_queue queue, int is_switched, void **address, size_t *length)
{
	if (address == NULL || length == NULL)
		return zc_fail_plainly(ZC_INVALID_VALUE, "get the memory: address or length is NULL");
	*address = NULL;
	*length = 0;
	struct zc_queue_slot *q;
	int code = claim(queue, &q);
	if (code != ZC_SUCCESS)
		return code;
	if (is_switched && q->turn.head != q->turn.tail) {
		drop(q);
		return zc_fail_plainly(ZC_AGAIN, "switch the memory: the queue has requests with the "
			"former one: collect their completions first");
	}
	q->memory = zc_core.zc_core_memory(index_of(q), is_switched, &q->memory_length);
	*address = q->memory;
	*length = (size_t)q->memory_length;
	drop(q);
	return ZC_SUCCESS;
}

int zc_get_memory(zc_queue queue, void **address, size_t *length)
{
	return memory_of(queue, 0, address, length);
}

int zc_switch_memory(zc_queue queue, void **address, size_t *length)
{
	return memory_of(queue, 1, address, length);
}
