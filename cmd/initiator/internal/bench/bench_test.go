// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testParameters returns a short run of 1000 operations.
func testParameters(pattern benchsuite.Pattern) Parameters {
	return Parameters{
		Pattern: pattern, ReadPercent: 70, BlockSize: 4096, QueueDepth: 8, Queues: 2, Sessions: 1,
		OperationLimit: 1000, Seed: 42, Poll: "adaptive", DrainTimeout: time.Minute,
	}
}

const testVolumeSize = 1 << 20

func newTestVolume(p *Parameters) *queuetest.Volume {
	return queuetest.New(testVolumeSize, 512, p.Queues, p.QueueDepth, p.BlockSize)
}

// configOf resolves the parameters for a volume.
func configOf(t testing.TB, p Parameters, v *queuetest.Volume) Config {
	t.Helper()
	if err := p.Resolve(&v.Info); err != nil {
		t.Fatal(err)
	}
	return Config{Parameters: p, Sessions: []Session{sessionOf(v, p.Queues)}}
}

func sessionOf(v *queuetest.Volume, queues int) Session {
	s := Session{Memory: v.Memory}
	for i := range queues {
		s.Queues = append(s.Queues, v.Queue(i))
	}
	return s
}

func TestEverySessionCarriesItsShare(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.Sessions, p.Warmup, p.OperationLimit = 3, time.Millisecond, 6006
	volumes := make([]*queuetest.Volume, p.Sessions)
	config := Config{}
	for i := range volumes {
		volumes[i] = newTestVolume(&p)
		config.Sessions = append(config.Sessions, sessionOf(volumes[i], p.Queues))
	}
	if err := p.Resolve(&volumes[0].Info); err != nil {
		t.Fatal(err)
	}
	config.Parameters = p
	result, err := Run(context.Background(), config)
	if err != nil || result.Operations != 6006 {
		t.Fatalf("%d operations, error %v", result.Operations, err)
	}
	for i, v := range volumes {
		for q := range p.Queues {
			if submitted := v.Queue(q).Submitted.Load(); submitted < 1001 {
				t.Errorf("queue %d of session %d had %d requests", q, i, submitted)
			}
		}
	}
	config.Sessions = config.Sessions[:2]
	if _, err := Run(context.Background(), config); status.CodeOf(err) != status.InvalidValue {
		t.Errorf("a session too few gave %v", err)
	}
}

func TestARunBoundedByOperationsCompletesExactlyThose(t *testing.T) {
	for _, pattern := range benchsuite.Patterns() {
		for _, refuseEvery := range []int{0, 3} {
			p := testParameters(pattern)
			p.OperationLimit = 1001 // does not divide by the queues
			v := newTestVolume(&p)
			v.Queue(0).RefuseEvery = refuseEvery
			result, err := Run(context.Background(), configOf(t, p, v))
			if err != nil {
				t.Fatalf("%s: %v", pattern, err)
			}
			submitted := v.Queue(0).Submitted.Load() + v.Queue(1).Submitted.Load()
			if result.Operations != 1001 || submitted != 1001 || result.Errors != 0 {
				t.Errorf("%s: %d operations measured, %d submitted, %d errors", pattern,
					result.Operations, submitted, result.Errors)
			}
			checkConsistent(t, pattern, &result)
		}
	}
}

func TestABatchIsFlushedOnceItIsFull(t *testing.T) {
	for batch, want := range map[int]int{0: 8, 1: 1, 3: 3, 100: 8} {
		p := testParameters(benchsuite.RandomRead)
		p.BatchSize = batch
		v := newTestVolume(&p)
		result, err := Run(context.Background(), configOf(t, p, v))
		if err != nil || result.Operations != p.OperationLimit {
			t.Fatalf("%d operations, error %v", result.Operations, err)
		}
		for i := range p.Queues {
			if q := v.Queue(i); q.MostUnrung != want || q.Unrung != 0 {
				t.Errorf("batch size %d: up to %d requests without a flush, %d at the end", batch,
					q.MostUnrung, q.Unrung)
			}
		}
	}
}

func TestMemoryMirrorsTheVolumeInPlace(t *testing.T) {
	for _, c := range []struct {
		pattern  benchsuite.Pattern
		validate bool
	}{{benchsuite.Read, false}, {benchsuite.Write, false}, {benchsuite.Write, true}} {
		p := testParameters(c.pattern)
		p.InPlace, p.Validate = true, c.validate
		v := newTestVolume(&p)
		used := make(map[uint64]bool)
		v.Intercept = func(r *client.Request) status.Code { // called by one thread at a time
			if used[r.Offset] = true; r.Memory != r.Offset {
				t.Errorf("%v: memory %d for offset %d", c, r.Memory, r.Offset)
			}
			return v.Apply(r)
		}
		config := configOf(t, p, v)
		result, err := Run(context.Background(), config)
		if err != nil || result.Operations != p.OperationLimit || result.Mismatches != 0 {
			t.Errorf("%v: %d operations, %d mismatches, error %v", c, result.Operations,
				result.Mismatches, err)
		}
		if blocks := p.Queues * p.QueueDepth; len(used) != blocks ||
			config.Parameters.Length != uint64(blocks)*4096 {
			t.Errorf("%v: %d blocks of a range of %d bytes were used, want %d", c, len(used),
				config.Parameters.Length, blocks)
		}
	}
	random, twice := testParameters(benchsuite.RandomRead), testParameters(benchsuite.Read)
	large := testParameters(benchsuite.Read)
	twice.Sessions, large.QueueDepth = 2, 1000
	for _, p := range []Parameters{random, twice, large} {
		p.InPlace = true
		if err := p.Resolve(&client.Info{Size: testVolumeSize, BlockSize: 512}); err == nil {
			t.Errorf("%s, %d sessions, depth %d: accepted", p.Pattern, p.Sessions, p.QueueDepth)
		}
	}
}

func checkConsistent(t *testing.T, pattern benchsuite.Pattern, r *Result) {
	t.Helper()
	l := r.LatencyNs
	if l.Min > l.P50 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.P999 || l.P999 > l.P9999 ||
		l.P9999 > l.Max || l.Mean > l.Max || l.Mean < l.Min {
		t.Errorf("%s: latencies %+v are out of order", pattern, *l)
	}
	if r.Read.Operations+r.Write.Operations != r.Operations || r.DurationNs <= 0 || r.IOPS <= 0 {
		t.Errorf("%s: result %+v contradicts itself", pattern, *r)
	}
	reads := r.Read.Operations * 100 / r.Operations
	if want := uint64(pattern.ReadPercent(70)); reads+10 < want || reads > want+10 {
		t.Errorf("%s: %d %% reads, want about %d", pattern, reads, want)
	}
}

// start begins a run whose first stage lasts until Supervisor.Wait.
func start(t *testing.T, config Config) (*supervisor.Supervisor, []*worker) {
	t.Helper()
	run := config.Parameters.newSupervisor()
	workers := config.newWorkers(run)
	for _, w := range workers {
		if err := run.Threads().Go(affinity.AnyCPU, progress.Policy{}, group{w}.body); err != nil {
			t.Fatal(err)
		}
	}
	return run, workers
}

func TestWarmupIsNotMeasured(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.Warmup = time.Millisecond
	v := newTestVolume(&p)
	config := configOf(t, p, v)
	run, workers := start(t, config)
	for _, w := range workers {
		testkit.Eventually(t, "an operation is published", func() bool { return w.recorder.publishedOperations.Load() > 0 })
	}
	if err := run.Wait(context.Background(), func() {}); err != nil {
		t.Fatal(err)
	}
	result := resultOf(&config.Parameters, run, workers)
	submitted := v.Queue(0).Submitted.Load() + v.Queue(1).Submitted.Load()
	if result.Operations != 1000 || submitted <= 1000 {
		t.Errorf("%d operations measured, %d submitted", result.Operations, submitted)
	}
}

func TestARunBoundedByTimeLastsThatLong(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.OperationLimit, p.Runtime = 0, 20*time.Millisecond
	result, err := Run(context.Background(), configOf(t, p, newTestVolume(&p)))
	if err != nil {
		t.Fatal(err)
	}
	if result.DurationNs <= 0 || result.Operations == 0 || result.Interrupted {
		t.Errorf("result is %+v", result)
	}
}

func TestWaitingForTheNextRequestOfAnOpenLoopIsNoHit(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.Queues, p.OperationLimit, p.Rate = 1, 5, 100
	result, err := Run(context.Background(), configOf(t, p, newTestVolume(&p)))
	if err != nil {
		t.Fatal(err)
	}
	// Each request is started in one turn and completes in another.
	if e := result.Engine; result.Operations != 5 || e.Hits > 10 || e.Sleeps != 0 {
		t.Errorf("%d requests were started or completed in %d turns, with %d sleeps",
			result.Operations, e.Hits, e.Sleeps)
	}
}

func TestCancellingEndsARunEarlyAndKeepsItsResult(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.OperationLimit, p.Runtime = 0, time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	config := configOf(t, p, newTestVolume(&p))
	config.Observe = func(now Progress) {
		if now.Operations > 0 {
			cancel()
		}
	}
	result, err := Run(ctx, config)
	if err != nil || !result.Interrupted || result.Operations == 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestFailedRequestsAreCountedByCodeAndFailTheRun(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	v := newTestVolume(&p)
	calls := 0
	v.Intercept = func(r *client.Request) status.Code {
		calls++
		switch {
		case calls%10 == 0:
			return status.IOFailed
		case calls == 77:
			return status.Code(9999)
		}
		return v.Apply(r)
	}
	result, err := Run(context.Background(), configOf(t, p, v))
	if !errors.Is(err, status.IOFailed) {
		t.Errorf("error is %v", err)
	}
	if result.Errors != 101 || result.Operations != 899 ||
		result.ErrorsByCode["IO_FAILED"] != 100 || result.ErrorsByCode["UNKNOWN"] != 1 {
		t.Errorf("result is %+v", result)
	}
}

func TestTheLossOfTheConnectionEndsTheRunAndFailsEveryRequestOnce(t *testing.T) {
	for _, warmup := range []time.Duration{0, time.Hour} {
		p := testParameters(benchsuite.RandomWrite)
		p.OperationLimit, p.Runtime, p.Warmup = 0, time.Hour, warmup
		v := newTestVolume(&p)
		served := 0
		v.Intercept = func(r *client.Request) status.Code {
			if served++; served >= 500 {
				v.Disconnect(status.ConnectionReset)
				return status.ConnectionReset
			}
			return v.Apply(r)
		}
		result, err := Run(context.Background(), configOf(t, p, v))
		if !errors.Is(err, status.ConnectionReset) {
			t.Errorf("error is %v", err)
		}
		submitted := v.Queue(0).Submitted.Load() + v.Queue(1).Submitted.Load()
		if want := submitted - 499; result.Errors != want ||
			result.ErrorsByCode["CONNECTION_RESET"] != want {
			t.Errorf("%d errors of %d requests, 499 of which were served: %v", result.Errors,
				submitted, result.ErrorsByCode)
		}
	}
}

func TestRequestsThatNeverCompleteAreGivenUp(t *testing.T) {
	for _, warmup := range []time.Duration{0, time.Hour} {
		p := testParameters(benchsuite.RandomRead)
		p.OperationLimit, p.Runtime, p.Warmup = 0, time.Hour, warmup
		p.DrainTimeout = time.Millisecond
		v := newTestVolume(&p)
		v.Stalled.Store(true)
		config := configOf(t, p, v)
		run, workers := start(t, config)
		testkit.Eventually(t, "both queues are full", func() bool {
			return v.Queue(0).Submitted.Load() == 8 &&
				v.Queue(1).Submitted.Load() == 8
		})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := failureOf(workers, run.Wait(ctx, func() {}))
		result := resultOf(&config.Parameters, run, workers)
		if !errors.Is(err, status.TimeOut) || result.ErrorsByCode["TIME_OUT"] != 16 ||
			result.LatencyNs != nil {
			t.Errorf("result %+v, error %v", result, err)
		}
	}
}

func TestAThreadThatCannotBePinnedFailsTheRun(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.OperationLimit, p.Runtime = 0, time.Hour
	p.CPUs = []int{0, 4000}
	if _, err := Run(context.Background(), configOf(t, p, newTestVolume(&p))); err == nil {
		t.Error("the run succeeded on a CPU that does not exist")
	}
}

func TestParametersThatDoNotFitTheVolumeAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Parameters, *client.Info){
		"block size off":  func(p *Parameters, _ *client.Info) { p.BlockSize = 1000 },
		"block size zero": func(p *Parameters, _ *client.Info) { p.BlockSize = 0 },
		"offset off":      func(p *Parameters, _ *client.Info) { p.Offset = 100 },
		"offset past the end": func(p *Parameters,
			_ *client.Info) {
			p.Offset = 2 * testVolumeSize
		},
		"length past the end": func(p *Parameters, _ *client.Info) {
			p.Offset, p.Length = 4096,
				testVolumeSize
		},
		"nothing left": func(p *Parameters, _ *client.Info) { p.Offset = testVolumeSize },
		"slices too small": func(p *Parameters, _ *client.Info) {
			p.Pattern, p.Queues,
				p.Length = benchsuite.Read, 3, 8192
		},
		"validation too small": func(p *Parameters, _ *client.Info) {
			p.Pattern, p.Validate, p.Length = benchsuite.RandomWrite, true, 15*4096
		},
		"validated reads":     func(p *Parameters, _ *client.Info) { p.Validate = true },
		"no depth":            func(p *Parameters, _ *client.Info) { p.QueueDepth = 0 },
		"no queues":           func(p *Parameters, _ *client.Info) { p.Queues = 0 },
		"CPUs without queues": func(p *Parameters, _ *client.Info) { p.CPUs = []int{0} },
		"no bound":            func(p *Parameters, _ *client.Info) { p.OperationLimit = 0 },
		"negative runtime":    func(p *Parameters, _ *client.Info) { p.Runtime = -1 },
		"poll mode":           func(p *Parameters, _ *client.Info) { p.Poll = "sometimes" },
		"no drain timeout":    func(p *Parameters, _ *client.Info) { p.DrainTimeout = 0 },
		"share of reads": func(p *Parameters, _ *client.Info) {
			p.Pattern,
				p.ReadPercent = benchsuite.RandomMixed, 101
		},
		"read-only": func(p *Parameters, info *client.Info) {
			p.Pattern, info.ReadOnly = benchsuite.Write, true
		},
	} {
		p := testParameters(benchsuite.RandomRead)
		v := newTestVolume(&p)
		change(&p, &v.Info)
		if err := p.Resolve(&v.Info); program.ExitCode(err) != program.ExitUsage {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestTheLoopDoesNotAllocate(t *testing.T) {
	p := testParameters(benchsuite.RandomMixed)
	p.Queues, p.OperationLimit = 1, 1<<40
	v := newTestVolume(&p)
	config := configOf(t, p, v)
	w := config.newWorkers(config.Parameters.newSupervisor())[0]
	w.stage, w.limit = measuring, w.totalLimit
	for range 1000 {
		w.Poll()
	}
	if allocations := testing.AllocsPerRun(10_000, func() { w.Poll() }); allocations != 0 {
		t.Errorf("%v allocations per turn", allocations)
	}
	if w.recorder.read.count == 0 || w.recorder.write.count == 0 {
		t.Error("the loop did nothing")
	}
}

// instantQueue completes everything at once and touches no data, so that benchmarks measure only
// the loop.
type instantQueue struct {
	queuetest.Queue
	tags []uint64
}

func (q *instantQueue) Submit(r *client.Request) error {
	q.tags = append(q.tags, r.Tag)
	return nil
}

func (q *instantQueue) Poll(results []client.Result) int {
	n := min(len(results), len(q.tags))
	for i := range n {
		results[i] = client.Result{Tag: q.tags[len(q.tags)-1-i]}
	}
	q.tags = q.tags[:len(q.tags)-n]
	return n
}

func BenchmarkLoopPerRequest(b *testing.B) {
	for name, depth := range map[string]int{"depth=1": 1, "depth=32": 32} {
		b.Run(name, func(b *testing.B) {
			p := testParameters(benchsuite.RandomRead)
			p.Queues, p.QueueDepth, p.OperationLimit = 1, depth, 1<<40
			v := newTestVolume(&p)
			config := configOf(b, p, v)
			config.Sessions[0].Queues[0] = &instantQueue{tags: make([]uint64, 0, depth)}
			w := config.newWorkers(config.Parameters.newSupervisor())[0]
			w.stage, w.limit = measuring, uint64(b.N)
			b.ReportAllocs()
			b.ResetTimer()
			for !w.finished() {
				w.Poll()
			}
			if done := w.recorder.read.count; done != uint64(b.N) {
				b.Fatalf("%d of %d requests were recorded with type %v", done, b.N, client.Read)
			}
		})
	}
}
