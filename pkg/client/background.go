package client

import (
	"context"
	"sync"
	"time"
)

// background is what a volume does beside its callers' threads, until it is closed.
type background struct {
	ctx    context.Context // canceled when the volume is closed
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func newBackground(ctx context.Context) *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

// sleep waits for the pause. It returns false if the volume is closed meanwhile.
func (b *background) sleep(pause time.Duration) bool {
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// stop ends all tasks, and waits for them.
func (b *background) stop() {
	b.cancel()
	b.tasks.Wait()
}
