package volumetest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Benchmark measures reads and writes of two sizes at two depths, driven by an
// adaptive progress engine as on a target. open is as in Run; the volume
// should have 32 MiB.
func Benchmark(b *testing.B, open func(testing.TB) volume.Volume) {
	for _, operation := range []volume.Operation{volume.Read, volume.Write} {
		for _, bytes := range []size.Bytes{4 * size.KiB, 128 * size.KiB} {
			for _, depth := range []int{1, 32} {
				b.Run(fmt.Sprintf("%v/%v/depth=%d", operation, bytes, depth), func(b *testing.B) {
					benchmark(b, open(b), operation, uint64(bytes), depth)
				})
			}
		}
	}
}

func benchmark(b *testing.B, v volume.Volume, operation volume.Operation, length uint64, depth int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer closeVolume(b, v)
	lane := newLane(b, v, depth)
	defer closeLane(b, lane)
	fill(b, v, lane)
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	if err := engine.AddWaiter(lane); err != nil {
		b.Fatal(err)
	}
	l := &load{b: b, lane: lane, size: v.Info().Size, left: b.N, completed: make([]*volume.Request, depth)}
	engine.Add(l)
	requests := make([]volume.Request, depth)
	b.SetBytes(int64(length))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range requests {
		requests[i] = volume.Request{Operation: operation, Length: length, Buffer: make([]byte, length)}
		l.submit(&requests[i])
	}
	for l.running > 0 {
		engine.Idle(engine.Progress())
	}
}

// load keeps a lane busy until a number of requests is done.
type load struct {
	b         *testing.B
	lane      volume.Lane
	size      uint64
	left      int
	running   int
	position  uint64
	completed []*volume.Request
}

// Poll implements progress.Source.
func (l *load) Poll() int {
	n := l.lane.Poll(l.completed)
	l.running -= n
	for _, r := range l.completed[:n] {
		if r.Err != nil {
			l.b.Fatal(r.Err)
		}
		l.submit(r)
	}
	return n
}

// submit starts r anew at a place that no readahead expects.
func (l *load) submit(r *volume.Request) {
	if l.left == 0 {
		return
	}
	l.left--
	l.position = l.position*6364136223846793005 + 1442695040888963407
	r.Offset = (l.position >> 20) % (l.size / r.Length) * r.Length
	if err := l.lane.Submit(r); err != nil {
		l.b.Fatal(err)
	}
	l.running++
}

// fill gives every block of a volume content.
func fill(t testing.TB, v volume.Volume, lane volume.Lane) {
	t.Helper()
	step := min(v.Info().Size, 1<<20)
	r := volume.Request{Operation: volume.Write, Length: step, Buffer: make([]byte, step)}
	for i := range r.Buffer {
		r.Buffer[i] = byte(i)
	}
	for r.Offset = 0; r.Offset+step <= v.Info().Size; r.Offset += step {
		Do(t, lane, &r)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}
