// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
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
	q := r.open(testkit.Patience).Queue(0)
	consumer, producer := r.consumers[0], r.producers[0]
	received := make([]comch.Received, testDepth)
	results := make([]client.Result, testDepth)
	request := client.Request{Type: client.Read, Length: testBlock}
	return func() {
		for range testDepth {
			request.Tag++
			if err := q.Submit(&request); err != nil {
				t.Fatal(err)
			}
		}
		q.Ring()
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
	q := r.open(testkit.Patience).Queue(0)
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
		if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock}); err != nil {
			t.Fatal(err)
		}
		q.Ring()
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
		if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock,
			Offset: i * testBlock}); err != nil {
			t.Fatal(err)
		}
		q.Ring()
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

// TestSubmitRefusesWhatDoesNotFit submits requests that must not reach the relay, between requests
// that are valid.
func TestSubmitRefusesWhatDoesNotFit(t *testing.T) {
	const size, memory = 1 << 20, 4 * testBlock
	r := newFakeRelay(t)
	v, err := client.Open(t.Context(), client.Config{Provider: r.provider,
		Device: emulated.DefaultHostDevice, Queues: 1, Depth: testDepth, BufferSize: 2 * testBlock,
		MemorySize: memory, SyncDepth: 2, ControlTimeout: testkit.Patience,
		IOTimeout: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	<-r.started
	queue := v.Queue(0)
	for _, test := range []struct {
		request client.Request
		want    error
	}{
		{client.Request{Type: client.RequestType(iomsg.Stop)}, status.InvalidValue},
		{client.Request{Type: client.RequestType(iomsg.Hello)}, status.InvalidValue},
		{client.Request{Type: client.RequestType(iomsg.Result)}, status.InvalidValue},
		{client.Request{Type: 77, Length: testBlock}, status.InvalidValue},
		{client.Request{Type: client.Flush, Flags: client.Flags(iomsg.Traced)},
			status.InvalidValue},
		{client.Request{Type: client.Write, Length: testBlock, Flags: client.Flags(iomsg.Pushed)},
			status.InvalidValue},
		{client.Request{Type: client.Write, Length: testBlock, Flags: 1 << 31},
			status.InvalidValue},
		{client.Request{Type: client.Write, Length: testBlock,
			Flags: client.FUA | client.Deallocate},
			nil},
		{client.Request{Type: client.Read}, status.InvalidValue},
		{client.Request{Type: client.Read, Length: 100}, status.InvalidValue},
		{client.Request{Type: client.Read, Length: testBlock, Offset: 100}, status.InvalidValue},
		{client.Request{Type: client.Read, Length: testBlock, Offset: size}, status.InvalidValue},
		{client.Request{Type: client.Read, Length: testBlock, Offset: 1<<64 - testBlock},
			status.InvalidValue},
		{client.Request{Type: client.Read, Length: 2 * testBlock, Offset: size - testBlock},
			status.InvalidValue},
		{client.Request{Type: client.Read, Length: testBlock, Offset: size - testBlock}, nil},
		{client.Request{Type: client.Read, Length: 3 * testBlock}, status.TooBig},
		{client.Request{Type: client.Read, Length: 2 * testBlock,
			Memory: memory - 2*testBlock}, nil},
		// What follows the application's memory belongs to the blocking methods.
		{client.Request{Type: client.Read, Length: testBlock, Memory: memory}, status.InvalidValue},
		{client.Request{Type: client.Write, Length: 2 * testBlock, Memory: memory - testBlock},
			status.InvalidValue},
		{client.Request{Type: client.Read, Length: testBlock, Memory: 1<<64 - testBlock},
			status.InvalidValue},
		{client.Request{Type: client.Trim, Length: size + testBlock}, status.InvalidValue},
		{client.Request{Type: client.WriteZeroes, Length: testBlock, Offset: 1},
			status.InvalidValue},
		{client.Request{Type: client.Trim, Length: size, Memory: 1 << 40}, nil},
		{client.Request{Type: client.Extents, Length: iomsg.ExtentSize}, status.InvalidValue},
		{client.Request{Type: client.Extents, Length: iomsg.ExtentSize + 1, Range: size},
			status.InvalidValue},
		{client.Request{Type: client.Extents, Length: iomsg.ExtentSize, Range: size + testBlock},
			status.InvalidValue},
		{client.Request{Type: client.Extents, Length: iomsg.ExtentSize, Range: size,
			Memory: memory},
			status.InvalidValue},
		{client.Request{Type: client.Extents, Length: iomsg.ExtentSize, Range: size}, nil},
	} {
		err := queue.Submit(&test.request)
		if test.want != nil {
			if !errors.Is(err, test.want) || queue.Outstanding() != 0 {
				t.Errorf("%+v: %v, and %d requests are outstanding", test.request, err,
					queue.Outstanding())
			}
			continue
		}
		if err != nil {
			t.Fatalf("%+v: %v", test.request, err)
		}
		queue.Ring()
		sent := r.request()
		if client.RequestType(sent.Type) != test.request.Type ||
			sent.StorageOffset != test.request.Offset {
			t.Fatalf("the relay has received %+v instead of %+v", sent, test.request)
		}
		r.respond(sent)
		if got := results(t, queue, 1)[0]; got.Code != status.Success {
			t.Errorf("%+v ended with %v", test.request, got.Err())
		}
	}
}
