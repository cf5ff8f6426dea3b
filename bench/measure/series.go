// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Names of volumes in cases.
const (
	memoryVolume = "memory"
	fileVolume   = "file"        // in the page cache
	directVolume = "file,direct" // bypassing the page cache
)

// sharedMemory is the RDMA provider that is not the default of cases.
const sharedMemory = "shm"

// Names of conditions in cases.
const (
	alone           = "alone" // the baseline of besideLarge
	besideLarge     = "beside a queue of 128KiB reads"
	withCollections = "with forced garbage collections"
)

// axes holds values for each property of a workload. Their combinations are workloads.
type axes struct {
	patterns   []benchsuite.Pattern
	blockSizes []size.Bytes
	depths     []int
	queues     []int
	polls      []string
	crc        []bool
	sessions   []int
	volumes    []string
	comch      []string
	isolations []string
	rdma       []string
	conditions []string
}

// adaptive is the default polling mode.
var adaptive = progress.Adaptive.String()

// baseAxes returns one value on each axis.
func baseAxes() axes {
	return axes{
		patterns:   []benchsuite.Pattern{benchsuite.RandomRead},
		blockSizes: []size.Bytes{4 * size.KiB}, depths: []int{32},
		queues: []int{1}, polls: []string{adaptive}, crc: []bool{false},
		sessions: []int{1}, volumes: []string{memoryVolume}, comch: []string{""},
		isolations: []string{""}, rdma: []string{""}, conditions: []string{""},
	}
}

// workloads returns all combinations. The rightmost axis varies fastest.
func (a axes) workloads() []benchsuite.Workload {
	all := []benchsuite.Workload{{}}
	all = crossed(all, a.polls, func(w *benchsuite.Workload, v string) { w.Poll = v })
	all = crossed(all, a.crc, func(w *benchsuite.Workload, v bool) { w.CRC = v })
	all = crossed(all, a.patterns, func(w *benchsuite.Workload,
		v benchsuite.Pattern) {
		w.Pattern = v
	})
	all = crossed(all, a.blockSizes, func(w *benchsuite.Workload,
		v size.Bytes) {
		w.BlockSize = uint32(v)
	})
	all = crossed(all, a.queues, func(w *benchsuite.Workload, v int) { w.Queues = v })
	all = crossed(all, a.depths, func(w *benchsuite.Workload, v int) { w.QueueDepth = v })
	all = crossed(all, a.sessions, func(w *benchsuite.Workload, v int) { w.Sessions = v })
	all = crossed(all, a.volumes, func(w *benchsuite.Workload, v string) { w.Volume = v })
	all = crossed(all, a.isolations, func(w *benchsuite.Workload, v string) { w.Isolation = v })
	all = crossed(all, a.rdma, func(w *benchsuite.Workload, v string) { w.RDMA = v })
	all = crossed(all, a.comch, func(w *benchsuite.Workload, v string) { w.Comch = v })
	return crossed(all, a.conditions, func(w *benchsuite.Workload, v string) { w.Condition = v })
}

// crossed combines each workload with each of the values.
func crossed[T any](workloads []benchsuite.Workload, values []T, set func(*benchsuite.Workload,
	T)) []benchsuite.Workload {
	var all []benchsuite.Workload
	for _, w := range workloads {
		for _, v := range values {
			set(&w, v)
			all = append(all, w)
		}
	}
	return all
}

// series holds the named sets of workloads. By default all are measured.
var series = map[string][]axes{
	"small": {baseAxes().with(bothRandom, sizes(4*size.KiB), depths(1, 32, 128))},
	"large": {baseAxes().with(bothRandom, sizes(128*size.KiB), depths(32))},
	"shm": {
		baseAxes().with(bothRandom, overSharedMemory, sizes(4*size.KiB), depths(1, 32, 128)),
		baseAxes().with(bothRandom, overSharedMemory, sizes(128*size.KiB), depths(32)),
	},
	"queues":    {baseAxes().with(func(a *axes) { a.queues = []int{2, 4} })},
	"sessions":  sessionAxes(),
	"neighbour": {baseAxes().with(func(a *axes) { a.conditions = []string{alone, besideLarge} })},
	"collections": {baseAxes().with(depths(1, 32), func(a *axes) {
		a.conditions = []string{"",
			withCollections}
	})},
	"file": {baseAxes().with(bothRandom, func(a *axes) {
		a.volumes = []string{memoryVolume,
			fileVolume, directVolume}
	})},
	"poll": {baseAxes().with(depths(1, 32),
		func(a *axes) { a.polls = []string{"busy", "event"} })},
	"crc": {baseAxes().with(sizes(4*size.KiB, 128*size.KiB), bothRandom,
		func(a *axes) { a.crc = []bool{false, true} })},
	"tls": {baseAxes().with(sizes(4*size.KiB, 128*size.KiB), depths(32, 128), bothRandom,
		func(a *axes) { a.rdma = []string{"", overTLS} })},
	idleSeries: {},
}

// neighbourRounds is how often a repetition alternates between alone and besideLarge. The kernel
// places the threads anew for each initiator, and on few cores the tail latency depends on that
// more than on anything else.
const neighbourRounds = 5

// inRounds repeats the workloads with neighbours neighbourRounds times, as a group.
func inRounds(workloads []benchsuite.Workload) []benchsuite.Workload {
	neighbours := func(w benchsuite.Workload) bool {
		return w.Condition == alone ||
			w.Condition == besideLarge
	}
	first := slices.IndexFunc(workloads, neighbours)
	if first < 0 {
		return workloads
	}
	end := first
	for end < len(workloads) && neighbours(workloads[end]) {
		end++
	}
	return slices.Concat(workloads[:first], slices.Repeat(workloads[first:end], neighbourRounds),
		workloads[end:])
}

// idleSeries has no workloads: see runner.measureIdle.
const idleSeries = "idle"

// seriesOrder is the order in which series are measured.
var seriesOrder = []string{"small", "large", "shm", "queues", "sessions", "neighbour", "collections",
	"file", "poll", "crc", "tls", idleSeries}

// sessionDepth is the total depth of all sessions of the series.
const sessionDepth = 128

func sessionAxes() []axes {
	var all []axes
	for _, sessions := range []int{1, 2, 4, 8, 16, 64} {
		all = append(all, baseAxes().with(depths(sessionDepth/sessions),
			func(a *axes) { a.sessions = []int{sessions} }))
	}
	return all
}

func (a axes) with(changes ...func(*axes)) axes {
	for _, change := range changes {
		change(&a)
	}
	return a
}

func bothRandom(a *axes) {
	a.patterns = []benchsuite.Pattern{benchsuite.RandomRead, benchsuite.RandomWrite}
}

func overSharedMemory(a *axes) { a.rdma = []string{sharedMemory} }

func sizes(values ...size.Bytes) func(*axes) { return func(a *axes) { a.blockSizes = values } }

func depths(values ...int) func(*axes) { return func(a *axes) { a.depths = values } }

// workloadsOf returns the workloads of the named series, each once.
func workloadsOf(names []string) ([]benchsuite.Workload, error) {
	var all []benchsuite.Workload
	for _, name := range names {
		if _, ok := series[name]; !ok {
			return nil, fmt.Errorf("series %q is not one of %v", name, seriesOrder)
		}
		for _, a := range series[name] {
			for _, w := range a.workloads() {
				if !slices.Contains(all, w) {
					all = append(all, w)
				}
			}
		}
	}
	return all, nil
}
