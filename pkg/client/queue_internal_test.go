package client

import (
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
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
	v := &Volume{config: Config{IOTimeout: -1},
		info: Info{Depth: 2, BlockSize: block, BufferSize: block}}
	v.size.Store(block)
	s := &session{volume: v, connection: eagerConnection{}, memory: &dataMemory{}}
	s.evidence.Store(released)
	r := &eagerRelay{state: progress.Running}
	q := newQueue(v, 0, &comchPair{session: s, consumer: eagerConsumer{eagerRelay: r},
		producer: eagerProducer{}})
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
	if err := q.pair.session.failure; !errors.Is(err, status.Unexpected) {
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

// lent returns data memory in quarantine.
func lent(t *testing.T) *dataMemory {
	t.Helper()
	region, err := memory.Alloc("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	loan, err := region.Lend()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(loan.Region().Close(), region.Close()) })
	return &dataMemory{Region: region, quarantine: loan}
}

func TestMemoryInQuarantineIsFreedWhenNobodyUsesIt(t *testing.T) {
	v, m := &Volume{config: Config{Logger: zap.NewNop()}}, lent(t)
	expect := func(when string, want bool) {
		t.Helper()
		if got := v.isUnused(m); got != want {
			t.Errorf("%s, the memory is unused: %v", when, got)
		}
	}
	m.users.Store(1)
	expect("while a queue and the relay use it", false)
	m.users.Store(0)
	expect("while the relay uses it", false)
	if err := m.quarantine.Region().Close(); err != nil {
		t.Fatal(err)
	}
	expect("when nobody uses it", true)
	m.users.Store(1)
	expect("while a queue uses it", false)
}

func TestALoanThatCannotBeCheckedHasNotEnded(t *testing.T) {
	v, m := &Volume{config: Config{Logger: zap.NewNop()}}, lent(t)
	if err := m.CloseDescriptor(); err != nil {
		t.Fatal(err)
	}
	if v.isReturned(m.quarantine) {
		t.Error("a loan that cannot be checked counts as ended")
	}
}

func TestAReopenedVolumeIsTheSameAndNotSmaller(t *testing.T) {
	const size = 1 << 20
	v := &Volume{config: Config{Logger: zap.NewNop()},
		info: Info{UUID: [16]byte{1}, BlockSize: 512, Size: size}}
	v.size.Store(size)
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
		v.size.Store(size)
		err := v.checkSameVolume(&session{}, &c.reply)
		if errors.Is(err, ErrAnotherVolume) != c.another {
			t.Errorf("a volume that is %s: %v", name, err)
		}
	}
}

// A call that has requests outstanding takes another slot only if there is one, and does not wait.
func TestASlotIsLentAgainInALaterSessionThanThatOfARequestThatWasCutOff(t *testing.T) {
	shared := &dataMemory{}
	v := &Volume{}
	s := &syncIO{volume: v, free: make(chan *syncSlot, 1)}
	slot := &syncSlot{owner: s, memory: shared, exposedTo: 2}
	s.free <- slot
	for number, want := range []*syncSlot{nil, nil, nil, slot} {
		v.session.Store(&session{number: uint64(number), memory: shared})
		if got, err := s.nextSlot(nil, true, false); got != want || err != nil {
			t.Errorf("in session %d, nextSlot returns %v, %v", number, got, err)
		}
	}
}
