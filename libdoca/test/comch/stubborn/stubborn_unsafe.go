// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package stubborn puts a device between the providers and a libdoca that is slow or fails late, as
// hardware may. It is for tests. All of its devices in a process are one.
package stubborn

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/../../../include
// #include <time.h>
// #include <doca_comch.h>
// #include <doca_comch_producer.h>
// #include <doca_pe.h>
//
// static uint8_t (*progress)(struct doca_pe *);
// static doca_error_t (*disconnect)(struct doca_comch_server *, struct doca_comch_connection *);
// static doca_error_t (*configure_sends)(struct doca_comch_producer *,
//	doca_comch_producer_task_send_completion_cb_t,
//	doca_comch_producer_task_send_completion_cb_t, uint32_t);
// static doca_error_t (*get_status)(const struct doca_task *);
// static struct doca_task *(*as_task)(struct doca_comch_producer_task_send *);
//
// static int holds_progress, stands_still, holds_disconnects, failures;
// static doca_comch_producer_task_send_completion_cb_t sent, failed;
// static _Thread_local const struct doca_task *failing;
//
// static uint8_t stubborn_progress(struct doca_pe *pe)
// {
//	while (__atomic_load_n(&stands_still, __ATOMIC_SEQ_CST))
//		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
//	return __atomic_load_n(&holds_progress, __ATOMIC_SEQ_CST) ? 0 : progress(pe);
// }
//
// static doca_error_t stubborn_disconnect(struct doca_comch_server *server,
//	struct doca_comch_connection *connection)
// {
//	if (__atomic_load_n(&holds_disconnects, __ATOMIC_SEQ_CST))
//		return DOCA_SUCCESS;
//	return disconnect(server, connection);
// }
//
// // complete reports a send that has succeeded as one that has failed, if that is due.
// static void complete(struct doca_comch_producer_task_send *task, union doca_data task_data,
//	union doca_data ctx_data)
// {
//	if (__atomic_fetch_sub(&failures, 1, __ATOMIC_SEQ_CST) > 0) {
//		failing = as_task(task);
//		failed(task, task_data, ctx_data);
//		failing = NULL;
//		return;
//	}
//	__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST);
//	sent(task, task_data, ctx_data);
// }
//
// static doca_error_t stubborn_status(const struct doca_task *task)
// {
//	return task == failing ? DOCA_ERROR_IO_FAILED : get_status(task);
// }
//
// static doca_error_t stubborn_configure_sends(struct doca_comch_producer *producer,
//	doca_comch_producer_task_send_completion_cb_t on_sent,
//	doca_comch_producer_task_send_completion_cb_t on_failed, uint32_t count)
// {
//	sent = on_sent;
//	failed = on_failed;
//	return configure_sends(producer, complete, on_failed, count);
// }
//
// static void *stubborn_progress_pointer(void *real)
// { progress = real; return stubborn_progress; }
// static void *stubborn_disconnect_pointer(void *real)
// { disconnect = real; return stubborn_disconnect; }
// static void *stubborn_configure_sends_pointer(void *real)
// { configure_sends = real; return stubborn_configure_sends; }
// static void *stubborn_status_pointer(void *real)
// { get_status = real; return stubborn_status; }
// static void stubborn_set_as_task(void *real) { as_task = real; }
//
// // stubborn_fail stands for any function that returns a doca_error_t.
// static doca_error_t stubborn_fail(void) { return DOCA_ERROR_DRIVER; }
// static void *stubborn_fail_pointer(void) { return stubborn_fail; }
//
// static void stubborn_hold_progress(int on)
// { __atomic_store_n(&holds_progress, on, __ATOMIC_SEQ_CST); }
// static void stubborn_stand_still(int on)
// { __atomic_store_n(&stands_still, on, __ATOMIC_SEQ_CST); }
// static void stubborn_hold_disconnects(int on)
// { __atomic_store_n(&holds_disconnects, on, __ATOMIC_SEQ_CST); }
// static void stubborn_fail_sends(int n) { __atomic_store_n(&failures, n, __ATOMIC_SEQ_CST); }
import "C"

import "unsafe"

// Over returns the functions of the device over those of resolve.
func Over(resolve func(name string) unsafe.Pointer) func(name string) unsafe.Pointer {
	C.stubborn_set_as_task(resolve("doca_comch_producer_task_send_as_task"))
	replace := map[string]func(unsafe.Pointer) unsafe.Pointer{
		"doca_pe_progress": func(real unsafe.Pointer) unsafe.Pointer {
			return C.stubborn_progress_pointer(real)
		},
		"doca_comch_server_disconnect": func(real unsafe.Pointer) unsafe.Pointer {
			return C.stubborn_disconnect_pointer(real)
		},
		"doca_comch_producer_task_send_set_conf": func(real unsafe.Pointer) unsafe.Pointer {
			return C.stubborn_configure_sends_pointer(real)
		},
		"doca_task_get_status": func(real unsafe.Pointer) unsafe.Pointer {
			return C.stubborn_status_pointer(real)
		},
	}
	return func(name string) unsafe.Pointer {
		real := resolve(name)
		if change, ok := replace[name]; ok && real != nil {
			return change(real)
		}
		return real
	}
}

// Without returns the functions of resolve, but the one with that name fails with the error DRIVER
// whenever it is called. It must return a doca_error_t.
func Without(resolve func(name string) unsafe.Pointer,
	failing string) func(name string) unsafe.Pointer {
	return func(name string) unsafe.Pointer {
		if name == failing {
			return C.stubborn_fail_pointer()
		}
		return resolve(name)
	}
}

// HoldProgress makes the device do nothing at all.
func HoldProgress(on bool) { C.stubborn_hold_progress(flag(on)) }

// StandStill makes the device keep every thread that makes progress.
func StandStill(on bool) { C.stubborn_stand_still(flag(on)) }

// HoldDisconnects makes the device accept requests to end a connection, and ignore them.
func HoldDisconnects(on bool) { C.stubborn_hold_disconnects(flag(on)) }

// FailSends makes the next n messages on the data path that are sent complete with the error
// IO_FAILED.
func FailSends(n int) { C.stubborn_fail_sends(C.int(n)) }

func flag(on bool) C.int {
	if on {
		return 1
	}
	return 0
}
