/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Nothing starts when the library is loaded, so a process may fork and open volumes afterwards. The
 * child of one that has opened a volume gets errors. Signals reach the program's own handlers.
 */

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

static const char *configuration;

static void use(void)
{
	struct opened o = open_volume(configuration);
	CHECK(carry_out(o.queue, (struct zc_request){ .operation = ZC_READ, .memory = o.memory,
		.length = o.info.block_size }).code == ZC_SUCCESS);
	MUST(zc_close(o.volume));
}

/* in_child runs a function in a child, which has to succeed. */
static void in_child(void (*function)(void))
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		function();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		FAIL("the child ended with status %#x", (unsigned int)status);
}

static unsigned int threads(void)
{
	char line[200];
	unsigned int count = 0;
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file != NULL);
	while (fgets(line, sizeof line, file) != NULL)
		if (sscanf(line, "Threads: %u", &count) == 1)
			break;
	fclose(file);
	return count;
}

static struct opened parents;

static void use_what_the_parent_has(void)
{
	zc_volume volume;
	zc_queue queue;
	struct zc_info info = { .struct_size = sizeof info };
	struct zc_request request = { .operation = ZC_FLUSH };
	struct zc_completion completion;
	int descriptor;
	void *address;
	size_t length;
	EXPECT(ZC_FORKED, zc_open(configuration, &volume));
	CHECK(strstr(zc_error_text(), "fork") != NULL);
	EXPECT(ZC_FORKED, zc_get_info(parents.volume, &info));
	EXPECT(ZC_FORKED, zc_check(parents.volume));
	EXPECT(ZC_FORKED, zc_get_queue(parents.volume, 0, &queue));
	EXPECT(ZC_FORKED, zc_submit(parents.queue, &request, 1));
	EXPECT(ZC_FORKED, zc_ring(parents.queue));
	EXPECT(ZC_FORKED, zc_poll(parents.queue, &completion, 1));
	EXPECT(ZC_FORKED, zc_wait(parents.queue, &completion, 1, -1));
	EXPECT(ZC_FORKED, zc_arm(parents.queue));
	EXPECT(ZC_FORKED, zc_get_descriptor(parents.queue, &descriptor));
	EXPECT(ZC_FORKED, zc_get_memory(parents.queue, &address, &length));
	EXPECT(ZC_FORKED, zc_switch_memory(parents.queue, &address, &length));
	EXPECT(ZC_FORKED, zc_close(parents.volume));
}

static sigjmp_buf after_fault;
static volatile sig_atomic_t signals;
static pthread_t main_thread;

static void on_fault(int number)
{
	(void)number;
	siglongjmp(after_fault, 1);
}

static void on_signal(int number)
{
	(void)number;
	/* The threads of the library take none. */
	if (pthread_equal(pthread_self(), main_thread))
		signals++;
}

static void handle(int number, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler }; /* without SA_ONSTACK */
	CHECK(sigaction(number, &action, NULL) == 0);
}

/* signal_process sends a signal that only this thread can take, as soon as it does. */
static void signal_process(void)
{
	sigset_t blocked, former;
	sig_atomic_t before = signals;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &former) == 0);
	CHECK(kill(getpid(), SIGUSR1) == 0);
	usleep(1000); /* another thread would take it */
	CHECK(signals == before);
	CHECK(pthread_sigmask(SIG_SETMASK, &former, NULL) == 0);
	CHECK(signals == before + 1);
}

/* handled returns a bit for each signal that has a handler, as the kernel shows them. */
static unsigned long long handled(void)
{
	char line[200];
	unsigned long long set = 0;
	FILE *file = fopen("/proc/self/status", "r");
	CHECK(file != NULL);
	while (fgets(line, sizeof line, file) != NULL)
		if (sscanf(line, "SigCgt: %llx", &set) == 1)
			break;
	fclose(file);
	return set & 0x7fffffff; /* without those of libc, which are above */
}

static unsigned long long bit(int number) { return 1ull << (number - 1); }

static void fault(void)
{
	if (sigsetjmp(after_fault, 1) == 0) {
		*(volatile int *)8 = 1;
		FAIL("a fault goes unnoticed");
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		FAIL("usage: fork CONFIGURATION");
	configuration = argv[1];
	main_thread = pthread_self();
	handle(SIGSEGV, on_fault);
	handle(SIGUSR1, on_signal);
	CHECK(threads() == 1);
	fault();
	in_child(use);
	in_child(use);
	CHECK(threads() == 1);
	CHECK(handled() == (bit(SIGSEGV) | bit(SIGUSR1)));

	parents = open_volume(configuration);
	CHECK(handled() == (bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGPIPE) | bit(SIGURG) |
		bit(SIGUSR1)));
	CHECK(threads() > 1);
	in_child(use_what_the_parent_has);
	/* The parent goes on. */
	for (int i = 0; i < 20; i++) {
		struct zc_request request = { .operation = ZC_READ, .memory = parents.memory,
			.length = parents.info.block_size, .cookie = (uint64_t)i };
		signal_process();
		fault();
		CHECK(carry_out(parents.queue, request).code == ZC_SUCCESS);
	}
	MUST(zc_close(parents.volume));
	in_child(use_what_the_parent_has); /* its runtime is still there */
	use();
	return 0;
}
