// SPDX-License-Identifier: Apache-2.0

package arrivals

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/comch"
)

var errEnded = errors.New("ended")

// model is a queue as a list of what has arrived.
type model []comch.Arrival

// take removes the first arrival that suits.
func (m *model) take(suits func(*comch.Arrival) bool) (comch.Arrival, bool) {
	for i := range *m {
		if a := (*m)[i]; suits(&a) {
			*m = slices.Delete(*m, i, i+1)
			return a, true
		}
	}
	return comch.Arrival{}, false
}

func TestWhatHasArrivedIsTakenInOrder(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		var queue Queue
		var model model
		isEnded := false
		now, cancel := context.WithCancel(context.Background())
		cancel()
		expect := func(got comch.Arrival, err error, suits func(*comch.Arrival) bool) {
			want, some := model.take(suits)
			wantErr := context.Canceled
			if isEnded {
				wantErr = errEnded
			}
			if some != (err == nil) || !some && !errors.Is(err, wantErr) ||
				string(got.Message) != string(want.Message) || got.Event != want.Event {
				t.Fatalf("took %+v, %v, want %+v", got, err, want)
			}
		}
		put := func(a comch.Arrival) {
			if a.IsMessage() {
				queue.PutMessage(a.Message)
			} else {
				queue.PutEvent(a.Event)
			}
			if !isEnded {
				model = append(model, a)
			}
		}
		count := 0
		t.Repeat(map[string]func(*rapid.T){
			"message": func(*rapid.T) {
				count++
				put(comch.Arrival{Message: fmt.Append(nil, count)})
			},
			"event": func(t *rapid.T) {
				count++
				put(comch.Arrival{Event: comch.ConsumerEvent{ID: comch.ConsumerID(count),
					Created: rapid.Bool().Draw(t, "created")}})
			},
			"take": func(*rapid.T) {
				got, err := queue.Take(now)
				expect(got, err, func(*comch.Arrival) bool { return true })
			},
			"take a message": func(*rapid.T) {
				message, err := queue.TakeMessage(now)
				expect(comch.Arrival{Message: message}, err, (*comch.Arrival).IsMessage)
			},
			"take an event": func(*rapid.T) {
				event, err := queue.TakeEvent(now)
				expect(comch.Arrival{Event: event}, err,
					func(a *comch.Arrival) bool { return !a.IsMessage() })
			},
			"end": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "ends") == 0 {
					queue.End(errEnded)
					isEnded = true
				}
			},
			"": func(t *rapid.T) {
				messages := 0
				for i := range model {
					if model[i].IsMessage() {
						messages++
					}
				}
				if n := queue.Messages(); n != messages {
					t.Fatalf("the queue holds %d messages, want %d", n, messages)
				}
			},
		})
	})
}

func TestEveryWaiterHearsOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue Queue
		results := make(chan error)
		go func() {
			_, err := queue.TakeMessage(t.Context())
			results <- err
		}()
		go func() {
			_, err := queue.TakeEvent(t.Context())
			results <- err
		}()
		synctest.Wait() // both wait now
		queue.PutEvent(comch.ConsumerEvent{ID: 1})
		if err := <-results; err != nil {
			t.Error(err)
		}
		queue.End(errEnded)
		if err := <-results; !errors.Is(err, errEnded) {
			t.Errorf("the message's waiter gets %v", err)
		}
	})
}

func TestUnseenConsumersBeyondTheLimitAreDropped(t *testing.T) {
	const limit = 4
	var queue Queue
	put := func(id comch.ConsumerID, created bool) {
		queue.PutBoundedEvent(comch.ConsumerEvent{ID: id, Created: created}, limit)
	}
	put(1, true)
	if event, err := queue.TakeEvent(t.Context()); err != nil || event.ID != 1 {
		t.Fatalf("got %+v, %v", event, err)
	}
	for id := comch.ConsumerID(3); id < 20001; id += 2 {
		put(id, true)
		put(id, false)
	}
	put(1, false)
	queue.End(errEnded)
	last, taken := comch.ConsumerEvent{}, 0
	for ; ; taken++ {
		event, err := queue.TakeEvent(t.Context())
		if err != nil {
			break
		}
		last = event
	}
	if taken > limit+2 {
		t.Errorf("%d events were kept", taken)
	}
	if last != (comch.ConsumerEvent{ID: 1}) {
		t.Errorf("the last event is %+v, want the end of the consumer that was seen", last)
	}
}
