// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// caller is a program that uses a volume by blocking methods. Each of its users is a goroutine with
// blocks of its own, one call at a time, and knows what the blocks may hold. The users compete for
// fewer slots than they are, and give some calls up. Some callers close their volume while its
// users make requests.
type caller struct {
	world    *world
	process  *process
	name     string
	disk     *disk
	users    []*user
	volume   atomic.Pointer[client.Volume]
	left     atomic.Bool // the volume is being closed
	finished atomic.Bool // all users are done
	failure  error       // of the volume, for good; guarded by world.mu
}

// user is one goroutine of a caller. world.mu guards what follows random.
type user struct {
	caller *caller
	index  int // of the first block
	blocks int
	random *rand.Rand

	left  int    // requests still to make
	stamp uint64 // of the latest write
	// live holds the stamps that a read may find; durable those that a loss of power may leave.
	live, durable []uint64
	crashed       bool // the target's machine lost power during the latest write
	// Nothing up to this stamp may be written any more: a later request has succeeded.
	fence uint64
}

// mostCallerBlocks is how many blocks a user of a caller has at most. One call reads or writes all
// of them, in several requests if the plan's buffer is smaller.
const mostCallerBlocks = 3

// startCaller starts a caller that uses the volume of disk c.
func (w *world) startCaller(c int) {
	p := w.newProcess(fmt.Sprintf("caller%d", len(w.callers)+1), relayAddress(0))
	u := &caller{world: w, process: p, name: p.name, disk: w.disks[c]}
	for range w.plan.Callers {
		index := w.usedBlocks[c]
		random := rand.New(rand.NewPCG(w.plan.Seed, uint64(1000+index)))
		blocks := 1 + random.IntN(mostCallerBlocks)
		w.usedBlocks[c] += blocks
		u.users = append(u.users, &user{caller: u, index: index, blocks: blocks, random: random,
			left: w.plan.Requests, live: []uint64{0}, durable: []uint64{0}})
	}
	w.callers = append(w.callers, u)
	config := (&application{world: w, process: p, channel: channelName(c)}).config()
	config.Queues, config.SyncDepth = 0, max(1, w.plan.Callers-1)
	p.run(func(ctx context.Context) error { return u.run(ctx, config) })
}

// run opens the volume, lets the users work, and closes it.
func (c *caller) run(ctx context.Context, config client.Config) error {
	w := c.world
	volume, err := open(ctx, config)
	if err != nil {
		c.end(err)
		return err
	}
	c.volume.Store(volume)
	var working sync.WaitGroup
	for _, u := range c.users {
		working.Go(u.run)
	}
	w.running.Go(func() {
		working.Wait()
		c.end(volume.Err())
	})
	var leaves <-chan time.Time
	if after := w.plan.CallersLeaveAfter; after > 0 {
		leaves = time.After(after)
	}
	select {
	case <-ctx.Done():
	case <-leaves:
	}
	c.left.Store(true)
	if c.process.dead {
		volume.Abort()
		return nil
	}
	closing, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = volume.Close(closing)
	if err != nil && len(w.plan.Faults) == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.violate("%s: close: %v although there were no faults", c.name, err)
	}
	return nil
}

func (c *caller) end(failure error) {
	c.world.mu.Lock()
	if !c.left.Load() {
		c.failure = failure
	}
	c.world.mu.Unlock()
	c.finished.Store(true)
	c.world.productive.Store(true)
}

// run makes requests until none is left, or the volume has failed or is being closed.
func (u *user) run() {
	w, volume := u.caller.world, u.caller.volume.Load()
	for volume.Err() == nil && !u.caller.left.Load() && u.goesOn() {
		var err error
		u.caller.process.productive.Store(true)
		ctx, cancel := context.Background(), func() {}
		if u.random.IntN(8) == 0 {
			patience := time.Duration(u.random.Int64N(int64(time.Second)))
			ctx, cancel = context.WithTimeout(ctx, patience)
		}
		switch u.random.IntN(6) {
		case 0, 1:
			err = u.write(ctx, volume)
		case 2:
			err = volume.FlushContext(ctx)
			u.flushed(err)
		default:
			err = u.read(ctx, volume)
		}
		givenUp := ctx.Err() != nil
		cancel()
		w.mu.Lock()
		if err == nil {
			u.fence = u.stamp
		} else if len(w.plan.Faults) == 0 && !u.caller.left.Load() && !givenUp {
			w.violate("%s: %v although there were no faults", u.caller.name, err)
		}
		dead := u.caller.process.dead
		w.mu.Unlock()
		if dead {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// goesOn counts a request, and reports whether there is one to make. While faults are to come there
// is, so that every fault meets requests.
func (u *user) goesOn() bool {
	w := u.caller.world
	w.mu.Lock()
	defer w.mu.Unlock()
	u.left--
	return u.left >= 0 || w.faultsLeft
}

func (u *user) offset() int64 { return int64(u.index) * blockSize }

func (u *user) write(ctx context.Context, volume *client.Volume) error {
	w, data := u.caller.world, make([]byte, u.blocks*blockSize)
	w.mu.Lock()
	u.stamp++
	stamp := u.stamp
	u.live, u.durable, u.crashed = include(u.live, stamp), include(u.durable, stamp), false
	w.mu.Unlock()
	for i := range u.blocks {
		fill(data[i*blockSize:][:blockSize], stamp, u.index+i)
	}
	_, err := volume.WriteAtContext(ctx, data, u.offset())
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
	case u.crashed:
		u.live = slices.Clone(u.durable) // the response may have been on its way since before
	default:
		u.live = []uint64{stamp}
	}
	return err
}

func (u *user) read(ctx context.Context, volume *client.Volume) error {
	data := make([]byte, u.blocks*blockSize)
	if _, err := volume.ReadAtContext(ctx, data, u.offset()); err != nil {
		return err
	}
	w := u.caller.world
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range u.blocks {
		stamp, err := identify(data[i*blockSize:][:blockSize], u.index+i)
		if err != nil || !slices.Contains(u.live, stamp) {
			w.violate("%s: block %d has stamp %d, %v, but may hold only %d", u.caller.name,
				u.index+i, stamp, err, u.live)
		}
	}
	return nil
}

// flushed notes the outcome of a flush.
func (u *user) flushed(err error) {
	u.caller.world.mu.Lock()
	defer u.caller.world.mu.Unlock()
	switch {
	case err == nil:
		u.durable = slices.Clone(u.live)
	case errors.Is(err, client.ErrWritesLost):
		u.live = slices.Clone(u.durable)
	}
}

// crashed is called when the target's machine has lost what was not durable.
func (c *caller) crashed() {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for _, u := range c.users {
		u.crashed = true
		for _, stamp := range u.durable {
			u.live = include(u.live, stamp)
		}
	}
}

// inspect is called before a block of the caller is written to the disk. It reports whether the
// block is one.
func (c *caller) inspect(d *disk, index int, data []byte) bool {
	i := slices.IndexFunc(c.users, func(u *user) bool {
		return c.disk == d && index >= u.index && index < u.index+u.blocks
	})
	if i < 0 {
		return false
	}
	u, w := c.users[i], c.world
	stamp, err := identify(data, index)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil || stamp > u.stamp:
		w.violate("block %d of disk %s is about to be written with stamp %d, %v, which was not "+
			"submitted for it", index, d.name, stamp, err)
	case stamp <= u.fence:
		w.violate("ghost write: block %d of disk %s is about to be written with stamp %d, although "+
			"a later request has succeeded", index, d.name, stamp)
	}
	return true
}
