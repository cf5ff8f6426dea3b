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

// tokenLifetime is how long a relay has to come back with a token.
const tokenLifetime = 5 * time.Second

// maxTokens bounds the tokens that have been given out and not come back.
const maxTokens = 4096

type token = [16]byte

// tokenRecord is what a token stands for.
type tokenRecord struct {
	session *session
	queue   uint32
	role    iomsg.ConnectionRole
	source  netip.Addr
	expires time.Time
}

// tokenRegistry remembers the tokens of announced RDMA connections: each is
// good once, for a short time, from the announced address.
type tokenRegistry struct {
	mu      sync.Mutex
	records map[token]tokenRecord
}

func newTokenRegistry() *tokenRegistry {
	return &tokenRegistry{records: make(map[token]tokenRecord)}
}

// issue makes a token for record.
func (r *tokenRegistry) issue(record tokenRecord, now time.Time) (token, error) {
	var t token
	if _, err := rand.Read(t[:]); err != nil {
		return t, fmt.Errorf("make a token: %w", err)
	}
	record.expires = now.Add(tokenLifetime)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	if len(r.records) >= maxTokens {
		return t, status.Errorf(status.Full, "%d RDMA connections have been announced and not made", len(r.records))
	}
	r.records[t] = record
	return t, nil
}

// claim takes a token back.
func (r *tokenRegistry) claim(t token, source netip.Addr, now time.Time) (tokenRecord, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	record, ok := r.records[t]
	if !ok {
		return record, status.Errorf(status.Authentication, "the token is unknown, was used before or has expired after %v", tokenLifetime)
	}
	if record.source != source {
		// It stays valid for whom it was made.
		return tokenRecord{}, status.Errorf(status.Authentication, "the token was made for %v", record.source)
	}
	delete(r.records, t)
	return record, nil
}

// forget drops the tokens of a session.
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
