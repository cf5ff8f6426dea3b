// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestIntervalsAddUpToTheResult(t *testing.T) {
	p := testParameters(benchsuite.RandomMixed)
	p.OperationLimit, p.Interval = 20000, minInterval
	v := newTestVolume(&p)
	served := 0
	v.Intercept = func(r *client.Request) status.Code {
		if served++; served%100 == 0 {
			time.Sleep(time.Millisecond)
			return status.IOFailed
		}
		return v.Apply(r)
	}
	config := configOf(t, p, v)
	var intervals []Interval
	config.ObserveInterval = func(i Interval) { intervals = append(intervals, i) }
	result, err := Run(t.Context(), config)
	if err == nil || len(intervals) < 2 {
		t.Fatalf("%d intervals, error %v", len(intervals), err)
	}
	var operations, errors uint64
	var endNs int64
	for _, i := range intervals {
		if i.StartNs != endNs || i.EndNs < i.StartNs || i.WarmingUp {
			t.Errorf("interval %+v follows one that ends at %d", i, endNs)
		}
		operations, errors, endNs = operations+i.Operations, errors+i.Errors, i.EndNs
	}
	if operations != result.Operations || errors != result.Errors || errors == 0 {
		t.Errorf("the intervals have %d operations and %d errors, the result %d and %d",
			operations, errors, result.Operations, result.Errors)
	}
}

// TestTheMeasurementBeginsAnInterval has warm-ups that end within an interval, and just behind one.
func TestTheMeasurementBeginsAnInterval(t *testing.T) {
	const interval = 40 * time.Millisecond
	for _, c := range []struct {
		warmup     time.Duration
		operations uint64
	}{
		{interval / 4, 100}, {interval, 20000}, {interval*3/2 + interval/20, 20000},
	} {
		p := testParameters(benchsuite.RandomMixed)
		p.OperationLimit, p.Interval, p.Warmup = c.operations, interval, c.warmup
		v := newTestVolume(&p)
		served := 0
		v.Intercept = func(r *client.Request) status.Code {
			if served++; served%100 == 0 {
				time.Sleep(time.Millisecond)
			}
			return v.Apply(r)
		}
		config := configOf(t, p, v)
		var intervals []Interval
		config.ObserveInterval = func(i Interval) { intervals = append(intervals, i) }
		result, err := Run(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		var operations uint64
		var measured []Interval
		endNs := int64(0)
		for _, i := range intervals {
			if i.StartNs != endNs || (i.WarmingUp && len(measured) > 0) {
				t.Errorf("%v: interval %+v follows one that ends at %d", c, i, endNs)
			}
			if endNs = i.EndNs; !i.WarmingUp {
				operations, measured = operations+i.Operations, append(measured, i)
			}
		}
		if len(measured) == 0 || len(measured) == len(intervals) {
			t.Fatalf("%v: %d intervals, %d of them measured", c, len(intervals), len(measured))
		}
		if operations != result.Operations || operations != c.operations {
			t.Errorf("%v: the measured intervals have %d operations, the result has %d", c,
				operations, result.Operations)
		}
		last := measured[len(measured)-1]
		if taken := last.EndNs - last.StartNs; len(measured) > 1 && taken < int64(interval)/10 {
			t.Errorf("%v: the last of %d measured intervals takes only %v", c, len(measured),
				time.Duration(taken))
		}
		if measured[0].StartNs < int64(c.warmup) {
			t.Errorf("%v: the measurement begins at %v", c, time.Duration(measured[0].StartNs))
		}
	}
}

func TestAShortRestBelongsToTheLastInterval(t *testing.T) {
	const interval = int64(time.Second)
	for _, c := range []struct {
		held, end int64
		want      []int64 // ends of the intervals
	}{
		{0, interval / 20, nil},
		{0, interval / 5, []int64{interval / 5}},
		{interval, interval + interval/20, []int64{interval + interval/20}},
		{interval, interval + interval/5, []int64{interval, interval + interval/5}},
	} {
		var got []int64
		config := Config{Parameters: Parameters{Interval: time.Duration(interval)},
			ObserveInterval: func(i Interval) { got = append(got, i.EndNs) }}
		i := config.newIntervals(nil, nil)
		if c.held > 0 {
			i.hold(c.held)
		}
		i.finish(c.end)
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: the intervals end at %v", c, got)
		}
	}
}

// TestAnOpenLoopCountsTheTimeThatARequestIsLate lets the volume stall for a tenth of a second, in
// which a hundred requests are due. A closed loop would see one slow request.
func TestAnOpenLoopCountsTheTimeThatARequestIsLate(t *testing.T) {
	const stall = 100 * time.Millisecond
	p := testParameters(benchsuite.RandomRead)
	p.Queues, p.QueueDepth, p.OperationLimit, p.Rate = 1, 1, 200, 1000
	v := newTestVolume(&p)
	stalled := false
	v.Intercept = func(r *client.Request) status.Code {
		if !stalled {
			stalled = true
			time.Sleep(stall)
		}
		return v.Apply(r)
	}
	begun := time.Now()
	result, err := Run(t.Context(), configOf(t, p, v))
	if err != nil || result.Operations != 200 {
		t.Fatalf("%d operations, error %v", result.Operations, err)
	}
	if taken := time.Since(begun); taken < 199*time.Millisecond {
		t.Errorf("200 requests at 1000 per second took only %v", taken)
	}
	// A quarter of the requests were due in the first half of the stall.
	if p90 := time.Duration(result.LatencyNs.P90); p90 < stall/2 {
		t.Errorf("the 90th percentile is %v after a stall of %v", p90, stall)
	}
}

func TestHistogramsAreWrittenAsALog(t *testing.T) {
	p := testParameters(benchsuite.RandomMixed)
	config := configOf(t, p, newTestVolume(&p))
	var log bytes.Buffer
	config.Histograms = &log
	result, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	reader := hdrhistogram.NewHistogramLogReader(&log)
	counts := make(map[string]uint64)
	for {
		h, err := reader.NextIntervalHistogram()
		if err != nil {
			t.Fatal(err)
		}
		if h == nil {
			break
		}
		counts[h.Tag()] = uint64(h.TotalCount())
	}
	if counts["read"] != result.Read.Operations || counts["write"] != result.Write.Operations ||
		len(counts) != 2 {
		t.Errorf("the log has %v, the result %d reads and %d writes", counts,
			result.Read.Operations, result.Write.Operations)
	}
}

func TestALogOfHistogramsBeginsWithTheMeasurement(t *testing.T) {
	run := supervisor.New(measuring)
	var workers []*worker
	for _, startedNs := range []int64{int64(40 * time.Second), int64(30 * time.Second)} {
		w := &worker{run: run, recorder: newRecorder(), startedNs: startedNs,
			endedNs: startedNs + int64(time.Minute)}
		w.recorder.record(client.Read, 1000)
		workers = append(workers, w)
	}
	var log bytes.Buffer
	config := Config{Histograms: &log}
	if err := config.writeHistograms(run, workers); err != nil {
		t.Fatal(err)
	}
	var times logTimes
	for line := range strings.Lines(log.String()) {
		times.note(line)
	}
	started, ended := run.WallTime(workers[1].startedNs), run.WallTime(workers[0].endedNs)
	if got := int64(times.start); got != started.Unix() { // it has whole seconds
		t.Errorf("the log begins at %d, want %d", got, started.Unix())
	}
	h, err := hdrhistogram.NewHistogramLogReader(&log).NextIntervalHistogram()
	if err != nil {
		t.Fatal(err)
	}
	if h.StartTimeMs() != started.UnixMilli() || h.EndTimeMs() != ended.UnixMilli() {
		t.Errorf("the interval is %d to %d, want %d to %d", h.StartTimeMs(), h.EndTimeMs(),
			started.UnixMilli(), ended.UnixMilli())
	}
}
