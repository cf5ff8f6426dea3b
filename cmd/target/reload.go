package main

import (
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
)

// reloader reads the configuration again and applies what can be applied.
type reloader struct {
	env  *service.Environment
	from *source
	// started is what the process began with, applied what holds now, where
	// it can be changed.
	started, applied *config.Target
}

// reload is called by one goroutine at a time.
func (r *reloader) reload() error {
	c, err := r.from.load()
	if err != nil {
		return fmt.Errorf("the configuration stays as it was: %w", err)
	}
	r.env.Reloaded(config.TargetChanges(r.applied, c), config.TargetChanges(r.started, c), c.Log)
	r.applied = c
	return nil
}
