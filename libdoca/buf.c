// SPDX-License-Identifier: Apache-2.0

/* Bufs and their inventories. */

#include "skin.h"

#include <stdlib.h>

/* More bufs in an inventory would take more than a GiB of memory, which is touched at once. */
enum { MAX_BUFS = 1 << 24 };

/* Gives an inventory more bufs. */
static doca_error_t add_bufs(struct doca_buf_inventory *inventory, size_t num_elements)
{
	struct emu_buf_chunk *added;

	if (num_elements > MAX_BUFS - inventory->count)
		return DOCA_ERROR_NO_MEMORY;
	added = emu_new(EMU_BUF, sizeof *added + num_elements * sizeof added->bufs[0]);
	if (added == NULL)
		return DOCA_ERROR_NO_MEMORY;
	added->count = num_elements;
	added->next = inventory->chunks;
	inventory->chunks = added;
	inventory->count += num_elements;
	inventory->free_count += num_elements;
	for (size_t i = num_elements; i-- > 0;) {
		struct doca_buf *buf = &added->bufs[i];

		buf->magic = EMU_BUF;
		buf->inventory = inventory;
		buf->next = inventory->free;
		inventory->free = buf;
	}
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_create(size_t num_elements,
					   struct doca_buf_inventory **inventory)
{
	struct doca_buf_inventory *created;
	doca_error_t result;

	if (!EMU_HAS(inventory))
		return DOCA_ERROR_INVALID_VALUE;
	if (num_elements == 0) {
		emu_misuse(__func__, "an inventory holds at least one buf");
		return DOCA_ERROR_INVALID_VALUE;
	}
	created = emu_new(EMU_INVENTORY, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	result = add_bufs(created, num_elements);
	if (result == DOCA_SUCCESS)
		*inventory = created;
	else
		emu_bury(created, NULL);
	return result;
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
	for (struct emu_buf_chunk *chunk = inventory->chunks, *next; chunk != NULL; chunk = next) {
		next = chunk->next;
		for (size_t i = 0; i < chunk->count; i++)
			chunk->bufs[i].magic = EMU_DEAD;
		emu_bury(chunk, NULL);
	}
	emu_bury(inventory, NULL);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_expand(struct doca_buf_inventory *inventory,
					   uint32_t num_elements)
{
	doca_error_t result;

	if (!EMU_IS(inventory, EMU_INVENTORY))
		return DOCA_ERROR_INVALID_VALUE;
	if (num_elements == 0) {
		emu_misuse(__func__, "0 bufs are no expansion");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (!enter(inventory, __func__))
		return DOCA_ERROR_BAD_STATE;
	if (inventory->started) {
		result = add_bufs(inventory, num_elements);
	} else {
		emu_misuse(__func__, "the inventory is not started");
		result = DOCA_ERROR_BAD_STATE;
	}
	leave(inventory);
	return result;
}

doca_error_t
emu_doca_buf_inventory_get_num_elements(const struct doca_buf_inventory *inventory,
					uint32_t *num_elements)
{
	if (!EMU_IS(inventory, EMU_INVENTORY) || !EMU_HAS(num_elements))
		return DOCA_ERROR_INVALID_VALUE;
	*num_elements = (uint32_t)inventory->count;
	return DOCA_SUCCESS;
}

doca_error_t
emu_doca_buf_inventory_get_num_free_elements(const struct doca_buf_inventory *inventory,
					     uint32_t *num_free_elements)
{
	if (!EMU_IS(inventory, EMU_INVENTORY) || !EMU_HAS(num_free_elements))
		return DOCA_ERROR_INVALID_VALUE;
	*num_free_elements = (uint32_t)inventory->free_count;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_set_user_data(struct doca_buf_inventory *inventory,
						  union doca_data user_data)
{
	if (!EMU_IS(inventory, EMU_INVENTORY))
		return DOCA_ERROR_INVALID_VALUE;
	inventory->user_data = user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_get_user_data(const struct doca_buf_inventory *inventory,
						  union doca_data *user_data)
{
	if (!EMU_IS(inventory, EMU_INVENTORY) || !EMU_HAS(user_data))
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = inventory->user_data;
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
	if (mmap->thread_safe) {
		__atomic_add_fetch(&mmap->num_bufs, change, __ATOMIC_SEQ_CST);
		return true;
	}
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
		emu_misuse(__func__, "a task that is submitted, or a sync event, uses the buf: it "
				     "holds no reference of its own");
		return DOCA_ERROR_IN_USE;
	}
	return return_list(buf, __func__);
}

/* Takes a buf for each of a list, and chains them. */
static doca_error_t duplicate(struct doca_buf_inventory *inventory, const struct doca_buf *source,
			      struct doca_buf **copy, const char *function)
{
	struct doca_buf *head = NULL, **end = &head;

	for (; source != NULL; source = source->next) {
		doca_error_t result = take(inventory, source->mmap, source->head, source->len,
					   source->data, source->data_len, end, function);

		if (result != DOCA_SUCCESS) {
			(void)return_list(head, function);
			return result;
		}
		(*end)->first = head;
		end = &(*end)->next;
	}
	*copy = head;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_inventory_buf_dup(struct doca_buf_inventory *inventory,
					    const struct doca_buf *src_buf,
					    struct doca_buf **dst_buf)
{
	doca_error_t result;

	if (!EMU_IS(inventory, EMU_INVENTORY) || !EMU_HAS(dst_buf))
		return DOCA_ERROR_INVALID_VALUE;
	result = check_counted(src_buf, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (!enter(inventory, __func__))
		return DOCA_ERROR_BAD_STATE;
	result = duplicate(inventory, src_buf, dst_buf, __func__);
	leave(inventory);
	return result;
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

static doca_error_t set_window(struct doca_buf *buf, uintptr_t data, size_t data_len,
			       const char *function)
{
	if (!contains(buf->head, buf->len, data, data_len)) {
		emu_misuse(function,
			   "the window of %zu bytes at %#zx is outside the buf of %zu at %#zx",
			   data_len, (size_t)data, buf->len, (size_t)buf->head);
		return DOCA_ERROR_INVALID_VALUE;
	}
	buf->data = data;
	buf->data_len = data_len;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_set_data(struct doca_buf *buf, void *data, size_t data_len)
{
	doca_error_t result = check_change(buf, __func__);

	if (result == DOCA_SUCCESS)
		result = set_window(buf, (uintptr_t)data, data_len, __func__);
	return result;
}

doca_error_t emu_doca_buf_set_data_len(struct doca_buf *buf, size_t data_len)
{
	doca_error_t result = check_change(buf, __func__);

	if (result == DOCA_SUCCESS)
		result = set_window(buf, buf->data, data_len, __func__);
	return result;
}

doca_error_t emu_doca_buf_reset_data_len(struct doca_buf *buf)
{
	doca_error_t result = check_change(buf, __func__);

	if (result == DOCA_SUCCESS)
		buf->data_len = 0;
	return result;
}

/* Lists. */

/* Makes another buf the head of a list, or of the rest of one. */
static void set_first(struct doca_buf *list, struct doca_buf *first)
{
	for (; list != NULL; list = list->next)
		list->first = first;
}

static struct doca_buf *last_of(struct doca_buf *buf)
{
	while (buf->next != NULL)
		buf = buf->next;
	return buf;
}

/* Checks the lists of a chaining. */
static doca_error_t check_lists(const struct doca_buf *list1, const struct doca_buf *list2,
				const char *function)
{
	doca_error_t result = check_change(list1, function);

	if (result == DOCA_SUCCESS)
		result = check_change(list2, function);
	if (result != DOCA_SUCCESS)
		return result;
	if (list1->first != list1 || list2->first != list2 || list1 == list2) {
		emu_misuse(function, "both must be heads, and of different lists");
		return DOCA_ERROR_INVALID_VALUE;
	}
	if (list2->refcount != 1) {
		emu_misuse(function, "the second list has %u references, but must have 1",
			   list2->refcount);
		return DOCA_ERROR_NOT_PERMITTED;
	}
	return DOCA_SUCCESS;
}

/* Appends list2 to the list that ends with tail. */
static doca_error_t append(struct doca_buf *list1, struct doca_buf *tail, struct doca_buf *list2,
			   const char *function)
{
	doca_error_t result = check_change(tail, function);

	if (result != DOCA_SUCCESS)
		return result;
	tail->next = list2;
	set_first(list2, list1);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_chain_list(struct doca_buf *list1, struct doca_buf *list2)
{
	doca_error_t result = check_lists(list1, list2, __func__);

	if (result == DOCA_SUCCESS)
		result = append(list1, last_of(list1), list2, __func__);
	return result;
}

doca_error_t emu_doca_buf_chain_list_tail(struct doca_buf *list1_head, struct doca_buf *list1_tail,
					  struct doca_buf *list2)
{
	doca_error_t result = check_lists(list1_head, list2, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!EMU_IS(list1_tail, EMU_BUF))
		return DOCA_ERROR_INVALID_VALUE;
	if (list1_tail->first != list1_head || list1_tail->next != NULL) {
		emu_misuse(__func__, "the tail is not the last buf of the first list");
		return DOCA_ERROR_INVALID_VALUE;
	}
	return append(list1_head, list1_tail, list2, __func__);
}

doca_error_t emu_doca_buf_unchain_list(struct doca_buf *list1, struct doca_buf *list2)
{
	struct doca_buf *before;
	doca_error_t result = check_change(list1, __func__);

	if (result == DOCA_SUCCESS)
		result = check_change(list2, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	for (before = list1; before != NULL && before->next != list2; before = before->next)
		;
	if (before == NULL) {
		emu_misuse(__func__, "the second buf does not lie behind the first in a list");
		return DOCA_ERROR_INVALID_VALUE;
	}
	before->next = NULL;
	set_first(list2, list2);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_last_in_list(struct doca_buf *buf, struct doca_buf **last)
{
	if (!is_held(buf, __func__) || !EMU_HAS(last))
		return DOCA_ERROR_INVALID_VALUE;
	*last = last_of(buf);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_list_len(const struct doca_buf *buf, uint32_t *num_elements)
{
	if (!is_held(buf, __func__) || !EMU_HAS(num_elements))
		return DOCA_ERROR_INVALID_VALUE;
	if (buf->first != buf) {
		emu_misuse(__func__, "the buf is not the head of its list");
		return DOCA_ERROR_NOT_PERMITTED;
	}
	*num_elements = 0;
	for (; buf != NULL; buf = buf->next)
		++*num_elements;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_is_first_in_list(const struct doca_buf *buf, uint8_t *is_first)
{
	if (!is_held(buf, __func__) || !EMU_HAS(is_first))
		return DOCA_ERROR_INVALID_VALUE;
	*is_first = buf->first == buf;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_is_last_in_list(const struct doca_buf *buf, uint8_t *is_last)
{
	if (!is_held(buf, __func__) || !EMU_HAS(is_last))
		return DOCA_ERROR_INVALID_VALUE;
	*is_last = buf->next == NULL;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_is_in_list(const struct doca_buf *buf, uint8_t *is_in_list)
{
	if (!is_held(buf, __func__) || !EMU_HAS(is_in_list))
		return DOCA_ERROR_INVALID_VALUE;
	*is_in_list = buf->first != buf || buf->next != NULL;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_buf_get_next_in_list(struct doca_buf *buf, struct doca_buf **next)
{
	if (!is_held(buf, __func__) || !EMU_HAS(next))
		return DOCA_ERROR_INVALID_VALUE;
	*next = buf->next;
	return DOCA_SUCCESS;
}
