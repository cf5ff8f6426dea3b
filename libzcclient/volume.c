/* SPDX-License-Identifier: Apache-2.0 */

/* Volumes: the handles, and what happens outside of the data path. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

_Static_assert(sizeof(void *) == 8, "handles and structures are for 64 bits");
_Static_assert(sizeof(struct zc_request) == 64, "a request has 64 bytes");
_Static_assert(sizeof(struct zc_completion) == 32, "a completion has 32 bytes");

struct zc_queue_slot zc_queues[ZC_CORE_VOLUMES * ZC_CORE_QUEUES_PER_VOLUME];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the slots of volumes */

static struct volume_slot {
	enum { FREE, OPENING, OPEN, CLOSING } state;
	uint32_t generation; /* of the handles */
	uint32_t users;      /* calls that are in progress */
	struct zc_core_terms terms;
} volumes[ZC_CORE_VOLUMES];

static uint64_t make_handle(uint32_t generation, int kind, uint32_t index)
{
	return (uint64_t)generation << 32 | (uint64_t)kind << 24 | index;
}

/* find_volume finds the slot of an open volume. The lock is held. */
static int find_volume(zc_volume volume, struct volume_slot **slot)
{
	uint32_t low = (uint32_t)volume.handle, index = low & 0xffffff;
	if (low >> 24 != ZC_KIND_VOLUME || index >= ZC_CORE_VOLUMES)
		return zc_fail_plainly(ZC_INVALID_VALUE, "this is no volume: zc_open makes one");
	*slot = &volumes[index];
	if ((*slot)->generation != volume.handle >> 32 || (*slot)->state != OPEN)
		return zc_fail_plainly(ZC_CLOSED, "the volume was closed");
	return ZC_SUCCESS;
}

static uint32_t index_of(const struct volume_slot *slot) { return (uint32_t)(slot - volumes); }

static struct zc_queue_slot *queues_of(const struct volume_slot *slot)
{
	return &zc_queues[index_of(slot) * ZC_CORE_QUEUES_PER_VOLUME];
}

/* use begins a call for an open volume, and release ends it. */
static int use(zc_volume volume, struct volume_slot **slot)
{
	if (zc_is_forked())
		return zc_fail_plainly(ZC_FORKED, "the volume belongs to the parent of this process");
	pthread_mutex_lock(&lock);
	int code = find_volume(volume, slot);
	if (code == ZC_SUCCESS)
		(*slot)->users++;
	pthread_mutex_unlock(&lock);
	return code;
}

static void release(struct volume_slot *slot)
{
	pthread_mutex_lock(&lock);
	slot->users--;
	pthread_mutex_unlock(&lock);
}

static void set_state(struct volume_slot *slot, int state)
{
	pthread_mutex_lock(&lock);
	slot->state = state;
	pthread_mutex_unlock(&lock);
}

/* take_slot reserves a slot for a volume that is being opened, or returns NULL if there is none. */
static struct volume_slot *take_slot(void)
{
	struct volume_slot *taken = NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < ZC_CORE_VOLUMES && taken == NULL; i++)
		if (volumes[i].state == FREE)
			taken = &volumes[i];
	if (taken != NULL) {
		taken->state = OPENING;
		taken->generation++;
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

static void free_queues(struct volume_slot *slot)
{
	struct zc_queue_slot *queues = queues_of(slot);
	for (uint32_t i = 0; i < slot->terms.queues; i++) {
		free(queues[i].turn.pending);
		queues[i].turn.pending = NULL;
	}
}

/* make_queues makes the queues of an open volume usable. */
static int make_queues(struct volume_slot *slot)
{
	struct zc_queue_slot *queues = queues_of(slot);
	const struct zc_core_terms *terms = &slot->terms;
	struct zc_info info;
	zc_core.zc_core_info(index_of(slot), &info);
	for (uint32_t i = 0; i < terms->queues; i++) {
		struct zc_queue_slot *q = &queues[i];
		q->turn = (struct zc_core_turn){ .depth = terms->depth,
			.volume_size = info.volume_size };
		q->turn.pending = calloc(terms->depth, sizeof *q->turn.pending);
		if (q->turn.pending == NULL) {
			free_queues(slot);
			return zc_fail(ZC_NO_MEMORY, "allocate a queue for %u requests", terms->depth);
		}
		q->outstanding = 0;
		q->block_size = terms->block_size;
		q->buffer_size = terms->buffer_size;
		q->has_descriptor = false;
		q->memory = zc_core.zc_core_memory((uint32_t)(q - zc_queues), 0, &q->memory_length);
	}
	for (uint32_t i = 0; i < terms->queues; i++)
		atomic_store(&queues[i].handle, make_handle(slot->generation, ZC_KIND_QUEUE,
			(uint32_t)(&queues[i] - zc_queues)));
	return ZC_SUCCESS;
}

int zc_open(const char *configuration, zc_volume *volume)
{
	if (volume == NULL)
		return zc_fail_plainly(ZC_INVALID_VALUE, "open a volume: volume is NULL");
	volume->handle = 0;
	if (zc_is_forked())
		return zc_fail_plainly(ZC_FORKED, "open a volume: the parent of this process has opened "
			"one before the fork, and its Go runtime does not survive that: open volumes after "
			"the fork, or execute a program");
	int code = zc_core_load();
	if (code != ZC_SUCCESS)
		return code;
	struct volume_slot *slot = take_slot();
	if (slot == NULL)
		return zc_fail(ZC_FULL, "open a volume: this process has %d open, which is the limit",
			ZC_CORE_VOLUMES);
	code = zc_core.zc_core_open(index_of(slot), configuration != NULL ? configuration : "",
		&slot->terms, zc_error_buffer());
	if (code != ZC_SUCCESS) {
		set_state(slot, FREE);
		return zc_fail_as_told();
	}
	code = make_queues(slot);
	if (code != ZC_SUCCESS) {
		struct zc_core_error ignored;
		zc_core.zc_core_close(index_of(slot), &ignored);
		set_state(slot, FREE);
		return code;
	}
	volume->handle = make_handle(slot->generation, ZC_KIND_VOLUME, index_of(slot));
	set_state(slot, OPEN);
	return ZC_SUCCESS;
}

int zc_get_info(zc_volume volume, struct zc_info *info)
{
	/* What the first release had: later ones append to it. */
	const size_t least = sizeof(struct zc_info);
	if (info == NULL)
		return zc_fail_plainly(ZC_INVALID_VALUE, "get the info of a volume: info is NULL");
	size_t size = info->struct_size;
	if (size < least)
		return zc_fail(ZC_INVALID_VALUE, "get the info of a volume: info.struct_size is %zu, set "
			"it to sizeof(struct zc_info), which is %zu", size, least);
	struct volume_slot *slot;
	int code = use(volume, &slot);
	if (code != ZC_SUCCESS)
		return code;
	struct zc_info all;
	zc_core.zc_core_info(index_of(slot), &all);
	release(slot);
	memset(info, 0, size);
	memcpy(info, &all, size < sizeof all ? size : sizeof all);
	info->struct_size = size;
	return ZC_SUCCESS;
}

int zc_check(zc_volume volume)
{
	struct volume_slot *slot;
	int code = use(volume, &slot);
	if (code != ZC_SUCCESS)
		return code;
	code = zc_core.zc_core_check(index_of(slot), zc_error_buffer());
	release(slot);
	return code == ZC_SUCCESS ? code : zc_fail_as_told();
}

int zc_get_queue(zc_volume volume, unsigned int number, zc_queue *queue)
{
	if (queue == NULL)
		return zc_fail_plainly(ZC_INVALID_VALUE, "get a queue: queue is NULL");
	queue->handle = 0;
	struct volume_slot *slot;
	int code = use(volume, &slot);
	if (code != ZC_SUCCESS)
		return code;
	uint32_t queues = slot->terms.queues;
	if (number < queues)
		queue->handle = atomic_load(&queues_of(slot)[number].handle);
	release(slot);
	if (number >= queues)
		return zc_fail(ZC_INVALID_VALUE, "get queue %u: the volume has %u, as the key queues of "
			"its configuration says", number, queues);
	return ZC_SUCCESS;
}

/* retire makes a volume and its queues unusable, unless they are in use. The lock is held. */
static int retire(struct volume_slot *slot)
{
	struct zc_queue_slot *queues = queues_of(slot);
	uint32_t claimed = 0;
	while (claimed < slot->terms.queues && slot->users == 0 &&
		atomic_exchange(&queues[claimed].busy, 1) == 0)
		claimed++;
	if (claimed < slot->terms.queues || slot->users > 0) {
		while (claimed > 0)
			atomic_store(&queues[--claimed].busy, 0);
		return zc_fail_plainly(ZC_IN_USE,
			"close a volume: a thread is in a call for it or a queue of it");
	}
	slot->state = CLOSING;
	for (uint32_t i = 0; i < slot->terms.queues; i++) {
		atomic_store(&queues[i].handle, 0);
		atomic_store(&queues[i].busy, 0);
	}
	return ZC_SUCCESS;
}

int zc_close(zc_volume volume)
{
	if (zc_is_forked())
		return zc_fail_plainly(ZC_FORKED, "the volume belongs to the parent of this process");
	pthread_mutex_lock(&lock);
	struct volume_slot *slot;
	int code = find_volume(volume, &slot);
	if (code == ZC_SUCCESS)
		code = retire(slot);
	pthread_mutex_unlock(&lock);
	if (code != ZC_SUCCESS)
		return code;
	code = zc_core.zc_core_close(index_of(slot), zc_error_buffer());
	free_queues(slot);
	set_state(slot, FREE);
	return code == ZC_SUCCESS ? code : zc_fail_as_told();
}
