package comchtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	contextThreads  = 3 // of each kind and side
	contextMessages = 400
)

func (s *suite) testContextThreads(t *testing.T) {
	t.Run("ConsumersAndProducersWorkOnTheirOwn", s.testThreads)
	t.Run("SurviveRandomCalls", s.testRandomCalls)
}

// testThreads runs consumers and producers of both sides of one connection,
// each on an engine and a thread of its own, which sleeps when there is
// nothing to do.
func (s *suite) testThreads(t *testing.T) {
	c := s.newCouple(t)
	var workers sync.WaitGroup
	failures := make(chan error, 4*contextThreads)
	for _, ends := range [][2]*contexts.Connection{{c.atHost, c.atServer}, {c.atServer, c.atHost}} {
		for range contextThreads {
			ids := make(chan comch.ConsumerID, 1)
			workers.Go(func() { failures <- receiveOnThread(ends[1], ids) })
			workers.Go(func() { failures <- sendOnThread(ends[0], ids) })
		}
	}
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	c.await("the end of all threads", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	close(failures)
	for err := range failures {
		if err != nil {
			t.Error(err)
		}
	}
	for _, p := range []*party{&c.server.party, &c.client.party} {
		c.await("all consumer events", func() bool { return len(p.consumers) == 2*contextThreads })
	}
}

// thread is an engine with a thread.
type thread struct {
	engine *progress.Engine
	err    error
}

// onThread runs setup and then makes progress until a context is idle.
func onThread(setup func(*thread) (stateful, error)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Adaptive})
	if err != nil {
		return err
	}
	t := &thread{engine: engine}
	context, err := setup(t)
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	deadline := time.Now().Add(patience)
	for context.State() != progress.Idle {
		if time.Now().After(deadline) {
			t.fail(errors.New("context does not become idle"))
			break
		}
		engine.Idle(engine.Progress())
	}
	return errors.Join(t.err, context.Err(), engine.Close())
}

func (t *thread) fail(err error) {
	if t.err == nil && err != nil {
		t.err = err
	}
}

// receiveOnThread takes numbered messages and stops after the last.
func receiveOnThread(on *contexts.Connection, ids chan<- comch.ConsumerID) error {
	return onThread(func(t *thread) (stateful, error) {
		consumer, err := contexts.NewConsumer(on, memorySize)
		if err != nil {
			return nil, err
		}
		next := uint64(0)
		err = consumer.Configure(contexts.ConsumerConfig{
			ReceiveTasks: receives,
			Received: func(task *contexts.ReceiveTask) {
				if got := binary.LittleEndian.Uint64(task.Data()); got != next {
					t.fail(errors.New("a message is out of order"))
				}
				if next++; next < contextMessages {
					t.fail(task.Submit())
					return
				}
				t.fail(task.Free())
				t.fail(consumer.Stop())
			},
			Failed: func(task *contexts.ReceiveTask, _ error) { t.fail(task.Free()) },
			StateChanged: func(_, state progress.State) {
				if state != progress.Running {
					return
				}
				for i := range uint32(receives) {
					task, err := consumer.AllocateReceive(i*bufferSize, bufferSize)
					t.fail(err)
					t.fail(task.Submit())
				}
				ids <- consumer.ID()
			},
		})
		return consumer, errors.Join(err, consumer.Start(t.engine))
	})
}

// sendOnThread sends numbered messages with a few tasks that it submits again
// and again, and stops when the last is sent.
func sendOnThread(on *contexts.Connection, ids <-chan comch.ConsumerID) error {
	id := <-ids
	return onThread(func(t *thread) (stateful, error) {
		producer, err := contexts.NewProducer(on)
		if err != nil {
			return nil, err
		}
		next, free := uint64(0), 0
		submit := func(task *contexts.ProducerSendTask) {
			if next == contextMessages {
				t.fail(task.Free())
				if free++; free == sendTasks {
					t.fail(producer.Stop())
				}
				return
			}
			t.fail(task.Set(id, binary.LittleEndian.AppendUint64(nil, next), nil))
			t.fail(task.Submit())
			next++
		}
		err = producer.Configure(contexts.ProducerConfig{
			SendTasks: sendTasks,
			Sent:      submit,
			Failed: func(task *contexts.ProducerSendTask, err error) {
				t.fail(err)
				t.fail(task.Free())
			},
		})
		if err = errors.Join(err, producer.Start(t.engine)); err != nil {
			return producer, err
		}
		for range sendTasks {
			task, err := producer.AllocateSend(id, nil, nil)
			t.fail(err)
			submit(task)
		}
		return producer, nil
	})
}

const (
	plotClients = 2
	plotWorkers = 2 // on each side of each client
	plotSteps   = 80
)

// plot is a server, some clients, and workers with consumers and producers on
// both sides of each connection, all on threads of their own, which do what a
// random script says, allowed or not.
type plot struct {
	suite *suite
	name  string
	// scripts are the steps of each actor: the server, the clients, the
	// workers.
	scripts [][]int

	// links are the present connections of the clients, from both sides.
	links [plotClients][2]atomic.Pointer[contexts.Connection]
	// ids are the present consumers of the workers.
	ids      [plotClients][2][plotWorkers]atomic.Uint32
	uids     atomic.Uint32 // gives every producer a number
	begun    atomic.Bool   // the scripts have
	received atomic.Int64

	mu       sync.Mutex
	failures []string
}

// testRandomCalls checks that whatever several threads call in whatever order
// neither deadlocks nor leaks, corrupts no message, and leads along the edges
// of the state machine only.
func (s *suite) testRandomCalls(t *testing.T) {
	var received int64
	rapid.Check(t, func(r *rapid.T) {
		p := &plot{suite: s, name: newName()}
		actors := 1 + plotClients*(1+2*plotWorkers)
		for i := range actors {
			script := rapid.SliceOfN(rapid.IntRange(0, 1<<16), plotSteps/4, plotSteps).Draw(r, fmt.Sprint("script of actor ", i))
			p.scripts = append(p.scripts, script)
		}
		p.perform()
		received += p.received.Load()
		for _, failure := range p.failures {
			r.Error(failure)
		}
	})
	t.Logf("%d messages were received", received)
	if received == 0 {
		t.Error("no message has ever been received: the test tests nothing")
	}
}

func (p *plot) fail(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

// perform lets all actors play, and go home in the order that the guide
// demands: first the workers, then the clients, then the server.
func (p *plot) perform() {
	var workers, clients, server sync.WaitGroup
	workersHome, clientsHome := make(chan struct{}), make(chan struct{})
	already := make(chan struct{})
	close(already)
	scripts := p.scripts
	play := func(group *sync.WaitGroup, curtain <-chan struct{}, cast func(*actor) role) {
		script := scripts[0]
		scripts = scripts[1:]
		group.Go(func() { p.act(script, curtain, cast) })
	}
	play(&server, clientsHome, newServerRole)
	for i := range plotClients {
		play(&clients, workersHome, func(a *actor) role { return newClientRole(a, i) })
		for side := range 2 {
			for number := range plotWorkers {
				play(&workers, already, func(a *actor) role { return newWorkerRole(a, i, side, number) })
			}
		}
	}
	workers.Wait()
	close(workersHome)
	clients.Wait()
	close(clientsHome)
	server.Wait()
}

// actor is a thread with an engine.
type actor struct {
	*plot
	engine *progress.Engine
	role   role
}

// role is what an actor does.
type role interface {
	// rise prepares for the script; it is called until all are there.
	rise()
	// step does something random.
	step(choice int)
	// home frees and stops what it can, and reports whether all is idle.
	home() bool
}

// spread makes all choices about as likely: rapid prefers small numbers.
func spread(drawn int) int { return int(uint32(drawn) * 2654435761 >> 12) }

// complete reports whether every connection and every consumer has been there.
func (p *plot) complete() bool {
	if p.begun.Load() {
		return true
	}
	for client := range p.ids {
		for side := range p.ids[client] {
			for number := range p.ids[client][side] {
				if p.ids[client][side][number].Load() == 0 {
					return false
				}
			}
		}
	}
	p.begun.Store(true)
	return true
}

func (p *plot) act(script []int, curtain <-chan struct{}, cast func(*actor) role) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		p.fail("%v", err)
		return
	}
	a := &actor{plot: p, engine: engine}
	a.role = cast(a)
	a.progressUntil("all are there", func() bool {
		a.role.rise()
		return p.complete()
	})
	for _, drawn := range script {
		choice := spread(drawn)
		a.role.step(choice)
		for range choice % 40 {
			if engine.Progress() == 0 {
				runtime.Gosched()
			}
		}
	}
	a.progressUntil("others are home", func() bool {
		select {
		case <-curtain:
			return true
		default:
			return false
		}
	})
	a.progressUntil("everything is idle", a.role.home)
	if err := engine.Close(); err != nil {
		p.fail("%v", err)
	}
}

func (a *actor) progressUntil(what string, condition func() bool) {
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			a.fail("%T waits in vain until %s", a.role, what)
			return
		}
		if a.engine.Progress() == 0 {
			runtime.Gosched()
		}
	}
}

// edges are the changes of state that the guide knows.
var edges = [][2]progress.State{
	{progress.Idle, progress.Starting}, {progress.Idle, progress.Running},
	{progress.Starting, progress.Running}, {progress.Starting, progress.Idle}, // the start failed
	{progress.Running, progress.Stopping}, {progress.Stopping, progress.Idle},
}

// watch checks the changes of a context's state. out is how many of its tasks
// are not freed.
func (a *actor) watch(what string, out *int) contexts.StateChanged {
	last := progress.Idle
	return func(previous, next progress.State) {
		if previous != last || !slices.Contains(edges, [2]progress.State{previous, next}) {
			a.fail("%s went from %v to %v, it was %v", what, previous, next, last)
		}
		if next == progress.Idle && *out != 0 {
			a.fail("%s is idle with %d tasks", what, *out)
		}
		last = next
	}
}

// expect checks the outcome of a call on a context that was in the given
// state. BadState is expected exactly in the states that do not allow the
// operation; of the other errors only those that are listed.
func (a *actor) expect(what string, state progress.State, allowed []progress.State, err error, errs ...status.Code) bool {
	if !slices.Contains(allowed, state) {
		if !errors.Is(err, status.BadState) {
			a.fail("%s of a context that is %v: %v", what, state, err)
		}
		return false
	}
	if err != nil && !slices.ContainsFunc(errs, func(code status.Code) bool { return errors.Is(err, code) }) {
		a.fail("%s of a context that is %v: %v", what, state, err)
	}
	return err == nil
}

var (
	inIdle    = []progress.State{progress.Idle}
	inUse     = []progress.State{progress.Running, progress.Stopping}
	inRunning = []progress.State{progress.Running}
)
