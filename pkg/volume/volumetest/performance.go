// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// testAllocations counts the allocations of all threads while it repeatedly has a read, two writes,
// and a flush in flight together.
func testAllocations(t *testing.T, v volume.Volume) {
	build, _ := debug.ReadBuildInfo()
	if build != nil &&
		slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector allocates")
	}
	queue := NewQueue(t, v, 4)
	defer CloseQueue(t, queue)
	block := uint64(v.Info().BlockSize)
	var requests [4]volume.Request
	completed := make([]*volume.Request, len(requests))
	for i, operation := range offered(v.Info())[:4] {
		requests[i] = volume.Request{Operation: operation, Offset: uint64(i) * block, Length: block,
			Buffer: make([]byte, block)}
	}
	allocations := testing.AllocsPerRun(200, func() {
		for i := range requests {
			if err := queue.Submit(&requests[i]); err != nil {
				t.Fatal(err)
			}
		}
		for done := 0; done < len(requests); {
			n := queue.Poll(completed)
			if done += n; n == 0 {
				sleep(t, queue)
			}
		}
	})
	if allocations > 0 {
		t.Errorf("%v allocations per %d requests", allocations, len(requests))
	}
}

// Benchmark measures reads and writes of two sizes at two depths, driven by an adaptive progress
// engine as on a target. The volume should have 32 MiB.
func Benchmark(b *testing.B, open Open) {
	for _, operation := range []iomsg.Operation{iomsg.OpRead, iomsg.OpWrite} {
		for _, bytes := range []size.Bytes{4 * size.KiB, 128 * size.KiB} {
			for _, depth := range []int{1, 32} {
				b.Run(fmt.Sprintf("%v/%v/depth=%d", operation, bytes, depth), func(b *testing.B) {
					benchmark(b, MustOpen(b, open), operation, uint64(bytes), depth)
				})
			}
		}
	}
}

func benchmark(b *testing.B, v volume.Volume, operation iomsg.Operation, length uint64, depth int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer CloseVolume(b, v)
	queue := NewQueue(b, v, depth)
	defer CloseQueue(b, queue)
	fill(b, v, queue)
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	l := &load{b: b, queue: queue, size: v.Info().Size, left: b.N,
		completed: make([]*volume.Request, depth)}
	if err := errors.Join(engine.Add(l), engine.AddWaiter(queue)); err != nil {
		b.Fatal(err)
	}
	requests := make([]volume.Request, depth)
	b.SetBytes(int64(length))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range requests {
		requests[i] = volume.Request{Operation: operation, Length: length,
			Buffer: make([]byte, length)}
		l.submit(&requests[i])
	}
	for l.running > 0 {
		engine.Idle(engine.Progress())
	}
}

// load keeps a queue busy until it has submitted and completed a given number of requests.
type load struct {
	b         *testing.B
	queue     volume.Queue
	size      uint64
	left      int
	running   int
	position  uint64
	completed []*volume.Request
}

// Poll resubmits every completed request.
func (l *load) Poll() int {
	n := l.queue.Poll(l.completed)
	l.running -= n
	for _, r := range l.completed[:n] {
		if r.Err != nil {
			l.b.Fatal(r.Err)
		}
		l.submit(r)
	}
	return n
}

// submit submits r at a pseudo-random offset, which defeats readahead.
func (l *load) submit(r *volume.Request) {
	if l.left == 0 {
		return
	}
	l.left--
	l.position = l.position*6364136223846793005 + 1442695040888963407
	r.Offset = (l.position >> 20) % (l.size / r.Length) * r.Length
	if err := l.queue.Submit(r); err != nil {
		l.b.Fatal(err)
	}
	l.running++
}

// fill writes every block of a volume.
func fill(t testing.TB, v volume.Volume, queue volume.Queue) {
	t.Helper()
	step := min(v.Info().Size, 1<<20)
	r := volume.Request{Operation: iomsg.OpWrite, Length: step, Buffer: make([]byte, step)}
	for i := range r.Buffer {
		r.Buffer[i] = byte(i)
	}
	for r.Offset = 0; r.Offset+step <= v.Info().Size; r.Offset += step {
		Do(t, queue, &r)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}
