// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// reader is a lane in virtual time, with requests of one size always waiting.
type reader struct {
	laneThrottle
	size       uint32
	reads      int
	lastNs     int64
	longestGap int64
}

func newReader(size uint32, channel, session *Throttle) *reader {
	return &reader{size: size,
		laneThrottle: laneThrottle{throttles: [ThrottleLevelCount]*Throttle{channel, session}}}
}

// run lets readers take their turns in a fixed order, as a worker does, for a virtual time.
func run(d, turn time.Duration, readers ...*reader) {
	for now := int64(0); now < int64(d); now += int64(turn) {
		for _, r := range readers {
			for n := 0; n < comchBatch && r.update() && r.mayRead(now); n++ {
				r.charge(now, r.size)
				r.reads++
				r.longestGap = max(r.longestGap, now-r.lastNs)
				r.lastNs = now
			}
		}
	}
}

func TestRateIsThatOfTheTightestLimit(t *testing.T) {
	const none = 0
	second := time.Second
	tests := []struct {
		name             string
		channel, session RateLimits
		size             uint32
		want             int // in 10 s
	}{
		{"IOPS", RateLimits{IOPS: 100}, RateLimits{}, 4096, 1000},
		{"IOPS with a burst", RateLimits{IOPS: 100, Burst: second}, RateLimits{}, 4096, 1100},
		{"bandwidth", RateLimits{Bandwidth: 1 << 20}, RateLimits{}, 4096, 2560},
		{"bandwidth with a burst", RateLimits{Bandwidth: 1 << 20, Burst: second}, RateLimits{}, 4096, 2816},
		{"large IOs", RateLimits{Bandwidth: 1 << 20}, RateLimits{}, 4 << 20, 3},
		{"requests without data", RateLimits{Bandwidth: 1 << 20, IOPS: 50}, RateLimits{}, none, 500},
		{"session below channel", RateLimits{IOPS: 100}, RateLimits{IOPS: 20}, 4096, 200},
		{"channel below session", RateLimits{IOPS: 10}, RateLimits{Bandwidth: 1 << 30}, 4096, 100},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var channel, session Throttle
			channel.SetLimits(test.channel)
			session.SetLimits(test.session)
			r := newReader(test.size, &channel, &session)
			run(10*time.Second, 10*time.Microsecond, r)
			// The first turn and the last may each be worth one request, and without a burst the
			// time between two turns is lost.
			if r.reads < test.want-1-test.want/500 || r.reads > test.want+2 {
				t.Errorf("%d requests in 10 s, want %d", r.reads, test.want)
			}
		})
	}
}

func TestAPauseIsWorthABurstAndNoMore(t *testing.T) {
	var channel Throttle
	channel.SetLimits(RateLimits{IOPS: 1000, Burst: 10 * time.Millisecond})
	r := newReader(4096, &channel, nil)
	run(1, 1, r)
	first := r.reads
	now := int64(time.Hour)
	for r.mayRead(now) {
		r.charge(now, r.size)
		r.reads++
	}
	if burst := r.reads - first; first != burst || burst != 11 {
		t.Errorf("a new lane read %d requests at once, and %d after an hour: want 11", first, burst)
	}
}

// Whatever the limits, lanes that always have requests share them equally, the sum stays within the
// limits, and a lane waits no longer than for one request of each.
func TestThrottledLanesShareAndNoneStarves(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		iops := rapid.IntRange(50, 500).Draw(t, "iops")
		lanes := rapid.IntRange(1, 8).Draw(t, "lanes")
		burst := time.Duration(rapid.IntRange(0, 50).Draw(t, "burst_ms")) * time.Millisecond
		var channel Throttle
		channel.SetLimits(RateLimits{IOPS: uint32(iops), Burst: burst})
		readers := make([]*reader, lanes)
		for i := range readers {
			readers[i] = newReader(4096, &channel, nil)
		}
		const seconds, turn = 1, 50 * time.Microsecond
		run(seconds*time.Second, turn, readers...)
		total, least, most := 0, readers[0].reads, 0
		for _, r := range readers {
			total += r.reads
			least, most = min(least, r.reads), max(most, r.reads)
			// Every turn may be too late for a request of each lane.
			bound := time.Duration(lanes+1)*(time.Second/time.Duration(iops)+turn) + burst
			if gap := time.Duration(r.longestGap); gap > bound {
				t.Errorf("a lane waited %v for one request", gap)
			}
		}
		allowed := seconds*iops + int(burst.Seconds()*float64(iops)) + lanes + 1
		if total > allowed || total < seconds*iops*95/100-lanes-1 {
			t.Errorf("%d requests in %d s at %d IOPS, burst %v", total, seconds, iops, burst)
		}
		if spare := int(burst.Seconds()*float64(iops)) + 2; most-least > spare {
			t.Errorf("shares differ from %d to %d", least, most)
		}
	})
}

func TestAThrottledLaneSleepsUntilItMayContinue(t *testing.T) {
	var session Throttle
	session.SetLimits(RateLimits{IOPS: 100})
	r := newRelayRigWith(t, relayRigOptions{policy: progress.Policy{Mode: progress.Event},
		session: &session})
	r.start()
	before := r.lane.worker.Stats()
	begun := time.Now()
	const requests = testDepth
	for i := range uint64(requests) {
		r.client.send(readRequest(i))
	}
	for range requests {
		r.target.receive(iomsg.DataConnection)
	}
	if elapsed, least := time.Since(begun), (requests-1)*10*time.Millisecond; elapsed < least {
		t.Errorf("%d requests at 100 IOPS took %v, want at least %v", requests, elapsed, least)
	}
	testkit.Eventually(t, "the worker sleeps again", func() bool {
		return r.lane.worker.Stats().Sleeps > before.Sleeps
	})
	stats := r.lane.worker.Stats()
	if turns := stats.Misses - before.Misses; turns > 100*requests {
		t.Errorf("%d turns without work for %d requests: the worker does not sleep", turns, requests)
	}
	if stats.LateWakeups != 0 {
		t.Errorf("%d wake-ups were late", stats.LateWakeups)
	}
	if got := r.lane.Throttled(); got < (requests-1)*9*time.Millisecond {
		t.Errorf("the lane counts %v of waiting", got)
	}
	queues := r.counters.Queues()
	if got := queues[0].Throttled(sessionThrottle); got != r.lane.Throttled() {
		t.Errorf("the counters say %v, the lane %v", got, r.lane.Throttled())
	}
}

func TestAWaitThatSpansTheSafetyTimeoutIsNoLostWakeUp(t *testing.T) {
	var session Throttle
	session.SetLimits(RateLimits{Bandwidth: 32 << 10})
	r := newRelayRigWith(t, relayRigOptions{policy: progress.Policy{Mode: progress.Event},
		session: &session})
	r.start()
	request := readRequest(1)
	request.IOSize = 40 << 10 // 1.25 s
	for range 2 {
		r.client.send(request)
		r.target.receive(iomsg.DataConnection)
	}
	if n := r.lane.worker.Stats().LateWakeups; n != 0 {
		t.Errorf("%d wake-ups were late", n)
	}
}

func TestHigherLimitsEndAWaitForLowerOnes(t *testing.T) {
	var channel Throttle
	channel.SetLimits(RateLimits{IOPS: 1})
	r := newReader(4096, &channel, nil)
	run(1, 1, r)
	if r.update(); r.mayRead(1) {
		t.Error("a second request follows at once")
	}
	channel.SetLimits(RateLimits{IOPS: 1000})
	if r.update(); !r.mayRead(1) {
		t.Error("the lane waits for limits that do not hold any more")
	}
}

func TestNewLimitsEndAWaitAtOnce(t *testing.T) {
	var channel Throttle
	channel.SetLimits(RateLimits{Bandwidth: 1}) // an hour for each request
	r := newRelayRigWith(t, relayRigOptions{policy: progress.Policy{Mode: progress.Event},
		channel: &channel})
	r.start()
	for i := range uint64(testDepth) {
		r.client.send(readRequest(i))
	}
	r.target.receive(iomsg.DataConnection)
	channel.SetLimits(RateLimits{})
	r.lane.Wake()
	for range testDepth - 1 {
		r.target.receive(iomsg.DataConnection)
	}
}

func TestARejectingLaneIsNotThrottled(t *testing.T) {
	var channel Throttle
	channel.SetLimits(RateLimits{Bandwidth: 1})
	r := newRelayRigWith(t, relayRigOptions{channel: &channel})
	r.start()
	r.client.send(readRequest(1))
	r.target.receive(iomsg.DataConnection)
	r.client.send(readRequest(2))
	if err := r.lane.FailRequests(testContext(t), 5); err != nil {
		t.Fatal(err)
	}
	for range 2 { // hours earlier than the limit would allow
		if m := r.response(); m.Result != 5 {
			t.Errorf("the request completed with %v", m.Result)
		}
	}
}

// BenchmarkThrottle measures what limits that are never reached cost an IO.
func BenchmarkThrottle(b *testing.B) {
	var channel, session Throttle
	limits := RateLimits{IOPS: 1 << 30, Bandwidth: 1 << 40, Burst: time.Second}
	channel.SetLimits(limits)
	session.SetLimits(limits)
	for _, test := range []struct {
		name             string
		channel, session *Throttle
	}{{"none", nil, nil}, {"session", nil, &session}, {"both", &channel, &session}} {
		b.Run(test.name, func(b *testing.B) {
			t := newReader(4096, test.channel, test.session)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if t.update() {
					t.charge(int64(i)*1000, 4096)
				}
			}
		})
	}
}

// BenchmarkTokenBuckets compares the decision about an IO with that of golang.org/x/time/rate, by
// limits that are never reached, with one thread and with as many as there are processors.
func BenchmarkTokenBuckets(b *testing.B) {
	for _, limits := range []RateLimits{
		{IOPS: 1 << 30, Burst: time.Second},
		{IOPS: 1 << 30, Bandwidth: 1 << 40, Burst: time.Second},
	} {
		name := "buckets=1"
		if limits.Bandwidth > 0 {
			name = "buckets=2"
		}
		for _, kind := range []struct {
			name string
			wait func(RateLimits) func(nowNs int64, size uint32) int64
		}{{"ours", waitByBuckets}, {"library", waitByLibrary}} {
			b.Run(name+"/"+kind.name+"/threads=1", func(b *testing.B) {
				wait := kind.wait(limits)
				b.ReportAllocs()
				for i := int64(1); b.Loop(); i++ {
					if wait(i*1000, 4096) > 0 {
						b.Fatal("a limit has been reached")
					}
				}
			})
			b.Run(name+"/"+kind.name+"/threads=all", func(b *testing.B) {
				wait := kind.wait(limits)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for i := int64(1); pb.Next(); i++ {
						wait(i*1000, 4096)
					}
				})
			})
		}
	}
}

// waitByBuckets returns a function that takes the tokens of an IO from buckets, and returns how
// long to wait until another one may follow.
func waitByBuckets(limits RateLimits) func(nowNs int64, size uint32) int64 {
	var t Throttle
	t.SetLimits(limits)
	buckets := t.buckets.Load()
	return func(nowNs int64, size uint32) int64 { return buckets.take(nowNs, size) - nowNs }
}

// waitByLibrary is waitByBuckets by the limiters of the library. The burst is a second.
func waitByLibrary(limits RateLimits) func(nowNs int64, size uint32) int64 {
	start := time.Now()
	limiters := []*rate.Limiter{rate.NewLimiter(rate.Limit(limits.IOPS), int(limits.IOPS))}
	if limits.Bandwidth > 0 {
		limiters = append(limiters,
			rate.NewLimiter(rate.Limit(limits.Bandwidth), int(limits.Bandwidth)))
	}
	return func(nowNs int64, size uint32) int64 {
		now, wait := start.Add(time.Duration(nowNs)), time.Duration(0)
		tokens := [...]int{1, int(size)}
		for i, limiter := range limiters {
			r := limiter.ReserveN(now, tokens[i])
			wait = max(wait, r.DelayFrom(now))
		}
		return int64(wait)
	}
}

// BenchmarkThrottledForward is BenchmarkRelayForward with limits that are never reached.
func BenchmarkThrottledForward(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			var channel Throttle
			channel.SetLimits(RateLimits{IOPS: 1 << 30, Bandwidth: 1 << 40, Burst: time.Second})
			rig := newForwardRig(b, depth)
			rig.lane.throttle.throttles[channelThrottle] = &channel
			measureForward(b, rig, depth)
		})
	}
}
