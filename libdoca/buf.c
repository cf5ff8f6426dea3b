/* Bufs and their inventories. */

#include "skin.h"

#include <stdlib.h>

doca_error_t emu_doca_buf_inventory_create(size_t num_elements,
					   struct doca_buf_inventory **inventory)
{
	struct doca_buf_inventory *created;

	if (!EMU_HAS(inventory))
		return DOCA_ERROR_INVALID_VALUE;
	if (num_elements == 0) {
		emu_misuse(__func__, "an inventory holds at least one buf");
		return DOCA_ERROR_INVALID_VALUE;
	}
	created = emu_new(EMU_INVENTORY, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	created->bufs = calloc(num_elements, sizeof *created->bufs);
	if (created->bufs == NULL) {
		emu_bury(created, NULL);
		return DOCA_ERROR_NO_MEMORY;
	}
	created->count = created->free_count = num_elements;
	for (size_t i = num_elements; i-- > 0;) {
		struct doca_buf *buf = &created->bufs[i];

		buf->magic = EMU_BUF;
		buf->inventory = created;
		buf->next = created->free;
		created->free = buf;
	}
	*inventory = created;
	return DOCA_SUCCESS;
}

static bool enter(struct doca_buf_inventory *inventory, const char *function)
{
	return emu_enter(&inventory->used_by, &inventory->depth, "buf_inventory", function);
}

static void leave(struct doca_buf_inventory *inventory)
{
	emu_leave(&inventory->used_by, &inventory->depth);
}

doca_error_t emu_doca_buf_inventory_destroy(struct doca_buf_inventory *inventory)
{
	if (!EMU_IS(inventory, EMU_INVENTORY))
		return DOCA_ERROR_INVALID_VALUE;
	if (inventory->free_count != inventory->count) {
		emu_misuse(__func__, "%zu bufs are out: release them first",
			   inventory->count - inventory->free_count);
		return DOCA_ERROR_IN_USE;
	}
	for (size_t i = 0; i < inventory->count; i++)
		inventory->bufs[i].magic = EMU_DEAD;
	emu_bury(inventory, inventory->bufs);
	return DOCA_SUCCESS;
}

static doca_error_t set_started(struct doca_buf_inventory *inventory, bool started,
				const char *function)
{
	if (!emu_is(inventory, EMU_INVENTORY, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (inventory->started == started) {
		emu_misuse(function, "the inventory is %s", started ? "started" : "not started");
		return DOCA_ERROR_BAD_STATE;
	}
	inventory->started = started;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_start(struct doca_buf_inventory *inventory)
{
	return set_started(inventory, true, __func__);
}

doca_error_t emu_doca_buf_inventory_stop(struct doca_buf_inventory *inventory)
{
	return set_started(inventory, false, __func__);
}

static bool contains(uintptr_t outer, size_t outer_len, uintptr_t inner, size_t len)
{
	return inner >= outer && inner - outer <= outer_len &&
	       len <= outer_len - (inner - outer);
}

/* Checks that a range lies in the map, and the window in the range. */
static doca_error_t check_ranges(const struct doca_mmap *mmap, uintptr_t addr, size_t len,
				 uintptr_t data, size_t data_len, const char *function)
{
	if (!contains(mmap->addr, mmap->len, addr, len)) {
		emu_misuse(function, "%zu bytes at %#zx are outside the map of %zu bytes at %#zx",
			   len, (size_t)addr, mmap->len, (size_t)mmap->addr);
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (!contains(addr, len, data, data_len)) {
		emu_misuse(function,
			   "the window of %zu bytes at %#zx is outside the buf of %zu at %#zx",
			   data_len, (size_t)data, len, (size_t)addr);
		return DOCA_ERROR_INVALID_VALUE;
	}
	return DOCA_SUCCESS;
}

/* Counts a buf of a map, or one less. */
static bool count_buf(struct doca_mmap *mmap, int change, const char *function)
{
	if (mmap->thread_safe)
		return true; /* such maps do not count */
	if (!emu_enter(&mmap->used_by, &mmap->depth,
		       "mmap without doca_mmap_enable_thread_safety", function))
		return false;
	__atomic_add_fetch(&mmap->num_bufs, change, __ATOMIC_SEQ_CST);
	emu_leave(&mmap->used_by, &mmap->depth);
	return true;
}

static doca_error_t take(struct doca_buf_inventory *inventory, struct doca_mmap *mmap,
			 uintptr_t addr, size_t len, uintptr_t data, size_t data_len,
			 struct doca_buf **buf, const char *function)
{
	struct doca_buf *taken = inventory->free;
	doca_error_t result;

	if (!inventory->started || !mmap->started) {
		emu_misuse(function, "the %s is not started",
			   inventory->started ? "map" : "inventory");
		return DOCA_ERROR_BAD_STATE;
	}
	result = check_ranges(mmap, addr, len, data, data_len, function);
	if (result != DOCA_SUCCESS)
		return result;
	if (taken == NULL)
		return DOCA_ERROR_NO_MEMORY;
	if (!count_buf(mmap, 1, function))
		return DOCA_ERROR_BAD_STATE;
	inventory->free = taken->next;
	inventory->free_count--;
	taken->refcount = 1;
	taken->in_tasks = 0;
	taken->mmap = mmap;
	taken->head = addr;
	taken->len = len;
	taken->data = data;
	taken->data_len = data_len;
	taken->next = NULL;
	taken->first = taken;
	*buf = taken;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_buf_get_by_args(struct doca_buf_inventory *inventory,
						    struct doca_mmap *mmap, void *addr, size_t len,
						    void *data, size_t data_len,
						    struct doca_buf **buf)
{
	doca_error_t result;

	if (!EMU_IS(inventory, EMU_INVENTORY) || !EMU_IS(mmap, EMU_MMAP) || !EMU_HAS(buf))
		return DOCA_ERROR_INVALID_VALUE;
	if (!enter(inventory, __func__))
		return DOCA_ERROR_BAD_STATE;
	result = take(inventory, mmap, (uintptr_t)addr, len, (uintptr_t)data, data_len, buf,
		      __func__);
	leave(inventory);
	return result;
}

/* Reports whether buf is one that an application holds. */
static bool is_held(const struct doca_buf *buf, const char *function)
{
	if (!emu_is(buf, EMU_BUF, function))
		return false;
	if (buf->refcount == 0) {
		emu_misuse(function, "the buf has been returned to its inventory");
		return false;
	}
	return true;
}

/* Reports whether the window of a buf may be changed. */
static doca_error_t check_change(const struct doca_buf *buf, const char *function)
{
	if (!emu_is(buf, EMU_BUF, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_held(buf, function))
		return DOCA_ERROR_BAD_STATE;
	if (__atomic_load_n(&buf->in_tasks, __ATOMIC_ACQUIRE) > 0) {
		emu_misuse(function, "a task that is submitted uses the buf");
		return DOCA_ERROR_IN_USE;
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_buf_reuse_by_args(struct doca_buf *buf, void *addr, size_t len,
						      void *data, size_t data_len)
{
	doca_error_t result = check_change(buf, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	result = check_ranges(buf->mmap, (uintptr_t)addr, len, (uintptr_t)data, data_len, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	buf->head = (uintptr_t)addr;
	buf->len = len;
	buf->data = (uintptr_t)data;
	buf->data_len = data_len;
	return DOCA_SUCCESS;
}

void emu_hold_buf(const struct doca_buf *buf, bool held)
{
	struct doca_buf *changed = (struct doca_buf *)buf;

	if (buf != NULL)
		__atomic_add_fetch(&changed->in_tasks, held ? 1 : -1, __ATOMIC_ACQ_REL);
}

/* References. */

doca_error_t emu_doca_buf_get_refcount(const struct doca_buf *buf, uint16_t *refcount)
{
	if (!EMU_IS(buf, EMU_BUF) || !EMU_HAS(refcount))
		return DOCA_ERROR_INVALID_VALUE;
	*refcount = buf->refcount;
	return DOCA_SUCCESS;
}

/* Only the head of a list is counted. */
static doca_error_t check_counted(const struct doca_buf *buf, const char *function)
{
	if (!emu_is(buf, EMU_BUF, function))
		return DOCA_ERROR_INVALID_VALUE;
	if (!is_held(buf, function))
		return DOCA_ERROR_BAD_STATE;
	if (buf->first != buf) {
		emu_misuse(function, "the buf is not the head of its list");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inc_refcount(struct doca_buf *buf, uint16_t *refcount)
{
	doca_error_t result = check_counted(buf, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (buf->refcount == UINT16_MAX)
		return DOCA_ERROR_TOO_BIG;
	if (refcount != NULL)
		*refcount = buf->refcount;
	buf->refcount++;
	return DOCA_SUCCESS;
}

/* Returns the elements of a list to their inventories, each of which its thread has entered. */
static doca_error_t return_list(struct doca_buf *buf, const char *function)
{
	while (buf != NULL) {
		struct doca_buf *next = buf->next;
		struct doca_buf_inventory *inventory = buf->inventory;

		if (!enter(inventory, function))
			return DOCA_ERROR_BAD_STATE;
		if (!count_buf(buf->mmap, -1, function)) {
			leave(inventory);
			return DOCA_ERROR_BAD_STATE;
		}
		buf->refcount = 0;
		buf->first = NULL;
		buf->next = inventory->free;
		inventory->free = buf;
		inventory->free_count++;
		leave(inventory);
		buf = next;
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *refcount)
{
	doca_error_t result = check_counted(buf, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (refcount != NULL)
		*refcount = buf->refcount;
	if (buf->refcount > 1) {
		buf->refcount--;
		return DOCA_SUCCESS;
	}
	if (__atomic_load_n(&buf->in_tasks, __ATOMIC_ACQUIRE) > 0) {
		emu_misuse(__func__, "a task that is submitted uses the buf: it holds no reference "
				     "of its own");
		return DOCA_ERROR_IN_USE;
	}
	return return_list(buf, __func__);
}

/* Windows. */

doca_error_t emu_doca_buf_get_head(const struct doca_buf *buf, void **head)
{
	if (!is_held(buf, __func__) || !EMU_HAS(head))
		return DOCA_ERROR_INVALID_VALUE;
	*head = (void *)buf->head;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_len(const struct doca_buf *buf, size_t *len)
{
	if (!is_held(buf, __func__) || !EMU_HAS(len))
		return DOCA_ERROR_INVALID_VALUE;
	*len = buf->len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_data(const struct doca_buf *buf, void **data)
{
	if (!is_held(buf, __func__) || !EMU_HAS(data))
		return DOCA_ERROR_INVALID_VALUE;
	*data = (void *)buf->data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_data_len(const struct doca_buf *buf, size_t *data_len)
{
	if (!is_held(buf, __func__) || !EMU_HAS(data_len))
		return DOCA_ERROR_INVALID_VALUE;
	*data_len = buf->data_len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_set_data(struct doca_buf *buf, void *data, size_t data_len)
{
	doca_error_t result = check_change(buf, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!contains(buf->head, buf->len, (uintptr_t)data, data_len)) {
		emu_misuse(__func__,
			   "the window of %zu bytes at %p is outside the buf of %zu at %#zx",
			   data_len, data, buf->len, (size_t)buf->head);
		return DOCA_ERROR_INVALID_VALUE;
	}
	buf->data = (uintptr_t)data;
	buf->data_len = data_len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_reset_data_len(struct doca_buf *buf)
{
	doca_error_t result = check_change(buf, __func__);

	if (result == DOCA_SUCCESS)
		buf->data_len = 0;
	return result;
}

/* Lists. */

doca_error_t emu_doca_buf_chain_list(struct doca_buf *list1, struct doca_buf *list2)
{
	struct doca_buf *last;
	doca_error_t result = check_change(list1, __func__);

	if (result == DOCA_SUCCESS)
		result = check_change(list2, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (list1->first != list1 || list2->first != list2 || list1 == list2) {
		emu_misuse(__func__, "both must be heads, and of different lists");
		return DOCA_ERROR_INVALID_VALUE;
	}
	for (last = list1; last->next != NULL; last = last->next)
		;
	last->next = list2;
	for (; list2 != NULL; list2 = list2->next)
		list2->first = list1;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_next_in_list(struct doca_buf *buf, struct doca_buf **next)
{
	if (!is_held(buf, __func__) || !EMU_HAS(next))
		return DOCA_ERROR_INVALID_VALUE;
	*next = buf->next;
	return DOCA_SUCCESS;
}
