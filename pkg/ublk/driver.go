// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// driver is the kernel's driver. Any goroutine may call its methods.
type driver interface {
	// control carries out a control command on a device. The kernel reads buffer, and writes to it
	// what a command returns. A device without privileges needs its path with each command but
	// addDevice. An error of the kernel is a syscall.Errno. If ctx ends, the command may still take
	// effect.
	control(ctx context.Context, o operation, c control) error
	// open opens a device for serving it. One server at a time has it open.
	open(id int) (server, error)
	// isAlive reports whether a process exists.
	isAlive(process int32) bool
	// hold opens a device as nobody else may while it is in exclusive use, and writes back what the
	// kernel has cached of it. It fails if the device is in exclusive use.
	hold(id int) (release func(), err error)
	// checkUnused fails if something is known to use a device exclusively. Unlike hold, it needs no
	// server.
	checkUnused(id int) error
	// close releases the driver.
	close() error
}

// control is what a control command is about.
type control struct {
	id       int
	data     uint64
	buffer   []byte
	withPath bool
}

// server is a device's file for its server.
type server interface {
	// queue makes the ring of a queue. The caller is the queue's thread, and nobody else may use
	// the ring: the driver rejects commands of other threads.
	queue(index, depth, maxBytes int) (ring, error)
	// close closes the file, after all rings.
	close() error
}

// ring carries the commands of a queue. A command for a tag is pushed only while the kernel has
// none, so there is always room for it.
type ring interface {
	progress.Waiter
	// fetch offers a tag to the kernel, which returns it with a request.
	fetch(tag uint16)
	// getData lets the kernel copy the data of a write to data, while submit runs. Without data,
	// the ring throws away what the kernel copies, of at most maxBytes.
	getData(tag uint16, data []byte)
	// commit answers a request, with a negative error or the number of bytes, and offers its tag
	// again. The kernel copies what was read from data, while submit runs.
	commit(tag uint16, result int32, data []byte)
	// submit hands over what was pushed, and waits until there are at least wait completions. When
	// it returns, the kernel has answered every commit, and uses no data any more except that of
	// getData commands without a completion.
	submit(wait int) error
	// reap returns completions, as many as there are and fit.
	reap(completions []completion) int
	// descriptor returns a copy of what the kernel has written about the request of a tag.
	descriptor(tag uint16) descriptor
	// close closes the ring. The kernel takes back the tags.
	close() error
}

// completion is what the kernel says about a tag.
type completion struct {
	tag    uint64 // as this side has sent it: the kernel may say anything
	result int32
}
