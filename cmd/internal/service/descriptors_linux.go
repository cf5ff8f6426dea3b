package service

import (
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
)

// reserveDescriptors raises the soft limit of file descriptors to the hard one, and logs a warning
// if that is not enough for everything that the configuration allows. A daemon without descriptors
// rejects sessions, so this is no reason not to start.
func (e *Environment) reserveDescriptors(unit string, needed int) {
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
	if uint64(needed) > limit.Cur {
		e.Log.Warn("the configured limits allow sessions that need more file descriptors than RLIMIT_NOFILE allows, so some of them would be rejected: raise the limit of the unit, or lower the limits of sessions and queues",
			zap.Int("needed", needed), zap.Uint64("limit", limit.Cur),
			zap.String("next", fmt.Sprintf("systemctl edit %s, with [Service] LimitNOFILE=%d", unit,
				config.DescriptorLimit(needed))))
	}
}
