package main

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/transfer"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Requests that put and get have outstanding unless told otherwise: enough to
// keep the transport busy while files are read and written.
const (
	transferQueues     = 1
	transferDepth      = 16
	transferBufferSize = size.MiB
)

// transferFlags are the flags that put and get have in common.
type transferFlags struct {
	connection *connectionFlags
	queues     int
	depth      int
	bufferSize size.Bytes
	poll       string
	offset     size.Bytes
}

func (t *transferFlags) add(f *pflag.FlagSet) {
	t.bufferSize = transferBufferSize
	f.Var(&t.offset, "offset", "where in the volume; need not be a multiple of its block size")
	f.IntVar(&t.queues, "queues", transferQueues, "number of queues, each with a thread")
	f.IntVar(&t.depth, "queue-depth", transferDepth, "requests outstanding on each queue")
	f.Var(&t.bufferSize, "buffer-size", "length of the longest requests")
	f.StringVar(&t.poll, "poll", progress.Adaptive.String(), "what an idle thread does: adaptive, busy or event")
}

// open opens the volume for a transfer. syncDepth is that of client.Config.
func (t *transferFlags) open(ctx context.Context, syncDepth int) (volume, transfer.Config, error) {
	queue := queueFlags{queues: t.queues, poll: t.poll}
	policy, err := queue.policy()
	if err != nil {
		return nil, transfer.Config{}, err
	}
	if t.queues < 1 || t.depth < 1 {
		return nil, transfer.Config{}, program.Usagef("--queues %d and --queue-depth %d must be at least 1", t.queues, t.depth)
	}
	length, err := requestLength("buffer-size", t.bufferSize)
	if err != nil {
		return nil, transfer.Config{}, err
	}
	program.ReserveProcessors(t.queues)
	v, err := t.connection.openVolume(ctx, client.Config{
		Queues: t.queues, Depth: t.depth, BufferSize: length, SyncDepth: syncDepth,
	})
	if err != nil {
		return nil, transfer.Config{}, err
	}
	return v, transfer.Config{
		Volume: v, Queues: queuesOf[transfer.Queue](v, t.queues), Depth: t.depth, BufferSize: length,
		Policy: policy, DrainTimeout: t.connection.controlTimeout,
	}, nil
}
