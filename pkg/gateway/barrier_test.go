// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// begin starts a command on a range that one operation covers. A write writes the byte fill.
func (th *thread) begin(command blockio.Command, offset, length uint64,
	fill byte) <-chan blockio.Errno {
	th.t.Helper()
	outcome := make(chan blockio.Errno, 1)
	th.do(func() {
		op := th.session.Claim(command, 0, offset, length)
		if op == nil || op.Length != length {
			th.t.Errorf("%v of %d bytes gets %+v", command, length, op)
			return
		}
		if command == blockio.Write {
			copy(op.Data, bytes.Repeat([]byte{fill}, int(length)))
		}
		th.mu.Lock()
		th.completed[op] = outcome
		th.mu.Unlock()
		th.session.Submit(op)
		th.disk.Ring()
	})
	return outcome
}

// leave ends the thread's session.
func (th *thread) leave() { th.do(func() { th.session.Close() }) }

// writes returns what to hold: writes of the byte fill.
func (v volume) writes(fill byte) func(r *client.Request) bool {
	return func(r *client.Request) bool {
		return r.Type == client.Write && v.Memory()[r.Memory] == fill
	}
}

// submitted returns how many requests the queues have got.
func (v volume) submitted() (n uint64) {
	for i := range v.Volume.Info.Queues {
		n += v.Queue(i).Submitted.Load()
	}
	return n
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// now is a context for what must not wait.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// forQueues runs a test with an export of 1, 2, and 4 queues: x is a session on the first and y one
// on the last.
func forQueues(t *testing.T, test func(t *testing.T, v volume, e *gateway.Export, x, y *thread)) {
	for _, queues := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			v := newVolume(queues)
			e := newExport(t, v, queues, 2*queues)
			first := start(t, e, 0)
			last := first
			for i := 1; i < queues; i++ {
				last = start(t, e, i)
			}
			test(t, v, e, first.another(), last)
		})
	}
}

const (
	place  = 2 * block // that x changes
	length = 4 * block
)

func TestWhatOverlapsAnOrphanWaitsForIt(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		v.Hold(v.writes('x'))
		x.begin(blockio.Write, place, length, 'x')
		x.leave()
		before := v.submitted()
		waiting := map[string]<-chan blockio.Errno{
			"trim":         y.begin(blockio.Trim, 0, volumeSize, 0),
			"write zeroes": y.begin(blockio.WriteZeroes, place+5, 1, 0),
			"write":        y.begin(blockio.Write, place+block, length, 'y'),
			"read":         y.begin(blockio.Read, place+length-1, 1, 0),
			"cache":        y.begin(blockio.Cache, place, 1, 0),
			"block status": y.begin(blockio.BlockStatus, 0, volumeSize, 0),
			"flush":        y.begin(blockio.Flush, 0, 0, 0),
		}
		if n := v.submitted(); n != before {
			t.Errorf("%d requests were sent beside an orphan", n-before)
		}
		if err := e.Barrier(now()); !errors.Is(err, status.Full) {
			t.Errorf("Barrier beside an orphan: %v", err)
		}
		data := make([]byte, block)
		failure := y.call(blockio.Read, 0, place+length, block, data)
		if failure != blockio.Success {
			t.Errorf("a read elsewhere: %v", failure)
		}
		v.Hold(nil)
		if err := e.Barrier(within(t)); err != nil {
			t.Error(err)
		}
		for name, outcome := range waiting {
			if failure := <-outcome; failure != blockio.Success {
				t.Errorf("%s: %v", name, failure)
			}
		}
		want := append(make([]byte, block), bytes.Repeat([]byte{'y'}, length)...)
		if !bytes.Equal(v.Data()[place:][:len(want)], want) {
			t.Error("the orphan has overwritten what came after it")
		}
	})
}

// Zeroes have several parts. What overlaps those that are done goes on.
func TestALongChangeReleasesWhatItHasDone(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		const tail = 7 * block // of which the zeroes cover a part
		v.Hold(func(r *client.Request) bool { return r.Offset == tail })
		zeroes := x.begin(blockio.WriteZeroes, 5, tail, 0)
		inTail := y.begin(blockio.Write, tail+block-1, 1, 'y')
		done := y.begin(blockio.Write, block, tail-block, 'y')
		testkit.Eventually(t, "what is zeroed is written", func() bool { return len(done) > 0 })
		if failure := <-done; failure != blockio.Success {
			t.Errorf("a write to what is zeroed: %v", failure)
		}
		select {
		case failure := <-inTail:
			t.Errorf("a write to the part in progress: %v", failure)
		default:
		}
		v.Hold(nil)
		for name, outcome := range map[string]<-chan blockio.Errno{"zeroes": zeroes, "tail": inTail} {
			if failure := <-outcome; failure != blockio.Success {
				t.Errorf("%s: %v", name, failure)
			}
		}
		want := append(make([]byte, block), bytes.Repeat([]byte{'y'}, tail-block)...)
		want = append(want, make([]byte, block)...)
		want[tail+block-1] = 'y'
		if !bytes.Equal(v.Data()[:len(want)], want) {
			t.Error("a change has undone another")
		}
	})
}

// A connection ends with requests in each state: only those that were sent have an effect.
func TestWhatADeadConnectionHasNotSentIsDropped(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		v.Hold(v.writes('x'))
		var queued uint64 = 2
		for i := range depth + queued {
			x.begin(blockio.Write, i*block, block, 'x')
		}
		x.begin(blockio.Write, 0, 1, 'x')                        // waits for its range
		x.begin(blockio.Read, (depth+queued+1)*block, 1, 0)      // waits for room, too
		behind := y.begin(blockio.Write, depth*block, 1, 'y')    // behind a request that is dropped
		x.do(func() { x.session.Claim(blockio.Write, 0, 0, 1) }) // and one that was not submitted
		x.leave()
		v.Hold(nil)
		if err := e.Barrier(within(t)); err != nil {
			t.Error(err)
		}
		if failure := <-behind; failure != blockio.Success {
			t.Error(failure)
		}
		want := append(bytes.Repeat([]byte{'x'}, depth*block), 'y')
		want = append(want, make([]byte, 4*block-1)...)
		if !bytes.Equal(v.Data()[:len(want)], want) {
			t.Error("the volume has other content than what was sent")
		}
		for range 3 { // the session's place and memory are free again
			again := x.another()
			failure := again.call(blockio.Read, 0, 0, 2*buffer, nil)
			if failure != blockio.Success {
				t.Error(failure)
			}
			again.leave()
		}
	})
}

// A write is in progress when the session of the volume is lost. It may take effect until the next
// session begins, whether its connection ends before the loss or while the write is to be repeated.
func TestAnOrphanOfALostSessionLastsUntilTheNextBegins(t *testing.T) {
	for name, endsBefore := range map[string]bool{"before the loss": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
				v.Hold(v.writes('x'))
				x.begin(blockio.Write, place, length, 'x')
				read := x.begin(blockio.Read, 0, 1, 0)
				if endsBefore {
					x.leave()
				} else {
					<-read
				}
				v.Outage.Store(true)
				v.Restart(false)
				x.do(func() { // all results of the session
					for range depth {
						x.disk.Poll()
					}
				})
				if !endsBefore {
					x.leave()
				}
				later := y.begin(blockio.Write, place, length, 'y')
				if err := e.Barrier(now()); !errors.Is(err, status.Full) {
					t.Errorf("Barrier before the next session: %v", err)
				}
				v.Outage.Store(false)
				if err := e.Barrier(within(t)); err != nil {
					t.Error(err)
				}
				if failure := <-later; failure != blockio.Success {
					t.Error(failure)
				}
				want := bytes.Repeat([]byte{'y'}, length)
				if !bytes.Equal(v.Data()[place:][:length], want) {
					t.Error("the request of a dead connection was repeated")
				}
			})
		})
	}
}

// lateQueue delivers results late, as hooks do that delay requests.
type lateQueue struct {
	gateway.Queue
	isLate atomic.Bool
	kept   []client.Result
}

func (q *lateQueue) Poll(results []client.Result) int {
	n := q.Queue.Poll(results)
	q.kept = append(q.kept, results[:n]...)
	if q.isLate.Load() {
		return 0
	}
	n = copy(results, q.kept)
	q.kept = q.kept[n:]
	return n
}

// The result of an orphan is late: its request has been carried out, or its session has been
// replaced already.
func TestAnOrphanWhoseResultIsLateEndsWithTheResult(t *testing.T) {
	for name, isLost := range map[string]bool{"carried out": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(1)
			q := &lateQueue{Queue: v.Queue(0)}
			q.isLate.Store(true)
			e, err := gateway.New(gateway.Config{Volume: v, Queues: []gateway.Queue{q}, Sessions: 2,
				Repeat: true, RepeatFor: retry.Within(testkit.Patience)})
			if err != nil {
				t.Fatal(err)
			}
			y := start(t, e, 0)
			x := y.another()
			x.do(func() {
				if isLost {
					v.Hold(v.writes('x'))
				}
				former := q.Session()
				op := x.session.Claim(blockio.Write, 0, place, length)
				copy(op.Data, bytes.Repeat([]byte{'x'}, length))
				x.session.Submit(op)
				x.session.Close()
				if isLost {
					v.Restart(false)
				}
				for len(q.kept) == 0 || isLost && q.Session() == former {
					x.disk.Poll()
				}
			})
			later := y.begin(blockio.Write, place, length, 'y')
			if err := e.Barrier(now()); !errors.Is(err, status.Full) {
				t.Errorf("Barrier before the result: %v", err)
			}
			q.isLate.Store(false)
			if err := e.Barrier(within(t)); err != nil {
				t.Error(err)
			}
			if failure := <-later; failure != blockio.Success {
				t.Error(failure)
			}
			if want := bytes.Repeat([]byte{'y'}, length); !bytes.Equal(v.Data()[place:][:length],
				want) {
				t.Error("the orphan has overwritten what came after it")
			}
		})
	}
}

func TestAVolumeThatIsLostForGoodHasNoOrphans(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		v.Hold(v.writes('x'))
		x.begin(blockio.Write, place, length, 'x')
		x.leave()
		later := y.begin(blockio.Write, place, length, 'y')
		v.Outage.Store(true)
		v.Restart(false)
		v.Disconnect(status.Errorf(status.NotConnected, "lost"))
		if failure := <-later; failure != blockio.IOError {
			t.Errorf("a write that waits for an orphan: %v", failure)
		}
		if err := e.Barrier(within(t)); err != nil {
			t.Error(err)
		}
	})
}

// An orphan hangs. The export then ends the session of the volume, and repeats what a living
// connection has in progress.
func TestAnOrphanThatHangsEndsWithItsSession(t *testing.T) {
	v := newVolume(1)
	config := gateway.Config{Volume: v, Queues: []gateway.Queue{v.Queue(0)}, Sessions: 2,
		Repeat: true, RepeatFor: retry.Within(testkit.Patience), OrphanPatience: time.Millisecond}
	e, err := gateway.New(config)
	if err != nil {
		t.Fatal(err)
	}
	y := start(t, e, 0)
	x := y.another()
	v.Hold(func(*client.Request) bool { return v.reopened.Load() == 0 })
	living := y.begin(blockio.Write, 0, block, 'y')
	x.begin(blockio.Write, place, length, 'x')
	x.leave()
	if err := e.Barrier(within(t)); err != nil {
		t.Error(err)
	}
	if failure := <-living; failure != blockio.Success {
		t.Errorf("a write of a living connection: %v", failure)
	}
	want := append(bytes.Repeat([]byte{'y'}, block), make([]byte, volumeSize-block)...)
	if !bytes.Equal(v.Data(), want) {
		t.Error("the orphan has had an effect")
	}
}

func TestAnExportThatCloseFindsWithOrphansHasNoneLeft(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		v.Hold(v.writes('x'))
		x.begin(blockio.Write, place, length, 'x')
		x.leave()
		y.leave()
		x.do(func() {
			if err := x.disk.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := e.Barrier(within(t)); err != nil {
			t.Error(err)
		}
	})
}
