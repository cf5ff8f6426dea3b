package bench

import (
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// group are the workers of one thread.
type group []*worker

// groupsOf gives each of threads one worker of every session.
func groupsOf(workers []*worker, threads int) []group {
	groups := make([]group, threads)
	for i, w := range workers {
		groups[i%threads] = append(groups[i%threads], w)
	}
	return groups
}

// body is the life of the thread.
func (g group) body(engine *progress.Engine) error {
	for _, w := range g {
		if err := w.queue.Attach(engine); err != nil {
			return err
		}
		defer w.queue.Detach(engine)
		if err := engine.Add(w); err != nil {
			return err
		}
	}
	if g[0].hasWarmup {
		g.run(engine, warmingUp, func(*worker) uint64 { return unlimited })
		for _, w := range g {
			w.recorder.forgetOperations()
		}
	}
	before := engine.Stats()
	startedNs := g[0].run.NowNs()
	g.run(engine, measuring, func(w *worker) uint64 { return w.totalLimit })
	endedNs := g[0].run.NowNs()
	for _, w := range g {
		w.startedNs, w.endedNs = startedNs, endedNs
	}
	g[0].engine = difference(engine.Stats(), before)
	return nil
}

// run goes through a stage until nothing is outstanding and nothing may be
// started any more.
func (g group) run(engine *progress.Engine, stage supervisor.Stage, limit func(*worker) uint64) {
	for _, w := range g {
		w.stage, w.limit = stage, limit(w)
	}
	for !g.finished() {
		engine.Idle(engine.Progress())
	}
	for _, w := range g {
		w.recorder.publish()
	}
}

func (g group) finished() bool {
	finished := true
	for _, w := range g {
		finished = w.finished() && finished // each of them may have to give up
	}
	return finished
}

// difference is what an engine did since before.
func difference(now, before progress.Stats) progress.Stats {
	return progress.Stats{
		Hits: now.Hits - before.Hits, Misses: now.Misses - before.Misses,
		Sleeps: now.Sleeps - before.Sleeps, LateWakeups: now.LateWakeups - before.LateWakeups,
	}
}
