// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// callerPause is how long a caller waits before it tries again: when others use the blocks that it
// could use, when there is nothing to do, and after a failure.
const callerPause = 10 * time.Millisecond

// startCallers starts the goroutines of an application that uses blocking methods, as many as its
// queues could have requests outstanding. The caller holds world.mu.
func (a *application) startCallers(ctx context.Context) {
	flusher := a.volume.NewFlusher()
	a.world.callerGoroutines += a.depth
	for i := range a.depth {
		random := rand.New(rand.NewPCG(a.world.plan.Seed, uint64(1000*a.process.id+i)))
		a.world.running.Go(func() { a.call(ctx, random, flusher) })
	}
}

// call makes one request after another until the program ends.
func (a *application) call(ctx context.Context, random *rand.Rand, flusher *client.Flusher) {
	data := make([]byte, a.buffer*blockSize)
	for ctx.Err() == nil {
		o := a.nextCall(random, data)
		if o == nil {
			time.Sleep(callerPause)
			continue
		}
		a.process.productive.Store(true)
		if err := a.carryOut(o, data, flusher); err != nil {
			time.Sleep(callerPause)
		}
	}
}

// nextCall returns an operation to carry out, nil if there is none now.
func (a *application) nextCall(random *rand.Rand, data []byte) *operation {
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	if !a.wantsMore() || a.failure != nil || a.process.dead {
		return nil
	}
	o := &operation{}
	o.request.Type = a.nextType(random)
	switch {
	case o.request.Type == client.Extents:
		return nil
	case o.request.Type != client.Flush && !a.choose(o, random):
		return nil
	}
	a.prepare(o, data)
	a.submitted(o)
	return o
}

// carryOut calls the method for an operation, and notes its outcome.
func (a *application) carryOut(o *operation, data []byte, flusher *client.Flusher) (err error) {
	offset, data := int64(o.request.Offset), data[:o.request.Length]
	switch o.request.Type {
	case client.Read:
		_, err = a.volume.ReadAt(data, offset)
	case client.Write:
		_, err = a.volume.WriteAt(data, offset)
	case client.Trim:
		err = a.volume.Trim(offset, int64(len(data)))
	case client.WriteZeroes:
		err = a.volume.WriteZeroes(offset, int64(len(data)))
	case client.Flush:
		err = flusher.Flush()
	}
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	if a.process.dead {
		return err // nobody learns of it
	}
	if errors.Is(err, client.ErrWritesLost) {
		a.lossReported()
	}
	a.completed(o, status.CodeOf(err), data)
	a.process.productive.Store(true)
	return err
}
