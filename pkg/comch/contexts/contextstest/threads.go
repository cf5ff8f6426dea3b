// SPDX-License-Identifier: Apache-2.0

package contextstest

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

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	contextThreads  = 3   // of each kind and side
	contextMessages = 400 // from each producer
)

func (s *suite) testContextThreads(t *testing.T) {
	t.Run("ConsumersAndProducersHaveTheirOwnThreads", s.testThreads)
	t.Run("SurviveRandomCalls", s.testRandomCalls)
}

// testThreads runs consumers and producers on both sides of one connection, each with its own
// engine and its own thread, which sleeps when it has nothing to do.
func (s *suite) testThreads(t *testing.T) {
	c := s.newContextPair(t)
	var workers sync.WaitGroup
	failures := make(chan error, 4*contextThreads)
	for _, ends := range [][2]*contexts.Connection{{c.atClient, c.atServer},
		{c.atServer, c.atClient}} {
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
	for _, p := range []*recorder{&c.server.recorder, &c.client.recorder} {
		c.await("all consumer events", func() bool { return len(p.consumers) == 2*contextThreads })
	}
}

// thread is an engine with a thread.
type thread struct {
	engine *progress.Engine
	err    error
}

// onThread runs setup, and then makes progress until the context that it returns is idle.
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
	deadline := time.Now().Add(testkit.Patience)
	for context.State() != progress.Idle {
		if time.Now().After(deadline) {
			t.fail(errors.New("the context did not become idle"))
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

// receiveOnThread receives numbered messages, and stops after the last.
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

// sendOnThread sends numbered messages with a few tasks, which it submits again and again, and
// stops when the last message is sent.
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
	randomClients = 2
	randomWorkers = 2 // on each side of each connection
	randomSteps   = 80
)

// randomRun is a server, some clients, and workers with consumers and producers on both sides of
// each connection. Each of them is an actor, which makes random calls, allowed or not. An actor
// moves from thread to thread, as it may: to bind eleven of them to threads costs four times as
// much.
type randomRun struct {
	suite *suite
	name  string
	// scripts holds the random numbers that each actor draws its calls from, first those of the
	// server, then those of each client and its workers.
	scripts [][]int

	// links holds the current connection of each client: server's side, client's side.
	links [randomClients][2]atomic.Pointer[contexts.Connection]
	// ids holds the current consumers of the workers; 0 stands for none.
	ids      [randomClients][2][randomWorkers]atomic.Uint32
	uids     atomic.Uint32 // the last number given to a producer
	started  atomic.Bool   // the actors have begun their scripts
	received atomic.Int64

	mu       sync.Mutex
	failures []string
}

// testRandomCalls checks that no sequence of calls on several threads deadlocks, leaks, corrupts a
// message, or leaves the edges of the state machine.
func (s *suite) testRandomCalls(t *testing.T) {
	var received int64
	seedtest.Check(t, func(r *rapid.T) {
		p := &randomRun{suite: s, name: comchtest.NewName()}
		actors := 1 + randomClients*(1+2*randomWorkers)
		numbers := rapid.SliceOfN(rapid.IntRange(0, 1<<16), randomSteps/4, randomSteps)
		for i := range actors {
			p.scripts = append(p.scripts, numbers.Draw(r, fmt.Sprint("script of actor ", i)))
		}
		p.run()
		received += p.received.Load()
		for _, failure := range p.failures {
			r.Error(failure)
		}
	})
	t.Logf("%d messages were received", received)
	if received == 0 {
		t.Error("no run received a message, so the test has checked nothing")
	}
}

func (p *randomRun) fail(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

// run runs all actors. They shut down in the order that the guide demands: first the workers, then
// the clients, then the server.
func (p *randomRun) run() {
	var workers, clients, server sync.WaitGroup
	workersDone, clientsDone := make(chan struct{}), make(chan struct{})
	atOnce := make(chan struct{})
	close(atOnce)
	scripts := p.scripts
	start := func(group *sync.WaitGroup, mayEnd <-chan struct{}, newRole func(*actor) role) {
		script := scripts[0]
		scripts = scripts[1:]
		group.Go(func() { p.runActor(script, mayEnd, newRole) })
	}
	start(&server, clientsDone, newServerRole)
	for i := range randomClients {
		start(&clients, workersDone, func(a *actor) role { return newClientRole(a, i) })
		for side := range 2 {
			for number := range randomWorkers {
				start(&workers, atOnce, func(a *actor) role {
					return newWorkerRole(a, i, side,
						number)
				})
			}
		}
	}
	workers.Wait()
	close(workersDone)
	clients.Wait()
	close(clientsDone)
	server.Wait()
}

// actor is an engine, and what uses it.
type actor struct {
	*randomRun
	engine *progress.Engine
	role   role
}

// role is a server, a client, or a worker.
type role interface {
	// setUp starts the contexts of the role. It is called repeatedly until the contexts of all
	// roles run.
	setUp()
	// step makes the call that choice selects.
	step(choice int)
	// shutDown frees and stops what it can, and reports whether all contexts of the role are idle.
	// It is called until they are.
	shutDown() bool
}

// spread makes all choices about equally likely, since rapid prefers small numbers.
func spread(drawn int) int { return int(uint32(drawn) * 2654435761 >> 12) }

// isSetUp reports whether all connections and consumers have existed at the same time.
func (p *randomRun) isSetUp() bool {
	if p.started.Load() {
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
	p.started.Store(true)
	return true
}

func (p *randomRun) runActor(script []int, mayEnd <-chan struct{}, newRole func(*actor) role) {
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		p.fail("%v", err)
		return
	}
	a := &actor{randomRun: p, engine: engine}
	a.role = newRole(a)
	a.progressUntil("all contexts run", func() bool {
		a.role.setUp()
		return p.isSetUp()
	})
	for _, drawn := range script {
		choice := spread(drawn)
		a.role.step(choice)
		for range choice % 40 {
			if engine.Progress() == 0 {
				break
			}
		}
		// Asleep, not yielding: while somebody always runs, nobody looks for packets that have
		// arrived.
		time.Sleep(time.Duration(choice%256) * time.Microsecond)
	}
	a.progressUntil("the actors that depend on it have ended", func() bool {
		select {
		case <-mayEnd:
			return true
		default:
			return false
		}
	})
	a.progressUntil("everything is idle", a.role.shutDown)
	if err := engine.Close(); err != nil {
		p.fail("%v", err)
	}
}

func (a *actor) progressUntil(what string, condition func() bool) {
	for deadline := time.Now().Add(testkit.Patience); !condition(); {
		if time.Now().After(deadline) {
			a.fail("%T waited in vain until %s", a.role, what)
			return
		}
		if a.engine.Progress() == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// edges are the changes of state that the guide allows.
var edges = [][2]progress.State{
	{progress.Idle, progress.Starting}, {progress.Idle, progress.Running},
	{progress.Starting, progress.Running}, {progress.Starting, progress.Idle}, // the start failed
	{progress.Running, progress.Stopping}, {progress.Stopping, progress.Idle},
}

// watch returns a callback that checks the changes of a context's state. out points to the number
// of its tasks that are not freed.
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

// expect checks the outcome of a call on a context that was in the given state, and reports whether
// the call succeeded. The error must be BadState in exactly the states outside allowed. In the
// others, errs lists the possible errors.
func (a *actor) expect(
	what string, state progress.State, allowed []progress.State, err error, errs ...status.Code,
) bool {
	if !slices.Contains(allowed, state) {
		if !errors.Is(err, status.BadState) {
			a.fail("%s of a context that is %v: %v", what, state, err)
		}
		return false
	}
	if err != nil && !slices.ContainsFunc(errs, func(code status.Code) bool {
		return errors.Is(err,
			code)
	}) {
		a.fail("%s of a context that is %v: %v", what, state, err)
	}
	return err == nil
}

var (
	inIdle    = []progress.State{progress.Idle}
	inUse     = []progress.State{progress.Running, progress.Stopping}
	inRunning = []progress.State{progress.Running}
)
