// SPDX-License-Identifier: Apache-2.0

package chaintest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// SubmitReads submits depth reads of whole blocks, tagged from 0.
func SubmitReads(t *testing.T, q *client.Queue, depth int) {
	t.Helper()
	for i := range uint64(depth) {
		err := q.Submit(&client.Request{Type: client.Read, Length: BlockSize, Offset: i * BlockSize,
			Memory: i * BlockSize, Tag: i})
		if err != nil {
			t.Fatalf("submit %d: %v", i, err)
		}
	}
	q.Ring()
}

// SubmitRead submits a read of the first block.
func SubmitRead(t *testing.T, queue *client.Queue, tag uint64) {
	t.Helper()
	err := queue.Submit(&client.Request{
		Type: client.Read, Length: BlockSize, Memory: tag * BlockSize, Tag: tag,
	})
	if err != nil {
		t.Fatal(err)
	}
	queue.Ring()
}

// Collect polls until count results have arrived, and a moment longer for unexpected ones.
func Collect(t *testing.T, q *client.Queue, count int) map[uint64][]status.Code {
	t.Helper()
	codes := map[uint64][]status.Code{}
	results := make([]client.Result, 32)
	deadline := time.Now().Add(testkit.Patience)
	for total := 0; total < count; {
		n := q.Poll(results)
		for _, r := range results[:n] {
			codes[r.Tag] = append(codes[r.Tag], r.Code)
		}
		if total += n; n == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d results arrived", total, count)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	time.Sleep(10 * time.Millisecond)
	if n := q.Poll(results); n != 0 {
		t.Errorf("%d results too many", n)
	}
	return codes
}

// ExpectOnce checks that each of the count requests completed exactly once, with code.
func ExpectOnce(t *testing.T, codes map[uint64][]status.Code, count int, code status.Code) {
	t.Helper()
	for tag := range uint64(count) {
		if got := codes[tag]; len(got) != 1 || got[0] != code {
			t.Errorf("request %d ended with %v, want %v once", tag, got, code)
		}
	}
}

// NewEngine returns the engine of a thread that uses a queue.
func NewEngine(tb testing.TB, q *client.Queue) *progress.Engine {
	tb.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := q.Attach(engine); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		q.Detach(engine)
		if err := engine.Close(); err != nil {
			tb.Error(err)
		}
	})
	return engine
}

// RandomBytes returns bytes that differ from place to place, and from those of another seed.
func RandomBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TransferAll keeps depth requests outstanding until count have completed. It must not allocate.
func TransferAll(tb testing.TB, v *client.Volume, engine *progress.Engine, kind client.RequestType,
	size uint32, depth, count int) {
	q := v.Queue(0)
	blocks := v.Info().Size / uint64(size)
	var results [64]client.Result
	request := client.Request{Type: kind, Length: size}
	submitted, done := 0, 0
	submit := func(tag uint64) {
		request.Tag, request.Memory = tag, tag*uint64(size)
		request.Offset = uint64(submitted) * 7919 % blocks * uint64(size)
		if err := q.Submit(&request); err != nil {
			tb.Fatal(err)
		}
		submitted++
	}
	for tag := range uint64(min(depth, count)) {
		submit(tag)
	}
	q.Ring()
	for done < count {
		n := q.Poll(results[:])
		for _, r := range results[:n] {
			if r.Code != 0 {
				tb.Fatalf("request failed: %v", r.Code)
			}
			if done++; submitted < count {
				submit(r.Tag)
			}
		}
		q.Ring()
		engine.Idle(n)
	}
}

// readPatiently reads the first block until it succeeds. The session that is about to end may still
// accept the read, and then fails it.
func readPatiently(t *testing.T, q *client.Queue) {
	t.Helper()
	results := make([]client.Result, 1)
	outstanding := false
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); {
		if !outstanding {
			err := q.Submit(&client.Request{Type: client.Read, Length: BlockSize})
			if err != nil && !errors.Is(err, status.Again) {
				t.Fatalf("submit: %v", err)
			}
			outstanding = err == nil
			q.Ring()
		}
		if q.Poll(results) == 1 {
			switch results[0].Code {
			case status.Success:
				return
			case status.ConnectionReset, status.Shutdown, status.TimeOut:
				outstanding = false
			default:
				t.Fatalf("read ended with %v", results[0].Code)
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no read succeeded")
}
