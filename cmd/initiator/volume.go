package main

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// volume is what the commands need of a client.Volume.
type volume interface {
	Info() client.Info
	Memory() []byte
	Queue(i int) queue
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
	Done() <-chan struct{}
	Err() error
	Reconnections() client.Reconnections
	Close(ctx context.Context) error
}

// queue is what they need of a client.Queue.
type queue interface {
	Submit(request *client.Request) error
	Flush()
	Poll(results []client.Result) int
	Attach(engine *progress.Engine) error
	Detach(engine *progress.Engine)
	WriteVerifier() uint64
}

// clientVolume is a volume behind a relay.
type clientVolume struct{ *client.Volume }

// Queue hides the type of the queue.
func (v clientVolume) Queue(i int) queue { return v.Volume.Queue(i) }

func openVolume(ctx context.Context, config client.Config) (volume, error) {
	v, err := client.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	return clientVolume{v}, nil
}

// queuesOf are the first count queues of a volume, under the name Q by which
// a package knows them.
func queuesOf[Q any](v volume, count int) []Q {
	queues := make([]Q, count)
	for i := range queues {
		queues[i] = v.Queue(i).(Q)
	}
	return queues
}
