package main

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
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
	r.env.Reloaded(config.RelayChanges(r.applied, c), config.RelayChanges(r.started, c), c.Log)
	r.applied = c
	return r.relay.Reconfigure(ctx, settings)
}
