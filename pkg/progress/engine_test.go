// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mailbox is a Source and a Waiter that follows the sleep protocol of the package: it publishes
// work first and then looks whether the sleeper has announced itself.
type mailbox struct {
	work       atomic.Int64
	sleeping   atomic.Bool
	descriptor int
	taken      int64
	rings      atomic.Int64
}

func newMailbox(t testing.TB) *mailbox {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &mailbox{descriptor: fd}
}

func (m *mailbox) post() {
	m.work.Add(1)
	if m.sleeping.Load() {
		m.rings.Add(1)
		_, _ = unix.Write(m.descriptor, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (m *mailbox) Poll() int {
	n := m.work.Swap(0)
	m.taken += n
	return int(n)
}

func (m *mailbox) Descriptor() int { return m.descriptor }

func (m *mailbox) Arm() bool {
	m.sleeping.Store(true)
	if m.work.Load() > 0 {
		m.sleeping.Store(false)
		return false
	}
	return true
}

func (m *mailbox) Disarm() { m.sleeping.Store(false) }

func (m *mailbox) Clear() {
	var count [8]byte
	_, _ = unix.Read(m.descriptor, count[:])
}

// runEngine runs an engine on its own thread until stop is called.
func runEngine(
	t testing.TB, policy progress.Policy, boxes ...*mailbox) (e *progress.Engine, stop func(),
) {
	t.Helper()
	e, err := progress.NewEngine(policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes {
		if err := e.Add(box); err != nil {
			t.Fatal(err)
		}
	}
	var stopping atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		runtime.LockOSThread()
		for !stopping.Load() {
			e.Idle(e.Progress())
		}
	})
	return e, func() {
		stopping.Store(true)
		e.Wake()
		ended.Wait()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNoWakeUpIsLostWhateverTheMode(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Adaptive, progress.Busy, progress.Event} {
		t.Run(mode.String(), func(t *testing.T) {
			first, second := newMailbox(t), newMailbox(t)
			policy := progress.Policy{Mode: mode, SpinTime: 10 * time.Microsecond}
			engine, stop := runEngine(t, policy, first, second)
			const posts = 3000
			random := rand.New(rand.NewPCG(1, 2))
			for i := range posts {
				box := first
				if i%2 == 1 {
					box = second
				}
				box.post()
				spin(time.Duration(random.IntN(30)) * time.Microsecond)
			}
			taken := make(chan int64)
			engine.Do(func() {
				// Commands run before the sources are polled.
				first.Poll()
				second.Poll()
				taken <- first.taken + second.taken
			})
			if got := <-taken; got != posts {
				t.Errorf("%d of %d posts were polled", got, posts)
			}
			stop()
			stats := engine.Stats()
			if stats.LateWakeups != 0 {
				t.Errorf("%d wake-ups were late", stats.LateWakeups)
			}
			if mode == progress.Event && first.rings.Load()+second.rings.Load() == 0 {
				t.Error("an engine that sleeps at once was never woken")
			}
			if mode == progress.Busy && stats.Sleeps != 0 {
				t.Errorf("a busy engine slept %d times", stats.Sleeps)
			}
		})
	}
}

// spin waits without sleeping; it yields only to other goroutines.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

func TestALostWakeUpIsCounted(t *testing.T) {
	box := newMailbox(t)
	engine, stop := runEngine(t, progress.Policy{Mode: progress.Event}, box)
	defer stop()
	deadline := time.Now().Add(2 * time.Minute)
	for engine.Stats().Sleeps == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	box.work.Add(1) // without checking whether the other side sleeps
	for engine.Stats().LateWakeups == 0 {
		if time.Now().After(deadline) {
			t.Fatal("unannounced work was not counted as a lost wake-up")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestCommandsRunOnTheEnginesThreadAndNoneIsLost(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Adaptive, progress.Event} {
		t.Run(mode.String(), func(t *testing.T) {
			engine, stop := runEngine(t, progress.Policy{Mode: mode, SpinTime: time.Microsecond})
			var ran int // only the engine's thread touches it, as -race verifies
			const senders, commands = 4, 500
			var sending sync.WaitGroup
			for range senders {
				sending.Go(func() {
					for range commands {
						engine.Do(func() { ran++ })
					}
				})
			}
			sending.Wait()
			stop()
			if ran != senders*commands {
				t.Errorf("%d of %d commands ran", ran, senders*commands)
			}
		})
	}
}

func TestCloseRunsAcceptedCommandsAndRejectsLaterOnes(t *testing.T) {
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	ran := false
	if !engine.Do(func() { ran = true }) {
		t.Fatal("an open engine rejected a command")
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if !ran {
		t.Error("Close lost a command")
	}
	if engine.Do(func() {}) {
		t.Error("a closed engine accepted a command")
	}
	if err := engine.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestRemovedSourcesAreNotPolled(t *testing.T) {
	box := newMailbox(t)
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := engine.Add(box); err != nil {
		t.Fatal(err)
	}
	box.post()
	if n := engine.Progress(); n != 1 {
		t.Fatalf("progress is %d, want 1", n)
	}
	engine.Remove(box)
	box.post()
	if n := engine.Progress(); n != 0 {
		t.Errorf("a removed source was polled: %d", n)
	}
}

// watchedSource counts its polls.
type watchedSource struct {
	watch progress.Watch
	polls int
}

func (s *watchedSource) Poll() int {
	s.polls++
	return 0
}

func (s *watchedSource) Watch() *progress.Watch { return &s.watch }

func TestASourceIsPolledUnlessItsWatchSaysThatItIsIdle(t *testing.T) {
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	s := &watchedSource{}
	if err := engine.Add(s); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, polls int) {
		t.Helper()
		s.polls = 0
		engine.Progress()
		engine.Progress()
		if s.polls != polls {
			t.Errorf("%s: polled %d times in two turns, want %d", when, s.polls, polls)
		}
	}
	var word atomic.Uint64
	expect("without a word", 2)
	s.watch = progress.Watch{Word: &word}
	expect("idle", 0)
	word.Store(7)
	expect("after the word has changed", 2)
	s.watch.Idle = 7
	expect("idle again", 0)
	s.watch = progress.Watch{}
	expect("after the source has cleared its watch", 2)
}

func TestAnEngineSleepsOnASourceThatIsAWaiter(t *testing.T) {
	box := newMailbox(t)
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := engine.Add(box); err != nil {
		t.Fatal(err)
	}
	if err := engine.Add(box); err == nil {
		t.Error("the same waiter was added twice")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			for engine.Progress() == 0 {
				engine.Idle(0)
			}
		}
	}()
	for range 100 {
		box.post()
		for box.work.Load() > 0 {
			runtime.Gosched()
		}
	}
	<-done
	if late := engine.Stats().LateWakeups; late != 0 {
		t.Errorf("%d wake-ups were lost", late)
	}
	engine.Remove(box)
	if err := engine.Add(box); err != nil {
		t.Errorf("add a removed source again: %v", err)
	}
}

// unwaitable is a waiter without a descriptor, like Comch on hardware.
type unwaitable struct{ mailbox }

func (*unwaitable) Descriptor() int { return progress.NoDescriptor }

func TestAWaiterWithoutDescriptorIsPolledWithPauses(t *testing.T) {
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	box := &unwaitable{}
	if err := engine.Add(box); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		engine.Idle(engine.Progress())
	}
	box.work.Add(1)
	if n := engine.Progress(); n != 1 {
		t.Errorf("progress is %d, want 1", n)
	}
	if got := engine.Stats().Sleeps; got != 3 {
		t.Errorf("slept %d times, want 3 pauses", got)
	}
}

func TestInvalidPoliciesAreRejected(t *testing.T) {
	for _, policy := range []progress.Policy{{Mode: 9}, {SpinTime: -1}} {
		if _, err := progress.NewEngine(policy); err == nil {
			t.Errorf("policy %+v was accepted", policy)
		}
	}
	for _, name := range []string{"adaptive", "busy", "event"} {
		if mode, err := progress.ParseMode(name); err != nil || mode.String() != name {
			t.Errorf("ParseMode(%q) = %v, %v", name, mode, err)
		}
	}
	if _, err := progress.ParseMode("lazy"); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestTurnsDoNotAllocate(t *testing.T) {
	box := newMailbox(t)
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Busy})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if err := engine.Add(box); err != nil {
		t.Fatal(err)
	}
	allocations := testing.AllocsPerRun(1000, func() {
		box.post()
		engine.Idle(engine.Progress())
		engine.Idle(engine.Progress())
	})
	if allocations != 0 {
		t.Errorf("%v allocations per two turns", allocations)
	}
}

func BenchmarkEmptyTurn(b *testing.B) {
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Busy})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	box := newMailbox(b)
	if err := engine.Add(box); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		engine.Idle(engine.Progress())
	}
}
