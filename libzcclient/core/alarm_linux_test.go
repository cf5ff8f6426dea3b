// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestAnAlarmIsReadableForTheDescriptorAndTheTime(t *testing.T) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(event) }()
	a, err := newAlarm(event)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want bool, limit time.Duration, when string) {
		t.Helper()
		if got := isReadable(a.epoll, limit); got != want {
			t.Errorf("readable %s: %v", when, got)
		}
	}
	expect(false, 0, "at first")
	a.set(time.Millisecond)
	expect(true, testkit.Patience, "after the time")
	a.set(time.Hour)
	expect(false, 0, "before the next one")
	if _, err := unix.Write(event, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	expect(true, testkit.Patience, "with the descriptor")
	a.set(0)
	expect(true, 0, "with the descriptor alone")
	var count [8]byte
	if _, err := unix.Read(event, count[:]); err != nil {
		t.Fatal(err)
	}
	expect(false, 0, "in the end")
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if _, err := newAlarm(-1); err == nil {
		t.Error("a descriptor that is none is watched")
	}
}
