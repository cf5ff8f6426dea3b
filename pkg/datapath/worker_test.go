// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAWorkerIsAliveWhileItsLoopTurns(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Adaptive, progress.Busy, progress.Event} {
		t.Run(mode.String(), func(t *testing.T) {
			worker, err := startWorker(workerConfig{CPU: NoCPU,
				Policy: progress.Policy{Mode: mode}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // unless it is busy, it sleeps now
			alive := func(bound time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				return worker.CheckAlive(ctx)
			}
			if err := alive(time.Minute); err != nil {
				t.Errorf("an idle worker: %v", err)
			}
			stuck, release := make(chan struct{}), make(chan struct{})
			worker.engine.Do(func() {
				close(stuck)
				<-release
			})
			<-stuck
			if err := alive(10 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a stuck worker: %v", err)
			}
			close(release)
			if err := alive(time.Minute); err != nil {
				t.Errorf("a worker that has resumed: %v", err)
			}
			if err := worker.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := alive(time.Minute); !errors.Is(err, status.Shutdown) {
				t.Errorf("a stopped worker: %v", err)
			}
		})
	}
}

// waitContext reports that a caller waits for its end.
type waitContext struct {
	context.Context
	waits chan struct{}
	once  sync.Once
}

func (c *waitContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waits) })
	return c.Context.Done()
}

func TestAStuckWorkerHoldsUpNoLaneBeyondItsContext(t *testing.T) {
	device, worker := openDevice(t), runWorker(t)
	stuck, release := make(chan struct{}), make(chan struct{})
	worker.engine.Do(func() {
		close(stuck)
		<-release
	})
	<-stuck
	patient := &waitContext{Context: testContext(t), waits: make(chan struct{})}
	found := make(chan *dispatcher, 1)
	go func() {
		d, err := worker.dispatcherOn(patient, device)
		if err != nil {
			t.Error(err)
		}
		found <- d
	}()
	<-patient.waits
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := worker.dispatcherOn(ended, device)
		failed <- err
	}()
	select {
	case err := <-failed:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a caller whose context has ended: %v", err)
		}
	case <-time.After(testkit.Patience / 4):
		t.Error("a caller whose context has ended waits for the worker")
	}
	close(release)
	first := <-found
	if again, err := worker.dispatcherOn(testContext(t), device); err != nil || again != first {
		t.Errorf("the second lane on the device: dispatcher %p, %v, expected %p", again, err, first)
	}
}
