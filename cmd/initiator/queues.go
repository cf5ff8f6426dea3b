package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// defaultQueues is how many queues there are unless told otherwise, if the
// process may use as many cores.
const defaultQueues = 2

// queueFlags choose queues and the threads that serve them.
type queueFlags struct {
	queues int
	cpus   []string
	depth  int
	poll   string
}

func (q *queueFlags) add(f *pflag.FlagSet, depth int) {
	f.IntVar(&q.queues, "queues", 0, "number of queues, each with a thread that is not pinned (default: two, one on a single core)")
	f.StringArrayVar(&q.cpus, "cpu", nil, "a queue with a thread pinned to this core; repeatable, and takes lists like 0-3")
	f.IntVar(&q.depth, "queue-depth", depth, "requests outstanding on each queue")
	f.StringVar(&q.poll, "poll", progress.Adaptive.String(), "what an idle thread does: adaptive, busy or event")
}

// resolve returns the number of queues and the cores of their threads, none
// if they are not pinned.
func (q *queueFlags) resolve() (queues int, cpus []int, err error) {
	for _, list := range q.cpus {
		part, err := affinity.ParseList(list)
		if err != nil {
			return 0, nil, program.Usage(fmt.Errorf("--cpu: %w", err))
		}
		cpus = append(cpus, part...)
	}
	if err := affinity.Check(cpus); err != nil {
		return 0, nil, program.Usage(fmt.Errorf("--cpu: %w", err))
	}
	queues = q.queues
	switch {
	case len(cpus) > 0:
		queues = len(cpus)
	case queues < 0:
		return 0, nil, program.Usagef("--queues %d is negative", queues)
	case queues == 0:
		allowed, err := affinity.Allowed()
		if err != nil {
			return 0, nil, err
		}
		queues = min(defaultQueues, len(allowed))
	}
	program.ReserveProcessors(queues)
	return queues, cpus, nil
}

// policy is how the threads poll.
func (q *queueFlags) policy() (progress.Policy, error) {
	mode, err := progress.ParseMode(q.poll)
	if err != nil {
		return progress.Policy{}, program.Usage(fmt.Errorf("--poll: %w", err))
	}
	return progress.Policy{Mode: mode}, nil
}

// requestLength is the value of a flag for the length of a request.
func requestLength(flag string, value size.Bytes) (uint32, error) {
	if value == 0 || value > math.MaxUint32 {
		return 0, program.Usagef("--%s %v is not between 1 and %d bytes", flag, value, uint32(math.MaxUint32))
	}
	return uint32(value), nil
}

// drawSeed is a seed for a run that was not given one: short enough to be
// typed in again, and exact in every JSON parser.
func drawSeed() uint64 { return uint64(rand.Uint32()) }
