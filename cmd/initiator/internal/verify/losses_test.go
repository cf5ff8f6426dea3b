// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// volatileVolume keeps unflushed writes in a cache, which a restart of its target may drop.
type volatileVolume struct {
	*queuetest.Volume
	random  *rand.Rand
	durable []byte
	// every is the mean number of requests between restarts.
	every int
	// loses makes a restart drop some unflushed writes, silent makes it go unreported, careless
	// makes it drop flushed writes too, and garbles makes it clear the blocks of unflushed writes.
	loses, silent, careless, garbles bool
	restarts                         int
}

func newVolatileVolume(p *Parameters, seed uint64) *volatileVolume {
	v := &volatileVolume{Volume: newTestVolume(p), random: rand.New(rand.NewPCG(seed, 1)),
		every: 100}
	v.durable = append([]byte(nil), v.Data()...)
	v.Intercept = v.carryOut
	return v
}

func (v *volatileVolume) carryOut(r *client.Request) status.Code {
	if v.random.IntN(v.every) == 0 {
		v.restart()
		return status.ConnectionReset
	}
	code := v.Apply(r)
	if r.Type == client.Flush {
		copy(v.durable, v.Data())
	}
	return code
}

func (v *volatileVolume) restart() {
	v.restarts++
	if v.loses {
		for i := range uint64(testBlocks) {
			if v.random.IntN(2) == 0 {
				copy(v.Data()[i*testBlock:][:testBlock], v.durable[i*testBlock:][:testBlock])
			}
		}
	}
	if v.garbles {
		for i := range uint64(testBlocks) {
			block := v.Data()[i*testBlock:][:testBlock]
			durable := v.durable[i*testBlock:][:testBlock]
			// The verifier knows the durable content of what was written in an earlier pass, too.
			if parseHeader(block).generation > 1 && parseHeader(durable).magic &&
				!bytes.Equal(block, durable) {
				clear(block)
			}
		}
	}
	if v.careless {
		clear(v.Data())
	}
	copy(v.durable, v.Data())
	v.Restart(!v.silent)
}

func runReconnecting(t testing.TB, p Parameters, v *volatileVolume) (Result, error) {
	t.Helper()
	config := configOf(t, p, v.Volume)
	config.Reconnect = true
	return Run(context.Background(), config)
}

func TestRestartsAreNoErrorsWhateverIsLostAsLongAsItIsTold(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		p := testParameters()
		p.Queues = rapid.IntRange(1, 3).Draw(t, "queues")
		p.QueueDepth = rapid.IntRange(1, 8).Draw(t, "depth")
		p.Seed = rapid.Uint64().Draw(t, "seed")
		v := newVolatileVolume(&p, p.Seed)
		v.loses = rapid.Bool().Draw(t, "loses")
		v.every = rapid.IntRange(40, 400).Draw(t, "every")
		v.Quarantine = rapid.Bool().Draw(t, "quarantine")
		if err := p.Resolve(&v.Info); err != nil {
			t.Fatal(err)
		}
		config := Config{Parameters: p, RunID: testRun, BlockSize: v.Info.BlockSize,
			Memory: v.Memory, Reconnect: true}
		for i := range p.Queues {
			config.Queues = append(config.Queues, v.Queue(i))
		}
		result, err := Run(context.Background(), config)
		if err != nil {
			t.Fatalf("%d restarts: %v", v.restarts, err)
		}
		if result.PassesCompleted != p.Passes || result.Errors > 0 {
			t.Fatalf("%d restarts: result is %+v", v.restarts, result)
		}
		if !v.loses && result.LostBlocks > 0 {
			t.Fatalf("%d blocks were called lost that were not", result.LostBlocks)
		}
		if v.restarts > 0 && result.Reconnections.RepeatedRequests == 0 {
			t.Fatal("nothing was repeated")
		}
	})
}

// lossAfterLoss is a queue whose first flush reports several losses, one after the other.
type lossAfterLoss struct {
	*queuetest.Queue
	losses int
}

func (q *lossAfterLoss) Submit(r *client.Request) error {
	if r.Type == client.Flush && q.losses > 0 {
		q.losses--
		return client.ErrWritesLost
	}
	return q.Queue.Submit(r)
}

func TestSeveralLossesInARowAreReported(t *testing.T) {
	p := testParameters()
	p.Queues = 1
	v := newVolatileVolume(&p, 5)
	v.every = 1 << 30 // no restarts
	config := configOf(t, p, v.Volume)
	config.Reconnect = true
	config.Queues = []Queue{&lossAfterLoss{Queue: v.Queue(0), losses: 3}}
	result, err := Run(context.Background(), config)
	if err != nil || result.LossesReported != 3 {
		t.Errorf("error %v, result %+v", err, result)
	}
}

func TestLostBlocksAreCounted(t *testing.T) {
	p := testParameters()
	p.Passes = 10
	v := newVolatileVolume(&p, 5)
	v.loses = true
	result, err := runReconnecting(t, p, v)
	if err != nil || result.LostBlocks == 0 || result.LossesReported == 0 {
		t.Errorf("%d restarts: error %v, result %+v", v.restarts, err, result)
	}
}

func TestALossThatIsNotToldIsAnError(t *testing.T) {
	p := testParameters()
	p.Passes, p.Queues = 10, 1
	v := newVolatileVolume(&p, 5)
	v.silent = true
	_, err := runReconnecting(t, p, v)
	if !errors.Is(err, status.Unexpected) || !strings.Contains(err.Error(), "did not report it") {
		t.Errorf("after %d restarts: %v", v.restarts, err)
	}
}

func TestTheLossOfWhatWasFlushedIsAFinding(t *testing.T) {
	p := testParameters()
	p.Passes = 10
	v := newVolatileVolume(&p, 5)
	v.careless = true
	result, err := runReconnecting(t, p, v)
	if err == nil || result.FindingsByKind[Lost] == 0 {
		t.Errorf("after %d restarts: error %v, result %+v", v.restarts, err, result)
	}
}

// After a loss, a block may hold its last write or what was flushed before, but nothing else.
func TestABlockThatALossGarblesIsAFinding(t *testing.T) {
	p := testParameters()
	p.Passes, p.Queues = 10, 1
	v := newVolatileVolume(&p, 5)
	v.garbles = true
	result, err := runReconnecting(t, p, v)
	if err == nil || result.FindingsByKind[Lost] == 0 || result.LostBlocks > 0 {
		t.Errorf("after %d restarts: error %v, result %+v", v.restarts, err, result)
	}
}

func TestWithoutReconnectARestartEndsTheRun(t *testing.T) {
	p := testParameters()
	v := newVolatileVolume(&p, 5)
	v.silent = true
	if _, err := run(t, p, v.Volume); !errors.Is(err, status.ConnectionReset) {
		t.Errorf("after %d restarts: %v", v.restarts, err)
	}
}
