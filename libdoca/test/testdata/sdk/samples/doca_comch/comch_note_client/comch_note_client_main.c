/* Sends a message to the server, which has to run. */

#include <stdbool.h>
#include <string.h>

#include <doca_comch.h>
#include <doca_ctx.h>
#include <doca_pe.h>

#include "common.h"

static bool is_sent, is_failed;

static void on_message(struct doca_comch_event_msg_recv *event, uint8_t *data, uint32_t length,
		       struct doca_comch_connection *connection)
{
	(void)event;
	(void)data;
	(void)length;
	(void)connection;
}

static void on_sent(struct doca_comch_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	is_sent = true;
	doca_task_free(doca_comch_task_send_as_task(task));
}

static void on_failed(struct doca_comch_task_send *task, union doca_data task_data,
		      union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	is_failed = true;
	doca_task_free(doca_comch_task_send_as_task(task));
}

static enum doca_ctx_states progress(struct doca_pe *pe, struct doca_ctx *ctx)
{
	enum doca_ctx_states state;

	(void)doca_pe_progress(pe);
	OK(doca_ctx_get_state(ctx, &state));
	return state;
}

int main(void)
{
	struct doca_dev *dev = open_capable(doca_comch_cap_client_is_supported);
	struct doca_comch_connection *connection;
	struct doca_comch_task_send *task;
	struct doca_comch_client *client;
	struct doca_ctx *ctx;
	struct doca_pe *pe;

	OK(doca_pe_create(&pe));
	OK(doca_comch_client_create(dev, "note", &client));
	ctx = doca_comch_client_as_ctx(client);
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_comch_client_task_send_set_conf(client, on_sent, on_failed, 1));
	OK(doca_comch_client_event_msg_recv_register(client, on_message));
	if (doca_ctx_start(ctx) != DOCA_ERROR_IN_PROGRESS) {
		fprintf(stderr, "error: the client does not start\n");
		return EXIT_FAILURE;
	}
	for (;;) {
		enum doca_ctx_states state = progress(pe, ctx);

		if (state == DOCA_CTX_STATE_RUNNING)
			break;
		if (state == DOCA_CTX_STATE_IDLE) {
			fprintf(stderr, "error: there is no server\n");
			return EXIT_FAILURE;
		}
	}
	OK(doca_comch_client_get_connection(client, &connection));
	OK(doca_comch_client_task_send_alloc_init(client, connection, "a note", strlen("a note"),
						  &task));
	OK(doca_task_submit(doca_comch_task_send_as_task(task)));
	while (!is_sent && !is_failed)
		(void)doca_pe_progress(pe);
	(void)doca_ctx_stop(ctx);
	while (progress(pe, ctx) != DOCA_CTX_STATE_IDLE)
		;
	OK(doca_comch_client_destroy(client));
	OK(doca_pe_destroy(pe));
	OK(doca_dev_close(dev));
	return is_sent ? EXIT_SUCCESS : EXIT_FAILURE;
}
