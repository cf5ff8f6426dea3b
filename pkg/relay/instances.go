package relay

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// instanceRegistry knows the sessions of each client instance. A client that
// comes back gives the same memory out again: before that the target must
// have lost the access that it had through the sessions before. Targets
// remember epochs for longer; here they end with the sessions.
type instanceRegistry struct {
	mu        sync.Mutex
	instances map[[16]byte]*clientInstance
}

// clientInstance is the current epoch of a client and its sessions, of any
// epoch, that have not been released.
type clientInstance struct {
	epoch    uint64
	sessions map[*session]struct{}
}

func newInstanceRegistry() *instanceRegistry {
	return &instanceRegistry{instances: make(map[[16]byte]*clientInstance)}
}

// enter makes s the session of its client instance. It ends those of older
// epochs, and waits until they have been released.
func (r *instanceRegistry) enter(ctx context.Context, m *controlmsg.ConfigureDataPath, s *session) error {
	former, err := r.replace(m, s)
	if err != nil {
		return err
	}
	for _, other := range former {
		other.cancel(status.Errorf(status.ConnectionReset, "the client has reconnected with epoch %d", m.Epoch))
	}
	for _, other := range former {
		select {
		case <-other.released:
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the end of the client's former session: %w", ctx.Err())
		}
	}
	return nil
}

func (r *instanceRegistry) replace(m *controlmsg.ConfigureDataPath, s *session) (former []*session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	instance := r.instances[m.ClientInstance]
	if instance == nil {
		instance = &clientInstance{sessions: make(map[*session]struct{})}
		r.instances[m.ClientInstance] = instance
	}
	_, known := instance.sessions[s] // it configures again, with less
	if m.Epoch < instance.epoch || (m.Epoch == instance.epoch && !known && len(instance.sessions) > 0) {
		return nil, status.Errorf(status.NotPermitted, "epoch %d of the client is over: epoch %d has begun", m.Epoch, instance.epoch)
	}
	instance.epoch = m.Epoch
	for other := range instance.sessions {
		if other != s {
			former = append(former, other)
		}
	}
	instance.sessions[s] = struct{}{}
	return former, nil
}

// leave forgets a session that has been released.
func (r *instanceRegistry) leave(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(s.released)
	for id, instance := range r.instances {
		delete(instance.sessions, s)
		if len(instance.sessions) == 0 {
			delete(r.instances, id)
		}
	}
}
