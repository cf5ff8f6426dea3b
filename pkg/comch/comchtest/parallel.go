package comchtest

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	parallelProducers = 4
	parallelMessages  = 5000 // of each producer
)

func (s *suite) testParallel(t *testing.T) {
	t.Run("ProducersOfOneConsumerKeepTheirOrder", func(t *testing.T) { s.bothWays(t, testManyProducers) })
	t.Run("PathsWorkOnThreadsOfTheirOwn", s.testManyPaths)
}

// testManyProducers lets several threads send to one consumer.
func testManyProducers(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: receives, MemorySize: memorySize})
	post(t, consumer, receives)
	var wg sync.WaitGroup
	for i := range parallelProducers {
		producer := newProducer(t, from, consumer.ID())
		wg.Add(1)
		go func() {
			defer wg.Done()
			produce(t, producer, uint64(i)<<32)
		}()
	}
	next := make(map[uint32]uint64)
	streams := make(map[uint32]uint64)
	consume(t, consumer, parallelProducers*parallelMessages, func(r *comch.Received, value uint64) {
		stream, known := streams[r.Producer]
		if !known {
			streams[r.Producer], stream = value>>32, value>>32
		}
		if want := stream<<32 | next[r.Producer]; value != want {
			t.Errorf("producer %d sent %#x, want %#x", r.Producer, value, want)
		}
		next[r.Producer]++
	})
	wg.Wait()
	if len(next) != parallelProducers {
		t.Errorf("messages came from %d producers, want %d", len(next), parallelProducers)
	}
}

// testManyPaths uses both directions, each path on two threads of its own.
func (s *suite) testManyPaths(t *testing.T) {
	p := s.connect(t)
	var wg sync.WaitGroup
	for _, sides := range p.sides() {
		for range 2 {
			x := newPath(t, sides[0], sides[1])
			post(t, x.consumer, receives)
			wg.Add(2)
			go func() {
				defer wg.Done()
				produce(t, x.producer, 0)
			}()
			go func() {
				defer wg.Done()
				next := uint64(0)
				consume(t, x.consumer, parallelMessages, func(_ *comch.Received, value uint64) {
					if value != next {
						t.Errorf("received %d, want %d", value, next)
					}
					next++
				})
			}()
		}
	}
	wg.Wait()
}

// produce sends numbered messages from a thread of its own.
func produce(t *testing.T, producer comch.Producer, first uint64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	message := make([]byte, bufferSize)
	for sent := 0; sent < parallelMessages; {
		binary.LittleEndian.PutUint64(message, first+uint64(sent))
		err := producer.Send(message, nil)
		switch err {
		case nil:
			sent++
		case status.Again:
			runtime.Gosched()
		default:
			t.Errorf("send: %v", err)
			return
		}
		producer.Flush()
	}
}

// consume takes a number of messages, showing their first eight bytes.
func consume(t *testing.T, consumer comch.Consumer, count int, see func(*comch.Received, uint64)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	received := make([]comch.Received, 8)
	for taken := 0; taken < count && !t.Failed(); {
		n := consumer.Poll(received)
		if n == 0 {
			runtime.Gosched()
		}
		for i := range received[:n] {
			r := &received[i]
			see(r, binary.LittleEndian.Uint64(consumer.Memory()[r.Offset:]))
			if err := consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Errorf("post receive: %v", err)
			}
		}
		consumer.Flush()
		taken += n
	}
}
