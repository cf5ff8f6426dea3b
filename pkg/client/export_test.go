// SPDX-License-Identifier: Apache-2.0

package client

import "github.com/zc-relay/zc-relay/pkg/progress"

// Parked returns how many requests of the blocking methods wait until their queue takes them.
func (v *Volume) Parked() int { return onThread(v, func(s *syncIO) int { return len(s.parked) }) }

// HasLostSession reports whether the queue of the blocking methods knows that its session has
// ended.
func (v *Volume) HasLostSession() bool {
	return onThread(v, func(s *syncIO) bool { return s.queue.state == queueLost })
}

// onThread calls f on the thread behind the blocking methods.
func onThread[T any](v *Volume, f func(*syncIO) T) T {
	s, result := v.sync.Load(), make(chan T, 1)
	s.engine.Do(func() { result <- f(s) })
	return <-result
}

// BlockingStats returns the counters of the thread behind the blocking methods.
func (v *Volume) BlockingStats() progress.Stats { return v.sync.Load().engine.Stats() }

// SpareSlots returns how many slots of the blocking methods can take the place of others.
func (v *Volume) SpareSlots() int {
	s := v.sync.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.spare)
}

// BorrowSlot takes a slot of the blocking methods as a call does, and returns how to give it back.
func (v *Volume) BorrowSlot() (giveBack func()) {
	s := v.sync.Load()
	slot, err := s.acquire(nil)
	if err != nil {
		panic(err)
	}
	return func() { s.release(nil, slot) }
}

// FreeUnusedMemory frees memory in quarantine that is unused, as the volume does now and then.
func (v *Volume) FreeUnusedMemory() { v.memories.freeUnused() }
