// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// loop is an event loop of a program, on the descriptor of a queue.
type loop struct {
	t     *testing.T
	epoll int
}

func newLoop(t *testing.T, q *client.Queue, events uint32) *loop {
	t.Helper()
	descriptor, err := q.EventDescriptor()
	if err != nil {
		t.Fatal(err)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(epoll) })
	event := unix.EpollEvent{Events: unix.EPOLLIN | events}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, descriptor, &event); err != nil {
		t.Fatal(err)
	}
	return &loop{t: t, epoll: epoll}
}

// wait sleeps until the descriptor is readable, or a time is over, and reports whether it is.
func (l *loop) wait(longest time.Duration) bool {
	l.t.Helper()
	for {
		events := make([]unix.EpollEvent, 1)
		n, err := unix.EpollWait(l.epoll, events, int(longest.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			l.t.Fatal(err)
		}
		return n > 0
	}
}

// results sleeps and polls until there are count results. No timer ends its sleep.
func (l *loop) results(q *client.Queue, count, atOnce int) (all []client.Result) {
	l.t.Helper()
	batch := make([]client.Result, atOnce)
	for len(all) < count {
		if !l.wait(testkit.Patience) {
			l.t.Fatalf("a wake-up was lost after %d of %d results", len(all), count)
		}
		all = append(all, batch[:q.Poll(batch)]...)
	}
	return all
}

func TestTheEventDescriptorIsReadableAsLongAsThereAreResults(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	l := newLoop(t, q, 0)
	batch := make([]client.Result, 1)
	q.Poll(batch)
	for i := range uint64(3) {
		submit(t, q, i)
	}
	messages := [3]iomsg.Message{r.request(), r.request(), r.request()}
	if l.wait(0) {
		t.Error("it is readable before there is a result")
	}
	for _, m := range messages {
		r.respond(m)
	}
	for i := range uint64(3) {
		if !l.wait(testkit.Patience) || !l.wait(0) {
			t.Fatalf("it is not readable with %d results", 3-i)
		}
		if n := q.Poll(batch); n != 1 || batch[0].Tag != i {
			t.Fatalf("%d results: %+v", n, batch)
		}
	}
	for l.wait(0) { // a wake-up without a result, of which there may be one
		if n := q.Poll(batch); n != 0 {
			t.Fatalf("%d results too many", n)
		}
	}
	again, err := q.EventDescriptor()
	if first, _ := q.EventDescriptor(); err != nil || again != first {
		t.Errorf("the descriptor is %d, then %d, error %v", first, again, err)
	}
}

// TestNoWakeUpOfAnEventLoopIsLost has a relay that responds at any moment between two steps of an
// event loop that sleeps without a timeout.
func TestNoWakeUpOfAnEventLoopIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events uint32
		atOnce int
	}{
		"level, all results":  {0, testDepth},
		"level, one at once":  {0, 1},
		"edges, all results":  {unix.EPOLLET, testDepth},
		"edges, until nought": {unix.EPOLLET, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRelay(t)
			q := r.open(testkit.Patience).Queue(0)
			l := newLoop(t, q, c.events)
			const count = 500
			var relay sync.WaitGroup
			defer relay.Wait()
			defer r.cancel()
			relay.Go(func() { respondAtRandom(t, r, count) })
			batch := make([]client.Result, c.atOnce)
			submitted, done := 0, 0
			for done < count {
				for submitted < count && submitted-done < testDepth {
					submit(t, q, 1)
					submitted++
				}
				if !l.wait(testkit.Patience) {
					t.Fatalf("a wake-up was lost after %d of %d results", done, count)
				}
				n := q.Poll(batch)
				for done += n; n > 0 && c.events != 0; done += n {
					n = q.Poll(batch)
				}
			}
		})
	}
}

// respondAtRandom completes so many requests, each after a pause.
func respondAtRandom(t *testing.T, r *fakeRelay, count int) {
	random := seedtest.Random(t, 1)
	received := make([]comch.Received, 1)
	deadline := time.Now().Add(testkit.Patience)
	for done := 0; done < count; {
		if r.consumers[0].Poll(received) == 0 {
			if time.Now().After(deadline) {
				return
			}
			continue
		}
		for range random.IntN(3000) {
			deadline = deadline.Add(0)
		}
		message := r.consumers[0].Memory()[received[0].Offset:][:iomsg.Size]
		iomsg.TurnIntoResult(message, status.Success)
		if err := r.producers[0].Send(message, nil); err != nil {
			t.Error(err)
			return
		}
		r.producers[0].Flush()
		if err := r.consumers[0].PostReceive(received[0].Offset, iomsg.Size,
			received[0].UserData); err != nil {
			t.Error(err)
			return
		}
		r.consumers[0].Flush()
		done++
	}
}

func TestTheEndAndTheBeginningOfASessionWakeAnEventLoop(t *testing.T) {
	t.Parallel()
	r := newFakeRelay(t)
	v := r.openWith(client.Config{IOTimeout: testkit.Patience,
		Reconnect: &retry.Policy{FirstPause: time.Millisecond}})
	q := v.Queue(0)
	l := newLoop(t, q, 0)
	for round := range 3 {
		submit(t, q, 7)
		r.cut()
		if got := l.results(q, 1, 4)[0]; got.Tag != 7 || got.Code != status.ConnectionReset {
			t.Errorf("outcome is %+v", got)
		}
		testkit.Eventually(t, "the volume has a session", func() bool {
			return v.Reconnections().Count == round+1
		})
		q.Poll(make([]client.Result, 4)) // switches, after a Submit that was in vain
		if !l.wait(testkit.Patience) {
			t.Fatal("the next session does not wake the loop")
		}
		if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock,
			Tag: 8}); err != nil {
			t.Fatal(err)
		}
		q.Ring()
		<-r.started
		// The loop may have armed the descriptor before Submit found the session.
		received := make([]comch.Received, 1)
		consumer, producer := r.consumers[round+1], r.producers[round+1]
		testkit.Eventually(t, "the request arrives", func() bool {
			return consumer.Poll(received) > 0
		})
		message := consumer.Memory()[received[0].Offset:][:iomsg.Size]
		iomsg.TurnIntoResult(message, status.Success)
		if err := producer.Send(message, nil); err != nil {
			t.Fatal(err)
		}
		producer.Flush()
		if got := l.results(q, 1, 4)[0]; got.Tag != 8 || got.Code != status.Success {
			t.Errorf("outcome is %+v", got)
		}
	}
}

// The loop sleeps, and only the clock knows that the time is over.
func TestATimeoutWakesAnEventLoop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, request time.Duration }{
		"of the volume":             {300 * time.Millisecond, 0},
		"of the request":            {testkit.Patience, 300 * time.Millisecond},
		"of the request, no others": {-1, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRelay(t)
			v := r.open(c.config)
			q := v.Queue(0)
			l := newLoop(t, q, 0)
			if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock, Tag: 7,
				Timeout: c.request}); err != nil {
				t.Fatal(err)
			}
			q.Ring()
			if got := l.results(q, 1, 4)[0]; got.Tag != 7 || got.Code != status.TimeOut {
				t.Errorf("outcome is %+v", got)
			}
		})
	}
}

// A request that may take any time does not time out because others do not.
func TestARequestMayHaveMoreTimeThanOthers(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"long": testkit.Patience, "any": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRelay(t)
			v := r.open(100 * time.Millisecond)
			q := v.Queue(0)
			if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock, Tag: 7,
				Timeout: timeout}); err != nil {
				t.Fatal(err)
			}
			q.Ring()
			request := r.request()
			batch := make([]client.Result, 4)
			old := func() bool {
				if n := q.Poll(batch); n > 0 {
					t.Fatalf("%d results", n)
				}
				for p := range q.Pending() {
					return p.Tag == 7 && p.Type == client.Read && p.Age > 400*time.Millisecond
				}
				return false
			}
			testkit.Eventually(t, "the request is old", old)
			r.respond(request)
			if got := results(t, q, 1)[0]; got.Code != status.Success {
				t.Errorf("outcome is %+v", got)
			}
			submit(t, q, 8)
			if got := results(t, q, 1)[0]; got.Code != status.TimeOut {
				t.Errorf("a request without a timeout of its own: outcome is %+v", got)
			}
		})
	}
}

// A relay without room wakes the loop when it has some, though Poll was called before Submit.
func TestRoomForSegmentsWakesAnEventLoop(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(1)
	q := r.open(testkit.Patience).Queue(0)
	l := newLoop(t, q, 0)
	batch := make([]client.Result, 4)
	q.Poll(batch)
	if err := q.Submit(scattered(7, 2)); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	first := r.request()
	for l.wait(0) {
		q.Poll(batch)
	}
	if err := r.consumers[0].PostReceive(0, iomsg.Size, 0); err != nil {
		t.Fatal(err)
	}
	r.consumers[0].Flush()
	if !l.wait(testkit.Patience) {
		t.Fatal("room at the relay does not wake the loop")
	}
	if err := q.Submit(&client.Request{Type: client.Flush}); !errors.Is(err, status.Again) {
		t.Errorf("a request overtakes a segment: %v", err)
	}
	q.Poll(batch) // sends the segment, and then Submit has to be called again
	if !l.wait(testkit.Patience) {
		t.Fatal("the queue takes requests again, which does not wake the loop")
	}
	q.Poll(batch)
	r.respond(first)
	r.respond(r.request())
	if got := l.results(q, 1, 4); got[0].Code != status.Success {
		t.Errorf("outcome is %+v", got)
	}
}

func TestAQueueHasAnEngineOrAnEventDescriptor(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(testkit.Patience)
	q := v.Queue(0)
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := q.Attach(engine); err != nil {
		t.Fatal(err)
	}
	if _, err := q.EventDescriptor(); !errors.Is(err, status.InUse) {
		t.Errorf("the descriptor of a queue that is attached: %v", err)
	}
	q.Detach(engine)
	descriptor, err := q.EventDescriptor()
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Attach(engine); !errors.Is(err, status.InUse) {
		t.Errorf("attach a queue that has a descriptor: %v", err)
	}
	v.Abort()
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the descriptor after the end of the volume: %v", err)
	}
	if _, err := q.EventDescriptor(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the descriptor of a closed volume: %v", err)
	}
}
