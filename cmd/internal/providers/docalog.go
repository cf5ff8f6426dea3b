// SPDX-License-Identifier: Apache-2.0

package providers

import (
	"os"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/doca"
)

// docaLog is the log of the DOCA libraries, of which a process has one.
var docaLog struct {
	level uint32 // 0 for the libraries' default, which is no log
	start sync.Once
}

// LogDOCA makes the DOCA libraries write their own log to standard error, up to a level from 10
// (nothing) to 70 (everything), once the provider doca is chosen. Call it before that.
func LogDOCA(level uint32) { docaLog.level = level }

// startDOCALog starts the log if the chosen provider is doca. If the libraries are missing, the
// provider reports it.
func startDOCALog(name string) {
	if name != "doca" || docaLog.level == 0 {
		return
	}
	docaLog.start.Do(func() {
		_ = doca.System().LogTo(int(os.Stderr.Fd()), docaLog.level)
	})
}
