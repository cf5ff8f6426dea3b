package emulated

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// endpoint is what consumers and producers have in common: a doorbell, and an
// end that may come from elsewhere.
type endpoint struct {
	state atomic.Int32 // a progress.State
	bell  *doorbell
}

// start gives the endpoint its doorbell. It is Starting until run.
func (e *endpoint) start(bell *doorbell) {
	e.bell = bell
	e.state.Store(int32(progress.Starting))
}

func (e *endpoint) running() bool { return e.state.Load() == int32(progress.Running) }

// run lets the endpoint work, unless it was ended before.
func (e *endpoint) run() bool {
	return e.state.CompareAndSwap(int32(progress.Starting), int32(progress.Running))
}

// end stops the endpoint and wakes its thread for good. Any goroutine may
// call it.
func (e *endpoint) end() {
	stopping := int32(progress.Stopping)
	if e.state.CompareAndSwap(int32(progress.Running), stopping) || e.state.CompareAndSwap(int32(progress.Starting), stopping) {
		e.bell.hangUp()
	}
}

func (e *endpoint) State() progress.State { return progress.State(e.state.Load()) }
func (e *endpoint) Descriptor() int       { return e.bell.descriptor }
