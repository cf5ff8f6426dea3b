// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// idleWaiter is a waiter without a descriptor that never has work.
type idleWaiter struct {
	armed int
	_     [64]byte // else it could share its memory with something that is reachable
}

func (w *idleWaiter) Descriptor() int { return progress.NoDescriptor }
func (w *idleWaiter) Arm() bool       { w.armed++; return true }
func (w *idleWaiter) Disarm()         {}
func (w *idleWaiter) Clear()          {}

func TestAnEngineDoesNotKeepARemovedWaiter(t *testing.T) {
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}()
	use := func() weak.Pointer[idleWaiter] {
		waiter := &idleWaiter{}
		if err := engine.AddWaiter(waiter); err != nil {
			t.Fatal(err)
		}
		engine.RemoveWaiter(waiter)
		return weak.Make(waiter)
	}
	kept := use()
	runtime.GC()
	if kept.Value() != nil {
		t.Error("a removed waiter is still reachable")
	}
	runtime.KeepAlive(engine)
}
