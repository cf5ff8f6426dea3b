package main

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/config"
	"github.com/zc-relay/zc-relay/internal/logging"
	"github.com/zc-relay/zc-relay/internal/service"
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
	for _, change := range config.TargetChanges(r.applied, c) {
		if change.Reload != config.Restart {
			r.env.Log.Info("changed", zap.Stringer("key", change), zap.Stringer("effect", change.Reload))
		}
	}
	for _, change := range config.TargetChanges(r.started, c) {
		if change.Reload == config.Restart {
			r.env.Log.Warn("needs a restart", zap.Stringer("key", change))
		}
	}
	if level, err := logging.ParseLevel(c.Log.Level); err == nil {
		r.env.LogLevel.SetLevel(level)
	}
	r.applied = c
	return nil
}
