// SPDX-License-Identifier: Apache-2.0

package devicecall_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var errMadeUp = errors.New("made up")

func TestAStepIsTakenOnceHoweverOftenItIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var step devicecall.Step
		var taken atomic.Int32
		take := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return step.Take(ctx, "make up", func() error {
				taken.Add(1)
				time.Sleep(1500 * time.Millisecond)
				return errMadeUp
			})
		}
		if err := take(); !errors.Is(err, status.TimeOut) || !step.IsUnderWay() {
			t.Errorf("the first wait: %v, under way: %v", err, step.IsUnderWay())
		}
		if err := take(); err != errMadeUp || step.IsUnderWay() {
			t.Errorf("the second wait: %v, under way: %v", err, step.IsUnderWay())
		}
		if taken.Load() != 1 {
			t.Errorf("taken %d times", taken.Load())
		}
		if err := take(); !errors.Is(err, status.TimeOut) || taken.Load() != 2 {
			t.Errorf("a step that has failed: %v, taken %d times", err, taken.Load())
		}
		_ = step.Await(t.Context())
	})
}

// object counts how often it is closed.
type object struct{ closed atomic.Int32 }

func (o *object) Close() error {
	o.closed.Add(1)
	return errMadeUp
}

func TestSeveralWaitForOneOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &object{}
		open := devicecall.NewOpen(func() (*object, error) {
			time.Sleep(devicecall.Timeout + 2*time.Second)
			return o, nil
		})
		begun := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := open.Await(short, "open"); !errors.Is(err, status.TimeOut) ||
			time.Since(begun) != time.Second {
			t.Errorf("waited %v: %v", time.Since(begun), err)
		}
		if _, err := open.Await(t.Context(), "open"); !errors.Is(err, status.TimeOut) ||
			time.Since(begun) != devicecall.Timeout+time.Second {
			t.Errorf("waited %v: %v", time.Since(begun), err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, err := open.Await(t.Context(), "open"); err != nil || got != o || open.HasFailed() {
			t.Errorf("opened %v: %v", got, err)
		}
		if err := open.Close(); err != errMadeUp || o.closed.Load() != 1 {
			t.Errorf("closed %d times: %v", o.closed.Load(), err)
		}
	})
}

func TestWhatComesTooLateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &object{}
		got, err := devicecall.OpenWithin(t.Context(), func() (*object, error) {
			time.Sleep(devicecall.Timeout + time.Second)
			return o, nil
		})
		if !errors.Is(err, status.TimeOut) || got != nil || o.closed.Load() != 0 {
			t.Errorf("opened %v, which was closed %d times: %v", got, o.closed.Load(), err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if o.closed.Load() != 1 {
			t.Errorf("closed %d times", o.closed.Load())
		}
	})
}

func TestAnOpenThatHasFailedHasNothingToClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := devicecall.NewOpen(func() (*object, error) {
			time.Sleep(time.Second)
			return nil, errMadeUp
		})
		if open.HasFailed() {
			t.Error("it has failed before it has ended")
		}
		if _, err := open.Await(t.Context(), "open"); err != errMadeUp || !open.HasFailed() {
			t.Errorf("opened: %v", err)
		}
		if err := open.Close(); err != nil {
			t.Errorf("closed: %v", err)
		}
	})
}

func TestAfterEndsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		later, cancel := devicecall.After(ctx, time.Second)
		defer cancel()
		end(errMadeUp)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if later.Err() != nil {
			t.Error("it has ended too early")
		}
		time.Sleep(2 * time.Nanosecond)
		synctest.Wait()
		if context.Cause(later) != errMadeUp {
			t.Errorf("it has ended because of %v", context.Cause(later))
		}
	})
}
