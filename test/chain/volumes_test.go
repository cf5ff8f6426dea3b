package chain

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// gateVolume holds back what its lanes have done while the gate is closed,
// and fails requests if told to.
type gateVolume struct {
	volume.Volume
	closed atomic.Bool
	failed atomic.Uint32 // a status.Code
}

// Memory keeps reads from going around the lanes.
func (*gateVolume) Memory() *memory.Region { return nil }

func (v *gateVolume) NewLane(depth int) (volume.Lane, error) {
	lane, err := v.Volume.NewLane(depth)
	return &gateLane{Lane: lane, volume: v}, err
}

type gateLane struct {
	volume.Lane
	volume *gateVolume
}

func (l *gateLane) Poll(completed []*volume.Request) int {
	if l.volume.closed.Load() {
		return 0
	}
	n := l.Lane.Poll(completed)
	if code := status.Code(l.volume.failed.Load()); code != status.Success {
		for _, r := range completed[:n] {
			r.Err = code
		}
	}
	return n
}
