// SPDX-License-Identifier: Apache-2.0

// Package resources lets random peers of every kind use a real relay and a real target, and checks
// that the daemons hold nothing for peers that are gone, and still serve an honest client.
//
// A burst is a number of peers that work at the same time: initiators, relays, targets, connections
// that stay silent, and operators. What each of them does is a function of the burst's seed.
package resources

import (
	"context"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

var (
	onlySeed  = flag.Uint64("seed", 0, "run only the burst of this seed")
	firstSeed = flag.Uint64("from", 0,
		"seed of the first of several bursts (default: that of package seedtest)")
	duration = flag.Duration("for", 0, "how long to begin bursts after the first few")
)

const (
	fewBursts     = 2  // the least number of bursts
	exactInterval = 16 // bursts between two checks that wait for the end of grace periods
)

// warmUpSeed is the seed of the burst that comes before the first measurement: afterwards the
// daemons have everything that they keep, such as threads and the queues of workers.
const warmUpSeed = 1 << 40

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

func TestDaemonsHoldNothingForPeersThatAreGone(t *testing.T) {
	t.Parallel() // what it measures are daemons of its own
	c := startChain(t)
	c.seed = warmUpSeed
	burst(c, warmUpSeed)
	c.serveHonestClient(warmUpSeed)
	c.measureBaseline()
	if *onlySeed != 0 {
		runBurst(c, *onlySeed)
	} else {
		end, few, first := time.Now().Add(*duration), uint64(fewBursts), *firstSeed
		if first == 0 {
			first = seedtest.Of(t)
		}
		if testing.Short() {
			few = 1
		}
		for i := uint64(0); i < few || time.Now().Before(end); i++ {
			runBurst(c, first+i)
		}
	}
	c.awaitBaseline(true)
	c.report()
}

// runBurst runs one burst and checks the daemons during and after it.
func runBurst(c *chain, seed uint64) {
	c.t.Helper()
	c.seed = seed
	c.t.Logf("burst: go test ./test/resources -seed=%d", seed)
	stop, started := c.watch(), time.Now()
	burst(c, seed)
	stop()
	took := time.Since(started)
	c.totals.bursting += took
	if took > 4*controlTimeout {
		c.t.Logf("the burst took %v", took)
	}
	c.checkPeaks()
	c.awaitBaseline(false)
	c.serveHonestClient(seed)
	c.checkLogs()
	c.totals.bursts++
	if c.totals.bursts%exactInterval == 0 {
		c.awaitBaseline(true)
	}
}

// peer is what all kinds of peers have: their share of the burst.
type peer struct {
	*chain
	number uint32 // from 1
	random *rand.Rand
	ctx    context.Context // bounds every wait
	// others is closed when all peers that do not stay silent are done.
	others <-chan struct{}
}

// kinds are the peers of a burst. Each function is one peer, from its connection to its end.
var kinds = []struct {
	name     string
	most     int // of a burst
	isSilent bool
	run      func(*peer)
}{
	{name: "initiator", most: 10, run: (*peer).initiate},
	{name: "relay", most: 8, run: (*peer).relayToTarget},
	{name: "silent connection", most: 12, isSilent: true, run: (*peer).staySilent},
	{name: "operator", most: 2, run: (*peer).operate},
}

// burstTimeout bounds a burst. Only a peer that hangs reaches it.
const burstTimeout = 2 * time.Minute

// burst runs the peers of a seed, and returns when all are gone and the configuration is the
// initial one. The fake target takes part by what it does to the relay's connections.
func burst(c *chain, seed uint64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), burstTimeout)
	defer cancel()
	random := rand.New(rand.NewPCG(seed, 0))
	c.fake.misbehave(seed)
	others := make(chan struct{})
	var active, silent sync.WaitGroup
	c.crowd = 0
	for _, kind := range kinds {
		for range 1 + random.IntN(kind.most) {
			c.crowd++
			p := &peer{chain: c, number: uint32(c.crowd), ctx: ctx, others: others,
				random: rand.New(rand.NewPCG(seed, uint64(c.crowd)))}
			g := &active
			if kind.isSilent {
				g = &silent
			}
			g.Go(func() { kind.run(p) })
		}
	}
	c.totals.peers += c.crowd
	active.Wait()
	close(others)
	silent.Wait()
	if ctx.Err() != nil {
		c.fatalf("a peer has not ended within %v", burstTimeout)
	}
	c.fake.behave()
	c.restoreConfiguration()
}

// chance reports true with a probability of percent.
func (p *peer) chance(percent int) bool { return p.random.IntN(100) < percent }

// pick returns one of the choices.
func pick[T any](random *rand.Rand, choices ...T) T { return choices[random.IntN(len(choices))] }
