// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestASetWithConnectionsCannotBeClosed(t *testing.T) {
	wakes, released := 0, 0
	s := connectionSet[int]{Wake: func() { wakes++ }}
	release := func() { released++ }
	c := new(int)
	if err := s.Attach(c); err != nil || wakes != 1 || !s.Notified() {
		t.Fatalf("attach: %v, woken %d times", err, wakes)
	}
	expectInUse := func(when string) {
		t.Helper()
		if err := s.Close(release); !errors.Is(err, status.InUse) || released > 0 {
			t.Errorf("close while the connection %s: %v", when, err)
		}
	}
	expectInUse("is in the inbox")
	s.Acknowledge()
	slot := s.Activate(s.Arrived()[0])
	expectInUse("is open")
	if s.At(slot) != c || s.HasEnded() {
		t.Error("the connection is not in its slot")
	}
	s.End(c, slot)
	expectInUse("has ended and not been detached")
	if s.At(slot) != nil || !s.HasEnded() || s.Detach() != c || s.HasEnded() {
		t.Error("the connection is not detached")
	}
	for range 2 {
		if err := s.Close(release); err != nil || released != 1 {
			t.Errorf("close: %v, released %d times", err, released)
		}
	}
	if err := s.Attach(c); !errors.Is(err, status.BadState) {
		t.Errorf("attach to a closed set: %v", err)
	}
}

func TestANotificationWakesUntilTheSetIsClosed(t *testing.T) {
	wakes := 0
	s := connectionSet[int]{Wake: func() { wakes++ }}
	s.Notify()
	if !s.Notified() || wakes != 1 {
		t.Errorf("woken %d times", wakes)
	}
	s.Acknowledge()
	if err := s.Close(func() {}); err != nil {
		t.Fatal(err)
	}
	if s.Notify(); s.Notified() || wakes != 1 {
		t.Errorf("woken %d times, although the set is closed", wakes)
	}
}
