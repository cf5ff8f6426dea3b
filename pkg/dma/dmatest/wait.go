package dmatest

import (
	"runtime"
	"time"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

var waitTests = []conformanceTest{
	{"AThreadSleepsUntilAJobIsDone", sleeps},
	{"NoWakeUpIsLost", noLostWakeUp},
}

func sleeps(b *bench) {
	if !b.device.Capabilities().CanWait {
		b.Skip("contexts of the device have no descriptor to sleep on")
	}
	l := b.newLaneWith(1, progress.Policy{Mode: progress.Event})
	size := min(b.device.Capabilities().MaxBufferSize, 1<<20)
	m, _ := b.localMap(int(2*size), memory.LocalWrite)
	v := b.inventory(2)
	for range 50 {
		x, y := b.byData(v, m, 0, size), b.byAddress(v, m, size, size)
		b.must(l.do(x, y).Err)
		b.release(x, y)
	}
	stats := l.engine.Stats()
	if stats.Sleeps == 0 || stats.LateWakeups > 0 {
		b.Errorf("%+v", stats)
	}
}

// noLostWakeUp has jobs finish about when the thread falls asleep, over and
// over.
func noLostWakeUp(b *bench) {
	l := b.newLaneWith(4, progress.Policy{SpinTime: time.Microsecond})
	m, _ := b.localMap(1<<16, memory.LocalWrite)
	v := b.inventory(8)
	for i := range 2000 {
		var buffers []*dma.Buffer
		for k := range i%4 + 1 {
			size := uint64(1) << (i % 14)
			x, y := b.byData(v, m, 0, size), b.byAddress(v, m, uint64(k+1)<<14-size, size)
			buffers = append(buffers, x, y)
			b.must(l.context.Submit(memcpy(x, y)))
		}
		if i%3 == 0 {
			runtime.Gosched()
		}
		l.await(i%4 + 1)
		b.release(buffers...)
	}
	if late := l.engine.Stats().LateWakeups; late > 0 {
		b.Errorf("%d late wake-ups", late)
	}
}
