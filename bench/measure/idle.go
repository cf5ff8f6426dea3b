// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// idleSample holds one repetition's measurements of an idle chain.
type idleSample struct {
	percent float64         // of a core, used by all three programs
	firstNs []time.Duration // durations of first requests after a pause
}

const (
	idlePause  = 100 * time.Millisecond // between single requests
	idleRounds = 20
)

// measureIdle opens a session and measures the CPU time of the idle chain, and the duration of
// single requests after pauses. This program is the initiator.
func (r *runner) measureIdle() error {
	if err := r.start(baseAxes().workloads()[0]); err != nil {
		return err
	}
	v, err := client.Open(r.ctx, client.Config{
		Provider: emulated.New(emulated.Options{Directory: r.chain.Directory()}),
		Device:   emulated.DefaultHostDevice,
		Queues:   1, Depth: 1, BufferSize: 4096, SyncDepth: -1,
	})
	if err != nil {
		return err
	}
	sample := idleSample{}
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// the thread must survive: its end would kill the programs that it started
		defer runtime.UnlockOSThread()
		failed <- r.rest(v.Queue(0), &sample)
	}()
	if err := <-failed; err != nil {
		_ = v.Close(r.ctx)
		return err
	}
	r.idle = append(r.idle, sample)
	fmt.Fprintf(r.log, "idle: %.2f %% of a core, first request %v\n", sample.percent,
		benchsuite.Median(microseconds(sample.firstNs)))
	return v.Close(r.ctx)
}

// rest measures, on the queue's thread.
func (r *runner) rest(q *client.Queue, sample *idleSample) error {
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := q.Attach(engine); err != nil {
		return err
	}
	defer q.Detach(engine)
	for round := range idleRounds + 1 {
		if round == 1 { // after connecting and the first request
			if err := r.restLong(engine, sample); err != nil {
				return err
			}
		}
		time.Sleep(idlePause)
		begin := time.Now()
		if err := readOne(engine, q); err != nil {
			return err
		}
		if round > 0 {
			sample.firstNs = append(sample.firstNs, time.Since(begin))
		}
	}
	return nil
}

// restLong sleeps in the engine for the duration of a run.
func (r *runner) restLong(engine *progress.Engine, sample *idleSample) error {
	before, err := r.cpuTime()
	if err != nil {
		return err
	}
	begin := time.Now()
	ended := false
	time.AfterFunc(r.options.runtime, func() { engine.Do(func() { ended = true }) })
	for !ended {
		engine.Idle(engine.Progress())
	}
	after, err := r.cpuTime()
	sample.percent = (after - before).Seconds() / time.Since(begin).Seconds() * 100
	return err
}

// cpuTime returns the CPU time of target, relay and this program so far.
func (r *runner) cpuTime() (total time.Duration, err error) {
	for _, id := range append(r.chain.ProcessIDs(), os.Getpid()) {
		used, err := process.CPUTime(id)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// readOne reads one block.
func readOne(engine *progress.Engine, q *client.Queue) error {
	if err := q.Submit(&client.Request{Type: client.Read, Length: 4096}); err != nil {
		return err
	}
	q.Ring()
	results := make([]client.Result, 1)
	for polled := 0; polled == 0; {
		polled = q.Poll(results)
		engine.Idle(polled + engine.Progress())
	}
	if results[0].Code != status.Success {
		return fmt.Errorf("read: %w", results[0].Code)
	}
	return nil
}

func microseconds(durations []time.Duration) []float64 {
	var all []float64
	for _, d := range durations {
		all = append(all, float64(d.Nanoseconds())/1000)
	}
	return all
}

func (r *runner) judgeIdle() {
	if len(r.idle) == 0 {
		return
	}
	var percents, first []float64
	for _, s := range r.idle {
		percents = append(percents, s.percent)
		first = append(first, microseconds(s.firstNs)...)
	}
	r.goal(benchsuite.NewGoal("CPU time of an idle chain",
		fmt.Sprintf("target, relay and initiator together, median of %d times %v", len(r.idle),
			r.options.runtime),
		benchsuite.Median(percents), "% of a core", atMostIdlePercent, true))
	r.goal(benchsuite.NewGoal("first read after a pause",
		fmt.Sprintf("median of %d, each after %v; the worst took %.0f µs", len(first), idlePause,
			slices.Max(first)),
		benchsuite.Median(first), "µs", atMostFirstMicros, true))
}
