// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// tokenLifetime is how long a relay may take to connect with a token.
	tokenLifetime = 5 * time.Second
	// maxTokens bounds the tokens that have been issued but not claimed.
	maxTokens = 4096
)

type token = [16]byte

// tokenRecord is the RDMA connection that a token was issued for.
type tokenRecord struct {
	session *session
	queue   uint32
	role    iomsg.ConnectionRole
	source  netip.Addr
	expires time.Time
}

// tokenRegistry holds the tokens of announced RDMA connections. Each is valid once, for a short
// time, from the announced address. Its methods may be called concurrently.
type tokenRegistry struct {
	mu      sync.Mutex
	records map[token]tokenRecord
}

func newTokenRegistry() *tokenRegistry {
	return &tokenRegistry{records: make(map[token]tokenRecord)}
}

// issue returns a new token for record.
func (r *tokenRegistry) issue(record tokenRecord, now time.Time) (token, error) {
	var t token
	if _, err := rand.Read(t[:]); err != nil {
		return t, fmt.Errorf("generate a token: %w", err)
	}
	record.expires = now.Add(tokenLifetime)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	if len(r.records) >= maxTokens {
		return t, status.Errorf(status.Full,
			"%d RDMA connections are announced but not yet established", len(r.records))
	}
	r.records[t] = record
	return t, nil
}

// claim removes a token and returns its record. A claim from the wrong address, or one that check
// rejects, leaves the token valid for the relay that it was issued to. check must not block.
func (r *tokenRegistry) claim(
	t token, source netip.Addr, now time.Time, check func(*session) error,
) (tokenRecord, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	record, ok := r.records[t]
	if !ok {
		return tokenRecord{}, status.Errorf(status.Authentication,
			"the token is unknown, was used before, or is older than %v", tokenLifetime)
	}
	if record.source != source {
		return tokenRecord{}, status.Errorf(status.Authentication, "the token was issued for %v",
			record.source)
	}
	if err := check(record.session); err != nil {
		return tokenRecord{}, err
	}
	delete(r.records, t)
	return record, nil
}

// forget removes the tokens of a session.
func (r *tokenRegistry) forget(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, record := range r.records {
		if record.session == s {
			delete(r.records, t)
		}
	}
}

func (r *tokenRegistry) expire(now time.Time) {
	for t, record := range r.records {
		if now.After(record.expires) {
			delete(r.records, t)
		}
	}
}
