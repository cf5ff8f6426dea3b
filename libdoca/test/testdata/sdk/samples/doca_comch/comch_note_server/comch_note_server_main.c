/* Waits for a message of a client. */

#include <stdbool.h>
#include <string.h>

#include <doca_comch.h>
#include <doca_ctx.h>
#include <doca_pe.h>

#include "common.h"

static bool is_received, is_disconnected;

static void on_message(struct doca_comch_event_msg_recv *event, uint8_t *data, uint32_t length,
		       struct doca_comch_connection *connection)
{
	(void)event;
	(void)connection;
	printf("received: %.*s\n", (int)length, (const char *)data);
	is_received = length == strlen("a note") && memcmp(data, "a note", length) == 0;
}

static void on_connected(struct doca_comch_event_connection_status_changed *event,
			 struct doca_comch_connection *connection, uint8_t success)
{
	(void)event;
	(void)connection;
	(void)success;
}

static void on_disconnected(struct doca_comch_event_connection_status_changed *event,
			    struct doca_comch_connection *connection, uint8_t success)
{
	(void)event;
	(void)connection;
	(void)success;
	is_disconnected = true;
}

static void on_sent(struct doca_comch_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	doca_task_free(doca_comch_task_send_as_task(task));
}

int main(void)
{
	struct doca_dev *dev = open_capable(doca_comch_cap_server_is_supported);
	struct doca_devinfo_rep **list;
	struct doca_comch_server *server;
	enum doca_ctx_states state;
	struct doca_dev_rep *rep;
	struct doca_ctx *ctx;
	struct doca_pe *pe;
	uint32_t count;

	OK(doca_devinfo_rep_create_list(dev, DOCA_DEVINFO_REP_FILTER_NET, &list, &count));
	OK(doca_dev_rep_open(list[0], &rep));
	OK(doca_devinfo_rep_destroy_list(list));
	OK(doca_pe_create(&pe));
	OK(doca_comch_server_create(dev, rep, "note", &server));
	ctx = doca_comch_server_as_ctx(server);
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_comch_server_task_send_set_conf(server, on_sent, on_sent, 1));
	OK(doca_comch_server_event_msg_recv_register(server, on_message));
	OK(doca_comch_server_event_connection_status_changed_register(server, on_connected,
								      on_disconnected));
	OK(doca_ctx_start(ctx));
	while (!is_disconnected)
		(void)doca_pe_progress(pe);
	(void)doca_ctx_stop(ctx);
	do {
		(void)doca_pe_progress(pe);
		OK(doca_ctx_get_state(ctx, &state));
	} while (state != DOCA_CTX_STATE_IDLE);
	OK(doca_comch_server_destroy(server));
	OK(doca_pe_destroy(pe));
	OK(doca_dev_rep_close(rep));
	OK(doca_dev_close(dev));
	return is_received ? EXIT_SUCCESS : EXIT_FAILURE;
}
