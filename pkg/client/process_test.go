// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// process calls Process until it has reported count results.
func process(t *testing.T, q *client.Queue, count int) {
	t.Helper()
	testkit.Eventually(t, "the requests complete", func() bool {
		count -= q.Process()
		return count <= 0
	})
}

func TestProcessCallsEachFunctionOnceWithItsResult(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	var got []client.Result
	note := func(result *client.Result) { got = append(got, *result) }
	for tag := range uint64(3) {
		request := scattered(tag, 1+int(tag)%2) // tag 1 has two segments
		if tag != 2 {
			request.Done = note
		}
		if err := q.Submit(request); err != nil {
			t.Fatal(err)
		}
	}
	q.Ring()
	for _, code := range []status.Code{status.Success, status.Success, status.IOFailed,
		status.Success} {
		r.respondWith(r.request(), code)
	}
	process(t, q, 3) // the one without a function counts
	if len(got) != 2 || got[0] != (client.Result{Tag: 0}) ||
		got[1] != (client.Result{Tag: 1, Code: status.IOFailed}) {
		t.Errorf("the functions got %+v", got)
	}
	// A slot forgets its function, and Poll calls none.
	for tag := range uint64(testDepth) {
		submit(t, q, tag)
		r.respond(r.request())
	}
	process(t, q, testDepth)
	if err := q.Submit(&client.Request{Type: client.Flush, Done: note}); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	r.respond(r.request())
	results(t, q, 1)
	if len(got) != 2 {
		t.Errorf("the functions got %+v", got[2:])
	}
}

func TestAFunctionMaySubmitTheNextRequest(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	const chain = 10
	done := 0
	var next func(*client.Result)
	next = func(result *client.Result) {
		if result.Tag != uint64(done) {
			t.Errorf("result %d has tag %d", done, result.Tag)
		}
		if n := q.Process(); n != 0 {
			t.Errorf("Process within a function has returned %d", n)
		}
		if done++; done == chain {
			return
		}
		if err := q.Submit(&client.Request{Type: client.Flush, Tag: uint64(done),
			Done: next}); err != nil {
			t.Error(err)
		}
	}
	for tag := range uint64(testDepth - 1) { // others are outstanding meanwhile
		submit(t, q, 100+tag)
	}
	if err := q.Submit(&client.Request{Type: client.Flush, Done: next}); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	for range testDepth - 1 {
		r.request()
	}
	for range chain {
		r.respond(r.request()) // arrives without a Ring, which Process has called
		process(t, q, 1)
	}
	if done != chain {
		t.Errorf("%d of %d requests have completed", done, chain)
	}
}

func TestProcessGoesOnAfterAPanicOfAFunction(t *testing.T) {
	r := newFakeRelay(t)
	q := r.open(testkit.Patience).Queue(0)
	if err := q.Submit(&client.Request{Type: client.Flush,
		Done: func(*client.Result) { panic("made up") }}); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	r.respond(r.request())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is swallowed")
			}
		}()
		process(t, q, 1)
	}()
	called := false
	if err := q.Submit(&client.Request{Type: client.Flush,
		Done: func(*client.Result) { called = true }}); err != nil {
		t.Fatal(err)
	}
	q.Ring()
	r.respond(r.request())
	process(t, q, 1)
	if !called {
		t.Error("the next function is not called")
	}
}

func TestLostRequestsReachTheirFunctions(t *testing.T) {
	t.Parallel()
	r := newSilentRelay(t)
	q := openReconnecting(r).Queue(0)
	var got []client.Result
	note := func(result *client.Result) { got = append(got, *result) }
	for tag := range uint64(2) {
		request := scattered(tag, 1+int(tag))
		request.Done = note
		if err := q.Submit(request); err != nil {
			t.Fatal(err)
		}
	}
	r.cut()
	process(t, q, 2)
	if len(got) != 2 || got[0].Tag == got[1].Tag || !got[0].Quarantined || !got[1].Quarantined {
		t.Errorf("the functions got %+v", got)
	}
	<-r.started
}
