// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// health is what a volume knows about its failures: how many requests have failed and why, and
// whether the volume still accepts requests. The threads that carry out requests only count; one
// goroutine logs.
type health struct {
	log *zap.Logger
	// failed is why the volume rejects requests; nil while it does not.
	failed      atomic.Pointer[failure]
	counts      [iomsg.OperationCount][status.CauseCount]failureCount
	inspections *time.Ticker
	// news wakes the goroutine when there is something new to log.
	news chan struct{}

	mu        sync.Mutex // serializes logging
	announced *failure   // the last value of failed that was logged
}

func newHealth(spec *Spec) *health {
	return &health{
		log: spec.Logger.With(zap.String("volume", spec.Name)), news: make(chan struct{}, 1),
		inspections: time.NewTicker(inspectInterval),
	}
}

// failure is why a volume rejects requests until it is reopened. As an error, it is what those
// requests return; the requests that noticed the failure return err itself.
type failure struct {
	err     error // with status.IOFailed
	message string
	rejects rejects
	since   time.Time // set by fail
}

// rejects is which requests a failed volume rejects.
type rejects int

const (
	rejectChanges rejects = iota + 1 // everything but reads
	rejectAll
)

// Error returns the text of the failure.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns the failure itself.
func (f *failure) Unwrap() error { return f.err }

// fail makes the volume reject requests from now on, and returns the error of the request that
// noticed.
func (h *health) fail(f *failure) error {
	f.since = time.Now()
	for {
		earlier := h.failed.Load()
		if earlier != nil && earlier.rejects >= f.rejects {
			return earlier
		}
		if h.failed.CompareAndSwap(earlier, f) {
			h.wake()
			return f.err
		}
	}
}

// rejection returns the error of a read, or of any other request, if the volume rejects it.
func (h *health) rejection(isRead bool) error {
	f := h.failed.Load()
	if f == nil || isRead && f.rejects < rejectAll {
		return nil
	}
	return f
}

func (h *health) wake() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// RequestCause returns why a request to a volume has failed with err: status.CauseOf, or what only
// this package can tell.
func RequestCause(err error) status.Cause {
	if _, rejected := err.(*failure); rejected {
		return status.CauseVolumeFailed
	}
	if errors.Is(err, errShrunk) {
		return status.CauseTruncated
	}
	return status.CauseOf(err)
}

// failureCount counts the requests of one operation that have failed for one cause. Failures less
// than logEvery inspections apart form a series.
type failureCount struct {
	total atomic.Uint64
	first atomic.Pointer[failedRequest] // of the current series, if there is one

	// Guarded by health.mu.
	logged uint64 // how much of total the log accounts for
	series bool   // the current series has been logged
}

// failedRequest is what the log says about a request. The request itself is reused.
type failedRequest struct {
	offset, length uint64
	err            error
}

// count counts a failed request. It allocates, and wakes another goroutine, only at the start of a
// series, and never for a request that the volume has rejected.
func (h *health) count(r *Request) {
	cause := RequestCause(r.Err)
	c := &h.counts[r.Operation][cause]
	c.total.Add(1)
	if cause == status.CauseVolumeFailed || c.first.Load() != nil {
		return
	}
	first := &failedRequest{offset: r.Offset, length: r.Length, err: r.Err}
	if c.first.CompareAndSwap(nil, first) {
		h.wake()
	}
}

// failures returns all counts that are not 0.
func (h *health) failures() []Failure {
	var all []Failure
	h.each(func(operation iomsg.Operation, cause status.Cause, c *failureCount) {
		if n := c.total.Load(); n > 0 {
			all = append(all, Failure{Operation: operation, Cause: cause.String(), Count: n})
		}
	})
	return all
}

func (h *health) each(visit func(iomsg.Operation, status.Cause, *failureCount)) {
	for operation := range iomsg.OperationCount {
		for cause := range status.CauseCount {
			visit(operation, status.Cause(cause), &h.counts[operation][cause])
		}
	}
}

const (
	// inspectInterval is the time between two inspections of the store.
	inspectInterval = time.Second
	// logEvery is the number of inspections between two messages about failures that continue.
	logEvery = 10
)

// logNew logs the first request of each new series, and the failure of the volume.
func (h *health) logNew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(func(operation iomsg.Operation, cause status.Cause, c *failureCount) {
		first := c.first.Load()
		if first == nil || c.series {
			return
		}
		fields := []zap.Field{zap.Stringer("operation", operation), zap.Stringer("cause", cause)}
		if operation != iomsg.OpFlush {
			fields = append(fields, zap.Uint64("offset_bytes", first.offset),
				zap.Uint64("length_bytes", first.length))
		}
		h.log.Error("volume IO failed", append(fields, zap.Error(first.err))...)
		c.series = true
		if c.logged < c.total.Load() { // logRepeated may have been faster
			c.logged++
		}
	})
	if failed := h.failed.Load(); failed != nil && failed != h.announced {
		h.announced = failed
		h.log.Error(failed.message, zap.Error(failed.err))
	}
}

// logRepeated logs how many requests have failed since it was last called, and ends each series
// that has stopped.
func (h *health) logRepeated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(func(operation iomsg.Operation, cause status.Cause, c *failureCount) {
		total := c.total.Load()
		if total == c.logged {
			c.series = false
			c.first.Store(nil)
			return
		}
		h.log.Error("volume IOs are failing", zap.Stringer("operation", operation),
			zap.Stringer("cause", cause), zap.Uint64("failed", total-c.logged),
			zap.Uint64("failed_total", total))
		c.logged = total
	})
}

// watch logs failures and inspects the store until stop is closed. Storage that does not answer,
// such as a network file system, delays only the inspection.
func (h *health) watch(s store, stop <-chan struct{}) {
	defer h.inspections.Stop()
	var inspecting sync.WaitGroup
	defer inspecting.Wait() // it uses the store, which is closed next
	var isInspecting atomic.Bool
	missed := 0
	for n := 1; ; {
		select {
		case <-stop:
			return
		case <-h.news:
			h.logNew()
		case <-h.inspections.C:
			if isInspecting.CompareAndSwap(false, true) {
				missed = 0
				inspecting.Go(func() {
					s.inspect()
					isInspecting.Store(false)
				})
			} else if missed++; missed == logEvery {
				h.log.Warn("the volume's storage does not answer, so the volume cannot be inspected")
			}
			if n++; n%logEvery == 0 {
				h.logRepeated()
			}
		}
	}
}
