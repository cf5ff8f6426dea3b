package service

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
)

// Reloaded logs what a configuration that was read again changes, beside the
// one that holds and the one that the process began with, and applies what the
// environment can: the log level.
func (e *Environment) Reloaded(sinceApplied, sinceStart []config.Change, log config.Log) {
	for _, change := range sinceApplied {
		if change.Reload != config.Restart {
			e.Log.Info("changed", zap.Stringer("key", change), zap.Stringer("effect", change.Reload))
		}
	}
	for _, change := range sinceStart {
		if change.Reload == config.Restart {
			e.Log.Warn("needs a restart", zap.Stringer("key", change))
		}
	}
	if level, err := logging.ParseLevel(log.Level); err == nil {
		e.LogLevel.SetLevel(level)
	}
}
