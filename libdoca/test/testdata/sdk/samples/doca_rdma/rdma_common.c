#include "rdma_common.h"

#include "common.h"
#include <doca_argp.h>
#include <doca_buf_inventory.h>
#include <doca_ctx.h>
#include <doca_mmap.h>
#include <doca_pe.h>
#include <doca_rdma.h>

#define NOTE "a note"

/* The name of a device is as long as librdmacm allows, and functions of the C library are used that
 * only the headers of DOCA bring. */
static struct {
	char device[IB_DEVICE_NAME_MAX];
	char local[256], remote[256];
} config;
static bool is_done, is_failed;

static doca_error_t set_device(void *value, void *context)
{
	(void)context;
	snprintf(config.device, sizeof config.device, "%s", (const char *)value);
	return DOCA_SUCCESS;
}

static doca_error_t set_local(void *value, void *context)
{
	(void)context;
	snprintf(config.local, sizeof config.local, "%s", (const char *)value);
	return DOCA_SUCCESS;
}

static doca_error_t set_remote(void *value, void *context)
{
	(void)context;
	snprintf(config.remote, sizeof config.remote, "%s", (const char *)value);
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
	doca_argp_param_set_mandatory(param);
	OK(doca_argp_register_param(param));
}

static void on_sent(struct doca_rdma_task_send *task, union doca_data task_data,
		    union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	is_done = true;
	is_failed |= doca_task_get_status(doca_rdma_task_send_as_task(task)) != DOCA_SUCCESS;
	doca_task_free(doca_rdma_task_send_as_task(task));
}

static void on_received(struct doca_rdma_task_receive *task, union doca_data task_data,
			union doca_data ctx_data)
{
	(void)task_data;
	(void)ctx_data;
	is_done = true;
	is_failed |= doca_task_get_status(doca_rdma_task_receive_as_task(task)) != DOCA_SUCCESS ||
		     doca_rdma_task_receive_get_result_len(task) != sizeof NOTE;
	doca_task_free(doca_rdma_task_receive_as_task(task));
}

static doca_error_t is_named(const struct doca_devinfo *info)
{
	char name[DOCA_DEVINFO_IBDEV_NAME_SIZE];

	OK(doca_devinfo_get_ibdev_name(info, name, sizeof name));
	return strcmp(name, config.device) == 0 ? DOCA_SUCCESS : DOCA_ERROR_NOT_FOUND;
}

int run(int argc, char **argv, bool is_sender)
{
	char note[sizeof NOTE] = "", peer[4096];
	struct doca_rdma_connection *connection;
	struct doca_buf_inventory *inventory;
	union doca_data no_data = {.u64 = 0};
	enum doca_ctx_states state;
	struct doca_mmap *mmap;
	struct doca_rdma *rdma;
	struct doca_ctx *ctx;
	struct doca_buf *buf;
	struct doca_dev *dev;
	struct doca_pe *pe;
	const void *details;
	size_t size;

	OK(doca_argp_init(NULL, &config));
	add_option("d", "device", set_device);
	add_option("ld", "local-descriptor-path", set_local);
	add_option("re", "remote-descriptor-path", set_remote);
	OK(doca_argp_start(argc, argv));
	dev = open_capable(is_named);
	if (is_sender)
		strcpy(note, NOTE);
	OK(doca_mmap_create(&mmap));
	OK(doca_mmap_add_dev(mmap, dev));
	OK(doca_mmap_set_memrange(mmap, note, sizeof note));
	OK(doca_mmap_set_permissions(mmap, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE));
	OK(doca_mmap_start(mmap));
	OK(doca_buf_inventory_create(1, &inventory));
	OK(doca_buf_inventory_start(inventory));
	OK(doca_buf_inventory_buf_get_by_args(inventory, mmap, note, sizeof note, note,
					      is_sender ? sizeof note : 0, &buf));
	OK(doca_pe_create(&pe));
	OK(doca_rdma_create(dev, &rdma));
	ctx = doca_rdma_as_ctx(rdma);
	OK(doca_rdma_task_send_set_conf(rdma, on_sent, on_sent, 1));
	OK(doca_rdma_task_receive_set_conf(rdma, on_received, on_received, 1));
	OK(doca_pe_connect_ctx(pe, ctx));
	OK(doca_ctx_start(ctx));
	OK(doca_rdma_export(rdma, &details, &size, &connection));
	write_file(config.local, details, size);
	printf("Copy %s to the peer, and press enter when the peer's is %s\n", config.local,
	       config.remote);
	(void)getchar();
	size = read_file(config.remote, peer, sizeof peer);
	OK(doca_rdma_connect(rdma, peer, size, connection));
	if (is_sender) {
		struct doca_rdma_task_send *task;

		OK(doca_rdma_task_send_allocate_init(rdma, connection, buf, no_data, &task));
		OK(doca_task_submit(doca_rdma_task_send_as_task(task)));
	} else {
		struct doca_rdma_task_receive *task;

		OK(doca_rdma_task_receive_allocate_init(rdma, buf, no_data, &task));
		OK(doca_task_submit(doca_rdma_task_receive_as_task(task)));
	}
	while (!is_done)
		(void)doca_pe_progress(pe);
	(void)doca_ctx_stop(ctx);
	do {
		(void)doca_pe_progress(pe);
		OK(doca_ctx_get_state(ctx, &state));
	} while (state != DOCA_CTX_STATE_IDLE);
	OK(doca_rdma_destroy(rdma));
	OK(doca_pe_destroy(pe));
	OK(doca_buf_dec_refcount(buf, NULL));
	OK(doca_buf_inventory_destroy(inventory));
	OK(doca_mmap_destroy(mmap));
	OK(doca_dev_close(dev));
	OK(doca_argp_destroy());
	return !is_failed && strcmp(note, NOTE) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
