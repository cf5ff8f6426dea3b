// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// eagerRelay is the relay's end of a queue. It overwrites a receive as soon as that is posted.
type eagerRelay struct {
	memory   [iomsg.Size]byte
	response []comch.Received
	state    progress.State
	// polled is called at the end of a poll; it may be nil.
	polled func()
}

// eagerConsumer is the queue's consumer.
type eagerConsumer struct {
	comch.Consumer
	*eagerRelay
}

func (r eagerConsumer) Memory() []byte        { return r.memory[:] }
func (r eagerConsumer) State() progress.State { return r.state }
func (r eagerConsumer) Flush()                {}
func (r eagerConsumer) Close() error          { return nil }

func (r eagerConsumer) PostReceive(_, _ uint32, _ uint64) error {
	clear(r.memory[:])
	return nil
}

func (r eagerConsumer) Poll(received []comch.Received) int {
	n := copy(received, r.response)
	r.response = r.response[n:]
	if r.polled != nil {
		r.polled()
	}
	return n
}

type eagerProducer struct{ comch.Producer }

func (eagerProducer) Send(_, _ []byte) error { return nil }
func (eagerProducer) Flush()                 {}
func (eagerProducer) Close() error           { return nil }

type eagerConnection struct{ comch.Connection }

func (eagerConnection) Abort()     {}
func (eagerConnection) Err() error { return nil }

type eagerRequester struct{ requester }

func (eagerRequester) Err() error { return nil }

// newEagerRelay returns a relay with a queue that has submitted a request.
func newEagerRelay(t *testing.T) (*eagerRelay, *Queue) {
	t.Helper()
	const block = 512
	c := common{writes: &acknowledgedWrites{}, clock: &clock{},
		life: newLife(newBackground(t.Context(), zap.NewNop()), true),
		terms: &terms{config: Config{IOTimeout: -1, ControlTimeout: time.Hour},
			info: Info{Depth: 2, BlockSize: block, BufferSize: block}}}
	c.terms.size.Store(block)
	r := &eagerRelay{state: progress.Running}
	s := r.session(t, c.terms, 1)
	s.memory.evidence.Store(harmless)
	c.life.session.Store(s)
	q := newQueue(c, 0, s)
	q.memoryEnd = block
	if err := q.Submit(&Request{Type: Read, Length: block, Tag: 7}); err != nil {
		t.Fatal(err)
	}
	return r, q
}

// session returns a session with the relay.
func (r *eagerRelay) session(t *testing.T, agreed *terms, number uint64) *session {
	s := &session{terms: agreed, id: sessionID{number: number}, connection: eagerConnection{},
		requester: eagerRequester{}}
	s.memory.dataMemory = &dataMemory{}
	s.pairs = []*comchPair{{memory: s.memory.dataMemory, fail: s.fail,
		consumer: eagerConsumer{eagerRelay: r}, producer: eagerProducer{}}}
	t.Cleanup(func() {
		if s.deadline != nil {
			s.deadline.Stop()
		}
	})
	return s
}

// respond sends the response to the queue's last request.
func (r *eagerRelay) respond(q *Queue) { r.respondWith(q, status.Success) }

func (r *eagerRelay) respondWith(q *Queue, code status.Code) {
	r.memory = q.encoded
	iomsg.TurnIntoResult(r.memory[:], code)
	r.response = []comch.Received{{Length: iomsg.Size}}
}

func TestAResponseIsCopiedBeforeItsReceiveIsPostedAgain(t *testing.T) {
	r, q := newEagerRelay(t)
	r.respond(q)
	var results [2]Result
	if n := q.Poll(results[:]); n != 1 || results[0].Tag != 7 || results[0].Code != status.Success {
		t.Errorf("%d results: %+v", n, results[0])
	}
}

func TestAResponseCompletesItsRequestOnce(t *testing.T) {
	r, q := newEagerRelay(t)
	var results [2]Result
	for _, want := range []int{1, 0} {
		r.respond(q)
		if n := q.Poll(results[:]); n != want {
			t.Errorf("%d results, want %d", n, want)
		}
	}
	if err := q.session.failure; !errors.Is(err, status.Unexpected) {
		t.Errorf("the session goes on after a second response, or has ended with %v", err)
	}
}

func TestAResponseThatArrivesBeforeTheEndCounts(t *testing.T) {
	r, q := newEagerRelay(t)
	r.polled = func() {
		r.polled = nil
		r.respond(q)
		r.state = progress.Idle
	}
	var results [2]Result
	for _, want := range []int{0, 1} {
		if n := q.Poll(results[:]); n != want {
			t.Errorf("%d results, want %d", n, want)
		}
	}
	if results[0].Tag != 7 || results[0].Code != status.Success {
		t.Errorf("the request completes with %+v", results[0])
	}
}

// TestStatesOfAQueue tries each cell of the table in the comment of queueState.
func TestStatesOfAQueue(t *testing.T) {
	states := []string{queueAccepting: "accepting", queueEnding: "ending", queueLost: "lost",
		queueStopping: "stopping", queueStopped: "stopped"}
	stopped := func(q *Queue) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so that stop does not wait for the response
		return q.stop(ctx)
	}
	poll := func(q *Queue) int { return q.Poll(make([]Result, 2)) }
	respondToStop := func(r *eagerRelay) {
		iomsg.Encode(r.memory[:], &iomsg.Message{Type: iomsg.Stop})
		r.response = []comch.Received{{Length: iomsg.Size}}
	}
	// begin returns a queue that has come to a state with one request outstanding.
	begin := func(t *testing.T, state string) (*eagerRelay, *Queue) {
		r, q := newEagerRelay(t)
		switch state {
		case "ending":
			r.respondWith(q, status.Shutdown)
			if err := q.Submit(&Request{Type: Read, Length: 512, Tag: 8}); err != nil {
				t.Fatal(err)
			}
			poll(q)
			r.memory = q.encoded
		case "lost":
			q.session.memory.evidence.Store(onLoan)
			r.state = progress.Idle
			poll(q)
		case "stopping", "stopped":
			if err := stopped(q); !errors.Is(err, status.TimeOut) {
				t.Fatal(err)
			}
			if state == "stopped" {
				respondToStop(r)
				poll(q)
				q.slots[0].outstanding = false // the stop message follows all responses
			}
		}
		if got := states[q.state]; got != state {
			t.Fatalf("the queue is %s instead of %s", got, state)
		}
		return r, q
	}
	// after returns what an event has done to a queue that was in a state.
	after := func(q *Queue, state string, completed int) string {
		switch {
		case errors.Is(q.session.failure, status.Unexpected):
			return "violation"
		case states[q.state] != state:
			return "→ " + states[q.state]
		case completed > 0:
			return "completes"
		}
		return "stays"
	}
	responds := func(code status.Code) func(*testing.T, string) string {
		return func(t *testing.T, state string) string {
			r, q := begin(t, state)
			r.respondWith(q, code)
			return after(q, state, poll(q))
		}
	}
	readTable(t, "queue.go", states...).forEachCell(t, map[string]func(*testing.T, string) string{
		"Submit": func(t *testing.T, state string) string {
			_, q := begin(t, state)
			switch err := q.Submit(&Request{Type: Read, Length: 512}); {
			case err == nil:
				return "sends"
			case errors.Is(err, ErrReopening):
				return "reopening"
			case errors.Is(err, status.Again):
				return "again"
			default:
				return "ended"
			}
		},
		"response":           responds(status.Success),
		"response of an end": responds(status.Shutdown),
		"end of the session": func(t *testing.T, state string) string {
			r, q := begin(t, state)
			r.state = progress.Idle
			return after(q, state, poll(q))
		},
		"next session": func(t *testing.T, state string) string {
			r, q := begin(t, state)
			q.session.memory.evidence.Store(harmless)
			q.setNext(r.session(t, q.terms, 2))
			poll(q)
			poll(q)
			return after(q, state, 0)
		},
		"stop": func(t *testing.T, state string) string {
			_, q := begin(t, state)
			if err := stopped(q); err == nil {
				t.Error("a stop to which there is no response has succeeded")
			}
			return after(q, state, 0)
		},
		"response to stop": func(t *testing.T, state string) string {
			r, q := begin(t, state)
			respondToStop(r)
			return after(q, state, poll(q))
		},
	})
}

func TestAReopenedVolumeIsTheSameAndNotSmaller(t *testing.T) {
	const size = 1 << 20
	agreed := &terms{config: Config{Logger: zap.NewNop()},
		info: Info{UUID: [16]byte{1}, BlockSize: 512, Size: size}}
	for name, c := range map[string]struct {
		reply   controlmsg.OpenVolumeReply
		another bool
	}{
		"the same":         {controlmsg.OpenVolumeReply{UUID: [16]byte{1}, BlockSize: 512, Size: size}, false},
		"another":          {controlmsg.OpenVolumeReply{UUID: [16]byte{2}, BlockSize: 512, Size: size}, true},
		"smaller":          {controlmsg.OpenVolumeReply{UUID: [16]byte{1}, BlockSize: 512, Size: size - 512}, true},
		"of other blocks":  {controlmsg.OpenVolumeReply{UUID: [16]byte{1}, BlockSize: 4096, Size: size}, true},
		"the same, larger": {controlmsg.OpenVolumeReply{UUID: [16]byte{1}, BlockSize: 512, Size: 2 * size}, false},
	} {
		agreed.size.Store(size)
		err := agreed.negotiate(2, &Info{}, &c.reply)
		if errors.Is(err, ErrAnotherVolume) != c.another {
			t.Errorf("a volume that is %s: %v", name, err)
		}
	}
}

// A call that has requests outstanding takes another slot only if there is one, and does not wait.
func TestASlotIsLentAgainInALaterSessionThanThatOfARequestThatWasCutOff(t *testing.T) {
	shared := &dataMemory{}
	s := &syncIO{free: make(chan *syncSlot, 1)}
	s.life = newLife(newBackground(t.Context(), zap.NewNop()), false)
	slot := &syncSlot{owner: s, memory: shared, exposedTo: 2}
	s.free <- slot
	for number, want := range []*syncSlot{nil, nil, nil, slot} {
		next := &session{id: sessionID{number: uint64(number)}}
		next.memory.dataMemory = shared
		s.life.session.Store(next)
		if got, err := s.nextSlot(nil, true, false); got != want || err != nil {
			t.Errorf("in session %d, nextSlot returns %v, %v", number, got, err)
		}
	}
}
