package target

import (
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openings knows which sessions have which volume open, and keeps other owners out of a volume that
// is open exclusively. A session has its volume open from the configuration of its data path until
// the release of its lanes, when no IO of it can take effect any more. Its methods may be called
// concurrently.
type openings struct {
	mu       sync.Mutex // guards sessions
	sessions map[*session]opening
}

// opening is what a session has said when it opened its volume.
type opening struct {
	volume    string
	owner     [16]byte
	exclusive bool
	client    string
	since     time.Time
}

func newOpenings() *openings {
	return &openings{sessions: make(map[*session]opening)}
}

// open records that s opens a volume. It fails with status.InUse if another owner has the volume
// open, and one of the two wants it exclusively.
func (o *openings) open(volume string, s *session, m *controlmsg.ConfigureDataPath,
	exclusive bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for other, existing := range o.sessions {
		if existing.volume != volume || existing.owner == m.Owner {
			continue
		}
		switch {
		case existing.exclusive:
			return status.Errorf(status.InUse, "volume %q is open exclusively by %s", volume,
				existing.describe(other))
		case exclusive:
			return status.Errorf(status.InUse,
				"volume %q cannot be opened exclusively: it is open by %s", volume,
				existing.describe(other))
		}
	}
	o.sessions[s] = opening{volume: volume, owner: m.Owner, exclusive: exclusive,
		client: m.Client, since: time.Now()}
	return nil
}

// close records that s has its volume open no longer. It has no effect if s has none.
func (o *openings) close(s *session) {
	o.mu.Lock()
	delete(o.sessions, s)
	o.mu.Unlock()
}

// describe returns the number of sessions that have a volume open, and who has it exclusively.
func (o *openings) describe(volume string) (sessions uint32, holder string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s, existing := range o.sessions {
		if existing.volume != volume {
			continue
		}
		sessions++
		if existing.exclusive {
			holder = existing.describe(s)
		}
	}
	return sessions, holder
}

func (o opening) describe(s *session) string {
	client := o.client
	if client == "" {
		client = "a client without a name"
	}
	return fmt.Sprintf("%s through relay %s since %s", client, s.peer,
		o.since.UTC().Format(time.RFC3339))
}
