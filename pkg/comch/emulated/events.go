package emulated

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

func (c *connection) NextConsumerEvent(ctx context.Context) (comch.ConsumerEvent, error) {
	event, ok, err := c.events.next(ctx, c.done)
	if err != nil {
		return event, fmt.Errorf("wait for consumer event: %w", err)
	}
	if !ok {
		return event, c.notConnected("wait for consumer event")
	}
	return event, nil
}

// eventQueue holds consumer events until the application asks for them. A peer can cause any number
// of them. Beyond limit, the queue drops both events of a consumer that came and went unseen, so
// its length is bounded by limit plus the number of consumers that exist or have been seen.
type eventQueue struct {
	limit int

	mu      sync.Mutex
	events  []comch.ConsumerEvent
	changed chan struct{} // holds a token while there are events
}

func newEventQueue(limit int) *eventQueue {
	return &eventQueue{limit: limit, changed: make(chan struct{}, 1)}
}

func (q *eventQueue) put(event comch.ConsumerEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if event.Created || len(q.events) < q.limit || !q.dropCreation(event.ID) {
		q.events = append(q.events, event)
	}
	q.signal()
}

// dropCreation removes the event that announces a consumer. It returns false if the application has
// seen that event already.
func (q *eventQueue) dropCreation(id comch.ConsumerID) bool {
	for i := range q.events {
		if q.events[i].ID == id {
			q.events = append(q.events[:i], q.events[i+1:]...)
			return true
		}
	}
	return false
}

func (q *eventQueue) signal() {
	if len(q.events) == 0 {
		return
	}
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// poll returns the oldest event and removes it.
func (q *eventQueue) poll() (comch.ConsumerEvent, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return comch.ConsumerEvent{}, false
	}
	event := q.events[0]
	q.events = append(q.events[:0], q.events[1:]...)
	q.signal()
	return event, true
}

// next waits for an event. ok is false if done is closed and no event is left.
func (q *eventQueue) next(ctx context.Context, done <-chan struct{},
) (event comch.ConsumerEvent, ok bool, err error) {
	for {
		if event, ok := q.poll(); ok {
			return event, true, nil
		}
		select {
		case <-q.changed:
		case <-done:
			event, ok := q.poll()
			return event, ok, nil
		case <-ctx.Done():
			return comch.ConsumerEvent{}, false, ctx.Err()
		}
	}
}
