package software

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// pieceSize is how many bytes are copied at a stretch. A copy cannot be
// interrupted, not even by a garbage collection that waits to begin, so it must
// be short; and long enough that nothing is lost by the breaks.
const pieceSize = 256 << 10

// copyThread is an operating system thread that does what comes out of one
// queue and puts it into another.
type copyThread struct {
	submitted *queue
	done      *queue
	progress  *progress.Engine
	stopping  atomic.Bool
	stopped   chan struct{}
}

func startCopyThread(done *queue, capacity int, policy progress.Policy) (*copyThread, error) {
	submitted, err := newQueue(capacity)
	if err != nil {
		return nil, err
	}
	engine, err := progress.NewEngine(policy)
	if err != nil {
		return nil, errors.Join(err, submitted.close())
	}
	t := &copyThread{submitted: submitted, done: done, progress: engine, stopped: make(chan struct{})}
	if err := errors.Join(engine.Add(t), engine.AddWaiter(submitted)); err != nil {
		return nil, errors.Join(err, engine.Close(), submitted.close())
	}
	go t.run()
	return t, nil
}

func (t *copyThread) run() {
	defer close(t.stopped)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !t.stopping.Load() {
		t.progress.Idle(t.progress.Progress())
	}
}

// stop ends the thread, which has nothing to do.
func (t *copyThread) stop() error {
	t.stopping.Store(true)
	t.progress.Wake()
	<-t.stopped
	return errors.Join(t.progress.Close(), t.submitted.close())
}

// Poll does one copy.
func (t *copyThread) Poll() int {
	c := t.submitted.take()
	if c == nil {
		return 0
	}
	c.Err = carryOut(c)
	t.done.add(c)
	return 1
}

// carryOut copies the sources, one after the other, to the destination.
func carryOut(c *dma.Copy) error {
	to, offset := c.Destination.Memory.(*registration).region, c.Destination.Offset
	for _, source := range c.Sources {
		if err := copySegment(to, offset, source); err != nil {
			return err
		}
		offset += source.Length
	}
	return nil
}

func copySegment(to *memory.Region, offset uint64, source dma.Segment) error {
	from := source.Memory.(*registration).region
	for done := uint64(0); done < source.Length; {
		n := min(pieceSize, source.Length-done)
		if err := memory.Copy(to, offset+done, from, source.Offset+done, n); err != nil {
			return err
		}
		done += n
	}
	return nil
}
