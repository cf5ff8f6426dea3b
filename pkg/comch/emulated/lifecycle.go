// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// lifecycle is the state of a consumer or producer, and the doorbell that wakes its thread. Other
// goroutines can stop it.
type lifecycle struct {
	state atomic.Int32 // a progress.State
	bell  *doorbell
}

// open sets the doorbell and the state Starting.
func (l *lifecycle) open(bell *doorbell) {
	l.bell = bell
	l.state.Store(int32(progress.Starting))
}

func (l *lifecycle) running() bool { return l.state.Load() == int32(progress.Running) }

// setRunning changes the state from Starting to Running. It returns false if stopAndWake came
// first.
func (l *lifecycle) setRunning() bool {
	return l.state.CompareAndSwap(int32(progress.Starting), int32(progress.Running))
}

// stopAndWake sets the state Stopping and wakes the thread; the doorbell cannot be rung any more.
// Any goroutine may call it.
func (l *lifecycle) stopAndWake() {
	stopping := int32(progress.Stopping)
	if l.state.CompareAndSwap(int32(progress.Running), stopping) ||
		l.state.CompareAndSwap(int32(progress.Starting), stopping) {
		l.bell.shutDown()
	}
}

func (l *lifecycle) State() progress.State { return progress.State(l.state.Load()) }

func (l *lifecycle) Descriptor() int { return l.bell.descriptor }
