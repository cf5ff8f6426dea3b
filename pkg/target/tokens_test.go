// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

func anySession(*session) error { return nil }

func issue(t *testing.T, r *tokenRegistry, record tokenRecord, now time.Time) token {
	t.Helper()
	issued, err := r.issue(record, now)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

func TestATokenIsValidOnceFromItsSource(t *testing.T) {
	r, now := newTokenRegistry(), time.Now()
	s := &session{}
	issued := issue(t, r, tokenRecord{session: s, queue: 3, role: iomsg.DataConnection,
		source: here}, now)
	if _, err := r.claim(issued, there, now, anySession); !errors.Is(err, status.Authentication) {
		t.Errorf("claim from another address: %v", err)
	}
	if _, err := r.claim(issued, here, now, func(asked *session) error {
		if asked != s {
			t.Error("asked for another session")
		}
		return status.IOFailed
	}); !errors.Is(err, status.IOFailed) {
		t.Errorf("claim by somebody else: %v", err)
	}
	record, err := r.claim(issued, here, now, anySession)
	if err != nil || record.session != s || record.queue != 3 ||
		record.role != iomsg.DataConnection {
		t.Errorf("claim: %+v, %v", record, err)
	}
	if _, err := r.claim(issued, here, now, anySession); !errors.Is(err, status.Authentication) {
		t.Errorf("second claim: %v", err)
	}
}

func TestATokenExpires(t *testing.T) {
	r, now := newTokenRegistry(), time.Now()
	issued := issue(t, r, tokenRecord{source: here}, now)
	late := now.Add(tokenLifetime + time.Millisecond)
	if _, err := r.claim(issued, here, late, anySession); !errors.Is(err, status.Authentication) {
		t.Errorf("claim after its expiry: %v", err)
	}
}

func TestASessionsTokensEndWithIt(t *testing.T) {
	r, now := newTokenRegistry(), time.Now()
	gone, stays := &session{}, &session{}
	first := issue(t, r, tokenRecord{session: gone, source: here}, now)
	second := issue(t, r, tokenRecord{session: stays, source: here}, now)
	r.forget(gone)
	if _, err := r.claim(first, here, now, anySession); err == nil {
		t.Error("the token of an ended session is valid")
	}
	if _, err := r.claim(second, here, now, anySession); err != nil {
		t.Errorf("the token of another session: %v", err)
	}
}

func TestUnclaimedTokensAreBoundedAndExpire(t *testing.T) {
	r, now := newTokenRegistry(), time.Now()
	for range maxTokens {
		issue(t, r, tokenRecord{source: here}, now)
	}
	if _, err := r.issue(tokenRecord{source: here}, now); !errors.Is(err, status.Full) {
		t.Errorf("one token too many: %v", err)
	}
	issue(t, r, tokenRecord{source: here}, now.Add(tokenLifetime+time.Second))
}
