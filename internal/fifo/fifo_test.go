// SPDX-License-Identifier: Apache-2.0

package fifo_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func TestAQueueBehavesLikeABoundedSlice(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(0, 5).Draw(t, "capacity")
		queue := fifo.New[int](capacity)
		var model []int
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				item := rapid.Int().Draw(t, "item")
				place := queue.Push()
				if (place == nil) != (len(model) == capacity) {
					t.Fatalf("a queue of %d values with room for %d: push returned %v", len(model),
						capacity, place)
				}
				if place != nil {
					if *place != 0 {
						t.Fatalf("push returned a place that holds %d", *place)
					}
					*place = item
					model = append(model, item)
				}
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				if front := *queue.Front(); front != model[0] {
					t.Fatalf("front is %d, want %d", front, model[0])
				}
				if got := queue.Pop(); got != model[0] {
					t.Fatalf("popped %d, want %d", got, model[0])
				}
				model = slices.Delete(model, 0, 1)
			},
			"": func(t *rapid.T) {
				if queue.Len() != len(model) || queue.Room() != capacity-len(model) {
					t.Fatalf("length %d and room %d, want %d and %d", queue.Len(), queue.Room(),
						len(model), capacity-len(model))
				}
			},
		})
	})
}

func TestAnEmptyQueueHasNoFront(t *testing.T) {
	queue := fifo.New[string](1)
	defer func() {
		if recover() == nil {
			t.Error("Pop of an empty queue returned")
		}
	}()
	queue.Pop()
}

func TestAQueueDoesNotAllocate(t *testing.T) {
	queue := fifo.New[[64]byte](8)
	if n := testing.AllocsPerRun(100, func() {
		for range 8 {
			queue.Push()[0] = 1
		}
		for range 8 {
			queue.Pop()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
