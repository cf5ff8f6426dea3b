package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/config"
	"github.com/zc-relay/zc-relay/internal/logging"
	"github.com/zc-relay/zc-relay/internal/service"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// reloader reads the configuration again and applies what can be applied.
type reloader struct {
	env   *service.Environment
	relay *relay.Relay
	from  *source
	// started is what the process began with, applied what holds now, where
	// it can be changed.
	started, applied *config.Relay
}

// reload is called by one goroutine at a time. Live sessions are not touched.
func (r *reloader) reload(ctx context.Context) error {
	c, err := r.from.load()
	if err != nil {
		return fmt.Errorf("the configuration stays as it was: %w", err)
	}
	settings, err := relaySettings(c)
	if err != nil {
		return fmt.Errorf("the configuration stays as it was: %w", err)
	}
	for _, change := range config.RelayChanges(r.applied, c) {
		if change.Reload != config.Restart {
			r.env.Log.Info("changed", zap.Stringer("key", change), zap.Stringer("effect", change.Reload))
		}
	}
	for _, change := range config.RelayChanges(r.started, c) {
		if change.Reload == config.Restart {
			r.env.Log.Warn("needs a restart", zap.Stringer("key", change))
		}
	}
	if level, err := logging.ParseLevel(c.Log.Level); err == nil {
		r.env.LogLevel.SetLevel(level)
	}
	r.applied = c
	return r.relay.Reconfigure(ctx, settings)
}
