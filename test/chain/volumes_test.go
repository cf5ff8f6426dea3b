package chain

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// gateVolume holds back what its queues have done while the gate is closed,
// and fails requests if told to.
type gateVolume struct {
	volume.Volume
	closed atomic.Bool
	failed atomic.Uint32 // a status.Code
}

// Memory keeps reads from going around the queues.
func (*gateVolume) Memory() *memory.Region { return nil }

func (v *gateVolume) NewQueue(depth int) (volume.Queue, error) {
	queue, err := v.Volume.NewQueue(depth)
	return &gateQueue{Queue: queue, volume: v}, err
}

type gateQueue struct {
	volume.Queue
	volume *gateVolume
}

func (l *gateQueue) Poll(completed []*volume.Request) int {
	if l.volume.closed.Load() {
		return 0
	}
	n := l.Queue.Poll(completed)
	if code := status.Code(l.volume.failed.Load()); code != status.Success {
		for _, r := range completed[:n] {
			r.Err = code
		}
	}
	return n
}
