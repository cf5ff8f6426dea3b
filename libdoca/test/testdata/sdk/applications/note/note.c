/* An application with two halves: the server on the DPU, and the client on its host, which exchange
 * a note each way over Comch. doca_build_config.h says which half this is. */

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <doca_argp.h>
#include <doca_comch.h>
#include <doca_ctx.h>
#include <doca_dev.h>
#include <doca_log.h>
#include <doca_pe.h>

DOCA_LOG_REGISTER(NOTE);

#ifdef DOCA_ARCH_DPU
static const char role[] = "dpu";
#else
static const char role[] = "host";
#endif

#define OK(call) \
	do { \
		doca_error_t result = (call); \
		if (result != DOCA_SUCCESS) { \
			DOCA_LOG_ERR("%s: %s", #call, doca_error_get_descr(result)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

static struct {
	char device[DOCA_DEVINFO_PCI_ADDR_SIZE];
	char representor[DOCA_DEVINFO_REP_PCI_ADDR_SIZE];
} config;

static struct doca_comch_connection *peer;
static bool is_received, is_disconnected, is_sent;

static doca_error_t set_device(void *value, void *context)
{
	(void)context;
	snprintf(config.device, sizeof config.device, "%s", (const char *)value);
	return DOCA_SUCCESS;
}

static doca_error_t set_representor(void *value, void *context)
{
	(void)context;
	snprintf(config.representor, sizeof config.representor, "%s", (const char *)value);
	return DOCA_SUCCESS;
}

static void add_option(const char *short_name, const char *long_name, doca_argp_param_cb_t callback)
{
	struct doca_argp_param *param;

	OK(doca_argp_param_create(&param));
	doca_argp_param_set_short_name(param, short_name);
	doca_argp_param_set_long_name(param, long_name);
	doca_argp_param_set_description(param, long_name);
	doca_argp_param_set_callback(param, callback);
	doca_argp_param_set_type(param, DOCA_ARGP_TYPE_STRING);
	OK(doca_argp_register_param(param));
}

static void on_message(struct doca_comch_event_msg_recv *event, uint8_t *data, uint32_t length,
		       struct doca_comch_connection *connection)
{
	(void)event;
	printf("the %s got \"%.*s\"\n", role, (int)length, (const char *)data);
	peer = connection;
	is_received = true;
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
	on_sent(task, task_data, ctx_data);
	DOCA_LOG_ERR("a message was not sent");
	exit(EXIT_FAILURE);
}

static struct doca_dev *open_device(void)
{
	struct doca_devinfo **list;
	struct doca_dev *dev = NULL;
	uint32_t count;

	OK(doca_devinfo_create_list(&list, &count));
	for (uint32_t i = 0; i < count && dev == NULL; i++) {
		uint8_t is_equal;

		OK(doca_devinfo_is_equal_pci_addr(list[i], config.device, &is_equal));
		if (is_equal)
			OK(doca_dev_open(list[i], &dev));
	}
	OK(doca_devinfo_destroy_list(list));
	if (dev == NULL) {
		DOCA_LOG_ERR("found no device %s", config.device);
		exit(EXIT_FAILURE);
	}
	return dev;
}

static enum doca_ctx_states progress(struct doca_pe *pe, struct doca_ctx *ctx)
{
	enum doca_ctx_states state;

	(void)doca_pe_progress(pe);
	OK(doca_ctx_get_state(ctx, &state));
	return state;
}

static void stop(struct doca_pe *pe, struct doca_ctx *ctx)
{
	(void)doca_ctx_stop(ctx);
	while (progress(pe, ctx) != DOCA_CTX_STATE_IDLE)
		;
}

#ifdef DOCA_ARCH_DPU

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

static struct doca_dev_rep *open_representor(struct doca_dev *dev)
{
	struct doca_devinfo_rep **list;
	struct doca_dev_rep *rep = NULL;
	uint32_t count;

	OK(doca_devinfo_rep_create_list(dev, DOCA_DEVINFO_REP_FILTER_NET, &list, &count));
	for (uint32_t i = 0; i < count && rep == NULL; i++) {
		uint8_t is_equal;

		OK(doca_devinfo_rep_is_equal_pci_addr(list[i], config.representor, &is_equal));
		if (is_equal)
			OK(doca_dev_rep_open(list[i], &rep));
	}
	OK(doca_devinfo_rep_destroy_list(list));
	if (rep == NULL) {
		DOCA_LOG_ERR("found no representor %s", config.representor);
		exit(EXIT_FAILURE);
	}
	return rep;
}

static void run(struct doca_dev *dev, struct doca_pe *pe)
{
	struct doca_dev_rep *rep = open_representor(dev);
	struct doca_comch_server *server;
	struct doca_comch_task_send *task;
	struct doca_ctx *ctx;

	OK(doca_comch_server_create(dev, rep, "note", &server));
	ctx = doca_comch_server_as_ctx(server);
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_comch_server_task_send_set_conf(server, on_sent, on_failed, 1));
	OK(doca_comch_server_event_msg_recv_register(server, on_message));
	OK(doca_comch_server_event_connection_status_changed_register(server, on_connected,
								      on_disconnected));
	OK(doca_ctx_start(ctx));
	while (!is_received)
		(void)progress(pe, ctx);
	OK(doca_comch_server_task_send_alloc_init(server, peer, "from the DPU",
						  strlen("from the DPU"), &task));
	OK(doca_task_submit(doca_comch_task_send_as_task(task)));
	while (!is_sent || !is_disconnected)
		(void)progress(pe, ctx);
	stop(pe, ctx);
	OK(doca_comch_server_destroy(server));
	OK(doca_dev_rep_close(rep));
}

#else

/* The server may start later. */
static void connect_to_server(struct doca_pe *pe, struct doca_ctx *ctx)
{
	for (int attempt = 0; attempt < 1000; attempt++) {
		enum doca_ctx_states state;

		(void)doca_ctx_start(ctx);
		do
			state = progress(pe, ctx);
		while (state == DOCA_CTX_STATE_STARTING || state == DOCA_CTX_STATE_STOPPING);
		if (state == DOCA_CTX_STATE_RUNNING)
			return;
		usleep(10000);
	}
	DOCA_LOG_ERR("found no server");
	exit(EXIT_FAILURE);
}

static void run(struct doca_dev *dev, struct doca_pe *pe)
{
	struct doca_comch_client *client;
	struct doca_comch_task_send *task;
	struct doca_ctx *ctx;

	(void)is_disconnected;
	OK(doca_comch_client_create(dev, "note", &client));
	ctx = doca_comch_client_as_ctx(client);
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_comch_client_task_send_set_conf(client, on_sent, on_failed, 1));
	OK(doca_comch_client_event_msg_recv_register(client, on_message));
	connect_to_server(pe, ctx);
	OK(doca_comch_client_get_connection(client, &peer));
	OK(doca_comch_client_task_send_alloc_init(client, peer, "from the host",
						  strlen("from the host"), &task));
	OK(doca_task_submit(doca_comch_task_send_as_task(task)));
	while (!is_sent || !is_received)
		(void)progress(pe, ctx);
	stop(pe, ctx);
	OK(doca_comch_client_destroy(client));
}

#endif

int main(int argc, char **argv)
{
	struct doca_dev *dev;
	struct doca_pe *pe;

#ifdef EXPECTED_ROLE
	if (strcmp(role, EXPECTED_ROLE) != 0) {
		fprintf(stderr, "error: this is the half for the %s\n", role);
		return EXIT_FAILURE;
	}
#endif
	strcpy(config.device, "03:00.0");
	strcpy(config.representor, "b1:00.0");
	OK(doca_log_backend_create_standard());
	OK(doca_argp_init(NULL, &config));
	add_option("p", "pci-addr", set_device);
	add_option("r", "rep-pci", set_representor);
	OK(doca_argp_start(argc, argv));
	dev = open_device();
	OK(doca_pe_create(&pe));
	run(dev, pe);
	OK(doca_pe_destroy(pe));
	OK(doca_dev_close(dev));
	OK(doca_argp_destroy());
	return EXIT_SUCCESS;
}
