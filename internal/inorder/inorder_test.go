// SPDX-License-Identifier: Apache-2.0

package inorder

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
		if !queue.isIdle() {
			t.Error("an empty queue is not idle")
		}
		hold := make(chan struct{})
		var ran []string
		first := queue.Do(func() { <-hold })
		second := queue.Do(func() { ran = append(ran, "second") })
		queue.Do(func() { ran = append(ran, "third") })
		synctest.Wait()
		if queue.isIdle() || queue.Withdraw(first) {
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
		if !queue.isIdle() {
			t.Error("the queue is not idle after everything has run")
		}
	})
}

func TestSettleWaitsNoLongerThanPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue Queue
		if begun := time.Now(); !queue.Settle() || time.Since(begun) != 0 {
			t.Error("an empty queue does not settle at once")
		}
		hold := make(chan struct{})
		queue.Do(func() { <-hold })
		begun := time.Now()
		if queue.Settle() || time.Since(begun) != Patience {
			t.Errorf("a queue that is held up settles, or after %v", time.Since(begun))
		}
		time.AfterFunc(Patience/2, func() { close(hold) })
		if !queue.Settle() || time.Since(begun) != Patience*3/2 {
			t.Errorf("a queue does not settle, or after %v", time.Since(begun))
		}
	})
}

func TestDoSoonWaitsNoLongerThanPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue Queue
		ran := 0
		if queue.DoSoon(func() { ran++ }) == nil {
			t.Error("a function of an idle queue runs beside it")
		}
		queue.Wait()
		hold := make(chan struct{})
		queue.Do(func() { <-hold })
		begun := time.Now()
		if e := queue.DoSoon(func() { ran++ }); e != nil || queue.Withdraw(e) ||
			time.Since(begun) != Patience {
			t.Errorf("a function waits for a queue that is held up, after %v", time.Since(begun))
		}
		synctest.Wait()
		if ran != 2 {
			t.Errorf("%d functions have run, want 2", ran)
		}
		close(hold)
	})
}
