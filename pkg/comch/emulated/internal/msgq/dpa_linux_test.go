// SPDX-License-Identifier: Apache-2.0

package msgq

import (
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKernelRunsOnOnePinnedThread(t *testing.T) {
	dpa, err := NewDPA(nil)
	if err != nil {
		t.Fatal(err)
	}
	type place struct{ thread, cpus int }
	places := make(chan place, 3)
	calls := 0
	err = dpa.Start(func() int {
		if calls++; calls > cap(places) {
			return 0
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Error(err)
		}
		places <- place{unix.Gettid(), set.Count()}
		return 1
	})
	if err != nil {
		t.Fatal(err)
	}
	first := <-places
	if first.cpus != 1 || first.thread == unix.Gettid() {
		t.Errorf("the kernel may run on %d CPUs, in thread %d", first.cpus, first.thread)
	}
	for range cap(places) - 1 {
		if next := <-places; next != first {
			t.Errorf("the kernel moved from %+v to %+v", first, next)
		}
	}
	if err := dpa.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDPARejectsMissingCPUs(t *testing.T) {
	for _, cpu := range []int{-1, maxCPUs, maxCPUs - 1} {
		if _, err := NewDPA([]int{cpu}); status.CodeOf(err) != status.InvalidValue {
			t.Errorf("DPA on CPU %d: %v", cpu, err)
		}
	}
}
