package main

import (
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/internal/bench"
	"github.com/zc-relay/zc-relay/internal/bench/suite"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// memoryVolume is how cases name a volume in memory.
const memoryVolume = "memory"

// axes are values whose combinations are workloads.
type axes struct {
	patterns   []bench.Pattern
	blockSizes []size.Bytes
	depths     []int
	queues     []int
	polls      []string
	crc        []bool
}

// adaptive is the default polling mode.
var adaptive = progress.Adaptive.String()

// baseAxes has one value on each axis.
func baseAxes() axes {
	return axes{
		patterns: []bench.Pattern{bench.RandomRead}, blockSizes: []size.Bytes{4 * size.KiB}, depths: []int{32},
		queues: []int{1}, polls: []string{adaptive}, crc: []bool{false},
	}
}

// workloads are all combinations; those of one chain configuration come in a
// row.
func (a axes) workloads() []suite.Workload {
	var all []suite.Workload
	for _, poll := range a.polls {
		for _, crc := range a.crc {
			for _, pattern := range a.patterns {
				for _, blockSize := range a.blockSizes {
					for _, queues := range a.queues {
						for _, depth := range a.depths {
							all = append(all, suite.Workload{
								Pattern: pattern, BlockSize: uint32(blockSize), QueueDepth: depth, Queues: queues,
								Sessions: 1, Poll: poll, CRC: crc, Volume: memoryVolume,
							})
						}
					}
				}
			}
		}
	}
	return all
}

// series are the workloads that are measured unless others are asked for,
// by name.
var series = map[string][]axes{
	"small":  {baseAxes().with(bothRandom, sizes(4*size.KiB), depths(1, 32, 128))},
	"large":  {baseAxes().with(bothRandom, sizes(128*size.KiB), depths(32))},
	"queues": {baseAxes().with(depths(32), func(a *axes) { a.queues = []int{2, 4} })},
	"poll":   {baseAxes().with(depths(1, 32), func(a *axes) { a.polls = []string{"busy", "event"} })},
	"crc": {baseAxes().with(sizes(4*size.KiB, 128*size.KiB), bothRandom, func(a *axes) {
		a.crc = []bool{false, true}
	})},
}

// seriesOrder is that in which series are measured.
var seriesOrder = []string{"small", "large", "queues", "poll", "crc"}

func (a axes) with(changes ...func(*axes)) axes {
	for _, change := range changes {
		change(&a)
	}
	return a
}

func bothRandom(a *axes) { a.patterns = []bench.Pattern{bench.RandomRead, bench.RandomWrite} }

func sizes(values ...size.Bytes) func(*axes) { return func(a *axes) { a.blockSizes = values } }

func depths(values ...int) func(*axes) { return func(a *axes) { a.depths = values } }

// workloadsOf are those of the named series, each once.
func workloadsOf(names []string) ([]suite.Workload, error) {
	var all []suite.Workload
	for _, name := range names {
		if _, ok := series[name]; !ok {
			return nil, fmt.Errorf("series %q is none of %v", name, seriesOrder)
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
