// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeStream has a peer's address, and can only be aborted.
type fakeStream struct {
	network.Stream
	remote  netip.Addr
	aborted bool
}

func (s *fakeStream) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.remote, 1))
}
func (s *fakeStream) SetLinger(int) error { return nil }
func (s *fakeStream) Close() error {
	s.aborted = true
	return nil
}

func fill(a *admission, source string, n int) (streams []*fakeStream, added []*pendingConnection) {
	for range n {
		s := &fakeStream{remote: netip.MustParseAddr(source)}
		p, _ := a.add(s)
		streams, added = append(streams, s), append(added, p)
	}
	return streams, added
}

// admissionOf returns an admission of sessions at any rate.
func admissionOf(maxSessions int) *admission {
	return newAdmission(maxSessions, newSessionRate(1e6, zap.NewNop()))
}

func checkAborted(t *testing.T, what string, streams []*fakeStream, want int) {
	t.Helper()
	for i, s := range streams {
		if s.aborted != (i < want) {
			t.Errorf("%s: connection %d of %d: aborted is %v, want the oldest %d", what, i,
				len(streams), s.aborted, want)
			return
		}
	}
}

func TestASourceThatMakesMostPendingConnectionsLosesThem(t *testing.T) {
	a := admissionOf(32) // 64 pending connections, 32 per source
	honest, _ := fill(a, "192.0.2.1", 2)
	first, _ := fill(a, "192.0.2.2", 40)
	checkAborted(t, "beyond the share of a source", first, 40-32)
	// The addresses of one IPv6 network share what one source may have.
	second, _ := fill(a, "2001:db8::1", 15)
	fill(a, "2001:db8::2", 15)
	checkAborted(t, "below both limits", second, 0)
	third, _ := fill(a, "2001:db8:0:1::1", 10)
	checkAborted(t, "beyond the limit, the largest source", first, 40-26)
	checkAborted(t, "beyond the limit, the IPv6 network of the same size", second, 30-26)
	checkAborted(t, "beyond the limit, the latest source", third, 0)
	checkAborted(t, "the source with few connections", honest, 0)
	if len(a.pending) != 64 {
		t.Errorf("%d connections are pending", len(a.pending))
	}
}

func TestASessionIsNeverAbortedForAPendingConnection(t *testing.T) {
	a := admissionOf(1)
	streams, pending := fill(a, "192.0.2.1", 2)
	s := &session{}
	if err := errors.Join(a.admit(pending[0], s), a.keep(s)); err != nil {
		t.Fatal(err)
	}
	if err := a.admit(pending[1], &session{}); !errors.Is(err, status.Full) {
		t.Errorf("a second session: %v", err)
	}
	later, _ := fill(a, "192.0.2.1", 100)
	checkAborted(t, "the session", streams, 0)
	checkAborted(t, "pending connections", later, 100-leastPending/2)
	for range 10 {
		a.shed()
	}
	checkAborted(t, "the session, without descriptors", streams, 0)
}

func TestTheOldestSessionWithoutAVolumeOfItsSourceGivesWay(t *testing.T) {
	a := admissionOf(8)
	admit := func(source string, n int) (streams []*fakeStream, sessions []*session) {
		t.Helper()
		for range n {
			s, pending := fill(a, source, 1)
			streams, sessions = append(streams, s...), append(sessions, &session{})
			if err := a.admit(pending[0], sessions[len(sessions)-1]); err != nil {
				t.Fatal(err)
			}
		}
		return streams, sessions
	}
	served, opened := admit("192.0.2.1", 2)
	if err := errors.Join(a.keep(opened[0]), a.keep(opened[0]), a.keep(opened[1])); err != nil {
		t.Fatal(err)
	}
	honest, late := admit("192.0.2.2", 2)
	first, displaced := admit("192.0.2.3", 10)
	checkAborted(t, "beyond the limit", first, 10-4)
	second, _ := admit("192.0.2.4", 1)
	checkAborted(t, "for another source", first, 10-3)
	checkAborted(t, "the latest", second, 0)
	checkAborted(t, "the source with few sessions", honest, 0)
	checkAborted(t, "sessions with a volume", served, 0)
	if err := a.keep(displaced[0]); !errors.Is(err, status.ConnectionAborted) {
		t.Errorf("a displaced session opens a volume: %v", err)
	}
	if err := errors.Join(a.keep(late[0]), a.keep(late[1])); err != nil {
		t.Errorf("sessions of the source with few: %v", err)
	}
	if a.count() != a.maxSessions || len(a.idle) != 4 {
		t.Errorf("%d sessions, %d without a volume", a.count(), len(a.idle))
	}
}

func TestSessionsBeyondTheRateAreToldATurnOfTheirOwn(t *testing.T) {
	r := newSessionRate(100, zap.NewNop()) // a burst of 20
	now := time.Unix(0, 0)
	for i := range 20 {
		if err := r.admit(now); err != nil {
			t.Errorf("session %d of the burst: %v", i, err)
		}
	}
	for i := range 5 {
		want := time.Duration(i+1) * 10 * time.Millisecond
		err := r.admit(now)
		if got := controlmsg.RetryAfter(err); got != want || !errors.Is(err, status.Again) {
			t.Errorf("session %d beyond the burst is told %v, want %v: %v", i, got, want, err)
		}
	}
	now = now.Add(10 * time.Millisecond)
	if err := r.admit(now); err != nil {
		t.Errorf("once a session's time has come: %v", err)
	}
	if err := r.admit(now); err == nil || r.postponed.Load() != 6 {
		t.Errorf("a second one: %v, with %d postponed", err, r.postponed.Load())
	}
	for range 10_000 {
		_ = r.admit(now)
	}
	if got := controlmsg.RetryAfter(r.admit(now)); got != controlmsg.MaxRetryAfter {
		t.Errorf("the last of many is told %v", got)
	}
}

func TestASessionBeyondTheRateIsNotAdmitted(t *testing.T) {
	r := newSessionRate(1, zap.NewNop())
	if err := r.admit(time.Now().Add(time.Hour)); err != nil { // the next one, an hour early
		t.Fatal(err)
	}
	a := newAdmission(8, r)
	_, pending := fill(a, "192.0.2.1", 1)
	if err := a.admit(pending[0], &session{}); !errors.Is(err, status.Again) || a.count() != 0 {
		t.Errorf("%d sessions beyond the rate are admitted: %v", a.count(), err)
	}
}

func TestALackOfDescriptorsLowersTheLimitUntilSessionsBegin(t *testing.T) {
	a := admissionOf(64) // 128 pending connections
	for i := range 4 {
		fill(a, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String(), 25)
	}
	if got := a.shed(); got != 50 || len(a.pending) != 50 {
		t.Errorf("%d connections were aborted, %d are pending", got, len(a.pending))
	}
	for range 10 {
		a.shed()
	}
	if len(a.pending) != leastPending {
		t.Errorf("%d connections are pending", len(a.pending))
	}
	for range 2 * a.maxLimit() {
		_, pending := fill(a, "198.51.100.1", 1)
		s := &session{}
		if err := a.admit(pending[0], s); err != nil {
			t.Fatal(err)
		}
		a.release(s)
	}
	if a.limit != a.maxLimit() {
		t.Errorf("the limit is %d after many sessions, want %d", a.limit, a.maxLimit())
	}
}
