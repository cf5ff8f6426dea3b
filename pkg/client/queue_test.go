package client_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
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

func TestAResultSaysWhyTheVolumeHasFailedTheRequest(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testTimeout).Queue(0)
	consumer, producer := r.consumers[0], r.producers[0]
	received, results := make([]comch.Received, 1), make([]client.Result, 1)
	for _, c := range []struct {
		code      status.Code
		sent      status.Cause
		want      status.Cause
		wantError error
	}{
		{status.IOFailed, status.Cause(syscall.ENOSPC), status.Cause(syscall.ENOSPC),
			syscall.ENOSPC},
		{status.IOFailed, status.CauseTruncated, status.CauseTruncated, status.CauseTruncated},
		{status.IOFailed, status.CauseUnknown, status.CauseUnknown, status.IOFailed},
		{status.IOFailed, status.Cause(status.CauseCount), status.CauseUnknown, status.IOFailed},
		{status.IOFailed, 1<<32 - 1, status.CauseUnknown, status.IOFailed},
		{status.Success, status.Cause(syscall.ENOSPC), status.CauseUnknown, nil},
	} {
		if err := q.Submit(&client.Request{Type: iomsg.Read, Length: testBlock}); err != nil {
			t.Fatal(err)
		}
		q.Flush()
		if n := consumer.Poll(received); n != 1 {
			t.Fatalf("%d requests arrived", n)
		}
		message := consumer.Memory()[received[0].Offset:][:iomsg.Size]
		iomsg.TurnIntoResult(message, c.code)
		iomsg.SetCause(message, c.sent)
		if err := producer.Send(message, nil); err != nil {
			t.Fatal(err)
		}
		if err := consumer.PostReceive(received[0].Offset, iomsg.Size,
			received[0].UserData); err != nil {
			t.Fatal(err)
		}
		consumer.Flush()
		producer.Flush()
		if n := q.Poll(results); n != 1 {
			t.Fatalf("polled %d results", n)
		}
		got := results[0]
		if err := got.Err(); got.Cause != c.want || status.CodeOf(err) != c.code ||
			!errors.Is(err, c.wantError) {
			t.Errorf("%v with cause %d became %+v, %v", c.code, uint32(c.sent), got, err)
		}
	}
}

func TestAQueueTracesOneRequestInSoMany(t *testing.T) {
	var tracer trace.Tracer
	r := newFakeRelay(t)
	v, err := client.Open(context.Background(), client.Config{Provider: r.provider,
		Device: emulated.DefaultHostDevice, Queues: 1, Depth: testDepth, SyncDepth: -1,
		Tracer: &tracer, TraceEvery: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	<-r.started
	q := v.Queue(0)
	received, results := make([]comch.Received, 1), make([]client.Result, 1)
	tracer.Start()
	var ids []uint32
	for i := range uint64(7) {
		if err := q.Submit(&client.Request{Type: iomsg.Read, Length: testBlock,
			Offset: i * testBlock}); err != nil {
			t.Fatal(err)
		}
		q.Flush()
		if n := r.consumers[0].Poll(received); n != 1 {
			t.Fatalf("%d requests arrived", n)
		}
		message := r.consumers[0].Memory()[received[0].Offset:][:iomsg.Size]
		if id := iomsg.TraceID(message); id != 0 {
			ids = append(ids, id)
		}
		iomsg.TurnIntoResult(message, status.Success)
		if err := r.producers[0].Send(message, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.consumers[0].PostReceive(received[0].Offset, iomsg.Size,
			received[0].UserData); err != nil {
			t.Fatal(err)
		}
		r.producers[0].Flush()
		r.consumers[0].Flush()
		if n := q.Poll(results); n != 1 {
			t.Fatalf("polled %d results", n)
		}
	}
	records, _ := tracer.Stop()
	if len(ids) != 2 || len(records) != 2 {
		t.Fatalf("%d of 7 requests have an ID, and %d are recorded", len(ids), len(records))
	}
	for i, record := range records {
		if record.ID != ids[i] || record.Operation != iomsg.OpRead || record.Size != testBlock ||
			record.Offset != uint64(3*i+2)*testBlock || record.EndNs < record.BeginNs {
			t.Errorf("record %d is %+v, the ID is %d", i, record, ids[i])
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
