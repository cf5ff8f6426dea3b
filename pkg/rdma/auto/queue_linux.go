// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queue is a completion queue of each transport.
type queue struct {
	tcp        rdma.CompletionQueue
	local      rdma.CompletionQueue
	descriptor int // epoll instance that waits for both
	tcpFirst   bool
	closed     bool
}

// NewCompletionQueue makes a completion queue for connections of both transports.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	tcp, err := d.tcp.NewCompletionQueue(capacity)
	if err != nil {
		return nil, err
	}
	local, err := d.local.NewCompletionQueue(capacity)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	q := &queue{tcp: tcp, local: local}
	if q.descriptor, err = waitForAll(tcp.Descriptor(), local.Descriptor()); err != nil {
		return nil, errors.Join(err, tcp.Close(), local.Close())
	}
	return q, nil
}

// waitForAll returns a descriptor that is readable while one of the given ones is.
func waitForAll(descriptors ...int) (int, error) {
	all, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	for _, d := range descriptors {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d)}
		if err := unix.EpollCtl(all, unix.EPOLL_CTL_ADD, d, &event); err != nil {
			_ = unix.Close(all)
			return -1, status.Errorf(status.OperatingSystem, "watch completion queue: %w", err)
		}
	}
	return all, nil
}

// Poll drives the connections of both transports. They take turns in having the first completions.
func (q *queue) Poll(completions []rdma.Completion) int {
	first, second := q.local, q.tcp
	if q.tcpFirst = !q.tcpFirst; q.tcpFirst {
		first, second = second, first
	}
	n := first.Poll(completions)
	return n + second.Poll(completions[n:])
}

// Descriptor returns a descriptor that is readable while either queue's is.
func (q *queue) Descriptor() int { return q.descriptor }

// Arm arms both queues, or none.
func (q *queue) Arm() bool {
	if !q.local.Arm() {
		return false
	}
	if !q.tcp.Arm() {
		q.local.Disarm()
		return false
	}
	return true
}

// Disarm disarms both queues.
func (q *queue) Disarm() {
	q.local.Disarm()
	q.tcp.Disarm()
}

// Clear consumes what made either descriptor readable.
func (q *queue) Clear() {
	q.local.Clear()
	q.tcp.Clear()
}

// Close fails with status.InUse while connections are attached. It does nothing if the queue is
// closed already.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	if err := errors.Join(q.local.Close(), q.tcp.Close()); err != nil {
		return err
	}
	q.closed = true
	return unix.Close(q.descriptor)
}
