// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"sync"
)

// inbox passes items from an endpoint's thread to goroutines that wait for them.
type inbox[T any] struct {
	mu      sync.Mutex
	items   []T
	err     error         // what take returns when there are no items any more
	changed chan struct{} // closed at the next change; nil if nobody waits
}

func (b *inbox[T]) notify() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// put appends an item and returns how many there are. If the inbox has ended, it drops the item and
// returns 0.
func (b *inbox[T]) put(item T) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0
	}
	b.items = append(b.items, item)
	b.notify()
	return len(b.items)
}

// end makes take fail with err once the items have been taken.
func (b *inbox[T]) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.notify()
	}
}

// takeAll removes and returns all items.
func (b *inbox[T]) takeAll() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	return items
}

// take waits for the oldest item.
func (b *inbox[T]) take(ctx context.Context) (T, error) {
	for {
		b.mu.Lock()
		if len(b.items) > 0 {
			item := b.items[0]
			clear(b.items[:1])
			b.items = b.items[1:]
			b.mu.Unlock()
			return item, nil
		}
		err := b.err
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		var none T
		if err != nil {
			return none, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}
