// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/chain"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

func TestEverySeriesIsNamedAndHasWorkloadsOfItsOwn(t *testing.T) {
	if len(seriesOrder) != len(series) {
		t.Errorf("%d series are in order, there are %d", len(seriesOrder), len(series))
	}
	all, err := workloadsOf(seriesOrder)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range all {
		if slices.Contains(all[:i], w) {
			t.Errorf("%s comes twice", w)
		}
		if w.BlockSize == 0 || w.QueueDepth == 0 || w.Queues == 0 || w.Sessions == 0 ||
			w.Poll == "" || w.Volume == "" {
			t.Errorf("%+v lacks something", w)
		}
	}
	for _, name := range seriesOrder {
		if workloads, _ := workloadsOf([]string{name}); len(workloads) == 0 && name != idleSeries {
			t.Errorf("series %s is empty", name)
		}
	}
	if _, err := workloadsOf([]string{"none"}); err == nil || !strings.Contains(err.Error(),
		"small") {
		t.Errorf("an unknown series gives %v", err)
	}
}

func TestAllCombinationsOfTheAxesAreMeasured(t *testing.T) {
	a := baseAxes().with(bothRandom, depths(1, 8, 32),
		func(a *axes) { a.crc = []bool{false, true} })
	workloads := a.workloads()
	if len(workloads) != 12 {
		t.Fatalf("there are %d workloads", len(workloads))
	}
	for _, pattern := range a.patterns {
		for _, depth := range a.depths {
			for _, crc := range a.crc {
				want := baseAxes().workloads()[0]
				want.Pattern, want.QueueDepth, want.CRC = pattern, depth, crc
				if !slices.Contains(workloads, want) {
					t.Errorf("%s is missing", want)
				}
			}
		}
	}
}

func TestNeighboursAreMeasuredByTurns(t *testing.T) {
	workloads, err := workloadsOf([]string{"small", "neighbour", "crc"})
	if err != nil {
		t.Fatal(err)
	}
	rounds := inRounds(workloads)
	if len(rounds) != len(workloads)+2*(neighbourRounds-1) {
		t.Fatalf("%d workloads became %d", len(workloads), len(rounds))
	}
	first := slices.IndexFunc(rounds,
		func(w benchsuite.Workload) bool { return w.Condition == alone })
	for i, w := range rounds {
		want := ""
		if i >= first && i < first+2*neighbourRounds {
			want = []string{alone, besideLarge}[(i-first)%2]
		}
		if w.Condition != want {
			t.Errorf("workload %d is %s", i, w)
		}
	}
	if others, _ := workloadsOf([]string{"small"}); len(inRounds(others)) != len(others) {
		t.Error("a series without neighbours is measured in rounds")
	}
}

// newJudged returns a runner whose document holds the given cases.
func newJudged(cases ...benchsuite.Case) *runner {
	r := &runner{options: &runOptions{runtime: time.Second},
		document: benchsuite.NewDocument(time.Now(), benchsuite.Method{})}
	for _, c := range cases {
		for _, run := range c.Runs {
			r.document.Add(c.System, c.Workload, run)
		}
	}
	return r
}

func figures(system string, w benchsuite.Workload, iops float64, tailNs int64) benchsuite.Case {
	return benchsuite.Case{System: system, Workload: w, Runs: []benchsuite.Run{{
		IOPS: iops, LatencyNs: &benchsuite.Latency{P99: &tailNs, P999: &tailNs},
	}}}
}

func TestCasesAreHeldAgainstWhatTheyAreToBe(t *testing.T) {
	usual := baseAxes().workloads()[0]
	single, neighbour, collecting, file, direct := usual, usual, usual, usual, usual
	single.Condition, neighbour.Condition, collecting.Condition = alone, besideLarge,
		withCollections
	file.Volume, direct.Volume = fileVolume, directVolume
	two, four := usual, usual
	two.Sessions, two.QueueDepth, four.Sessions, four.QueueDepth = 2, 64, 4, 32
	r := newJudged(
		figures(system, usual, 1000, 100), figures(chain.BareSystem, usual, 800, 1),
		figures(system, single, 1000, 90), figures(system, neighbour, 500, 271),
		figures(system, collecting, 900, 110),
		figures(system, file, 499, 1), figures(system, direct, 90, 1), figures(fioSystem, direct,
			100, 1),
		figures(system, two, 2000, 1), figures(system, four, 1600, 1),
	)
	r.idle = []idleSample{{percent: 0.5, firstNs: []time.Duration{100 * time.Microsecond,
		300 * time.Microsecond}}}
	r.judge()
	got := map[string]bool{}
	for i := range r.document.Goals {
		got[r.document.Goals[i].Name] = r.document.Goals[i].Met
	}
	for name, met := range map[string]bool{
		"iops of randread 4KiB depth=32 beside bare chain":                                                    true,
		"p99_ns of randread 4KiB depth=32 beside a queue of 128KiB reads beside randread 4KiB depth=32 alone": false,
		"p99_9_ns of randread 4KiB depth=32 with forced garbage collections beside randread 4KiB depth=32":    true,
		"iops of randread 4KiB depth=32 file beside randread 4KiB depth=32":                                   false,
		"iops of randread 4KiB depth=32 file,direct beside fio io_uring":                                      true,
		"iops of 4 sessions beside 2": false,
		"CPU time of an idle chain":   true,
		"first read after a pause":    true,
	} {
		if found, ok := got[name]; !ok || found != met {
			t.Errorf("%s: found %v, met %v", name, ok, found)
		}
	}
	if len(got) != 8 {
		t.Errorf("goals are %v", got)
	}
}
