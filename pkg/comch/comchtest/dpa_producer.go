package comchtest

import (
	"bytes"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testDPACompletions(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 4), newDPAProducer(t, queue, 2)
	id := consumer.ID()
	var completions [4]comch.DPACompletion
	runOnDPA(t, dpa, func() {
		if empty, err := producer.IsConsumerEmpty(id); err != nil || empty {
			t.Errorf("consumer with receives: empty %v, %v", empty, err)
		}
		wantCode(t, "send too much", producer.PostSendImmediate(id, make([]byte, comch.MaxImmediateLength+1), true), status.InvalidValue)
		for _, requested := range []bool{false, true, true} {
			if err := producer.PostSendImmediate(id, []byte("x"), requested); err != nil {
				t.Error(err)
			}
		}
		wantCode(t, "request one completion too many", producer.PostSendImmediate(id, nil, true), status.Full)
		if n := producer.Poll(completions[:]); n != 2 || completions[0].UserData != dpaUserData {
			t.Errorf("polled %d completions: %+v", n, completions[:n])
		}
		if n := producer.Poll(completions[:]); n != 0 {
			t.Errorf("polled %d completions that were not requested", n)
		}
		if err := producer.PostSendImmediate(id, bytes.Repeat([]byte("y"), comch.MaxImmediateLength), true); err != nil {
			t.Error(err)
		}
		if empty, err := producer.IsConsumerEmpty(id); err != nil || !empty {
			t.Errorf("consumer without receives: empty %v, %v", empty, err)
		}
		wantCode(t, "send to an empty consumer", producer.PostSendImmediate(id, nil, false), status.Again)
	})
	var received [5]comch.Received
	if n := consumer.Poll(received[:]); n != 4 || received[3].ImmediateLength != comch.MaxImmediateLength || received[3].Length != 0 {
		t.Errorf("received %d messages: %+v", n, received[:n])
	}
}

// testDPAWakesForRoom has the kernel send whenever there is room, and lets it
// fall asleep before there is. A wake-up that is lost costs more than the test
// has time for.
func (s *suite) testDPAWakesForRoom(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 0), newDPAProducer(t, queue, 1)
	failed := make(chan error, 1)
	err := dpa.Start(func() int {
		err := producer.PostSendImmediate(consumer.ID(), []byte("x"), false)
		switch {
		case err == nil:
			return 1
		case err != error(status.Again):
			select {
			case failed <- err:
			default:
			}
		}
		return 0
	})
	if err != nil {
		t.Fatal(err)
	}
	bound := testContext(t)
	for range 100 {
		time.Sleep(time.Millisecond)
		if err := consumer.PostReceive(0, 0, 0); err != nil {
			t.Fatal(err)
		}
		consumer.Flush()
		awaitReceived(t, consumer)
	}
	if bound.Err() != nil {
		t.Error("the kernel was woken by time-outs only")
	}
	select {
	case err := <-failed:
		t.Errorf("send: %v", err)
	default:
	}
	closeAll(t, producer)
}

// testDMACopy looks at the destination when the immediate message is there.
func (s *suite) testDMACopy(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 3), newDPAProducer(t, queue, 2)
	region, other := allocate(t, 1<<20), allocate(t, 4096)
	for i := range region.Bytes() {
		region.Bytes()[i] = byte(i * 7)
	}
	destination := comch.DPABuffer{Region: region, Access: readWrite, Offset: 1 << 19}
	source := comch.DPABuffer{Region: region, Access: memory.PCIRead}
	const length = 300_000
	want := bytes.Clone(region.Bytes()[:length])
	runOnDPA(t, dpa, func() {
		if err := producer.DMACopy(consumer.ID(), destination, source, length, []byte("copied"), true); err != nil {
			t.Error(err)
		}
		var completions [1]comch.DPACompletion
		if n := producer.Poll(completions[:]); n != 1 || completions[0].UserData != dpaUserData {
			t.Errorf("polled %d completions: %+v", n, completions[:n])
		}
		small := comch.DPABuffer{Region: other, Access: readWrite, Offset: 4000}
		if err := producer.DMACopy(consumer.ID(), small, source, 96, nil, false); err != nil {
			t.Errorf("copy to the last byte: %v", err)
		}
		if err := producer.DMACopy(consumer.ID(), small, source, 0, []byte("0"), false); err != nil {
			t.Errorf("copy nothing: %v", err)
		}
		wantCode(t, "copy without a receive", producer.DMACopy(consumer.ID(), small, source, 1, nil, false), status.Again)
	})
	got := awaitReceived(t, consumer)
	if string(got.Immediate[:got.ImmediateLength]) != "copied" || !bytes.Equal(region.Bytes()[1<<19:][:length], want) {
		t.Errorf("after message %q the destination is not what it should be", got.Immediate[:got.ImmediateLength])
	}
	if !bytes.Equal(other.Bytes()[4000:], want[:96]) || other.Bytes()[3999] != 0 {
		t.Error("the small copy is wrong")
	}
}

func (s *suite) testBadDMACopies(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 1), newDPAProducer(t, queue, 1)
	region, other := allocate(t, 8192), allocate(t, 8192)
	region.Bytes()[0] = 1
	good := comch.DPABuffer{Region: other, Access: readWrite}
	at := func(r *memory.Region, access memory.Access, offset uint64) comch.DPABuffer {
		return comch.DPABuffer{Region: r, Access: access, Offset: offset}
	}
	runOnDPA(t, dpa, func() {
		for what, c := range map[string]struct {
			destination, source comch.DPABuffer
			length              uint64
			immediate           int
			want                status.Code
		}{
			"destination that may not be written": {at(other, memory.PCIRead, 0), at(region, readWrite, 0), 1, 0, status.NotPermitted},
			"source that may not be read":         {good, at(region, memory.PCIWrite, 0), 1, 0, status.NotPermitted},
			"destination outside its region":      {at(other, readWrite, 8000), at(region, readWrite, 0), 193, 0, status.InvalidValue},
			"source outside its region":           {good, at(region, readWrite, 1), 8192, 0, status.InvalidValue},
			"length that wraps":                   {good, at(region, readWrite, 1), 1<<64 - 1, 0, status.InvalidValue},
			"ranges that overlap":                 {at(region, readWrite, 100), at(region, readWrite, 0), 101, 0, status.InvalidValue},
			"no destination":                      {comch.DPABuffer{Access: readWrite}, at(region, readWrite, 0), 1, 0, status.InvalidValue},
			"no source":                           {good, comch.DPABuffer{Access: readWrite}, 1, 0, status.InvalidValue},
			"too much immediate data":             {good, at(region, readWrite, 0), 1, comch.MaxImmediateLength + 1, status.InvalidValue},
		} {
			err := producer.DMACopy(consumer.ID(), c.destination, c.source, c.length, make([]byte, c.immediate), true)
			wantCode(t, what, err, c.want)
		}
		var completions [1]comch.DPACompletion
		if n := producer.Poll(completions[:]); n != 0 {
			t.Errorf("refused copies completed: %d", n)
		}
	})
	var received [1]comch.Received
	if n := consumer.Poll(received[:]); n != 0 || other.Bytes()[0] != 0 {
		t.Error("a refused copy copied or sent something")
	}
}

func (s *suite) testDPAUnknownConsumer(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 2), newDPAProducer(t, queue, 1)
	runOnDPA(t, dpa, func() {
		wantCode(t, "send to an unknown consumer", producer.PostSendImmediate(consumer.ID()+100, nil, false), status.NotFound)
		_, err := producer.IsConsumerEmpty(consumer.ID() + 100)
		wantCode(t, "look at an unknown consumer", err, status.NotFound)
		if err := producer.PostSendImmediate(consumer.ID(), nil, false); err != nil {
			t.Error(err)
		}
		closeAll(t, consumer)
		await(t, "the consumer's end at the producer", func() bool {
			err := producer.PostSendImmediate(consumer.ID(), nil, false)
			return errIsOneOf(err, status.NotFound)
		})
	})
}
