package comchtest

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
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
