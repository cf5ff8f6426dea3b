// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"bytes"
	"errors"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/hook"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = 4096

// open opens a memory volume of 1 MiB with hooks.
func open(t testing.TB, injector *fault.Injector) volume.Volume {
	t.Helper()
	return volumetest.MustOpen(t, func(testing.TB) (volume.Volume, error) {
		v, err := volume.Open(volume.Spec{Name: "v", BlockSize: block,
			Backend: volume.MemoryBackend{Size: 1 << 20}})
		if err != nil {
			return nil, err
		}
		return hook.Wrap(v, hook.Config{Injector: injector}), nil
	})
}

// openQueue opens a queue of a volume that exists only for it.
func openQueue(t *testing.T, depth int, injector *fault.Injector) volume.Queue {
	t.Helper()
	v := open(t, injector)
	t.Cleanup(func() { volumetest.CloseVolume(t, v) })
	q := volumetest.NewQueue(t, v, depth)
	t.Cleanup(func() { volumetest.CloseQueue(t, q) })
	return q
}

// A hooked volume keeps every promise of the seam, whether its operations are recorded or
// postponed.
func TestHookedVolumesConform(t *testing.T) {
	for name, rules := range map[string][]string{
		"tracing": {"volume:any:trace"},
		"delaying": {"volume:any:while=off:freeze", "volume:any:every=3:delay=100us",
			"volume:any:trace"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "tracing" {
				testkit.OnlyComplete(t, "the rules that delay record operations, too")
			}
			t.Run("memory", func(t *testing.T) {
				injector, recorder := faulttest.New(t, rules...)
				volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
					return open(t, injector), nil
				})
				if recorder.Collect(make([]fault.Event, 1)) != 1 {
					t.Error("nothing was recorded")
				}
			})
			t.Run("file", func(t *testing.T) {
				injector, _ := faulttest.New(t, rules...)
				volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
					v, err := volume.Open(volume.Spec{Name: "v", BlockSize: block,
						Backend: volume.FileBackend{Path: t.TempDir() + "/volume", Size: 1 << 20}})
					if err != nil {
						return nil, err
					}
					return hook.Wrap(v, hook.Config{Injector: injector}), nil
				})
			})
		})
	}
}

func TestAVolumeWithoutRulesIsNotWrapped(t *testing.T) {
	inner := open(t, nil)
	defer volumetest.CloseVolume(t, inner)
	injector, _ := faulttest.New(t, "rdma:poll:trace")
	for _, i := range []*fault.Injector{nil, injector} {
		if hook.Wrap(inner, hook.Config{Injector: i}) != inner {
			t.Error("there is a wrapper that has nothing to do")
		}
	}
}

func TestInjectedFailuresAreCounted(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:write:error=IO_FAILED")
	v := open(t, injector)
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	for range 3 {
		volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: block,
			Buffer: make([]byte, block)})
	}
	want := []volume.Failure{{Operation: iomsg.OpWrite, Cause: hook.CauseInjected, Count: 3}}
	if got := v.Failures(); !slices.Equal(got, want) {
		t.Errorf("failures: %+v, want %+v", got, want)
	}
}

// outcomes writes 200 blocks in turn and returns a character for each outcome: . for success, x for
// a failure.
func outcomes(t *testing.T, rule string) string {
	injector, _ := faulttest.New(t, rule)
	queue := openQueue(t, 1, injector)
	var b strings.Builder
	for i := range uint64(200) {
		r := volume.Request{Operation: iomsg.OpWrite, Offset: i * block, Length: block,
			Buffer: make([]byte, block)}
		volumetest.Do(t, queue, &r)
		switch {
		case r.Err == nil:
			b.WriteByte('.')
		case errors.Is(r.Err, fault.ErrInjected) && errors.Is(r.Err, status.IOFailed):
			b.WriteByte('x')
		default:
			t.Fatal(r.Err)
		}
	}
	return b.String()
}

func TestASeedDecidesWhichRequestsFail(t *testing.T) {
	first := outcomes(t, "volume:write:p=0.2:seed=7:error=IO_FAILED")
	again := outcomes(t, "volume:write:p=0.2:seed=7:error=IO_FAILED")
	other := outcomes(t, "volume:any:p=0.2:seed=8:error=IO_FAILED")
	if first != again || first == other {
		t.Errorf("seed 7: %s, again: %s; seed 8: %s", first, again, other)
	}
	if n := strings.Count(first, "x"); n < 15 || n > 70 {
		t.Errorf("%d of 200 requests failed with probability 0.2", n)
	}
}

func TestAVolumeFillsUp(t *testing.T) {
	want := strings.Repeat(".", 100) + strings.Repeat("x", 100)
	if got := outcomes(t, "volume:write:after=100:error=IO_FAILED"); got != want {
		t.Errorf("outcomes are %s, want %s", got, want)
	}
}

func TestCorruptionInvertsOneBitOfEachReadAndWrite(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:any:corrupt")
	v := open(t, injector)
	defer volumetest.CloseVolume(t, v)
	if v.Memory() != nil {
		t.Error("reads could bypass the faults")
	}
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	written, read := bytes.Repeat([]byte{0x55}, block), make([]byte, block)
	w := volume.Request{Operation: iomsg.OpWrite, Length: block, Buffer: written}
	r := volume.Request{Operation: iomsg.OpRead, Length: block, Buffer: read}
	volumetest.Do(t, queue, &w)
	if !bytes.Equal(written, bytes.Repeat([]byte{0x55}, block)) {
		t.Error("the writer's buffer stayed corrupted")
	}
	volumetest.Do(t, queue, &r)
	different := 0
	for i := range read {
		different += bits.OnesCount8(read[i] ^ written[i])
	}
	if w.Err != nil || r.Err != nil || different != 2 { // one by the write, one by the read
		t.Errorf("%d bits differ; write: %v, read: %v", different, w.Err, r.Err)
	}
}

func TestADroppedChangeSucceedsWithoutBeingCarriedOut(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:any:while=lossy:range=4KiB+8KiB:drop")
	queue := openQueue(t, 1, injector)
	content := bytes.Repeat([]byte{0x55}, 4*block)
	change := func(operation iomsg.Operation, number uint64) {
		t.Helper()
		r := volume.Request{Operation: operation, Offset: number * block, Length: block}
		if operation == iomsg.OpWrite {
			r.Buffer = bytes.Repeat([]byte{0xaa}, block)
		}
		if volumetest.Do(t, queue, &r); r.Err != nil {
			t.Errorf("%v of block %d: %v", operation, number, r.Err)
		}
	}
	volumetest.Do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4 * block,
		Buffer: slices.Clone(content)})
	injector.TurnOn("lossy")
	change(iomsg.OpWrite, 1)
	change(iomsg.OpWriteZeroes, 2)
	change(iomsg.OpWrite, 3)
	read := make([]byte, 4*block)
	r := volume.Request{Operation: iomsg.OpRead, Length: 4 * block, Buffer: read}
	if volumetest.Do(t, queue, &r); r.Err != nil {
		t.Fatal(r.Err)
	}
	copy(content[3*block:], bytes.Repeat([]byte{0xaa}, block))
	if !bytes.Equal(read, content) {
		t.Error("the volume does not hold exactly the changes that were not dropped")
	}
	if f := injector.Rules()[0]; f.Matches != 2 {
		t.Errorf("%d changes were dropped, want 2", f.Matches)
	}
}

func TestDelayPostponesCompletionsWithoutBlockingTheSubmitter(t *testing.T) {
	const delay = 30 * time.Millisecond
	injector, _ := faulttest.New(t, "volume:flush:delay=30ms")
	queue := openQueue(t, 8, injector)
	began := time.Now()
	var requests [8]volume.Request
	for i := range requests {
		requests[i].Operation = iomsg.OpFlush
		if err := queue.Submit(&requests[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range volumetest.Await(t, queue, len(requests)) {
		if r != &requests[i] {
			t.Errorf("completion %d is for another request than %d", i, i)
		}
	}
	if took := time.Since(began); took < delay {
		t.Errorf("requests completed after %v", took)
	}
}

// sleeper is a queue as a source of an engine.
type sleeper struct {
	volume.Queue
	completed []*volume.Request
	done      chan<- *volume.Request
}

func (s *sleeper) Poll() int {
	n := s.Queue.Poll(s.completed)
	for _, r := range s.completed[:n] {
		s.done <- r
	}
	return n
}

func TestAReleaseWakesAThreadThatSleeps(t *testing.T) {
	for name, release := range map[string]func(*fault.Injector){
		"released":   func(i *fault.Injector) { i.Release() },
		"turned off": func(i *fault.Injector) { i.TurnOff("jam") },
	} {
		t.Run(name, func(t *testing.T) {
			injector, _ := faulttest.New(t, "volume:write:while=jam:nth=1:freeze")
			injector.TurnOn("jam")
			queue := openQueue(t, 2, injector)
			done := make(chan *volume.Request, 2)
			engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
			if err != nil {
				t.Fatal(err)
			}
			source := &sleeper{Queue: queue, completed: make([]*volume.Request, 2), done: done}
			if err := engine.Add(source); err != nil {
				t.Fatal(err)
			}
			requests := []*volume.Request{
				{Operation: iomsg.OpWrite, Length: block, Buffer: make([]byte, block)},
				{Operation: iomsg.OpFlush},
			}
			for _, r := range requests {
				if err := queue.Submit(r); err != nil {
					t.Fatal(err)
				}
			}
			stop := make(chan struct{})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-stop:
						return
					default:
						engine.Idle(engine.Progress())
					}
				}
			}()
			// The flush overtakes the write, which is still frozen when the engine sleeps.
			if r := <-done; r != requests[1] {
				t.Error("the frozen write completed")
			}
			for engine.Stats().Sleeps == 0 {
				time.Sleep(time.Millisecond)
			}
			release(injector)
			if r := <-done; r != requests[0] || r.Err != nil {
				t.Errorf("after the release, %v completed: %v", r.Operation, r.Err)
			}
			close(stop)
			engine.Wake()
			<-ended
			engine.Remove(source)
			if late := engine.Stats().LateWakeups; late != 0 {
				t.Errorf("%d wake-ups were lost", late)
			}
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRequestsThatNoRuleMatchesDoNotAllocate(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:any:while=off:freeze", "volume:write:nth=1:delay=1us",
		"volume:any:after=1000000000:corrupt")
	queue := openQueue(t, 1, injector)
	r := volume.Request{Operation: iomsg.OpWrite, Length: block, Buffer: make([]byte, block)}
	volumetest.Do(t, queue, &r)
	completed := make([]*volume.Request, 1)
	allocations := testing.AllocsPerRun(100, func() {
		if err := queue.Submit(&r); err != nil {
			t.Fatal(err)
		}
		for queue.Poll(completed) == 0 {
			progress.Yield()
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations per request", allocations)
	}
}
