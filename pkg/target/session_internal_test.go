package target

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestASessionAwaitsThoseThatHaveEnded(t *testing.T) {
	x, err := newExports(map[string]Export{
		"disk":  {Volume: volumetest.OpenMemory(t, "1MiB")},
		"other": {Volume: volumetest.OpenMemory(t, "1MiB")},
	})
	if err != nil {
		t.Fatal(err)
	}
	open := func(ctx context.Context, uses Access) *session {
		s := &session{pendingConnection: &pendingConnection{ctx: ctx}, log: zap.NewNop()}
		if s.export, _, err = x.choose(s, "disk"); err != nil {
			t.Fatal(err)
		}
		if err := x.open(s, &controlmsg.ConfigureDataPath{}, uses, noClaim); err != nil {
			t.Fatal(err)
		}
		return s
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	open(over, ReadAccess)         // which has changed nothing
	open(t.Context(), WriteAccess) // which has not ended
	newcomer := open(t.Context(), WriteAccess)
	if err := x.awaitEnded(t.Context(), newcomer); err != nil {
		t.Error(err)
	}
	cut, released := open(over, WriteAccess), open(t.Context(), WriteAccess)
	released.closed = true
	for _, s := range []*session{cut, released} {
		if err := x.awaitEnded(over, newcomer); !errors.Is(err, status.TimeOut) {
			t.Errorf("a session that has ended is not awaited: %v", err)
		}
		x.leave(s)
	}
	if err := x.awaitEnded(t.Context(), newcomer); err != nil {
		t.Error(err)
	}

	// A failed open_volume leaves the session with a choice that it has not opened.
	if _, _, err := x.choose(newcomer, "other"); err != nil {
		t.Fatal(err)
	}
	err = x.open(newcomer, &controlmsg.ConfigureDataPath{}, WriteAccess, noClaim)
	if !errors.Is(err, status.BadState) {
		t.Errorf("open a volume that could not be chosen: %v", err)
	}
}

func TestADrainedSessionDoesNotStart(t *testing.T) {
	s := &session{pendingConnection: &pendingConnection{ctx: context.Background()}}
	s.drain(context.Background())
	if err := s.StartStorage(context.Background()); !errors.Is(err, status.Shutdown) {
		t.Errorf("start storage: %v", err)
	}
}
