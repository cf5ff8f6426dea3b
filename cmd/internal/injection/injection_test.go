// SPDX-License-Identifier: Apache-2.0

package injection_test

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/injection"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
)

// A test turns a switch as soon as a daemon listens, which may be before a goroutine of the daemon
// has begun to obey.
func TestASwitchCanBeTurnedBeforeAnyoneObeys(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:any:while=storm:error=IO_FAILED")
	core, logged := observer.New(zap.WarnLevel)
	switches := injection.Switches()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var obeying sync.WaitGroup
	obeying.Go(func() { injection.ObeySwitches(ctx, switches, injector, zap.New(core)) })
	testkit.Eventually(t, "the switches are turned on",
		func() bool { return logged.FilterMessage("fault switches turned on").Len() == 1 })
	cancel()
	obeying.Wait()
}
