// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A volume may be opened between the report at the start and the first look.
func TestTheFirstLookAtTheVolumesIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Value
		state.Store(volume.Serving)
		type report struct {
			reason  error
			missing string
		}
		var reports []report
		ended := errors.New("the end")
		ctx, stop := context.WithCancelCause(t.Context())
		go watchReadiness(ctx, func(reason error, missing string) {
			reports = append(reports, report{reason, missing})
		}, func() []target.VolumeStatus {
			late := target.VolumeStatus{Name: "late", State: state.Load().(volume.State)}
			if late.State == volume.Failed {
				late.Reason = "no such file"
			}
			return []target.VolumeStatus{{Name: "disk", State: volume.Serving}, late}
		})
		for _, next := range []volume.State{volume.Failed, volume.Failed, volume.Serving} {
			time.Sleep(readinessInterval)
			synctest.Wait()
			state.Store(next)
		}
		time.Sleep(readinessInterval)
		synctest.Wait()
		stop(ended)
		synctest.Wait()
		want := []report{{}, {nil, `serving 1 of 2 volumes: volume "late" is failed: no such file`}, {},
			{ended, ""}}
		if len(reports) != len(want) {
			t.Fatalf("the reports are %+v, want %+v", reports, want)
		}
		for i := range want {
			if reports[i] != want[i] {
				t.Errorf("report %d is %+v, want %+v", i, reports[i], want[i])
			}
		}
	})
}
