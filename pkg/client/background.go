// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/retry"
)

// background is what a volume does beside its callers' threads, until it is closed.
type background struct {
	ctx    context.Context // canceled when the volume is closed
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	logger *zap.Logger
}

func newBackground(ctx context.Context, logger *zap.Logger) *background {
	b := &background{logger: logger}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

// run runs a task on a goroutine of its own, under a name for the log.
func (b *background) run(name string, task func()) {
	b.tasks.Go(func() {
		b.logger.Debug("begin in the background", zap.String("task", name))
		task()
		b.logger.Debug("end in the background", zap.String("task", name))
	})
}

// sleep waits for the pause. It returns false if the volume is closed meanwhile.
func (b *background) sleep(pause time.Duration) bool { return retry.Sleep(b.ctx, pause) }

// stop ends all tasks, and waits for them.
func (b *background) stop() {
	b.cancel()
	b.tasks.Wait()
}
