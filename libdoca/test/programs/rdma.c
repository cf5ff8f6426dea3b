// SPDX-License-Identifier: Apache-2.0

/* RDMA: connections by details and by address, all tasks, and sync events. */

#include "remote.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <doca_sync_event.h>

enum { SIZE = 8 << 20, HALF = SIZE / 2 };

static void fill(uint8_t *bytes, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(seed + i + (i >> 8) * 3);
}

static void check(const uint8_t *bytes, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		CHECK(bytes[i] == (uint8_t)(seed + i + (i >> 8) * 3));
}

/* Both sides send messages of many sizes to each other, always some at once. */
static void messages(void)
{
	enum { MESSAGES = 2000, DEPTH = 16, SLOT = 8192 };
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);
	struct doca_buf *sends[DEPTH], *receives[DEPTH];
	uint32_t sent = 0, posted = 0, checked = 0;

	remote_connect(remote);
	for (size_t i = 0; i < DEPTH; i++) {
		sends[i] = memory_buf(&memory, i * SLOT, SLOT, 0);
		receives[i] = memory_buf(&memory, HALF + i * SLOT, SLOT, 0);
	}
	double deadline = now() + 120;

	while (remote->completed < MESSAGES || checked < MESSAGES) {
		CHECK(now() < deadline);
		if (posted < MESSAGES && posted - checked < DEPTH) {
			OK(doca_buf_reset_data_len(receives[posted % DEPTH]));
			(void)remote_post(remote, receives[posted++ % DEPTH]);
		}
		if (sent < MESSAGES && sent - (uint32_t)remote->completed < DEPTH) {
			size_t length = sent * 13 % (SLOT + 1);
			uint8_t *bytes = memory.bytes + sent % DEPTH * SLOT;

			fill(bytes, length, sent);
			OK(doca_buf_set_data(sends[sent % DEPTH], bytes, length));
			(void)remote_send(remote, sends[sent++ % DEPTH]);
		}
		(void)doca_pe_progress(remote->pe);
		while (checked < (uint32_t)remote->received) {
			size_t length;

			OK(doca_buf_get_data_len(receives[checked % DEPTH], &length));
			CHECK(length == checked * 13 % (SLOT + 1));
			check(memory.bytes + HALF + checked % DEPTH * SLOT, length, checked);
			checked++;
		}
	}
	MEET_WHILE(remote->pe);
	for (int i = 0; i < DEPTH; i++) {
		release(sends[i]);
		release(receives[i]);
	}
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Immediate data come with a message, a write, or nothing else. */
static void immediate(void)
{
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);

	remote_connect(remote);
	if (is_dpu) {
		struct doca_buf *dst = memory_buf(&memory, 0, 64, 0);

		tell_memory(&memory, dev);
		(void)remote_post(remote, dst);
		UNTIL(remote->received == 1, remote->pe);
		CHECK(remote->opcode == DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM);
		CHECK(remote->immediate == 0x11223344 && remote->length == 5);
		CHECK(remote->from == remote->connection);
		CHECK(memcmp(memory.bytes, "hello", 5) == 0);
		(void)remote_post(remote, NULL);
		UNTIL(remote->received == 2, remote->pe);
		CHECK(remote->opcode == DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM);
		CHECK(remote->immediate == 0x55 && remote->length == 0);
		(void)remote_post(remote, NULL);
		UNTIL(remote->received == 3, remote->pe);
		CHECK(remote->opcode == DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM);
		CHECK(remote->immediate == 0x66);
		CHECK(memcmp(memory.bytes + 1000, "hello", 5) == 0);
		MEET_WHILE(remote->pe);
		release(dst);
	} else {
		struct memory peer = hear_memory(dev);
		struct doca_buf *src = memory_buf(&memory, 0, 5, 5);
		struct doca_buf *dst = memory_buf(&peer, 1000, 5, 0);

		memcpy(memory.bytes, "hello", 5);
		(void)remote_send_imm(remote, src, 0x11223344);
		(void)remote_send_imm(remote, NULL, 0x55);
		(void)remote_write_imm(remote, src, dst, 0x66);
		UNTIL(remote->completed == 3, remote->pe);
		MEET_WHILE(remote->pe);
		release(src);
		release(dst);
		memory_free(&peer);
	}
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Reads and writes of up to 4 MiB, several at once; a message behind a write finds its data. */
static void transfers(void)
{
	static const size_t lengths[] = {1, 511, 4096, 65536, 65537, 1000003, HALF};
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);

	remote_connect(remote);
	if (is_dpu) {
		tell_memory(&memory, dev);
		for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
			(void)remote_post(remote, NULL);
			UNTIL(remote->received == (int)i + 1, remote->pe);
			check(memory.bytes, lengths[i], (uint32_t)i);
			fill(memory.bytes + HALF, lengths[i], (uint32_t)i + 100);
			(void)remote_send(remote, NULL);
			UNTIL(remote->completed == (int)i + 1, remote->pe);
		}
		MEET_WHILE(remote->pe);
	} else {
		struct memory peer = hear_memory(dev);

		for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
			struct doca_buf *src = memory_buf(&memory, 0, lengths[i], lengths[i]);
			struct doca_buf *to = memory_buf(&peer, 0, lengths[i], 0);
			struct doca_buf *from = memory_buf(&peer, HALF, lengths[i], lengths[i]);
			struct doca_buf *dst = memory_buf(&memory, HALF, lengths[i], 0);
			size_t length;

			fill(memory.bytes, lengths[i], (uint32_t)i);
			remote->completed = remote->received = 0;
			(void)remote_post(remote, NULL);
			(void)remote_write(remote, src, to);
			(void)remote_send(remote, NULL);
			UNTIL(remote->completed == 2 && remote->received == 1, remote->pe);
			(void)remote_read(remote, from, dst);
			UNTIL(remote->completed == 3, remote->pe);
			OK(doca_buf_get_data_len(dst, &length));
			CHECK(length == lengths[i]);
			check(memory.bytes + HALF, lengths[i], (uint32_t)i + 100);
			release(src);
			release(to);
			release(from);
			release(dst);
		}
		MEET_WHILE(remote->pe);
		memory_free(&peer);
	}
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* What a peer has not exported, or not for that, ends the connection. */
static void refused(void)
{
	struct doca_dev *dev = open_own_device();

	for (int round = 0; round < 3; round++) {
		struct memory memory =
			memory_new(dev, 4096,
				   round == 0 ? DOCA_ACCESS_FLAG_LOCAL_READ_WRITE |
							DOCA_ACCESS_FLAG_RDMA_READ
					      : RDMA_ACCESS);
		struct remote *remote = remote_new(dev, true);

		if (is_dpu && round == 1)
			OK(doca_rdma_set_permissions(remote->rdma, DOCA_ACCESS_FLAG_RDMA_READ));
		remote_connect(remote);
		if (is_dpu) {
			tell_memory(&memory, dev);
			meet();
			if (round == 2)
				memory_revoke(&memory);
			meet();
			meet();
			CHECK(memory.bytes[0] == 0);
		} else {
			struct memory peer = hear_memory(dev);
			struct doca_buf *src = memory_buf(&memory, 0, 4, 4);
			struct doca_buf *dst = memory_buf(&peer, 0, 4, 0);

			memcpy(memory.bytes, "evil", 4);
			meet();
			meet();
			(void)remote_write(remote, src, dst);
			UNTIL(remote->failed == 1, remote->pe);
			CHECK(remote->last_status == DOCA_ERROR_IO_FAILED);
			(void)remote_send(remote, src);
			UNTIL(remote->failed == 2, remote->pe);
			meet();
			release(src);
			release(dst);
			memory_free(&peer);
		}
		remote_destroy(remote);
		memory_free(&memory);
	}
	OK(doca_dev_close(dev));
}

/* Connections of one context share its receives, and each gets the answers that are its own. */
static void several_connections(void)
{
	enum { CONNECTIONS = 3, MESSAGES = 60 };
	struct doca_dev *dev = open_own_device();
	struct memory memory = memory_new(dev, SIZE, RDMA_ACCESS);
	struct remote *remote = remote_new(dev, true);
	struct doca_rdma_connection *connections[CONNECTIONS], *more;
	const void *details;
	uint8_t peer[1024];
	size_t length;

	OK(doca_rdma_set_max_num_connections(remote->rdma, CONNECTIONS));
	OK(doca_ctx_start(remote->ctx));
	for (int i = 0; i < CONNECTIONS; i++) {
		length = sizeof peer;
		connections[i] = remote_export(remote, peer, &length);
		OK(doca_rdma_connect(remote->rdma, peer, length, connections[i]));
	}
	IS(DOCA_ERROR_FULL, doca_rdma_export(remote->rdma, &details, &length, &more));
	if (is_dpu) {
		int from[CONNECTIONS] = {0};

		for (int i = 0; i < MESSAGES; i++) {
			(void)remote_post(remote, NULL);
			UNTIL(remote->received == i + 1, remote->pe);
			for (int j = 0; j < CONNECTIONS; j++)
				from[j] += remote->from == connections[j] &&
					   remote->immediate == (uint32_t)j;
		}
		for (int j = 0; j < CONNECTIONS; j++)
			CHECK(from[j] == MESSAGES / CONNECTIONS);
	} else {
		for (uint32_t i = 0; i < MESSAGES; i++) {
			remote->connection = connections[i % CONNECTIONS];
			(void)remote_send_imm(remote, NULL, i % CONNECTIONS);
		}
		UNTIL(remote->completed == MESSAGES, remote->pe);
	}
	MEET_WHILE(remote->pe);
	remote_destroy(remote);
	memory_free(&memory);
	OK(doca_dev_close(dev));
}

/* Finds a port that no other test uses. */
static uint16_t free_port(struct remote *remote)
{
	uint16_t port = (uint16_t)(20000 + getpid() % 10000);

	while (doca_rdma_start_listen_to_port(remote->rdma, port) != DOCA_SUCCESS)
		port++;
	OK(doca_rdma_stop_listen_to_port(remote->rdma, port));
	return port;
}

/* Checks the address of the peer of the last connection. port is 0 if any will do. */
static void check_address(struct remote *remote, uint16_t port)
{
	enum doca_rdma_addr_type type;
	struct doca_rdma_addr *addr;
	const char *text;
	uint16_t found;

	OK(doca_rdma_connection_get_addr(remote->connection, &addr));
	OK(doca_rdma_addr_get_params(addr, &type, &text, &found));
	CHECK(type == DOCA_RDMA_ADDR_TYPE_IPv4 && strcmp(text, "127.0.0.1") == 0);
	CHECK(port == 0 ? found != 0 : found == port);
	expect_misuse("doca_rdma_addr_destroy");
	IS(DOCA_ERROR_BAD_STATE, doca_rdma_addr_destroy(addr)); /* it is the connection's */
}

/* Connections by address: refused, rejected, accepted, and ended by either side. */
static void by_address(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, true);
	union doca_data data = {.u64 = 77};
	uint16_t port;

	OK(doca_ctx_start(remote->ctx));
	if (is_dpu) {
		port = free_port(remote);
		tell(&port, sizeof port);
		meet(); /* nobody listens yet */
		OK(doca_rdma_start_listen_to_port(remote->rdma, port));
		remote->reject = true;
		meet();
		UNTIL(remote->requests == 1, remote->pe);
		remote->reject = false;
		MEET_WHILE(remote->pe);
		for (int round = 1; round <= 2; round++) {
			UNTIL(remote->established == round, remote->pe);
			check_address(remote, 0);
			(void)remote_post(remote, NULL);
			UNTIL(remote->received == round, remote->pe);
			CHECK(remote->from == remote->connection);
			if (round == 1)
				OK(doca_rdma_connection_disconnect(remote->connection));
			UNTIL(remote->disconnects == round, remote->pe);
		}
		OK(doca_rdma_stop_listen_to_port(remote->rdma, port));
	} else {
		struct doca_rdma_addr *addr;

		CHECK(hear(&port, sizeof port) == sizeof port);
		OK(doca_rdma_addr_create(DOCA_RDMA_ADDR_TYPE_IPv4, "127.0.0.1", port, &addr));
		OK(doca_rdma_connect_to_addr(remote->rdma, addr, data));
		UNTIL(remote->failures == 1, remote->pe);
		meet();
		meet();
		OK(doca_rdma_connect_to_addr(remote->rdma, addr, data));
		UNTIL(remote->failures == 2, remote->pe);
		MEET_WHILE(remote->pe);
		for (int round = 1; round <= 2; round++) {
			OK(doca_rdma_connect_to_addr(remote->rdma, addr, data));
			UNTIL(remote->established == round, remote->pe);
			check_address(remote, port);
			(void)remote_send_imm(remote, NULL, 5);
			UNTIL(remote->completed == round, remote->pe);
			if (round == 2)
				OK(doca_rdma_connection_disconnect(remote->connection));
			UNTIL(remote->disconnects == round, remote->pe);
		}
		OK(doca_rdma_addr_destroy(addr));
	}
	CHECK(remote->failed == 0);
	MEET_WHILE(remote->pe);
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

/* A connection that the peer's application does not answer fails when its time is over. The GID of
 * a device is an address, too. */
static void request_timeout(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, true);
	union doca_data data = {.u64 = 77};
	char gid_text[INET6_ADDRSTRLEN];
	struct doca_rdma_gid gid;
	uint16_t port, timeout;
	double start;

	if (is_dpu) {
		OK(doca_ctx_start(remote->ctx));
		port = free_port(remote);
		OK(doca_rdma_start_listen_to_port(remote->rdma, port));
		tell(&port, sizeof port);
		meet();
		/* Both requests have waited until now. That of the first one, which nobody waits for any
		 * more, may still be accepted. */
		UNTIL(remote->requests == 2 && remote->established >= 1, remote->pe);
	} else {
		struct doca_rdma_addr *addr;

		OK(doca_rdma_set_connection_request_timeout(remote->rdma, 300));
		OK(doca_rdma_get_connection_request_timeout(remote->rdma, &timeout));
		CHECK(timeout == 300);
		OK(doca_ctx_start(remote->ctx));
		CHECK(hear(&port, sizeof port) == sizeof port);
		OK(doca_rdma_cap_get_gid(doca_dev_as_devinfo(dev), 0, 1, &gid));
		CHECK(inet_ntop(AF_INET6, gid.raw, gid_text, sizeof gid_text) != NULL);
		CHECK(strcmp(gid_text, "::ffff:127.0.0.1") == 0);
		OK(doca_rdma_addr_create(DOCA_RDMA_ADDR_TYPE_GID, gid_text, port, &addr));
		start = now();
		OK(doca_rdma_connect_to_addr(remote->rdma, addr, data));
		UNTIL(remote->failures == 1, remote->pe);
		CHECK(now() - start > 0.25 && now() - start < 20);
		OK(doca_rdma_connect_to_addr(remote->rdma, addr, data));
		meet();
		UNTIL(remote->established == 1, remote->pe);
		OK(doca_rdma_addr_destroy(addr));
	}
	MEET_WHILE(remote->pe);
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

/* A peer sets a sync event, and reads it. */
static void on_get(struct doca_rdma_task_remote_net_sync_event_get *task,
		   union doca_data task_data, union doca_data ctx_data)
{
	(void)task_data;
	CHECK(doca_rdma_task_remote_net_sync_event_get_get_result_len(task) == sizeof(uint64_t));
	((struct remote *)ctx_data.ptr)->completed++;
	doca_task_free(doca_rdma_task_remote_net_sync_event_get_as_task(task));
}

static void on_set(struct doca_rdma_task_remote_net_sync_event_notify_set *task,
		   union doca_data task_data, union doca_data ctx_data)
{
	(void)task_data;
	((struct remote *)ctx_data.ptr)->completed++;
	doca_task_free(doca_rdma_task_remote_net_sync_event_notify_set_as_task(task));
}

static void sync_events(void)
{
	struct doca_dev *dev = open_own_device();
	struct remote *remote = remote_new(dev, true);
	union doca_data data = {.u64 = 0};

	OK(doca_rdma_task_remote_net_sync_event_get_set_conf(remote->rdma, on_get, on_get, 1));
	OK(doca_rdma_task_remote_net_sync_event_notify_set_set_conf(remote->rdma, on_set, on_set,
								     1));
	remote_connect(remote);
	if (is_dpu) {
		struct doca_sync_event *event;
		const uint8_t *export;
		size_t size;

		OK(doca_sync_event_create(&event));
		OK(doca_sync_event_add_subscriber_location_cpu(event, dev));
		OK(doca_sync_event_add_publisher_location_remote_net(event));
		OK(doca_sync_event_start(event));
		OK(doca_sync_event_update_set(event, 5));
		OK(doca_sync_event_export_to_remote_net(event, &export, &size));
		tell(export, size);
		OK(doca_sync_event_wait_gt(event, 1000, UINT64_MAX));
		meet();
		OK(doca_sync_event_stop(event));
		OK(doca_sync_event_destroy(event));
	} else {
		struct memory memory = memory_new(dev, 64, RDMA_ACCESS);
		struct doca_buf *dst = memory_buf(&memory, 0, 8, 0);
		struct doca_buf *src = memory_buf(&memory, 8, 8, 8);
		struct doca_sync_event_remote_net *event;
		struct doca_rdma_task_remote_net_sync_event_get *get;
		struct doca_rdma_task_remote_net_sync_event_notify_set *set;
		uint8_t export[1024];
		uint64_t value;

		OK(doca_sync_event_remote_net_create_from_export(
			dev, export, hear(export, sizeof export), &event));
		OK(doca_rdma_task_remote_net_sync_event_get_allocate_init(
			remote->rdma, remote->connection, event, dst, data, &get));
		OK(doca_task_submit(doca_rdma_task_remote_net_sync_event_get_as_task(get)));
		UNTIL(remote->completed == 1, remote->pe);
		memcpy(&value, memory.bytes, 8);
		CHECK(value == 5);
		value = 1001;
		memcpy(memory.bytes + 8, &value, 8);
		OK(doca_rdma_task_remote_net_sync_event_notify_set_allocate_init(
			remote->rdma, remote->connection, event, src, data, &set));
		OK(doca_task_submit(doca_rdma_task_remote_net_sync_event_notify_set_as_task(set)));
		UNTIL(remote->completed == 2, remote->pe);
		meet();
		OK(doca_sync_event_remote_net_destroy(event));
		release(dst);
		release(src);
		memory_free(&memory);
	}
	remote_destroy(remote);
	OK(doca_dev_close(dev));
}

struct waiter {
	struct doca_sync_event *event;
	pid_t thread; /* atomic */
};

static void *wait_in_vain(void *data)
{
	struct waiter *waiter = data;

	__atomic_store_n(&waiter->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	IS(DOCA_ERROR_BAD_STATE, doca_sync_event_wait_gt(waiter->event, 7, UINT64_MAX));
	return NULL;
}

static bool sleeps(pid_t thread)
{
	char path[64], state = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
	file = fopen(path, "r");
	CHECK(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
	fclose(file);
	return state == 'S';
}

/* A thread waits for an event that another one stops. */
static void stopped_sync_event(void)
{
	struct doca_dev *dev = open_own_device();
	struct waiter waiter = {0};
	pthread_t waiting;

	OK(doca_sync_event_create(&waiter.event));
	OK(doca_sync_event_add_subscriber_location_cpu(waiter.event, dev));
	OK(doca_sync_event_add_publisher_location_remote_net(waiter.event));
	OK(doca_sync_event_start(waiter.event));
	OK(doca_sync_event_update_set(waiter.event, 7));
	CHECK(pthread_create(&waiting, NULL, wait_in_vain, &waiter) == 0);
	while (__atomic_load_n(&waiter.thread, __ATOMIC_ACQUIRE) == 0 || !sleeps(waiter.thread))
		;
	OK(doca_sync_event_stop(waiter.event));
	CHECK(pthread_join(waiting, NULL) == 0);
	OK(doca_sync_event_destroy(waiter.event));
	OK(doca_dev_close(dev));
}

const struct test tests[] = {
	{"messages", messages},
	{"immediate", immediate},
	{"transfers", transfers},
	{"refused", refused},
	{"several_connections", several_connections},
	{"by_address", by_address},
	{"request_timeout", request_timeout},
	{"sync_events", sync_events},
	{"stopped_sync_event", stopped_sync_event},
	{NULL, NULL},
};
