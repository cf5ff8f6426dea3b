/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An external engine for fio, which reads and writes a volume through libzcclient: build.sh
 * compiles it against the headers of one version of fio, whose structures it shares. Its buffers
 * are in the volume's memory, so no data is copied on this machine.
 *
 *	fio --ioengine=external:./zc.so --thread --zc_conf=device=b1:00.0 …
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zcclient.h>

#include "fio.h"
#include "optgroup.h"

struct options {
	void *pad; /* fio takes an option at offset 0 for none */
	char *configuration;
};

static struct fio_option options[] = {
	{
		.name = "zc_conf",
		.lname = "configuration of the volume",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, configuration),
		.help = "configuration of zc_open, such as device=b1:00.0,channel=disk",
		.def = "",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* job is a thread of fio, which has a volume of its own. */
struct job {
	zc_volume volume;
	zc_queue queue;
	struct zc_completion *completions;
	struct io_u **events; /* what the last getevents has collected */
};

static int failed(const char *what, int code)
{
	log_err("zc: %s: %s: %s\n", what, zc_code_name(code), zc_error_text());
	return 1;
}

static int open_volume(struct thread_data *td, const char *more, zc_volume *volume,
	struct zc_info *info)
{
	struct options *o = td->eo;
	char text[2000];
	int length = snprintf(text, sizeof text, "software=fio,%s%s", more,
		o->configuration ? o->configuration : "");
	if (length < 0 || (size_t)length >= sizeof text) {
		log_err("zc: zc_conf is too long\n");
		return 1;
	}
	int code = zc_open(text, volume);
	if (code != ZC_SUCCESS)
		return failed("open the volume", code);
	info->struct_size = sizeof *info;
	code = zc_get_info(*volume, info);
	return code == ZC_SUCCESS ? 0 : failed("describe the volume", code);
}

/* zc_setup is called before any job starts, and tells fio the size of the volume. */
static int zc_setup(struct thread_data *td)
{
	zc_volume volume;
	struct zc_info info;
	if (!td->o.use_thread) {
		log_err("zc: jobs have to be threads of one process: add --thread\n");
		return 1;
	}
	if (open_volume(td, "", &volume, &info))
		return 1;
	int code = zc_close(volume);
	if (code != ZC_SUCCESS)
		return failed("close the volume", code);
	if (!td->files_index) {
		add_file(td, td->o.filename ? td->o.filename : "zc", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	struct fio_file *f = td->files[0];
	f->real_file_size = info.volume_size;
	f->filetype = FIO_TYPE_BLOCK;
	fio_file_set_size_known(f);
	return 0;
}

static void zc_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	if (!job)
		return;
	int code = job->volume.handle ? zc_close(job->volume) : ZC_SUCCESS;
	if (code != ZC_SUCCESS)
		failed("close the volume", code);
	free(job->completions);
	free(job->events);
	free(job);
	td->io_ops_data = NULL;
}

static int zc_init(struct thread_data *td)
{
	unsigned long long largest = td_max_bs(td);
	unsigned int depth = td->o.iodepth;
	/* fio aligns the first buffer. */
	unsigned long long slack = 2ull * (page_mask + 1 + td->o.mem_align);
	char more[200];
	struct zc_info info;
	struct job *job = calloc(1, sizeof *job);
	if (job) {
		job->completions = calloc(depth, sizeof *job->completions);
		job->events = calloc(depth, sizeof *job->events);
	}
	if (!job || !job->completions || !job->events) {
		log_err("zc: no memory for %u requests\n", depth);
		goto fail;
	}
	snprintf(more, sizeof more, "queues=1,depth=%u,buffer_size=%llu,memory_size=%llu,", depth,
		largest, (largest * depth + slack + 4095) / 4096 * 4096);
	if (open_volume(td, more, &job->volume, &info))
		goto fail;
	int code = zc_get_queue(job->volume, 0, &job->queue);
	if (code != ZC_SUCCESS) {
		failed("get the queue", code);
		goto fail;
	}
	td->io_ops_data = job;
	return 0;
fail:
	td->io_ops_data = job;
	zc_cleanup(td);
	return 1;
}

/* zc_iomem_alloc gives fio the volume's memory for its buffers. */
static int zc_iomem_alloc(struct thread_data *td, size_t size)
{
	struct job *job = td->io_ops_data;
	void *memory;
	size_t length;
	int code = zc_get_memory(job->queue, &memory, &length);
	if (code != ZC_SUCCESS)
		return failed("get the memory", code);
	if (length < size) {
		log_err("zc: the volume's memory has %zu bytes, and fio needs %zu\n", length, size);
		return 1;
	}
	td->orig_buffer = memory;
	return 0;
}

static void zc_iomem_free(struct thread_data *td)
{
	(void)td; /* the memory belongs to the volume */
}

static enum fio_q_status zc_queue_request(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	struct zc_request request = { .cookie = (uintptr_t)io_u, .offset = io_u->offset,
		.length = io_u->xfer_buflen };
	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		request.operation = ZC_READ;
		request.memory = io_u->xfer_buf;
		break;
	case DDIR_WRITE:
		request.operation = ZC_WRITE;
		request.memory = io_u->xfer_buf;
		break;
	case DDIR_TRIM:
		request.operation = ZC_DISCARD;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		request = (struct zc_request){ .operation = ZC_FLUSH, .cookie = (uintptr_t)io_u };
		break;
	default:
		io_u->error = ENOTSUP;
		return FIO_Q_COMPLETED;
	}
	int code = zc_submit(job->queue, &request, 1);
	if (code == ZC_AGAIN)
		return FIO_Q_BUSY;
	if (code < 0) {
		failed("submit a request", code);
		io_u->error = zc_error_number();
		return FIO_Q_COMPLETED;
	}
	return FIO_Q_QUEUED;
}

static int zc_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	int code = zc_ring(job->queue);
	if (code != ZC_SUCCESS) {
		failed("send requests", code);
		return -zc_error_number();
	}
	io_u_mark_submit(td, td->io_u_queued);
	return 0;
}

static int zc_getevents(struct thread_data *td, unsigned int least, unsigned int most,
	const struct timespec *timeout)
{
	struct job *job = td->io_ops_data;
	unsigned int count = 0;
	int milliseconds = -1;
	if (timeout)
		milliseconds = (int)(timeout->tv_sec * 1000 + timeout->tv_nsec / 1000000);
	do {
		int n = zc_wait(job->queue, job->completions, most - count, least ? milliseconds : 0);
		if (n < 0) {
			failed("collect completions", n);
			return -zc_error_number();
		}
		for (int i = 0; i < n; i++) {
			struct io_u *io_u = (struct io_u *)(uintptr_t)job->completions[i].cookie;
			io_u->error = (unsigned int)job->completions[i].error_number;
			io_u->resid = io_u->error ? io_u->xfer_buflen : 0;
			job->events[count++] = io_u;
		}
		if (n == 0)
			break;
	} while (count < least);
	return (int)count;
}

static struct io_u *zc_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;
	return job->events[event];
}

/* The volume is open as long as its job. */
static int zc_open_file(struct thread_data *td, struct fio_file *f)
{
	(void)td;
	(void)f;
	return 0;
}

static int zc_close_file(struct thread_data *td, struct fio_file *f)
{
	(void)td;
	(void)f;
	return 0;
}

static int zc_invalidate(struct thread_data *td, struct fio_file *f)
{
	(void)td;
	(void)f;
	return 0; /* there is no cache */
}

struct ioengine_ops ioengine = {
	.name = "zc",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_RAWIO,
	.setup = zc_setup,
	.init = zc_init,
	.cleanup = zc_cleanup,
	.iomem_alloc = zc_iomem_alloc,
	.iomem_free = zc_iomem_free,
	.queue = zc_queue_request,
	.commit = zc_commit,
	.getevents = zc_getevents,
	.event = zc_event,
	.open_file = zc_open_file,
	.close_file = zc_close_file,
	.invalidate = zc_invalidate,
	.options = options,
	.option_struct_size = sizeof(struct options),
};
