// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/zc-relay/zc-relay/bench/internal/chain"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// The goals.
const (
	atLeastBare       = 1.0  // IOPS, relative to the bare chain over TCP
	atLeastBareShared = 0.7  // IOPS, relative to the bare chain over shared memory
	atLeastOfBest     = 0.85 // IOPS of any number of sessions, relative to the best number
	atMostBesideLarge = 3.0  // p99 beside large transfers, relative to p99 alone
	atMostCollecting  = 1.25 // p99.9 with collections, relative to p99.9 without: noise
	atLeastFile       = 0.5  // IOPS of a file in the page cache, relative to memory
	atLeastDirect     = 0.8  // IOPS of direct IO, relative to fio
	atMostIdlePercent = 1.0  // of a core, for all three programs
	atMostFirstMicros = 200.0
)

// judge compares every case with its goal.
func (r *runner) judge() {
	d := r.document
	for i := range d.Cases {
		c := &d.Cases[i]
		if c.System != system {
			continue
		}
		w := c.Workload
		bare := atLeastBare
		if w.RDMA == sharedMemory {
			bare = atLeastBareShared
		}
		r.compare(c, d.Find(chain.BareSystem, w), benchsuite.IOPS, bare, false)
		r.compare(c, d.Find(fioSystem, w), benchsuite.IOPS, atLeastDirect, false)
		usual := w
		usual.Condition = ""
		switch w.Condition {
		case besideLarge:
			usual.Condition = alone
			r.compare(c, d.Find(system, usual), benchsuite.P99, atMostBesideLarge, true)
		case withCollections:
			r.compare(c, d.Find(system, usual), benchsuite.P999, atMostCollecting, true)
		}
		if w.Volume == fileVolume {
			usual.Volume = memoryVolume
			r.compare(c, d.Find(system, usual), benchsuite.IOPS, atLeastFile, false)
		}
	}
	r.judgeSessions()
	r.judgeIdle()
}

// compare compares a quantity of a case with another case, if there is one.
func (r *runner) compare(c, other *benchsuite.Case, q benchsuite.Quantity, bound float64,
	atMost bool) {
	if other == nil {
		return
	}
	ratio, spread := c.Ratio(other, q)
	against := other.System
	if other.System == c.System {
		against = other.Workload.String()
	}
	r.goal(benchsuite.NewGoal(fmt.Sprintf("%v of %s beside %s", q, c.Workload, against),
		fmt.Sprintf("median of %d neighbouring pairs of runs, ± %.0f %%",
			min(len(c.Runs), len(other.Runs)), spread*50), ratio, "", bound, atMost))
}

func (r *runner) goal(g benchsuite.Goal) { r.document.Goals = append(r.document.Goals, g) }

// judgeSessions compares the worst number of sessions with the best.
func (r *runner) judgeSessions() {
	var best, worst *benchsuite.Case
	for i := range r.document.Cases {
		c := &r.document.Cases[i]
		w := c.Workload
		usual := baseAxes().with(depths(sessionDepth / max(1, w.Sessions))).workloads()[0]
		usual.Sessions = w.Sessions
		if c.System != system || w != usual {
			continue
		}
		if best == nil || medianIOPS(c) > medianIOPS(best) {
			best = c
		}
		if worst == nil || medianIOPS(c) < medianIOPS(worst) {
			worst = c
		}
	}
	if best != worst {
		r.goal(benchsuite.NewGoal(fmt.Sprintf("iops of %d sessions beside %d",
			worst.Workload.Sessions, best.Workload.Sessions),
			"medians of the worst and the best number of sessions",
			medianIOPS(worst)/medianIOPS(best), "", atLeastOfBest, false))
	}
}

func medianIOPS(c *benchsuite.Case) float64 {
	iops, _ := c.Median(benchsuite.IOPS)
	return iops
}
