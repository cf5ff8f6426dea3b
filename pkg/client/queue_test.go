package client_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// roundTrip returns a function that submits as many requests as the queue is deep, lets the relay
// complete them, and polls the results, all on one thread.
func roundTrip(t testing.TB) func() {
	r := newFakeRelay(t)
	q := r.open(testTimeout).Queue(0)
	consumer, producer := r.consumers[0], r.producers[0]
	received := make([]comch.Received, testDepth)
	results := make([]client.Result, testDepth)
	request := client.Request{Type: iomsg.Read, Length: testBlock}
	return func() {
		for range testDepth {
			request.Tag++
			if err := q.Submit(&request); err != nil {
				t.Fatal(err)
			}
		}
		q.Flush()
		n := consumer.Poll(received)
		for _, message := range received[:n] {
			buffer := consumer.Memory()[message.Offset:][:iomsg.Size]
			iomsg.TurnIntoResult(buffer, status.Success)
			if err := producer.Send(buffer, nil); err != nil {
				t.Fatal(err)
			}
			if err := consumer.PostReceive(message.Offset, iomsg.Size,
				message.UserData); err != nil {
				t.Fatal(err)
			}
		}
		consumer.Flush()
		producer.Flush()
		if n := q.Poll(results); n != testDepth {
			t.Fatalf("polled %d of %d results", n, testDepth)
		}
		for i, result := range results {
			if result.Tag != request.Tag-testDepth+1+uint64(i) || result.Code != status.Success {
				t.Fatalf("result %d is %+v", i, result)
			}
		}
	}
}

func TestAQueueDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, roundTrip(t)); n != 0 {
		t.Errorf("%v allocations per %d requests", n, testDepth)
	}
}

// BenchmarkQueue measures the client's and the emulated Comch's share of an IO: an operation is
// testDepth requests.
func BenchmarkQueue(b *testing.B) {
	run := roundTrip(b)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}
