// SPDX-License-Identifier: Apache-2.0

// Command pinned-poller reads random blocks of a volume on one thread, which is pinned to a core
// and never sleeps, with 64 requests outstanding. It shows the functions of requests: each one
// submits the next.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/zc-relay/zc-relay/examples/internal/disk"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// depth is how many requests are outstanding.
const depth = 64

func main() {
	config := disk.Flags(flag.CommandLine, "")
	core := flag.Int("core", 0, "core that the thread is pinned to")
	runtime := flag.Duration("runtime", 10*time.Second, "how long to read")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *runtime)
	defer cancel()
	if err := run(ctx, config(), *core); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads until ctx ends, and prints how much.
func run(ctx context.Context, config client.Config, core int) error {
	p, err := open(ctx, config)
	if err != nil {
		return err
	}
	begun := time.Now()
	err = p.poll(ctx, core)
	fmt.Printf("%.0f reads per second\n",
		float64(p.volume.Stats().Completed)/time.Since(begun).Seconds())
	return errors.Join(err, p.volume.Close(context.WithoutCancel(ctx)))
}

// poller reads random blocks.
type poller struct {
	volume *client.Volume
	queue  *client.Queue
	block  uint32 // size in bytes
	blocks uint64 // of the volume
	random *rand.Rand
	reads  [depth]read
	idle   []*read // that wait for a new session
	err    error
	// check examines the data of a block; nil examines nothing.
	check func(number uint64, data []byte) error
}

// read is one of the requests that are outstanding, with a buffer of its own.
type read struct {
	request client.Request
	number  uint64 // of the block
}

// open opens a volume with a queue, and prepares its requests.
func open(ctx context.Context, config client.Config) (*poller, error) {
	config.Queues, config.Depth, config.SyncDepth = 1, depth, -1
	config.BufferSize = 4096
	v, err := client.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	p := &poller{volume: v, queue: v.Queue(0), block: config.BufferSize,
		random: rand.New(rand.NewPCG(1, 2)), idle: make([]*read, 0, depth)}
	p.blocks = v.Info().Size / uint64(p.block)
	for i := range p.reads {
		r := &p.reads[i]
		r.request = client.Request{Type: client.Read, Length: p.block, Tag: uint64(i),
			Memory: uint64(i) * uint64(p.block)}
		r.request.Done = func(result *client.Result) { p.finish(r, result) }
		p.idle = append(p.idle, r)
	}
	return p, nil
}

// poll reads on the calling thread, which it pins to a core, until ctx ends. Nothing in its loop
// allocates, or enters the kernel.
func (p *poller) poll(ctx context.Context, core int) error {
	if err := pin(core); err != nil {
		return err
	}
	for turn := 0; p.err == nil; turn++ {
		if turn%1024 == 0 && ctx.Err() != nil {
			return p.drain()
		}
		for len(p.idle) > 0 && p.start(p.idle[len(p.idle)-1]) {
			p.idle = p.idle[:len(p.idle)-1]
		}
		p.queue.Ring()
		p.queue.Process()
	}
	return p.err
}

// drain waits for the requests that are outstanding.
func (p *poller) drain() error {
	for p.queue.Outstanding() > 0 {
		p.queue.Process()
	}
	return p.err
}

// start submits a read of another block, and reports whether the queue has taken it.
func (p *poller) start(r *read) bool {
	r.number = p.random.Uint64N(p.blocks)
	r.request.Offset = r.number * uint64(p.block)
	err := p.queue.Submit(&r.request)
	if errors.Is(err, client.ErrMemoryReplaced) {
		p.queue.SwitchMemory() // nothing in the former memory is needed
		err = p.queue.Submit(&r.request)
	}
	if err != nil && !errors.Is(err, status.Again) {
		p.err = fmt.Errorf("read block %d: %w", r.number, err)
	}
	return err == nil
}

// finish is called with the result of a read.
func (p *poller) finish(r *read, result *client.Result) {
	switch {
	case result.Code == status.Success && p.check != nil:
		data := p.queue.Memory()[r.request.Memory:][:p.block]
		if err := p.check(r.number, data); err != nil {
			p.err = err
		}
	case result.Code != status.Success && !client.CanRepeat(result.Code):
		p.err = fmt.Errorf("read block %d: %w", r.number, result.Err())
	}
	p.idle = append(p.idle, r)
}

// hasNumber checks that a block begins with its number.
func hasNumber(number uint64, data []byte) error {
	if found := binary.BigEndian.Uint64(data); found != number {
		return fmt.Errorf("block %d has the number %d", number, found)
	}
	return nil
}
