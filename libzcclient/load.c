/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The private part, libzcclient-core.so, is a Go program in a shared library. Its runtime starts
 * threads when it is loaded, and does not survive a fork. So it is loaded by the first zc_open, and
 * a process that is the child of one where it runs is recognized.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

struct zc_core_functions zc_core;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static bool is_loaded;

/* A page with a 1 that the kernel replaces with zeroes in the child of a fork. NULL before. */
static _Atomic(int *) mark;

const char *zc_version(void) { return ZC_VERSION; }

bool zc_is_forked(void)
{
	int *page = atomic_load_explicit(&mark, memory_order_acquire);
	return page != NULL && *(volatile int *)page == 0;
}

static int make_mark(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	int *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return zc_fail(ZC_NO_MEMORY, "map a page that shows forks: %s", strerror(errno));
	if (madvise(page, size, MADV_WIPEONFORK) != 0) {
		int number = errno;
		munmap(page, size);
		return zc_fail(ZC_NOT_SUPPORTED, "map a page that shows forks (MADV_WIPEONFORK, which "
			"Linux has since 4.14): %s", strerror(number));
	}
	*page = 1;
	atomic_store_explicit(&mark, page, memory_order_release);
	return ZC_SUCCESS;
}

/*
 * find_go looks for the magic text of Go's build information, which the linker aligns, in the
 * writable data of a program or library.
 */
static int find_go(struct dl_phdr_info *object, size_t size, void *found)
{
	enum { ALIGNMENT = 16 };
	static const char magic[] = { '\xff', ' ', 'G', 'o', ' ', 'b', 'u', 'i', 'l', 'd', 'i', 'n',
		'f', ':' };
	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		if (part->p_type != PT_LOAD || !(part->p_flags & PF_W) || !(part->p_flags & PF_R))
			continue;
		uintptr_t at = object->dlpi_addr + part->p_vaddr, end = at + part->p_filesz;
		at = (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
		for (; at + sizeof magic <= end; at += ALIGNMENT) {
			if (memcmp((const void *)at, magic, sizeof magic) != 0)
				continue;
			*(const char **)found = object->dlpi_name[0] ? object->dlpi_name : "this program";
			return 1;
		}
	}
	return 0;
}

/* find_core writes the path of the private part: in a directory beside this library. */
static int find_core(char *path, size_t size)
{
	Dl_info self;
	if (dladdr((const void *)&zc_version, &self) == 0 || self.dli_fname == NULL)
		return zc_fail(ZC_INITIALIZATION, "find the file of libzcclient.so: dladdr knows none");
	char *real = realpath(self.dli_fname, NULL);
	if (real == NULL)
		return zc_fail(ZC_INITIALIZATION, "find libzcclient.so, which was loaded as %s: %s",
			self.dli_fname, strerror(errno));
	*strrchr(real, '/') = '\0';
	int length = snprintf(path, size, "%s/libzcclient/libzcclient-core.so", real);
	free(real);
	if (length < 0 || (size_t)length >= size)
		return zc_fail(ZC_INITIALIZATION, "the path of libzcclient.so is too long");
	return ZC_SUCCESS;
}

/*
 * open_core loads the private part, whose threads take no signals of the program. The runtime needs
 * SIGURG to interrupt its own.
 */
static int open_core(const char *path)
{
	sigset_t all, former;
	sigfillset(&all);
	sigdelset(&all, SIGURG);
	pthread_sigmask(SIG_SETMASK, &all, &former);
	void *core = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (core == NULL) {
		int code = zc_fail(ZC_INITIALIZATION, "load the private part of libzcclient: %s: install "
			"the library again", dlerror());
		pthread_sigmask(SIG_SETMASK, &former, NULL);
		return code;
	}
	struct zc_core_functions functions = { 0 };
	const char *missing = NULL;
#define ZC_CORE_LOOK_UP(name, result, arguments) \
	*(void **)&functions.name = dlsym(core, #name); \
	if (functions.name == NULL) \
		missing = #name;
	ZC_CORE_FUNCTIONS(ZC_CORE_LOOK_UP)
#undef ZC_CORE_LOOK_UP
	const char *version = missing == NULL ? functions.zc_core_version() : "another";
	pthread_sigmask(SIG_SETMASK, &former, NULL);
	if (missing != NULL || strcmp(version, ZC_VERSION) != 0)
		return zc_fail(ZC_INITIALIZATION, "%s has version %s, and libzcclient.so has %s: install "
			"the library again", path, version, ZC_VERSION);
	zc_core = functions;
	return ZC_SUCCESS;
}

static int load(void)
{
	char path[4096];
	int code = find_core(path, sizeof path);
	if (code != ZC_SUCCESS)
		return code;
	/* Without a file there is no runtime: nothing has begun, and the next attempt may succeed. */
	if (access(path, R_OK) != 0)
		return zc_fail(ZC_INITIALIZATION, "load the private part of libzcclient: %s: %s: install "
			"the library again", path, strerror(errno));
	const char *other = NULL;
	dl_iterate_phdr(find_go, &other);
	if (other != NULL)
		return zc_fail(ZC_OTHER_RUNTIME, "start the Go runtime of libzcclient: the process has "
			"one already, that of %s, and there can be only one: Go programs use the package "
			"pkg/client of zc-relay", other);
	if (atomic_load(&mark) == NULL && (code = make_mark()) != ZC_SUCCESS)
		return code;
	return open_core(path);
}

int zc_core_load(void)
{
	pthread_mutex_lock(&lock);
	int code = ZC_SUCCESS;
	if (!is_loaded) {
		code = load();
		is_loaded = code == ZC_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return code;
}
