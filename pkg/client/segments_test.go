// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// scattered returns a read into every other block of the memory.
func scattered(tag uint64, segments int) *client.Request {
	r := &client.Request{Type: client.Read, Offset: testBlock, Tag: tag}
	for i := range segments {
		r.Segments = append(r.Segments,
			client.Segment{Memory: uint64(segments-1-i) * testBlock, Length: testBlock})
		r.Length += testBlock
	}
	return r
}

// respondWith completes a request with a code.
func (r *fakeRelay) respondWith(request iomsg.Message, code status.Code) {
	r.t.Helper()
	var result [iomsg.Size]byte
	iomsg.Encode(result[:], &iomsg.Message{Type: iomsg.Result, UserData: request.UserData,
		Result: code})
	r.send(result[:])
}

func TestEachSegmentIsAMessageOfItsOwn(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	request := scattered(7, 3)
	if err := q.Submit(request); err != nil {
		t.Fatal(err)
	}
	clear(request.Segments) // Submit does not keep them
	q.Ring()
	for i := range uint64(3) {
		m := r.request()
		if m.Type != iomsg.Read || m.IOSize != testBlock || m.StorageOffset != (i+1)*testBlock ||
			m.RequesterOffset != (2-i)*testBlock {
			t.Errorf("message %d is %+v", i, m)
		}
	}
	if n := q.Outstanding(); n != 1 {
		t.Errorf("%d requests are outstanding, want 1", n)
	}
	var tags []uint64
	for p := range q.Pending() {
		tags = append(tags, p.Tag)
	}
	if len(tags) != 1 || tags[0] != 7 {
		t.Errorf("the requests %v are pending, want 7", tags)
	}
}

func TestARequestWithSegmentsCompletesOnceWithItsFirstError(t *testing.T) {
	const ok, full, failed = status.Success, status.NoMemory, status.IOFailed
	for name, c := range map[string]struct {
		codes [3]status.Code // by segment
		order [3]int         // of the responses
		want  status.Code
	}{
		"success":                 {[3]status.Code{ok, ok, ok}, [3]int{2, 0, 1}, ok},
		"one fails at the end":    {[3]status.Code{ok, ok, failed}, [3]int{0, 1, 2}, failed},
		"one fails first":         {[3]status.Code{failed, ok, ok}, [3]int{0, 1, 2}, failed},
		"the later one is first":  {[3]status.Code{ok, full, failed}, [3]int{2, 1, 0}, full},
		"the later one is second": {[3]status.Code{ok, full, failed}, [3]int{0, 1, 2}, full},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRelay(t)
			v := r.open(testkit.Patience)
			q := v.Queue(0)
			if err := q.Submit(scattered(7, 3)); err != nil {
				t.Fatal(err)
			}
			q.Ring()
			messages := [3]iomsg.Message{r.request(), r.request(), r.request()}
			batch := make([]client.Result, 8)
			for i, segment := range c.order {
				if n := q.Poll(batch); n != 0 || q.Outstanding() != 1 {
					t.Fatalf("%d results after %d responses, %d outstanding", n, i, q.Outstanding())
				}
				r.respondWith(messages[segment], c.codes[segment])
			}
			if got := results(t, q, 1); len(got) != 1 || got[0].Tag != 7 || got[0].Code != c.want {
				t.Errorf("outcome is %+v, want %v once", got, c.want)
			}
			want := client.Stats{Submitted: 1, Completed: 1, BytesRead: 3 * testBlock}
			if c.want != ok {
				want.Failed, want.BytesRead = 1, 0
			}
			if got := q.Stats(); got != want || v.Stats() != want {
				t.Errorf("the counters are %+v, want %+v", got, want)
			}
			// All slots are free, and are those of ordinary requests again.
			for i := range uint64(testDepth) {
				submit(t, q, i)
			}
			for range testDepth {
				r.respond(r.request())
			}
			if got := results(t, q, testDepth); len(got) != testDepth {
				t.Errorf("%d of %d requests have completed", len(got), testDepth)
			}
		})
	}
}

// The relay takes fewer messages than a request has segments.
func TestSegmentsWaitForARelayThatHasNoRoom(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(2)
	q := r.open(testkit.Patience).Queue(0)
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.Detach(engine)
		_ = engine.Close()
	})
	if err := q.Attach(engine); err != nil {
		t.Fatal(err)
	}
	if err := q.Submit(scattered(7, testDepth-1)); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	first, second := r.request(), r.request()
	batch := make([]client.Result, 8)
	q.Poll(batch)
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		if err := r.consumers[0].PostReceive(0, iomsg.Size, 0); err != nil {
			t.Error(err)
		}
		r.consumers[0].Flush()
	}()
	received := make([]comch.Received, 1)
	testkit.Eventually(t, "the last segment is sent", func() bool {
		engine.Idle(q.Poll(batch)) // sleeps until there is room
		select {
		case <-posted:
			return r.consumers[0].Poll(received) > 0
		default:
			return false
		}
	})
	if n := engine.Stats().LateWakeups; n != 0 {
		t.Errorf("%d wake-ups were late", n)
	}
	var third iomsg.Message
	iomsg.Decode(r.consumers[0].Memory()[received[0].Offset:], &third)
	if third.StorageOffset != 3*testBlock {
		t.Errorf("the last message is %+v", third)
	}
	for _, m := range []iomsg.Message{third, second, first} {
		r.respond(m)
	}
	if got := results(t, q, 1); len(got) != 1 || got[0].Tag != 7 || got[0].Code != status.Success {
		t.Errorf("outcome is %+v", got)
	}
}

func TestNoRequestOvertakesSegments(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(1)
	q := r.open(testkit.Patience).Queue(0)
	if err := q.Submit(scattered(7, 2)); err != nil {
		t.Fatal(err)
	}
	r.request()
	for i := range uint32(3) {
		if err := r.consumers[0].PostReceive(i*iomsg.Size, iomsg.Size, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	r.consumers[0].Flush()
	flush := &client.Request{Type: client.Flush}
	for _, late := range []*client.Request{flush, scattered(8, 2)} {
		if err := q.Submit(late); !errors.Is(err, status.Again) {
			t.Errorf("a request overtakes a segment: %v", err)
		}
	}
	q.Poll(make([]client.Result, 1)) // sends the segment
	if err := q.Submit(flush); err != nil {
		t.Fatal(err)
	}
	if m := r.request(); m.StorageOffset != 2*testBlock {
		t.Errorf("the first message is %+v", m)
	}
	if m := r.request(); m.Type != iomsg.Flush {
		t.Errorf("the second message is %+v", m)
	}
}

func TestCloseSendsTheSegmentsThatWait(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(1)
	v := r.open(testkit.Patience)
	q := v.Queue(0)
	if err := q.Submit(scattered(7, 2)); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	closed := make(chan error, 1)
	go func() { closed <- v.Close(t.Context()) }()
	first := r.request()
	for i := range uint32(2) { // room for the second segment, and the stop message
		if err := r.consumers[0].PostReceive(i*iomsg.Size, iomsg.Size, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	r.consumers[0].Flush()
	second, last := r.request(), r.request()
	if second.StorageOffset != 2*testBlock || last.Type != iomsg.Stop {
		t.Errorf("the last messages are %+v and %+v", second, last)
	}
	r.respond(first)
	r.respond(second)
	var stop [iomsg.Size]byte
	iomsg.Encode(stop[:], &last)
	r.send(stop[:])
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestARequestWithSegmentsIsLostOnce(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]int{"before all": 0, "before one": 1, "after the first": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSilentRelay(t)
			v := openReconnecting(r)
			q := v.Queue(0)
			if err := q.Submit(scattered(7, 3)); err != nil {
				t.Fatal(err)
			}
			q.Ring()
			messages := [3]iomsg.Message{r.request(), r.request(), r.request()}
			for i := range answered {
				r.respondWith(messages[i], [2]status.Code{status.Success, status.IOFailed}[i])
			}
			r.cut()
			got := results(t, q, 1)
			want := status.ConnectionReset
			if answered == 2 {
				want = status.IOFailed // of the second segment, but the third is in quarantine
			}
			if len(got) != 1 || got[0].Tag != 7 || got[0].Code != want || !got[0].Quarantined {
				t.Errorf("outcome is %+v, want %v in quarantine", got, want)
			}
			<-r.started
			testkit.Eventually(t, "the queue has a session", func() bool {
				q.SwitchMemory()
				err := q.Submit(scattered(8, testDepth))
				return err == nil
			})
		})
	}
}

// Segments that are not sent when the session ends are lost with it, and not sent in the next one.
func TestUnsentSegmentsBelongToTheirSession(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(1)
	v := r.openWith(client.Config{IOTimeout: testkit.Patience,
		Reconnect: &retry.Policy{FirstPause: time.Millisecond}})
	q := v.Queue(0)
	if err := q.Submit(scattered(7, 3)); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	r.receives.Store(64)
	r.cut()
	if got := results(t, q, 1); len(got) != 1 || got[0].Tag != 7 ||
		got[0].Code != status.ConnectionReset {
		t.Errorf("outcome is %+v", got)
	}
	<-r.started
	testkit.Eventually(t, "the queue has a session", func() bool {
		err := q.Submit(&client.Request{Type: client.Flush, Tag: 8})
		return err == nil
	})
	q.Ring()
	received := make([]comch.Received, 4)
	testkit.Eventually(t, "the flush arrives", func() bool {
		return r.consumers[1].Poll(received) > 0
	})
	var m iomsg.Message
	iomsg.Decode(r.consumers[1].Memory()[received[0].Offset:], &m)
	if m.Type != iomsg.Flush {
		t.Errorf("the first message of the next session is %+v", m)
	}
}

func TestSegmentsAreChecked(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	for name, c := range map[string]struct {
		change func(*client.Request)
		want   status.Code
	}{
		"of a flush":        {func(r *client.Request) { r.Type = client.Flush }, status.InvalidValue},
		"of a trim":         {func(r *client.Request) { r.Type = client.Trim }, status.InvalidValue},
		"another sum":       {func(r *client.Request) { r.Length += testBlock }, status.InvalidValue},
		"a smaller sum":     {func(r *client.Request) { r.Length -= testBlock }, status.InvalidValue},
		"a part of a block": {func(r *client.Request) { r.Segments[1].Length = 512 }, status.InvalidValue},
		"an empty one":      {func(r *client.Request) { r.Segments[0].Length = 0 }, status.InvalidValue},
		"beyond the memory": {func(r *client.Request) { r.Segments[1].Memory = math.MaxUint64 },
			status.InvalidValue},
		"a large one": {func(r *client.Request) {
			r.Segments[0].Length, r.Length = 2*testBlock, 3*testBlock
		}, status.TooBig},
		"too many": {func(r *client.Request) { *r = *scattered(1, testDepth+1) }, status.TooBig},
		"beyond the volume": {func(r *client.Request) { r.Offset = 1<<20 - testBlock },
			status.InvalidValue},
		"sums that wrap around": {func(r *client.Request) {
			r.Segments[0].Length, r.Segments[1].Length = 1<<31, 1<<31
			r.Length = 0
		}, status.InvalidValue},
	} {
		request := scattered(1, 2)
		c.change(request)
		if err := q.Submit(request); !errors.Is(err, c.want) {
			t.Errorf("segments that are %s: %v, want %v", name, err, c.want)
		}
	}
	if n := q.Outstanding(); n != 0 {
		t.Errorf("%d requests are outstanding", n)
	}
	submit(t, q, 1)
	if err := q.Submit(scattered(2, testDepth)); !errors.Is(err, status.Again) {
		t.Errorf("segments without room in the queue: %v", err)
	}
	if n := q.Outstanding(); n != 1 {
		t.Errorf("%d requests are outstanding", n)
	}
}

func TestSegmentsDoNotAllocate(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	consumer, producer := r.consumers[0], r.producers[0]
	received := make([]comch.Received, testDepth)
	batch := make([]client.Result, testDepth)
	request := scattered(7, testDepth)
	transfer := func() {
		if err := q.Submit(request); err != nil {
			t.Fatal(err)
		}
		q.Ring()
		for _, message := range received[:consumer.Poll(received)] {
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
		if n := q.Poll(batch); n != 1 || batch[0].Code != status.Success {
			t.Fatalf("%d results: %+v", n, batch[0])
		}
	}
	if n := testing.AllocsPerRun(100, transfer); n != 0 {
		t.Errorf("%v allocations for each request", n)
	}
}
