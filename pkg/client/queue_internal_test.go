package client

import (
	"errors"
	"testing"

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

type eagerConnection struct{ comch.Connection }

func (eagerConnection) Abort() {}

// newEagerRelay returns a relay with a queue that has submitted a request.
func newEagerRelay(t *testing.T) (*eagerRelay, *Queue) {
	t.Helper()
	const block = 512
	c := common{writes: &acknowledgedWrites{}, clock: &clock{},
		terms: &terms{config: Config{IOTimeout: -1},
			info: Info{Depth: 2, BlockSize: block, BufferSize: block}}}
	c.life = newLife(newBackground(t.Context()), false)
	c.terms.size.Store(block)
	r := &eagerRelay{state: progress.Running}
	s := &session{terms: c.terms, connection: eagerConnection{}, pairs: []*comchPair{
		{consumer: eagerConsumer{eagerRelay: r}, producer: eagerProducer{}}}}
	s.memory.dataMemory = &dataMemory{}
	s.memory.evidence.Store(released)
	q := newQueue(c, 0, s)
	q.memoryEnd = block
	if err := q.Submit(&Request{Type: iomsg.Read, Length: block, Tag: 7}); err != nil {
		t.Fatal(err)
	}
	return r, q
}

// respond sends the response to the queue's last request.
func (r *eagerRelay) respond(q *Queue) {
	r.memory = q.encoded
	iomsg.TurnIntoResult(r.memory[:], status.Success)
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
	s.life = newLife(newBackground(t.Context()), false)
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
