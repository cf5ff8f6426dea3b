package datapath

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAWorkerIsAliveWhileItsLoopTurns(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Adaptive, progress.Busy, progress.Event} {
		t.Run(mode.String(), func(t *testing.T) {
			worker, err := StartWorker(WorkerConfig{CPU: NoCPU,
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
