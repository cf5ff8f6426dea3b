// SPDX-License-Identifier: Apache-2.0

// Package verbs is the RDMA provider for verbs devices: RoCE, InfiniBand, and iWARP adapters, and
// the kernel's Soft-RoCE (rdma_rxe) and Soft-iWARP (siw). It is built with cgo, without which New
// fails with ErrAbsent. It loads libibverbs and librdmacm when New is first called, so programs
// that contain it also run where the libraries are not installed.
//
// Goroutines set up connections through rdma_cm, under deadlines. Each open device has a monitor
// goroutine that waits for events from the connection manager and the device. The monitor never
// touches a connection's data path: it records why the connection must end and wakes the thread
// that polls the completion queue.
//
// This package keeps its own rings of the requests that it posts to the device. A device frees the
// slots of silent requests without a completion, reports only the ID of a failed request, and may
// drop outstanding requests when their queue pair is destroyed. Thanks to the rings, every request
// completes exactly once and in order, and OpDisconnected follows the last one.
//
// A connection ends when its queue pair is destroyed. Only that guarantees that the device no
// longer touches memory on the peer's behalf; the error state does not. The rings complete the
// requests that are then still outstanding as flushed.
//
// The files are those of the other providers of package rdma. completionqueue.go drives connections
// and delivers completions; transmit.go and receive.go lead from a post to the device, and
// outcome.go from the device to the completion. queues.go has the rings. locate.go finds the device
// of an address; dial.go, listen.go, and handshake.go set connections up.
package verbs
