// SPDX-License-Identifier: Apache-2.0

// Package arrivals keeps what a peer has done until the application asks for it: its control
// messages, and its consumers' beginnings and ends. Providers share it.
package arrivals

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// Queue holds messages and consumer events. They can be taken in the order in which they have
// arrived, or each kind on its own. Any goroutine may call its methods. The zero value is empty.
type Queue struct {
	mu       sync.Mutex
	arrived  uint64 // messages and events so far
	messages []arrival[[]byte]
	events   []arrival[comch.ConsumerEvent]
	err      error         // why nothing arrives any more
	changed  chan struct{} // closed at the next change; nil if nobody waits
}

type arrival[T any] struct {
	number uint64
	item   T
}

// PutMessage adds a message, which the queue owns from then on, and returns how many it holds. It
// drops the message and returns 0 after End.
func (q *Queue) PutMessage(message []byte) (kept int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0
	}
	q.arrived++
	q.messages = append(q.messages, arrival[[]byte]{q.arrived, message})
	q.notifyLocked()
	return len(q.messages)
}

// PutEvent adds a consumer event and returns how many it holds. It drops the event and returns 0
// after End.
func (q *Queue) PutEvent(event comch.ConsumerEvent) (kept int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0
	}
	q.arrived++
	q.events = append(q.events, arrival[comch.ConsumerEvent]{q.arrived, event})
	q.notifyLocked()
	return len(q.events)
}

// PutBoundedEvent is PutEvent for a peer that may cause any number of events. Beyond limit, it
// drops both events of a consumer that came and went unseen, so the queue holds limit events plus
// one for each consumer that exists or has been seen.
func (q *Queue) PutBoundedEvent(event comch.ConsumerEvent, limit int) {
	if !event.Created && q.dropCreation(event.ID, limit) {
		return
	}
	q.PutEvent(event)
}

// dropCreation removes the event that announces a consumer. It returns false if there is room, or
// the application has seen that event already.
func (q *Queue) dropCreation(id comch.ConsumerID, limit int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < limit {
		return false
	}
	for i := range q.events {
		if q.events[i].item.ID == id {
			q.events = append(q.events[:i], q.events[i+1:]...)
			return true
		}
	}
	return false
}

// End makes the methods that take fail with err once nothing is left. Only the first call counts.
func (q *Queue) End(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
		q.notifyLocked()
	}
}

func (q *Queue) notifyLocked() {
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// Messages returns how many messages the queue holds.
func (q *Queue) Messages() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.messages)
}

// TakeMessage waits for the oldest message, and removes it.
func (q *Queue) TakeMessage(ctx context.Context) (message []byte, err error) {
	err = q.await(ctx, func() (taken bool) {
		message, taken = takeFirst(&q.messages)
		return taken
	})
	return message, err
}

// TakeEvent waits for the oldest consumer event, and removes it.
func (q *Queue) TakeEvent(ctx context.Context) (event comch.ConsumerEvent, err error) {
	err = q.await(ctx, func() (taken bool) {
		event, taken = takeFirst(&q.events)
		return taken
	})
	return event, err
}

// Take waits for what has arrived first, and removes it.
func (q *Queue) Take(ctx context.Context) (next comch.Arrival, err error) {
	err = q.await(ctx, func() (taken bool) {
		if len(q.events) > 0 && (len(q.messages) == 0 ||
			q.events[0].number < q.messages[0].number) {
			next.Event, taken = takeFirst(&q.events)
			return taken
		}
		next.Message, taken = takeFirst(&q.messages)
		return taken
	})
	return next, err
}

func takeFirst[T any](from *[]arrival[T]) (first T, taken bool) {
	if len(*from) == 0 {
		return first, false
	}
	first = (*from)[0].item
	clear((*from)[:1]) // nothing else keeps a message alive
	*from = (*from)[1:]
	return first, true
}

// await calls take, which returns whether it has taken something, whenever the queue has changed.
func (q *Queue) await(ctx context.Context, take func() bool) error {
	for {
		q.mu.Lock()
		if take() {
			q.mu.Unlock()
			return nil
		}
		if err := q.err; err != nil {
			q.mu.Unlock()
			return err
		}
		if q.changed == nil {
			q.changed = make(chan struct{})
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
