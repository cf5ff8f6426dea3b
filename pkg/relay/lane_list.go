package relay

import (
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// laneList is a session's lanes, read by observers while the session adds to
// them.
type laneList struct {
	mu    sync.Mutex
	lanes []*datapath.RelayLane
}

func (l *laneList) add(lane *datapath.RelayLane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lanes = append(l.lanes, lane)
}

func (l *laneList) snapshot() []*datapath.RelayLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lanes)
}

// takeAll returns all lanes and forgets them.
func (l *laneList) takeAll() []*datapath.RelayLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	lanes := l.lanes
	l.lanes = nil
	return lanes
}
