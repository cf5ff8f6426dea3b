// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// fakeVolume is a volume that counts how often it was closed.
type fakeVolume struct {
	volume.Volume // nil: the tests use only what follows
	closed        atomic.Int32
}

func (v *fakeVolume) Info() volume.Info     { return volume.Info{Name: "disk", Size: 4096} }
func (v *fakeVolume) Status() volume.Status { return volume.Status{State: volume.Serving} }
func (v *fakeVolume) Close(context.Context) error {
	v.closed.Add(1)
	return nil
}

// storage is what a Late volume opens.
type storage struct {
	t        *testing.T
	err      error
	silence  time.Duration // until it answers
	attempts []time.Time
	volume   fakeVolume
	log      *observer.ObservedLogs
	opened   int // calls of OnOpen
	refuses  func(error) bool
}

func (s *storage) openLate() *volume.Late {
	core, log := observer.New(zap.InfoLevel)
	s.log = log
	return volume.OpenLate(volume.LateConfig{
		Spec: volume.Spec{Name: "disk", BlockSize: 4096, Logger: zap.New(core)},
		Open: func(spec volume.Spec) (volume.Volume, error) {
			s.attempts = append(s.attempts, time.Now())
			time.Sleep(s.silence)
			if s.err != nil {
				return nil, s.err
			}
			return &s.volume, nil
		},
		Pauses: retry.Policy{FirstPause: time.Second, LongestPause: 8 * time.Second,
			Attempts: retry.Times(1), Random: func() float64 { return 0 }},
		Silence: time.Minute,
		OnOpen:  func(volume.Volume) { s.opened++ },
		Refuses: s.refuses,
	})
}

// expect fails unless the volume has the state, and the reason of the storage if it has failed.
func (s *storage) expect(v *volume.Late, want volume.State) volume.Status {
	s.t.Helper()
	synctest.Wait()
	now := v.Status()
	if now.State != want || (want == volume.Failed) != (now.Reason != nil) {
		s.t.Errorf("the volume is %+v, want %s", now, want)
	}
	isOpen := want == volume.Serving
	if (v.Opened() != nil) != isOpen || (v.Info().Size > 0) != isOpen || v.Info().Name != "disk" {
		s.t.Errorf("the volume is described as %+v, %v", v.Info(), v.Opened())
	}
	return now
}

func (s *storage) close(v *volume.Late, closed int32) {
	s.t.Helper()
	if err := v.Close(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	synctest.Wait()
	if n := s.volume.closed.Load(); n != closed {
		s.t.Errorf("the volume was closed %d times, want %d", n, closed)
	}
}

var errMissing = status.Errorf(status.NotFound, "there is no file")

func TestAVolumeThatCannotBeOpenedIsOpenedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storage{t: t, err: errMissing}
		begun := time.Now()
		v := s.openLate()
		<-v.Tried()
		now := s.expect(v, volume.Failed)
		if !errors.Is(now.Reason, errMissing) || now.Attempt != 1 ||
			now.NextTry != begun.Add(time.Second) || now.Since != begun {
			t.Errorf("the volume is %+v", now)
		}
		if _, err := v.NewQueue(1); !errors.Is(err, errMissing) {
			t.Errorf("a queue of the volume: %v", err)
		}
		if err := v.Resize(1<<20, false); !errors.Is(err, errMissing) {
			t.Errorf("resize: %v", err)
		}
		if v.Ownership() != nil || v.Memory() != nil || v.Failures() != nil {
			t.Error("the volume has what only an open one has")
		}
		time.Sleep(30 * time.Second)
		if now = s.expect(v, volume.Failed); now.Since != begun || now.Attempt != 6 {
			t.Errorf("the volume is %+v", now)
		}
		for i, want := range []time.Duration{0, 1, 3, 7, 15, 23} {
			if at := s.attempts[i].Sub(begun); at != want*time.Second {
				t.Errorf("attempt %d follows after %v, want %d s", i+1, at, want)
			}
		}
		if n := s.log.FilterMessageSnippet("cannot be opened").Len(); n != 1 {
			t.Errorf("the log has the reason %d times", n)
		}
		s.err = nil
		v.Retry()
		s.expect(v, volume.Serving)
		if s.opened != 1 {
			t.Errorf("OnOpen was called %d times", s.opened)
		}
		s.close(v, 1)
	})
}

// Whoever refuses the first error reports it. Later ones are the volume's own.
func TestARefusedVolumeWaitsForARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storage{t: t, err: status.Errorf(status.BadConfig, "a directory"),
			refuses: volume.IsMisconfigured}
		v := s.openLate()
		<-v.Tried()
		time.Sleep(time.Hour)
		if now := s.expect(v, volume.Failed); len(s.attempts) != 1 || s.log.Len() > 0 ||
			!now.NextTry.IsZero() {
			t.Errorf("%d attempts, %+v, and the log has %v", len(s.attempts), now, s.log.All())
		}
		v.Retry()
		time.Sleep(time.Second)
		if now := s.expect(v, volume.Failed); len(s.attempts) < 2 || now.NextTry.IsZero() {
			t.Errorf("%d attempts, %+v", len(s.attempts), now)
		}
		s.err = nil
		v.Retry()
		s.expect(v, volume.Serving)
		s.close(v, 1)
	})
}

func TestAVolumeThatWasNeverOpenedCanBeClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storage{t: t, err: errMissing}
		v := s.openLate()
		s.expect(v, volume.Failed)
		s.close(v, 0)
		s.expect(v, volume.Closed)
		attempts := len(s.attempts)
		time.Sleep(time.Hour)
		s.close(v, 0)
		if len(s.attempts) != attempts {
			t.Error("a closed volume is opened")
		}
	})
}

func TestStorageThatIsSilentIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storage{t: t, silence: time.Hour}
		v := s.openLate()
		s.expect(v, volume.Opening)
		<-v.Tried()
		if now := s.expect(v, volume.Failed); !errors.Is(now.Reason, status.TimeOut) ||
			!now.NextTry.IsZero() || !strings.Contains(now.Reason.Error(), "has not answered") {
			t.Errorf("the volume is %+v", now)
		}
		v.Retry() // does not help
		time.Sleep(59 * time.Minute)
		s.expect(v, volume.Serving)
		if len(s.attempts) != 1 {
			t.Errorf("%d attempts", len(s.attempts))
		}
		s.close(v, 1)
	})
}

func TestAVolumeThatIsOpenedAfterItsCloseIsClosedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &storage{t: t, silence: time.Hour}
		v := s.openLate()
		s.expect(v, volume.Opening)
		s.close(v, 0)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.volume.closed.Load(); n != 1 || s.opened != 0 {
			t.Errorf("the volume was closed %d times, and reported open %d times", n, s.opened)
		}
	})
}

// By default, it is a volume as Open opens it.
func TestALateVolumeServesWhatItsSpecDescribes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	v := volume.OpenLate(volume.LateConfig{Spec: volume.Spec{Name: "disk", BlockSize: 4096,
		Backend: volume.FileBackend{Path: path, Size: 1 << 20}}, Silence: time.Hour})
	<-v.Tried()
	if v.Info() != v.Opened().Info() || v.Info().Size != 1<<20 || v.Ownership() != nil ||
		v.Memory() != nil || v.Failures() != nil {
		t.Errorf("the volume is %+v", v.Info())
	}
	q, err := v.NewQueue(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := v.Resize(2<<20, false); err != nil || v.Info().Size != 2<<20 {
		t.Errorf("resize: %v, %+v", err, v.Info())
	}
	if err := v.Close(t.Context()); err != nil || v.Status().State != volume.Closed {
		t.Errorf("close: %v, %+v", err, v.Status())
	}
}
