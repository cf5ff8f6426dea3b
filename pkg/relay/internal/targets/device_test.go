// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/devicecall"
)

// TestAStepHasEndedBeforeTheLinkHas ends the relay while a device carries out a step.
func TestAStepHasEndedBeforeTheLinkHas(t *testing.T) {
	for name, test := range map[string]struct {
		step time.Duration // that the device takes to notice the end
		want time.Duration // that useDevice takes
	}{
		"a device that answers": {time.Second, time.Second},
		"a device that hangs":   {time.Hour, devicecall.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var settings atomic.Pointer[Settings]
				settings.Store(&Settings{ControlTimeout: time.Minute})
				l := &Link{linkConfig: linkConfig{settings: &settings}}
				ctx, end := context.WithCancel(t.Context())
				end()
				begun := time.Now()
				_ = l.useDevice(ctx, &l.probing, "probe", func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(test.step)
					return ctx.Err()
				})
				if took := time.Since(begun); took != test.want {
					t.Errorf("the link ends after %v, want %v", took, test.want)
				}
				time.Sleep(test.step) // the step ends
			})
		})
	}
}
