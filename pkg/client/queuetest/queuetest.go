// SPDX-License-Identifier: Apache-2.0

// Package queuetest provides a volume in memory. Its queues behave like those of pkg/client, or
// misbehave as a test requires.
package queuetest

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Volume is a volume in memory.
type Volume struct {
	Info client.Info
	// Memory is the data memory that requests refer to.
	Memory []byte
	// Intercept, if not nil, carries out requests instead of Apply, which it may call. Calls are
	// serialized.
	Intercept func(r *client.Request) status.Code
	// Cause accompanies the result of every request that Intercept makes fail.
	Cause status.Cause
	// Quarantine makes a restart replace Memory, as a relay does that is silent.
	Quarantine bool
	// Stalled keeps requests from completing while it is set, and Outage keeps queues from
	// switching to the next session after a restart.
	Stalled, Outage atomic.Bool

	mu       *sync.Mutex // guards data and calls of Intercept
	data     []byte
	restarts atomic.Uint64
	held     atomic.Pointer[func(r *client.Request) bool]
	losses   atomic.Uint64
	reported sync.Map // how many of them a *client.Flusher has reported
	lost     atomic.Pointer[error]
	queues   []*Queue
}

// New returns a volume of size bytes whose queues have depth buffers of bufferSize bytes each.
func New(size uint64, blockSize uint32, queues, depth int, bufferSize uint32) *Volume {
	v := &Volume{
		Info: client.Info{
			Name: "test", Size: size, BlockSize: blockSize, Transport: "memory", Relay: "none",
			Queues: queues, Depth: depth, BufferSize: bufferSize,
		},
		Memory: make([]byte, queues*depth*int(bufferSize)),
		mu:     new(sync.Mutex),
		data:   make([]byte, size),
	}
	for i := range queues {
		v.queues = append(v.queues, &Queue{
			volume: v, random: rand.NewPCG(uint64(i), 1), memory: v.Memory, next: v.Memory,
			outstanding: make([]client.Request, 0, depth),
		})
	}
	return v
}

// Queue returns queue i.
func (v *Volume) Queue(i int) *Queue { return v.queues[i] }

// Data returns the content of the volume. Only Intercept may use it while requests are outstanding.
func (v *Volume) Data() []byte { return v.data }

// Share replaces the content of the volume by data, of the same size, which mu guards. The sessions
// of one volume share both.
func (v *Volume) Share(data []byte, mu *sync.Mutex) { v.data, v.mu = data, mu }

// NewFlusher returns a user who knows of all losses so far.
func (v *Volume) NewFlusher() *client.Flusher {
	f := new(client.Flusher)
	v.reported.Store(f, v.losses.Load())
	return f
}

// reportsLoss reports whether a flush of a user has to report a loss, which it then has.
func (v *Volume) reportsLoss(user *client.Flusher) bool {
	losses := v.losses.Load()
	former, _ := v.reported.Swap(user, losses)
	known, _ := former.(uint64)
	return known != losses
}

// Hold keeps requests for which held returns true from completing, until the next call or restart.
// nil holds none.
func (v *Volume) Hold(held func(r *client.Request) bool) { v.held.Store(&held) }

// isHeld reports whether a request of a session must not complete yet.
func (v *Volume) isHeld(r *client.Request, session uint64) bool {
	held := v.held.Load()
	return held != nil && *held != nil && (*held)(r) && v.restarts.Load() == session
}

// Disconnect makes everything outstanding fail, and every Submit from now on.
func (v *Volume) Disconnect(reason error) { v.lost.Store(&reason) }

// Lost returns the reason of Disconnect, or nil.
func (v *Volume) Lost() error {
	if reason := v.lost.Load(); reason != nil {
		return *reason
	}
	return nil
}

// Restart makes everything outstanding fail with status.ConnectionReset, as after a restart of the
// target. With loss, the next flush of each user reports lost writes. Call it before the run or
// from Intercept.
func (v *Volume) Restart(loss bool) {
	if loss {
		v.losses.Add(1)
	}
	if v.Quarantine {
		v.Memory = make([]byte, len(v.Memory))
	}
	v.restarts.Add(1)
}

// Apply carries out a request correctly.
func (v *Volume) Apply(r *client.Request) status.Code {
	if r.Type == client.Flush {
		return status.Success
	}
	block := uint64(v.Info.BlockSize)
	if r.Offset%block != 0 || uint64(r.Length)%block != 0 ||
		r.Offset+uint64(r.Length) > v.Info.Size {
		return status.InvalidValue
	}
	memory, data := v.Memory[r.Memory:][:r.Length], v.data[r.Offset:][:r.Length]
	switch r.Type {
	case client.Read:
		copy(memory, data)
	case client.Write:
		copy(data, memory)
	case client.WriteZeroes:
		clear(data)
	default:
		return status.NotSupported
	}
	return status.Success
}

// Queue is a queue of a Volume. It completes requests when it is polled, in random order.
type Queue struct {
	volume      *Volume
	random      *rand.PCG
	outstanding []client.Request
	// Submitted counts requests. Any thread may read it.
	Submitted atomic.Uint64
	// Unrung is the number of requests since the last Ring, and MostUnrung the largest such
	// number so far.
	Unrung, MostUnrung int
	// RefuseEvery makes every nth Submit find the queue full; 0 means none.
	RefuseEvery  int
	calls        int
	memory, next []byte // in use, and after SwitchMemory
	session      uint64 // restarts of the target that the queue knows of
	user         client.Flusher
	engine       *progress.Engine
}

// Submit queues a request.
func (q *Queue) Submit(r *client.Request) error {
	if reason := q.volume.lost.Load(); reason != nil {
		return *reason
	}
	if restarts := q.volume.restarts.Load(); restarts != q.session {
		if len(q.outstanding) > 0 {
			return status.Again
		}
		if !q.volume.Outage.Load() {
			q.switchSession(restarts)
		}
		return client.ErrReopening
	}
	if r.Type == client.Flush && q.volume.reportsLoss(cmp.Or(r.Flusher, &q.user)) {
		return client.ErrWritesLost
	}
	if r.Type != client.Flush && &q.next[0] != &q.memory[0] {
		return client.ErrMemoryReplaced
	}
	q.calls++
	if len(q.outstanding) == cap(q.outstanding) || (q.RefuseEvery > 0 &&
		q.calls%q.RefuseEvery == 0) {
		return status.Again
	}
	q.outstanding = append(q.outstanding, *r)
	q.Submitted.Add(1)
	q.Unrung++
	q.MostUnrung = max(q.MostUnrung, q.Unrung)
	return nil
}

// switchSession makes the queue use the session after the given number of restarts.
func (q *Queue) switchSession(restarts uint64) {
	q.session, q.next = restarts, q.volume.currentMemory()
	if q.engine != nil {
		q.engine.Wake()
	}
}

// SwitchMemory returns the memory of the queue's session.
func (q *Queue) SwitchMemory() []byte {
	q.memory = q.next
	return q.memory
}

func (v *Volume) currentMemory() []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.Memory
}

// Ring only counts: Poll carries out requests.
func (q *Queue) Ring() { q.Unrung = 0 }

// WriteVerifier returns the number of restarts that the queue has noticed.
func (q *Queue) WriteVerifier() uint64 { return q.session }

// Session returns the number of the session that the queue uses.
func (q *Queue) Session() uint64 { return q.session }

// Attach keeps the engine, to wake it after a restart.
func (q *Queue) Attach(engine *progress.Engine) error {
	q.engine = engine
	return nil
}

// Detach does nothing.
func (q *Queue) Detach(*progress.Engine) {}

// Poll carries out and completes some outstanding requests. Without any, it switches to the next
// session, if there is one.
func (q *Queue) Poll(results []client.Result) int {
	v := q.volume
	if restarts := v.restarts.Load(); len(q.outstanding) == 0 && restarts != q.session {
		if !v.Outage.Load() {
			q.switchSession(restarts)
		}
		return 0
	}
	n := 0
	for n < len(results) && len(q.outstanding) > 0 && !v.Stalled.Load() {
		i := q.random.Uint64() % uint64(len(q.outstanding))
		if v.isHeld(&q.outstanding[i], q.session) {
			break
		}
		last := len(q.outstanding) - 1
		q.outstanding[i], q.outstanding[last] = q.outstanding[last], q.outstanding[i]
		r := &q.outstanding[last]
		code := v.carryOut(r, q.session)
		results[n] = client.Result{Tag: r.Tag, Code: code,
			Quarantined: v.Quarantine && code == status.ConnectionReset}
		if code != status.Success {
			results[n].Cause = v.Cause
		}
		q.outstanding = q.outstanding[:last]
		n++
		if q.random.Uint64()%4 == 0 {
			break // let some results come later
		}
	}
	return n
}

func (v *Volume) carryOut(r *client.Request, session uint64) status.Code {
	if reason := v.lost.Load(); reason != nil {
		return status.CodeOf(*reason)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if session != v.restarts.Load() {
		return status.ConnectionReset
	}
	if v.Intercept != nil {
		return v.Intercept(r)
	}
	return v.Apply(r)
}
