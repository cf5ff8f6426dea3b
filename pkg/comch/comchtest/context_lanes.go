package comchtest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// receiver is a consumer that records what it is told.
type receiver struct {
	transitions
	*contexts.Consumer
	received []*contexts.ReceiveTask
	failed   []*contexts.ReceiveTask
	errs     []error
}

// transmitter is a producer that records what it is told.
type transmitter struct {
	transitions
	*contexts.Producer
	sent   []*contexts.ProducerSendTask
	failed []*contexts.ProducerSendTask
	errs   []error
}

func (r *receiver) config() contexts.ConsumerConfig {
	return contexts.ConsumerConfig{
		ReceiveTasks: receives,
		Received:     func(t *contexts.ReceiveTask) { r.received = append(r.received, t) },
		Failed: func(t *contexts.ReceiveTask, err error) {
			r.failed, r.errs = append(r.failed, t), append(r.errs, err)
		},
		StateChanged: r.changed,
	}
}

func (p *transmitter) config() contexts.ProducerConfig {
	return contexts.ProducerConfig{
		SendTasks: sendTasks,
		Sent:      func(t *contexts.ProducerSendTask) { p.sent = append(p.sent, t) },
		Failed: func(t *contexts.ProducerSendTask, err error) {
			p.failed, p.errs = append(p.failed, t), append(p.errs, err)
		},
		StateChanged: p.changed,
	}
}

func (s *stage) newReceiver(on *contexts.Connection) *receiver {
	s.t.Helper()
	consumer, err := contexts.NewConsumer(on, memorySize)
	s.must(err)
	r := &receiver{Consumer: consumer}
	s.must(consumer.Configure(r.config()))
	s.t.Cleanup(func() { s.end(consumer) })
	return r
}

func (s *stage) startReceiver(on *contexts.Connection) *receiver {
	s.t.Helper()
	r := s.newReceiver(on)
	s.must(r.Start(s.engine))
	s.awaitState(r, progress.Running)
	return r
}

func (s *stage) newTransmitter(on *contexts.Connection) *transmitter {
	s.t.Helper()
	producer, err := contexts.NewProducer(on)
	s.must(err)
	p := &transmitter{Producer: producer}
	s.must(producer.Configure(p.config()))
	s.t.Cleanup(func() { s.end(producer) })
	return p
}

func (s *stage) startTransmitter(on *contexts.Connection) *transmitter {
	s.t.Helper()
	p := s.newTransmitter(on)
	s.must(p.Start(s.engine))
	return p
}

// lane is a consumer and a producer of the peer.
type lane struct {
	*stage
	receiver    *receiver
	transmitter *transmitter
}

// bothLanes runs a test in either direction.
func (s *suite) bothLanes(t *testing.T, run func(l *lane, from, to *contexts.Connection)) {
	t.Run("ClientToServer", func(t *testing.T) {
		c := s.newCouple(t)
		run(c.newLane(c.atHost, c.atServer), c.atHost, c.atServer)
	})
	t.Run("ServerToClient", func(t *testing.T) {
		c := s.newCouple(t)
		run(c.newLane(c.atServer, c.atHost), c.atServer, c.atHost)
	})
}

func (s *stage) newLane(from, to *contexts.Connection) *lane {
	s.t.Helper()
	return &lane{stage: s, receiver: s.startReceiver(to), transmitter: s.startTransmitter(from)}
}

// post submits a receive of a buffer by its number.
func (l *lane) post(buffer, length uint32) *contexts.ReceiveTask {
	l.t.Helper()
	task, err := l.receiver.AllocateReceive(buffer*bufferSize, length)
	l.must(err)
	l.must(task.Submit())
	return task
}

// send submits a message to the lane's consumer.
func (l *lane) send(message, immediate string) *contexts.ProducerSendTask {
	l.t.Helper()
	return l.sendTo(l.receiver.ID(), message, immediate)
}

func (l *lane) sendTo(id comch.ConsumerID, message, immediate string) *contexts.ProducerSendTask {
	l.t.Helper()
	task, err := l.transmitter.AllocateSend(id, []byte(message), []byte(immediate))
	l.must(err)
	l.must(task.Submit())
	return task
}

// awaitOutcomes makes progress until so many tasks of each kind have
// completed.
func (l *lane) awaitOutcomes(received, receivesFailed, sent, sendsFailed int) {
	l.t.Helper()
	l.await("the completion of tasks", func() bool {
		return len(l.receiver.received) >= received && len(l.receiver.failed) >= receivesFailed &&
			len(l.transmitter.sent) >= sent && len(l.transmitter.failed) >= sendsFailed
	})
	got := [4]int{len(l.receiver.received), len(l.receiver.failed), len(l.transmitter.sent), len(l.transmitter.failed)}
	if want := [4]int{received, receivesFailed, sent, sendsFailed}; got != want {
		l.t.Errorf("completed: %v (received, receives failed, sent, sends failed), want %v", got, want)
	}
}

// free frees everything that has completed.
func (l *lane) free() {
	l.t.Helper()
	for _, tasks := range [][]*contexts.ReceiveTask{l.receiver.received, l.receiver.failed} {
		for _, task := range tasks {
			l.must(task.Free())
		}
	}
	for _, tasks := range [][]*contexts.ProducerSendTask{l.transmitter.sent, l.transmitter.failed} {
		for _, task := range tasks {
			l.must(task.Free())
		}
	}
	l.receiver.received, l.receiver.failed, l.receiver.errs = nil, nil, nil
	l.transmitter.sent, l.transmitter.failed, l.transmitter.errs = nil, nil, nil
}
