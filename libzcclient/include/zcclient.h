/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libzcclient reads and writes a remote volume through zc-relay.
 *
 * zc_open opens a volume. Each of its queues belongs to one thread at a time, which submits
 * requests and collects their completions. The data of requests is in memory that the library
 * owns, which the target reads and writes directly: nothing copies it on this machine.
 *
 * Functions return 0, or a number that is not negative, if they succeed, and a code of
 * enum zc_code if they fail: zc_error_text then says what has failed, and zc_error_number is its
 * errno. No function crashes for a handle that is closed or was never one.
 *
 * Threads: a queue is for one thread at a time; a second one gets ZC_IN_USE. Different queues may
 * be used at the same time, and all other functions called by any thread. A volume cannot be closed
 * while a thread is in a call for one of its queues.
 *
 * Processes: nothing starts before the first zc_open, so the library may be loaded before a fork.
 * In a child of a process that has called zc_open, every call fails with ZC_FORKED, unless the
 * child executes a program.
 *
 * Signals: the first zc_open starts a Go runtime. It handles SIGSEGV, SIGBUS, SIGFPE, SIGPIPE, and
 * SIGURG, and passes what is not its own on to the handlers that were installed before. Handlers
 * that a program installs later need SA_ONSTACK. The threads of the runtime take no other signals.
 */

#ifndef ZCCLIENT_H
#define ZCCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A volume, and a queue of it. One that is all zeroes is none. */
typedef struct zc_volume { uint64_t handle; } zc_volume;
typedef struct zc_queue { uint64_t handle; } zc_queue;

/* What functions return, and how requests complete. */
enum zc_code {
	ZC_SUCCESS = 0,
	/* Codes that relay, target, and library share. */
	ZC_UNKNOWN = -1,
	ZC_NOT_PERMITTED = -2, /* also a change of a read-only volume */
	ZC_IN_USE = -3,        /* another client's claim on the volume; another thread uses a queue */
	ZC_NOT_SUPPORTED = -4,
	ZC_AGAIN = -5, /* no room in a queue: collect completions first */
	ZC_INVALID_VALUE = -6,
	ZC_NO_MEMORY = -7,
	ZC_INITIALIZATION = -8, /* the library's private part cannot be loaded */
	ZC_TIME_OUT = -9,
	ZC_SHUTDOWN = -10,
	ZC_CONNECTION_RESET = -11,
	ZC_CONNECTION_ABORTED = -12,
	ZC_CONNECTION_INPROGRESS = -13,
	ZC_NOT_CONNECTED = -14,
	ZC_NO_LOCK = -15,
	ZC_NOT_FOUND = -16, /* no relay offers the channel, or the target has no such volume */
	ZC_IO_FAILED = -17, /* the target's storage failed: error_number says why */
	ZC_BAD_STATE = -18,
	ZC_UNSUPPORTED_VERSION = -19,
	ZC_OPERATING_SYSTEM = -20,
	ZC_DRIVER = -21,
	ZC_UNEXPECTED = -22,
	ZC_ALREADY_EXIST = -23,
	ZC_FULL = -24,
	ZC_EMPTY = -25,
	ZC_IN_PROGRESS = -26,
	ZC_TOO_BIG = -27, /* more than info.buffer_size, or a limit of relay or target */
	ZC_AUTHENTICATION = -28,
	ZC_BAD_CONFIG = -29,
	ZC_SKIPPED = -30,
	/* Codes of the library. */
	ZC_CLOSED = -100,          /* the handle was closed */
	ZC_FORKED = -101,          /* this process is the child of one that has called zc_open */
	ZC_WRITES_LOST = -102,     /* writes may be lost that had completed and were not flushed */
	ZC_MEMORY_REPLACED = -103, /* the queue has new memory: zc_switch_memory */
	ZC_PREEMPTED = -104,       /* the volume has been given to another owner */
	ZC_ANOTHER_VOLUME = -105,  /* after a loss, the relay offers a different volume */
	ZC_OTHER_RUNTIME = -106    /* the process has a Go runtime already */
};

/* What a request does. */
enum zc_operation {
	ZC_READ = 1,
	ZC_WRITE = 2,
	ZC_FLUSH = 16,       /* makes durable what has completed before, on any queue */
	ZC_DISCARD = 17,     /* what reads return afterwards is undefined */
	ZC_WRITE_ZEROES = 18
};

/* Flags of a request. */
#define ZC_FUA 1u        /* a change is durable when it completes: needs ZC_CAN_FUA */
#define ZC_DEALLOCATE 4u /* ZC_WRITE_ZEROES may free the space */

/* A request. Set all that is not used to zero. */
struct zc_request {
	uint32_t operation;
	uint32_t flags;
	uint64_t offset; /* in the volume, in bytes: a multiple of the block size */
	uint64_t length; /* in bytes: a multiple of the block size */
	void *memory;    /* of ZC_READ and ZC_WRITE: within the memory of the queue */
	uint64_t cookie; /* the completion has it */
	uint64_t reserved[3];
};

/* Flags of a completion. */
#define ZC_QUARANTINED 1u /* a relay that has fallen silent may still use the request's memory */

/* The completion of a request. */
struct zc_completion {
	uint64_t cookie;
	int32_t code;         /* enum zc_code */
	int32_t error_number; /* an errno, 0 for success */
	uint32_t flags;
	uint32_t reserved[3];
};

/* Flags of a volume. */
#define ZC_READ_ONLY 1u
#define ZC_EXCLUSIVE 2u
#define ZC_CAN_DISCARD 4u
#define ZC_CAN_WRITE_ZEROES 8u
#define ZC_CAN_FUA 16u

/* What zc_get_info tells. Texts end with a zero. */
struct zc_info {
	size_t struct_size;    /* set it to sizeof(struct zc_info) */
	uint64_t volume_size;  /* in bytes; it may grow */
	uint64_t memory_size;  /* of the memory that the queues share, in bytes */
	uint32_t block_size;   /* in bytes */
	uint32_t buffer_size;  /* most bytes that one request reads or writes */
	uint32_t queues;
	uint32_t depth;        /* most requests that may be outstanding on a queue */
	uint32_t flags;
	uint32_t sessions_lost; /* how often the volume was reopened */
	uint8_t uuid[16];
	char name[256];
	char transport[32];    /* between relay and target */
};

/*
 * zc_open opens a volume, and waits for the relay as long as control_timeout says. The
 * configuration has pairs key=value with commas or newlines between them; a backslash before a
 * character takes its meaning away. NULL is the same as "". docs/guides/c-library.md has the keys.
 */
int zc_open(const char *configuration, zc_volume *volume);

/* zc_get_info describes an open volume. */
int zc_get_info(zc_volume volume, struct zc_info *info);

/*
 * zc_check returns 0 while the volume works or is being reopened, and the reason why it cannot be
 * used any more otherwise.
 */
int zc_check(zc_volume volume);

/*
 * zc_close waits for what is outstanding, and closes the volume, with its queues and its memory,
 * even if it fails. It does not flush. Only ZC_IN_USE, ZC_CLOSED, ZC_FORKED, and ZC_INVALID_VALUE
 * mean that it has done nothing. A pointer into the memory cannot be used any more.
 */
int zc_close(zc_volume volume);

/* zc_get_queue sets queue to the one with this number, which is below info.queues. */
int zc_get_queue(zc_volume volume, unsigned int number, zc_queue *queue);

/*
 * zc_get_memory sets address and length to the memory that requests of the queue use. All queues of
 * a volume share it. While a request is outstanding, its part of the memory is not the program's.
 */
int zc_get_memory(zc_queue queue, void **address, size_t *length);

/*
 * zc_switch_memory gives the queue new memory after ZC_MEMORY_REPLACED: see zc_get_memory. The
 * former memory can be read until the queue's next request has been submitted, so that a program
 * can save the data of writes to repeat. ZC_AGAIN means that the queue still has requests with the
 * former memory: collect their completions first.
 */
int zc_switch_memory(zc_queue queue, void **address, size_t *length);

/*
 * zc_submit takes requests, and returns how many it has taken: fewer than count when the queue is
 * full, or the next one is wrong. If it takes none, it returns why. It copies the requests. The
 * next zc_poll, zc_wait, zc_ring, or zc_arm sends them.
 */
int zc_submit(zc_queue queue, const struct zc_request *requests, size_t count);

/* zc_ring sends what was submitted, and does not look for completions. */
int zc_ring(zc_queue queue);

/*
 * zc_poll sends what was submitted, and returns how many requests have completed, at most capacity,
 * in any order. It does not wait.
 */
int zc_poll(zc_queue queue, struct zc_completion *completions, size_t capacity);

/*
 * zc_wait is zc_poll, but waits until there is a completion, or for so many milliseconds, without
 * end if they are negative. It returns 0 at once if nothing is outstanding. It first looks for
 * completions without sleeping, for as long as the configuration says (spin_time).
 */
int zc_wait(zc_queue queue, struct zc_completion *completions, size_t capacity, int milliseconds);

/*
 * zc_get_descriptor sets descriptor to one that poll(2) and epoll(7) can wait for between zc_arm
 * and the next other call for the queue: it is readable when the queue has something to do, and
 * after a second at the latest. It stays the same until the volume is closed; never read or close
 * it.
 */
int zc_get_descriptor(zc_queue queue, int *descriptor);

/*
 * zc_arm sends what was submitted, and prepares the queue for a wait for its descriptor. It returns
 * 1 if the program may wait, and 0 if the queue has something to do: call zc_poll then. It needs a
 * former zc_get_descriptor.
 */
int zc_arm(zc_queue queue);

/*
 * zc_error_text describes the last failure of a call of this thread, and zc_error_number is its
 * errno. The text stays until the next failure.
 */
const char *zc_error_text(void);
int zc_error_number(void);

/* zc_code_name returns the name of a code, such as "IO_FAILED". */
const char *zc_code_name(int code);

/* zc_version returns the version of the library. */
const char *zc_version(void);

#ifdef __cplusplus
}
#endif

#endif
