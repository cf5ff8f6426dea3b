package inorder

import (
	"slices"
	"testing"
	"testing/synctest"
)

func TestFunctionsRunInTheirOrder(t *testing.T) {
	var queue Queue
	var ran, want []int
	for i := range 1000 {
		queue.Do(func() { ran = append(ran, i) }) // without a lock: the race detector looks on
		want = append(want, i)
	}
	queue.Wait()
	if !slices.Equal(ran, want) {
		t.Errorf("the functions ran in the order %v", ran)
	}
}

func TestAFunctionIsWithdrawnUntilItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue Queue
		if !queue.IsIdle() {
			t.Error("an empty queue is not idle")
		}
		hold := make(chan struct{})
		var ran []string
		first := queue.Do(func() { <-hold })
		second := queue.Do(func() { ran = append(ran, "second") })
		queue.Do(func() { ran = append(ran, "third") })
		synctest.Wait()
		if queue.IsIdle() || queue.Withdraw(first) {
			t.Error("a function that runs is withdrawn, or the queue is idle")
		}
		if !queue.Withdraw(second) || queue.Withdraw(second) {
			t.Error("a function that waits is not withdrawn, or twice")
		}
		close(hold)
		queue.Wait()
		if !slices.Equal(ran, []string{"third"}) {
			t.Errorf("%v ran", ran)
		}
		synctest.Wait()
		if !queue.IsIdle() {
			t.Error("the queue is not idle after everything has run")
		}
	})
}
