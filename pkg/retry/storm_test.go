// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A storm is what follows the restart of a target that all relays of a fleet have lost at the same
// time, on a virtual clock. Each relay follows a Schedule, and the target admits them by Turns.
type storm struct {
	relays int
	down   time.Duration // how long the target is away
	rate   int           // sessions that the target admits per second
	// deaf relays take a turn for a failed attempt, as those do that do not know the answer.
	deaf bool
}

// Attempts of relays, the next one first.
type attempts []attempt

type attempt struct {
	at    time.Time
	relay int
}

func (a attempts) Len() int           { return len(a) }
func (a attempts) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a attempts) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *attempts) Push(x any)        { *a = append(*a, x.(attempt)) }
func (a *attempts) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// outcome is when relays were admitted, and when they came back after they had been told a turn,
// since the target was back.
type outcome struct {
	admitted, returned []time.Duration
}

func (s storm) run(random *rand.Rand) outcome {
	policy := Policy{FirstDelay: 50 * time.Millisecond, Random: random.Float64}.WithDefaults()
	lost := time.Unix(0, 0)
	back := lost.Add(s.down)
	turns := NewTurns(s.rate, time.Minute)
	schedules, told := make([]*Schedule, s.relays), make([]bool, s.relays)
	var due attempts
	try := func(relay int, now time.Time) {
		pause, _ := schedules[relay].Next(now) // has no limit
		heap.Push(&due, attempt{now.Add(pause), relay})
	}
	for relay := range s.relays {
		schedules[relay] = policy.Begin(lost)
		try(relay, lost)
	}
	var o outcome
	for len(due) > 0 {
		next := heap.Pop(&due).(attempt)
		if next.at.Before(back) {
			try(next.relay, next.at)
			continue
		}
		since := next.at.Sub(back)
		if told[next.relay] {
			o.returned = append(o.returned, since)
		}
		wait := turns.Admit(next.at)
		switch {
		case wait == 0:
			o.admitted = append(o.admitted, since)
		case s.deaf:
			try(next.relay, next.at)
		default:
			told[next.relay] = true
			heap.Push(&due, attempt{next.at.Add(policy.lengthen(wait)), next.relay})
		}
	}
	return o
}

// most returns how many of the sorted times lie within one window at most, and least how many do at
// least, before the last window.
func most(times []time.Duration, window time.Duration) (most, least int) {
	least = len(times)
	first := 0
	for i, t := range times {
		for times[first] <= t-window {
			first++
		}
		most = max(most, i+1-first)
		if t > window && i+1-first < least {
			least = i + 1 - first
		}
	}
	return most, least
}

func TestAFleetComesBackToARestartedTargetWithoutWaves(t *testing.T) {
	for _, c := range []struct {
		name string
		storm
		// within is how much longer than at the target's rate it may take until all are served.
		within float64
	}{
		{"away for 200 ms", storm{10_000, 200 * time.Millisecond, 500, false}, 1.5},
		{"away for 10 s", storm{10_000, 10 * time.Second, 500, false}, 1.5},
		{"away for 200 ms, relays that take a turn for a failure",
			storm{10_000, 200 * time.Millisecond, 500, true}, 2},
		{"one relay", storm{1, 200 * time.Millisecond, 500, false}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.run(rand.New(rand.NewPCG(1, 2)))
			if len(o.admitted) != c.relays || !slices.IsSorted(o.admitted) {
				t.Fatalf("%d of %d relays were served", len(o.admitted), c.relays)
			}
			ideal := time.Duration(c.relays) * time.Second / time.Duration(c.rate)
			all := o.admitted[c.relays-1]
			if all > time.Duration(c.within*float64(ideal)) {
				t.Errorf("all relays are served after %v, at the target's rate it were %v", all,
					ideal)
			}
			highest, lowest := most(o.admitted, time.Second)
			if highest > c.rate+c.rate/burstsPerSecond {
				t.Errorf("%d relays were admitted in one second, the rate is %d", highest, c.rate)
			}
			const window = 100 * time.Millisecond
			wave, _ := most(o.returned, window)
			if !c.deaf && wave > 2*c.rate/int(time.Second/window) {
				t.Errorf("%d relays came back within %v, the target admits %d per second", wave,
					window, c.rate)
			}
			t.Logf("%d relays at %d/s: half served after %v, all after %v (at the rate: %v), %d to "+
				"%d per second, %d came back after a turn, at most %d within %v", c.relays, c.rate,
				o.admitted[c.relays/2].Round(time.Millisecond), all.Round(time.Millisecond), ideal,
				lowest, highest, len(o.returned), wave, window)
		})
	}
}
