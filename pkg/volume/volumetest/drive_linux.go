// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/volume"
)

// timeoutMs bounds every wait for a completion. It is far longer than any volume needs, so that no
// test fails on a busy machine.
const timeoutMs = 60_000

// Do submits requests and waits until all of them have completed; their outcomes are in
// Request.Err. The queue must have room for all of them.
func Do(t testing.TB, queue volume.Queue, requests ...*volume.Request) {
	t.Helper()
	for _, r := range requests {
		if err := queue.Submit(r); err != nil {
			t.Fatalf("submit %v of %d bytes at %d: %v", r.Operation, r.Length, r.Offset, err)
		}
	}
	Await(t, queue, len(requests))
}

// Await collects count completions. It sleeps while there are none.
func Await(t testing.TB, queue volume.Queue, count int) []*volume.Request {
	t.Helper()
	all := make([]*volume.Request, count)
	for done := 0; done < count; {
		n := queue.Poll(all[done:])
		if done += n; n == 0 {
			sleep(t, queue)
		}
	}
	return all
}

// sleep waits until the queue has work, as a progress engine does.
func sleep(t testing.TB, queue volume.Queue) {
	t.Helper()
	if !queue.Arm() {
		return
	}
	defer queue.Disarm()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(queue.Descriptor()), Events: unix.POLLIN}},
		timeoutMs)
	if errors.Is(err, unix.EINTR) {
		return
	}
	if err != nil || n == 0 {
		t.Fatalf("the descriptor of an armed queue did not become readable: poll returned %d, %v",
			n, err)
	}
	queue.Clear()
}
