// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Always returns a logger that writes where log does, whatever its level and its sampling.
func Always(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return always{core}
	}))
}

// always is a core that accepts every entry.
type always struct{ zapcore.Core }

// Enabled returns true.
func (always) Enabled(zapcore.Level) bool { return true }

// Check adds the core to an entry. Unlike those of Core, its checks are not asked.
func (a always) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return checked.AddCore(entry, a)
}

// With adds fields.
func (a always) With(fields []zapcore.Field) zapcore.Core { return always{a.Core.With(fields)} }
