// SPDX-License-Identifier: Apache-2.0

// Package epoch keeps the sessions of one client program from overlapping.
//
// A client instance is one run of a client program. It numbers its sessions by ascending epochs. A
// session of a higher epoch supersedes those of lower ones: they end, and it begins only when they
// have released the volume and the client's memory. Otherwise a write that the client has given up
// on could still take effect later.
package epoch

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Instance identifies a client instance, which picks it at random.
type Instance = [16]byte

// Session is a session in a Registry.
type Session struct {
	cancel   context.CancelCauseFunc
	instance *Instance // that the session belongs to, nil if none; guarded by the registry
}

// NewSession returns a session. The registry calls cancel, which must not block, when a higher
// epoch supersedes the session.
func NewSession(cancel context.CancelCauseFunc) *Session { return &Session{cancel: cancel} }

// Config says how long a Registry remembers and what it tolerates.
type Config struct {
	// Remember is how many client instances the registry remembers, so that their epochs stay
	// superseded even after all their sessions are released. When it is reached, the registry
	// forgets the instance without sessions that started one least recently. 0 forgets an instance
	// with its last session.
	Remember int
	// Restart lets a session call Supersede again with its current epoch.
	Restart bool
}

// Registry holds the current epoch and the unreleased sessions of each client instance. Its methods
// may be called concurrently.
type Registry struct {
	config Config

	mu        sync.Mutex // guards what follows
	instances map[Instance]*instance
	starts    uint64 // calls of Supersede
}

type instance struct {
	epoch     uint64                     // the highest so far
	sessions  map[*Session]chan struct{} // of any epoch; closed when the session is released
	served    bool                       // a session may have served IO and has been released
	lastStart uint64                     // value of Registry.starts
}

// NewRegistry returns an empty registry.
func NewRegistry(config Config) *Registry {
	return &Registry{config: config, instances: make(map[Instance]*instance)}
}

// Supersede adds s to the sessions of a client instance. It ends the instance's other sessions and
// waits until they are released; if ctx ends first, it fails with status.TimeOut. An epoch that is
// not higher than the current one fails with status.NotPermitted and has no effect. Otherwise s
// must be released or undone, even if Supersede fails.
//
// A session belongs to one instance. If s has belonged to another before, it has not served IO for
// that one, and is undone there.
func (r *Registry) Supersede(ctx context.Context, id Instance, epoch uint64, s *Session) error {
	former, err := r.add(id, epoch, s)
	if err != nil {
		return err
	}
	for other := range former {
		other.cancel(status.Errorf(status.ConnectionReset,
			"the client has reconnected with epoch %d", epoch))
	}
	for _, released := range former {
		select {
		case <-released:
		case <-ctx.Done():
			return status.Errorf(status.TimeOut,
				"wait until the client's former session is released: %w", ctx.Err())
		}
	}
	return nil
}

// add adds s and returns the other sessions of the instance.
func (r *Registry) add(
	id Instance, epoch uint64, s *Session,
) (former map[*Session]chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.instances[id]
	if i == nil {
		r.makeRoom()
		i = &instance{sessions: make(map[*Session]chan struct{})}
		r.instances[id] = i
	} else if epoch < i.epoch || epoch == i.epoch && !(r.config.Restart && i.sessions[s] != nil) {
		return nil, status.Errorf(status.NotPermitted,
			"client epoch %d has been superseded: the current epoch is %d", epoch, i.epoch)
	}
	if s.instance != nil && *s.instance != id {
		r.undo(s)
	}
	s.instance = &id
	r.starts++
	i.epoch, i.lastStart = epoch, r.starts
	former = make(map[*Session]chan struct{})
	for other, released := range i.sessions {
		if other != s {
			former[other] = released
		}
	}
	if i.sessions[s] == nil {
		i.sessions[s] = make(chan struct{})
	}
	return former, nil
}

// makeRoom makes room for one more instance, if possible: it forgets the one without sessions that
// started one least recently.
func (r *Registry) makeRoom() {
	if r.config.Remember == 0 || len(r.instances) < r.config.Remember {
		return
	}
	var oldest Instance
	var lastStart uint64
	for id, i := range r.instances {
		if len(i.sessions) == 0 && (lastStart == 0 || i.lastStart < lastStart) {
			oldest, lastStart = id, i.lastStart
		}
	}
	if lastStart > 0 {
		delete(r.instances, oldest)
	}
}

// Release removes a session that can no longer touch the volume or the client's memory. It has no
// effect on a session that is not in the registry.
func (r *Registry) Release(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.instance == nil {
		return
	}
	id := *s.instance
	i := r.remove(s)
	i.served = true
	if r.config.Remember == 0 && len(i.sessions) == 0 {
		delete(r.instances, id)
	}
}

// Undo releases a session that has not served IO. It lets the client use the session's epoch again,
// unless the instance has other sessions or a higher epoch by now. It has no effect on a session
// that does not belong to that instance.
func (r *Registry) Undo(id Instance, epoch uint64, s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.instance == nil || *s.instance != id {
		return
	}
	i := r.undo(s)
	if i.served && i.epoch == epoch && len(i.sessions) == 0 {
		i.epoch-- // not below 0: the session that was served had a lower epoch
	}
}

// undo removes a session that has not served IO, and its instance if no other session has or can.
func (r *Registry) undo(s *Session) *instance {
	id := *s.instance
	i := r.remove(s)
	if len(i.sessions) == 0 && (!i.served || r.config.Remember == 0) {
		delete(r.instances, id)
	}
	return i
}

// remove removes s from its instance, and returns that.
func (r *Registry) remove(s *Session) *instance {
	i := r.instances[*s.instance]
	close(i.sessions[s])
	delete(i.sessions, s)
	s.instance = nil
	return i
}
