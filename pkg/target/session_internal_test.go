// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestASessionAwaitsThoseThatHaveEnded(t *testing.T) {
	disk := volumetest.OpenMemory(t, "1MiB")
	x, err := newOffers(map[string]Offer{
		"disk":  {Volume: disk},
		"alias": {Volume: disk},
		"other": {Volume: volumetest.OpenMemory(t, "1MiB")},
	})
	if err != nil {
		t.Fatal(err)
	}
	open := func(ctx context.Context, name string, uses Access) *session {
		s := &session{pendingConnection: &pendingConnection{ctx: ctx}, log: zap.NewNop()}
		if s.offer, _, err = x.choose(s, name); err != nil {
			t.Fatal(err)
		}
		if _, err := x.open(s, &controlmsg.ConfigureDataPath{}, uses, noClaim); err != nil {
			t.Fatal(err)
		}
		return s
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	open(over, "disk", ReadAccess)         // which has changed nothing
	open(over, "other", WriteAccess)       // which has changed another volume
	open(t.Context(), "disk", WriteAccess) // which has not ended
	newcomer := open(t.Context(), "disk", WriteAccess)
	if err := x.awaitEnded(t.Context(), newcomer); err != nil {
		t.Error(err)
	}
	for how, begin := range map[string]func() *session{
		"cut": func() *session { return open(over, "disk", WriteAccess) },
		"being released": func() *session {
			s := open(t.Context(), "disk", WriteAccess)
			s.closed = true
			return s
		},
		"cut, under another name": func() *session { return open(over, "alias", WriteAccess) },
	} {
		ended := begin()
		if err := x.awaitEnded(over, newcomer); !errors.Is(err, status.TimeOut) {
			t.Errorf("a session that is %s is not awaited: %v", how, err)
		}
		x.leave(ended)
		if err := x.awaitEnded(t.Context(), newcomer); err != nil {
			t.Errorf("a session that was %s and has left: %v", how, err)
		}
	}

	// A failed open_volume leaves the session with a choice that it has not opened.
	if _, _, err := x.choose(newcomer, "other"); err != nil {
		t.Fatal(err)
	}
	_, err = x.open(newcomer, &controlmsg.ConfigureDataPath{}, WriteAccess, noClaim)
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

func TestTheFailureOfAQueueEndsItsSessionUnlessItHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stopped := range []bool{false, true} {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			s := &session{pendingConnection: &pendingConnection{ctx: ctx, cancel: cancel},
				log: zap.NewNop()}
			if stopped {
				if err := s.Stop(ctx); err != nil {
					t.Fatal(err)
				}
			}
			failure := status.Errorf(status.ConnectionReset, "made up")
			s.onLaneFailure(3)(failure)
			synctest.Wait()
			if ended := errors.Is(context.Cause(ctx), failure); ended == stopped {
				t.Errorf("stopped %v: a failed queue has ended the session: %v", stopped, ended)
			}
		}
	})
}

// chosen returns offers with a volume, which a relay may use in one way, and a session of that
// relay that has chosen it.
func chosen(t *testing.T, access Access) (*offers, *session) {
	t.Helper()
	x, err := newOffers(map[string]Offer{"disk": {
		Volume: volumetest.OpenMemory(t, "1MiB"), Rights: []Right{{Relay: mutualtlstest.Name("a"), Access: access}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{pendingConnection: &pendingConnection{ctx: t.Context()}, log: zap.NewNop(),
		relayNames: mutualtlstest.Names("a")}
	if s.offer, _, err = x.choose(s, "disk"); err != nil {
		t.Fatal(err)
	}
	return x, s
}

func TestARemovedVolumeCannotBeOpened(t *testing.T) {
	x, s := chosen(t, WriteAccess)
	if _, _, err := x.remove("disk"); err != nil {
		t.Fatal(err)
	}
	_, err := x.open(s, &controlmsg.ConfigureDataPath{}, WriteAccess, noClaim)
	if !errors.Is(err, status.Shutdown) {
		t.Errorf("open a removed volume: %v", err)
	}
}

func TestARightLostBeforeTheVolumeIsOpenedIsLost(t *testing.T) {
	x, s := chosen(t, WriteAccess)
	lost, err := x.setRights("disk", []Right{{Relay: mutualtlstest.Name("a"), Access: ReadAccess}})
	if err != nil || len(lost) > 0 {
		t.Fatalf("%d sessions use what is lost: %v", len(lost), err)
	}
	_, err = x.open(s, &controlmsg.ConfigureDataPath{}, WriteAccess, noClaim)
	if !errors.Is(err, status.NotPermitted) {
		t.Errorf("open for writing: %v", err)
	}
	if _, err := x.open(s, &controlmsg.ConfigureDataPath{}, ReadAccess, noClaim); err != nil {
		t.Errorf("open for reading: %v", err)
	}
}

func TestASessionAcceptsConnectionsWithinBoundsUntilItEnds(t *testing.T) {
	s := &session{lanes: make([]*datapath.TargetLane, 1)}
	if _, err := s.beginAccept(1); !errors.Is(err, status.NotConnected) {
		t.Errorf("a connection for a queue that does not exist: %v", err)
	}
	for range maxAccepting {
		if _, err := s.beginAccept(0); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.beginAccept(0); !errors.Is(err, status.Full) {
		t.Errorf("one connection too many: %v", err)
	}
	s.accepting, s.closed = 0, true
	if _, err := s.beginAccept(0); !errors.Is(err, status.NotConnected) {
		t.Errorf("a connection of a session that has ended: %v", err)
	}
}
