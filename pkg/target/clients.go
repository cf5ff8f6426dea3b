package target

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxClientInstances bounds how many client instances are remembered. The
// ones that were not seen for the longest time are forgotten first.
const maxClientInstances = 4096

// clientInstance is what is known of a client program: the epoch that is
// served, and the sessions, of any epoch, whose IO has not finished.
type clientInstance struct {
	epoch    uint64
	sessions map[*session]chan struct{} // closed when the session's IO has finished
	seen     uint64
}

// clientRegistry sees to it that a client that has reconnected is served only
// after all volume IO of its former sessions has finished, and that those can
// do none any more: a write that was given up must not strike later.
type clientRegistry struct {
	mu        sync.Mutex
	instances map[[16]byte]*clientInstance
	clock     uint64
}

func newClientRegistry() *clientRegistry {
	return &clientRegistry{instances: make(map[[16]byte]*clientInstance)}
}

// enter makes s the session of an epoch of a client. It ends the client's
// other sessions and waits for their IO, until ctx ends. leave must be called
// when the IO of s has finished, also if enter fails.
func (r *clientRegistry) enter(ctx context.Context, id [16]byte, epoch uint64, s *session) error {
	others, err := r.replace(id, epoch, s)
	if err != nil {
		return err
	}
	for _, ended := range others {
		select {
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("wait for the IO of the client's former session: %w", ctx.Err())
		}
	}
	return nil
}

func (r *clientRegistry) replace(id [16]byte, epoch uint64, s *session) (others []chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	instance := r.instances[id]
	if instance == nil {
		r.forgetOldest()
		instance = &clientInstance{sessions: make(map[*session]chan struct{})}
		r.instances[id] = instance
	} else if epoch <= instance.epoch {
		return nil, status.Errorf(status.NotPermitted, "epoch %d of the client is over: epoch %d has begun", epoch, instance.epoch)
	}
	instance.epoch, instance.seen = epoch, r.clock
	for other, ended := range instance.sessions {
		other.cancel(status.Errorf(status.ConnectionReset, "the client has reconnected with epoch %d", epoch))
		others = append(others, ended)
	}
	instance.sessions[s] = make(chan struct{})
	return others, nil
}

// leave tells that all IO of a session has finished. It does nothing for a
// session that never entered.
func (r *clientRegistry) leave(id [16]byte, s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(id, s)
}

// remove reports whether s had entered.
func (r *clientRegistry) remove(id [16]byte, s *session) bool {
	instance := r.instances[id]
	if instance == nil {
		return false
	}
	ended, entered := instance.sessions[s]
	if entered {
		close(ended)
		delete(instance.sessions, s)
	}
	return entered
}

// withdraw is leave for a session that has not got as far as serving its
// epoch, so that the client may try that epoch again.
func (r *clientRegistry) withdraw(id [16]byte, epoch uint64, s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.remove(id, s) {
		return // the epoch belongs to another session
	}
	instance := r.instances[id]
	if instance.epoch != epoch || len(instance.sessions) > 0 {
		return
	}
	if epoch == 0 {
		delete(r.instances, id)
		return
	}
	instance.epoch--
}

// forgetOldest makes room for one more instance.
func (r *clientRegistry) forgetOldest() {
	if len(r.instances) < maxClientInstances {
		return
	}
	var oldest [16]byte
	seen := r.clock
	for id, instance := range r.instances {
		if len(instance.sessions) == 0 && instance.seen < seen {
			oldest, seen = id, instance.seen
		}
	}
	if seen < r.clock {
		delete(r.instances, oldest)
	}
}
