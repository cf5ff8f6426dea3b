package rangelock

import (
	"sync"
	"testing"
)

func TestRangesAreGrantedInOrder(t *testing.T) {
	var l Locks
	granted := ""
	hold := func(name string, start, end uint64, exclusive bool) *Hold {
		return &Hold{Start: start, End: end, Exclusive: exclusive,
			Granted: func() { granted += name }}
	}
	a, b := hold("a", 0, 10, false), hold("b", 5, 15, false)
	c, d, e := hold("c", 8, 9, true), hold("d", 8, 9, false), hold("e", 20, 30, true)
	if !l.Lock(a) || !l.Lock(b) {
		t.Fatal("shared holds exclude each other")
	}
	if l.Lock(c) || l.Lock(d) {
		t.Fatal("an exclusive hold is granted beside others, or overtaken")
	}
	if !l.Lock(e) {
		t.Fatal("a range that nobody holds is not granted")
	}
	l.Unlock(a)
	if granted != "" {
		t.Fatalf("granted %q", granted)
	}
	l.Unlock(b)
	l.Unlock(c)
	l.Unlock(d)
	l.Unlock(e)
	if granted != "cd" {
		t.Errorf("granted %q, want c, then d", granted)
	}
	if l.exclusive != 0 || l.held.next != &l.held {
		t.Error("something is still held")
	}
}

func TestASharedRangeWaitsForAnExclusiveOne(t *testing.T) {
	var l Locks
	granted := 0
	exclusive := &Hold{Start: 0, End: 10, Exclusive: true}
	shared := []*Hold{{Start: 9, End: 12}, {Start: 0, End: 1}, {Start: 3, End: 20}}
	if !l.Lock(exclusive) {
		t.Fatal("a range that nobody holds is not granted")
	}
	for _, h := range shared {
		h.Granted = func() { granted++ }
		if l.Lock(h) {
			t.Fatal("a shared hold is granted beside an exclusive one")
		}
	}
	l.Unlock(exclusive)
	if granted != len(shared) {
		t.Errorf("%d of %d shared holds are granted", granted, len(shared))
	}
	for _, h := range shared {
		l.Unlock(h)
	}
}

func TestNeighborsDoNotWait(t *testing.T) {
	var l Locks
	for i := range uint64(3) {
		if !l.Lock(&Hold{Start: i * 10, End: i*10 + 10, Exclusive: true}) {
			t.Errorf("range %d waits for its neighbor", i)
		}
	}
}

// TestThoseWhoWaitDoNotUndoEachOther counts in the two halves of a block: whoever holds the block
// exclusively changes one of them, and whoever shares it only looks.
func TestThoseWhoWaitDoNotUndoEachOther(t *testing.T) {
	const workers, rounds = 8, 200
	var l Locks
	block := [2]int{}
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() {
			for range rounds {
				h := l.Wait(0, 512, true)
				former := block
				former[i%2]++
				block = former
				l.Unlock(h)
				h = l.Wait(0, 4096, false)
				_ = block
				l.Unlock(h)
			}
		})
	}
	running.Wait()
	if want := workers / 2 * rounds; block != [2]int{want, want} {
		t.Errorf("counted %v, want %d each", block, want)
	}
}
