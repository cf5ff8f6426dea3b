package client

import "sync"

// blockLocks keep two writes from changing different parts of one block at
// the same time: each reads the block, changes its part and writes it back.
type blockLocks struct {
	mu       sync.Mutex
	released sync.Cond
	locked   map[uint64]struct{}
}

func (b *blockLocks) init() {
	b.released.L = &b.mu
	b.locked = make(map[uint64]struct{})
}

func (b *blockLocks) lock(block uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if _, taken := b.locked[block]; !taken {
			b.locked[block] = struct{}{}
			return
		}
		b.released.Wait()
	}
}

func (b *blockLocks) unlock(block uint64) {
	b.mu.Lock()
	delete(b.locked, block)
	b.mu.Unlock()
	b.released.Broadcast()
}
