// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
)

// reserveDescriptors raises the soft limit of file descriptors to the hard one, and logs a warning
// if that is not enough for everything that the configuration allows. A daemon without descriptors
// rejects sessions, so this is no reason not to start.
func reserveDescriptors[C config.Configuration](e *Environment, unit string, c C) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil && limit.Cur < limit.Max {
		limit.Cur = limit.Max
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		e.Log.Warn("raise the limit of file descriptors (RLIMIT_NOFILE)", zap.Error(err))
		return
	}
	if shortage := config.FindShortage(c, len(e.CPUs), limit.Cur); shortage != nil {
		level, next := descriptorAdvice(os.Getenv("INVOCATION_ID") != "", unit, shortage)
		e.Log.Log(level, shortage.String(), zap.Int("needed", shortage.Needed),
			zap.Int("limit", shortage.Allowed), zap.String("next", next))
	}
}

// descriptorAdvice says at which level to log that the limit of file descriptors is too low, and
// how to raise it. Only a unit is expected to serve everything that the configuration allows.
func descriptorAdvice(isUnit bool, unit string, s *config.Shortage) (zapcore.Level, string) {
	if isUnit {
		return zap.WarnLevel, s.Remedy(unit)
	}
	return zap.DebugLevel, fmt.Sprintf(
		"ulimit -Hn %d, as root, or lower the limits of sessions and queues", s.LimitNOFILE)
}
