// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock = 512
	testDepth = 4
)

func newTestQueue(t *testing.T, rules ...string) (*Queue, *queuetest.Volume, *fault.Injector) {
	t.Helper()
	injector, _ := faulttest.New(t, rules...)
	v := queuetest.New(64*testBlock, testBlock, 1, testDepth, testBlock)
	return NewQueue(v.Queue(0), testDepth, v.Memory, injector), v, injector
}

// submit submits requests for the blocks first to first+testDepth, with their numbers as tags.
func submit(t *testing.T, q *Queue, kind client.RequestType, first uint64) {
	t.Helper()
	for i := range uint64(testDepth) {
		r := client.Request{Type: kind, Length: testBlock, Offset: (first + i) * testBlock,
			Memory: i * testBlock, Tag: first + i}
		if err := q.Submit(&r); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Submit(&client.Request{Type: kind, Length: testBlock}); err != status.Again {
		t.Errorf("a full queue returned %v", err)
	}
}

// poll returns the results of several polls, by tag.
func poll(q *Queue) map[uint64]client.Result {
	all := make(map[uint64]client.Result)
	results := make([]client.Result, 3)
	for range 3 * testDepth {
		for _, r := range results[:q.Poll(results)] {
			all[r.Tag] = r
		}
	}
	return all
}

func TestARuleHitsItsRangeAlone(t *testing.T) {
	q, v, _ := newTestQueue(t, "volume:write:range=1024+512:error=ENOSPC")
	copy(v.Memory, bytes.Repeat([]byte{7}, testDepth*testBlock))
	submit(t, q, client.Write, 0)
	all := poll(q)
	for tag := range uint64(testDepth) {
		r, isHit := all[tag], tag == 2
		if isHit != (r.Code == status.IOFailed && r.Cause == status.Cause(syscall.ENOSPC)) ||
			isHit != (v.Data()[tag*testBlock] == 0) {
			t.Errorf("block %d: %+v", tag, r)
		}
	}
	submit(t, q, client.Write, 3)
	if all := poll(q); len(all) != testDepth || all[3].Code != status.Success {
		t.Errorf("later requests: %+v", all)
	}
}

func TestACorruptedWriteRestoresItsBuffer(t *testing.T) {
	q, v, _ := newTestQueue(t, "volume:write:nth=1:corrupt", "volume:read:nth=2:corrupt")
	copy(v.Memory, bytes.Repeat([]byte{7}, testDepth*testBlock))
	want := slices.Clone(v.Memory)
	submit(t, q, client.Write, 0)
	poll(q)
	if !bytes.Equal(v.Memory, want) || bytes.Equal(v.Data()[:testBlock], want[:testBlock]) ||
		!bytes.Equal(v.Data()[testBlock:len(want)], want[testBlock:]) {
		t.Error("the rule did not corrupt the first write alone")
	}
	submit(t, q, client.Read, 4)
	poll(q)
	if zero := make([]byte, testBlock); !bytes.Equal(v.Memory[:testBlock], zero) ||
		bytes.Equal(v.Memory[testBlock:][:testBlock], zero) {
		t.Error("the rule did not corrupt the second read alone")
	}
}

func TestFrozenRequestsCompleteAfterTheirRelease(t *testing.T) {
	q, v, injector := newTestQueue(t, "volume:read:nth=2:freeze")
	submit(t, q, client.Read, 8)
	all := poll(q)
	if _, complete := all[9]; complete || len(all) != testDepth-1 {
		t.Fatalf("before the release: %+v", all)
	}
	if r := v.Queue(0); r.Submitted.Load() != testDepth {
		t.Errorf("%d requests were submitted", r.Submitted.Load())
	}
	injector.Release()
	if all := poll(q); len(all) != 1 || all[9].Code != status.Success {
		t.Errorf("after the release: %+v", all)
	}
}

// drain is the source of an engine that polls a queue.
type drain struct {
	q      *Queue
	polled int
}

func (d *drain) Poll() int {
	n := d.q.Poll(make([]client.Result, testDepth))
	d.polled += n
	return n
}

func TestAThreadSleepsUntilADelayIsOver(t *testing.T) {
	const delay = 20 * time.Millisecond
	q, _, _ := newTestQueue(t, "volume:read:delay="+delay.String())
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := q.Attach(engine); err != nil {
		t.Fatal(err)
	}
	defer q.Detach(engine)
	d := &drain{q: q}
	if err := engine.Add(d); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	submit(t, q, client.Read, 0)
	for d.polled < testDepth {
		engine.Idle(engine.Progress())
	}
	stats := engine.Stats()
	if taken := time.Since(begun); taken < delay || stats.LateWakeups > 0 || stats.Sleeps == 0 {
		t.Errorf("the requests took %v, %d sleeps, %d late wake-ups", taken, stats.Sleeps,
			stats.LateWakeups)
	}
}
