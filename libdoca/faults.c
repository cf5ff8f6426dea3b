// SPDX-License-Identifier: Apache-2.0

/* Failures on request: calls of functions, and tasks, that fail without an effect. */

#include "skin.h"

#include <string.h>

/* Tasks by the names of their types. Servers and clients have the same. */
static const struct {
	const char *name;
	enum emu_ctx_kind kind;
	uint32_t pool;
} tasks[] = {
	{"doca_dma_task_memcpy", EMU_CTX_DMA, 0},
	{"doca_comch_task_send", EMU_CTX_SERVER, 0},
	{"doca_comch_task_send", EMU_CTX_CLIENT, 0},
	{"doca_comch_consumer_task_post_recv", EMU_CTX_CONSUMER, 0},
	{"doca_comch_producer_task_send", EMU_CTX_PRODUCER, 0},
	{"doca_rdma_task_receive", EMU_CTX_RDMA, EMU_RDMA_RECEIVE},
	{"doca_rdma_task_send", EMU_CTX_RDMA, EMU_RDMA_SEND},
	{"doca_rdma_task_send_imm", EMU_CTX_RDMA, EMU_RDMA_SEND_IMM},
	{"doca_rdma_task_read", EMU_CTX_RDMA, EMU_RDMA_READ},
	{"doca_rdma_task_write", EMU_CTX_RDMA, EMU_RDMA_WRITE},
	{"doca_rdma_task_write_imm", EMU_CTX_RDMA, EMU_RDMA_WRITE_IMM},
	{"doca_rdma_task_remote_net_sync_event_get", EMU_CTX_RDMA, EMU_RDMA_EVENT_GET},
	{"doca_rdma_task_remote_net_sync_event_notify_set", EMU_CTX_RDMA, EMU_RDMA_EVENT_SET},
	{"doca_rdma_task_remote_net_sync_event_notify_add", EMU_CTX_RDMA, EMU_RDMA_EVENT_ADD},
	{"doca_rdma_task_atomic_cmp_swp", EMU_CTX_RDMA, EMU_RDMA_COMPARE_SWAP},
	{"doca_rdma_task_atomic_fetch_add", EMU_CTX_RDMA, EMU_RDMA_FETCH_ADD},
	{"doca_sync_event_task_get", EMU_CTX_SYNC_EVENT, EMU_EVENT_POOL_GET},
	{"doca_sync_event_task_notify_set", EMU_CTX_SYNC_EVENT, EMU_EVENT_POOL_SET},
	{"doca_sync_event_task_notify_add", EMU_CTX_SYNC_EVENT, EMU_EVENT_POOL_ADD},
	{"doca_sync_event_task_wait_eq", EMU_CTX_SYNC_EVENT, EMU_EVENT_POOL_WAIT_EQ},
	{"doca_sync_event_task_wait_neq", EMU_CTX_SYNC_EVENT, EMU_EVENT_POOL_WAIT_NEQ},
};

enum { NUM_TASKS = sizeof tasks / sizeof tasks[0] };

bool emu_has_task(const char *name)
{
	for (int i = 0; i < NUM_TASKS; i++) {
		if (strcmp(tasks[i].name, name) == 0)
			return true;
	}
	return false;
}

struct emu_fault *emu_fault_of(enum emu_ctx_kind kind, uint32_t pool)
{
	for (int i = 0; i < NUM_TASKS; i++) {
		if (tasks[i].kind != kind || tasks[i].pool != pool)
			continue;
		for (uint32_t j = 0; j < emu_settings.num_faults; j++) {
			struct emu_fault *fault = &emu_settings.faults[j];

			if (fault->faulty == NULL && strcmp(fault->name, tasks[i].name) == 0)
				return fault;
		}
	}
	return NULL;
}

doca_error_t emu_fault_strike(struct emu_fault *fault)
{
	uint32_t count = __atomic_add_fetch(&fault->count, 1, __ATOMIC_RELAXED);

	return count % fault->every == 0 ? fault->error : DOCA_SUCCESS;
}

doca_error_t emu_strike(const uint8_t *faulty)
{
	emu_wait_until_configured();
	for (uint32_t i = 0; i < emu_settings.num_faults; i++) {
		if (emu_settings.faults[i].faulty == faulty)
			return emu_fault_strike(&emu_settings.faults[i]);
	}
	return DOCA_SUCCESS;
}
