// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// mustOpen opens the volume, and returns the owner's ID as a holder, too.
func (o opener) mustOpen() (*controlmsg.Requester, controlmsg.HolderID) {
	o.t.Helper()
	r, reply, err := o.open()
	if err != nil {
		o.t.Fatal(err)
	}
	return r, reply.HolderID
}

func TestWhoeverNamesNobodyIsTold(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	absent := func(o opener) bool {
		t.Helper()
		r, reply, err := o.open()
		if err != nil {
			t.Fatal(err)
		}
		defer destroy(t, r)
		return reply.HolderAbsent
	}
	a, b := opener{t: t, target: s, owner: 0}, opener{t: t, target: s, owner: 1}
	if absent(a) {
		t.Error("who preempts nobody is told that somebody is absent")
	}
	b.preempt = 77
	if !absent(b) {
		t.Error("a holder that never was is not absent")
	}
	_, b.preempt = a.mustOpen()
	if absent(b) {
		t.Error("a holder is absent")
	}
	if !absent(b) {
		t.Error("a holder that has been preempted is not absent")
	}
}

// expectPreempted waits until a session has been preempted by a program.
func expectPreempted(t *testing.T, r *controlmsg.Requester, by string) {
	t.Helper()
	testkit.Receive(t, "the end of the session", r.Done())
	if err := r.Err(); !errors.Is(err, status.InUse) || !strings.Contains(err.Error(),
		`volume "disk": preempted by `+by) {
		t.Errorf("the session ended with %v, want IN_USE, preempted by %s", err, by)
	}
}

func expectRefusal(t *testing.T, err error, texts ...string) {
	t.Helper()
	if !errors.Is(err, status.InUse) {
		t.Errorf("the volume is opened with %v, want IN_USE", err)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error %q does not contain %q", err, text)
		}
	}
}

// holderOf returns who has the volume exclusively, as a session that only asks is told.
func holderOf(t *testing.T, s *target.Target) controlmsg.HolderID {
	t.Helper()
	r, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(nil)
	reply, err := controlmsg.Call(t.Context(), r, &controlmsg.OpenVolume{Volume: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	return reply.HolderID
}

func TestAHolderIsReplacedByWhoeverNamesIt(t *testing.T) {
	a, b, c := opener{owner: 0, exclusive: true}, opener{owner: 1, exclusive: true},
		opener{owner: 2, exclusive: true}
	shared := func(o opener) opener {
		o.exclusive = false
		return o
	}
	for name, test := range map[string]func(t *testing.T, s *target.Target){
		"the holder": func(t *testing.T, s *target.Target) {
			loser, id := a.mustOpen()
			_, _, err := b.open()
			expectRefusal(t, err, "program a", "(holder "+id.String()+")")
			if told := holderOf(t, s); told != id || id == 0 {
				t.Errorf("a session that asks is told of holder %v, it is %v", told, id)
			}
			b.preempt = id
			_, next := b.mustOpen()
			expectPreempted(t, loser, "program b through relay 127.0.0.1")
			if told := holderOf(t, s); told != next || next == id {
				t.Errorf("%v replaces %v, and a session that asks is told of %v", next, id, told)
			}
		},
		"all sessions of the holder": func(t *testing.T, _ *target.Target) {
			first, id := a.mustOpen()
			second, same := shared(a).mustOpen()
			if same != id {
				t.Errorf("one owner is holder %v and %v", id, same)
			}
			b.preempt = id
			b.mustOpen()
			expectPreempted(t, first, "program b")
			expectPreempted(t, second, "program b")
		},
		"another than the holder": func(t *testing.T, _ *target.Target) {
			present, id := a.mustOpen()
			for _, o := range []opener{b, shared(b)} {
				o.preempt = id + 1
				_, _, err := o.open()
				expectRefusal(t, err, o.preempt.String()+" any more", "program a",
					"(holder "+id.String()+")")
			}
			destroy(t, present) // it has not ended
		},
		"a holder that has come back since": func(t *testing.T, _ *target.Target) {
			former, old := a.mustOpen()
			destroy(t, former)
			present, id := a.mustOpen()
			b.preempt = old
			_, _, err := b.open()
			if expectRefusal(t, err, "(holder "+id.String()+")"); id == old {
				t.Errorf("the owner has the same ID again, %v", id)
			}
			destroy(t, present)
		},
		"a holder that has come back to share the volume": func(t *testing.T, _ *target.Target) {
			former, old := a.mustOpen()
			destroy(t, former)
			present, id := shared(a).mustOpen()
			o := shared(b)
			o.preempt = old
			_, _, err := o.open()
			expectRefusal(t, err, "(holder "+id.String()+")")
			destroy(t, present)
		},
		"nobody": func(t *testing.T, _ *target.Target) {
			former, old := a.mustOpen()
			destroy(t, former)
			b.preempt = old
			b.mustOpen()
		},
		"a holder that it has replaced already": func(t *testing.T, _ *target.Target) {
			_, id := a.mustOpen()
			b.preempt = id
			first, _ := b.mustOpen()
			second, _ := b.mustOpen()
			destroy(t, first)
			destroy(t, second)
		},
		"a holder that somebody else has replaced": func(t *testing.T, _ *target.Target) {
			for _, winner := range []opener{b, shared(c)} {
				_, id := opener{t: t, target: a.target, owner: 8 + winner.owner}.mustOpen()
				winner.preempt = id
				r, next := winner.mustOpen()
				for _, late := range []opener{a, shared(a)} {
					late.preempt = id
					_, _, err := late.open()
					expectRefusal(t, err, "(holder "+next.String()+")")
				}
				destroy(t, r)
			}
		},
		"one who shares the volume": func(t *testing.T, _ *target.Target) {
			loser, id := shared(a).mustOpen()
			_, _, err := b.open()
			expectRefusal(t, err, "(holder "+id.String()+")")
			b.preempt = id
			b.mustOpen()
			expectPreempted(t, loser, "program b")
		},
		"one of two who share the volume": func(t *testing.T, _ *target.Target) {
			one, id := shared(a).mustOpen()
			other, otherID := shared(c).mustOpen()
			b.preempt = id
			_, _, err := b.open()
			expectRefusal(t, err, "program c", "(holder "+otherID.String()+")")
			destroy(t, one)
			destroy(t, other)
		},
		"its own owner": func(t *testing.T, _ *target.Target) {
			first, id := a.mustOpen()
			a.preempt = id
			second, _ := a.mustOpen()
			destroy(t, first)
			destroy(t, second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startTarget(t, func(*target.Config) {})
			a, b, c = opener{owner: 0, exclusive: true}, opener{owner: 1, exclusive: true},
				opener{owner: 2, exclusive: true}
			for _, o := range []*opener{&a, &b, &c} {
				o.t, o.target = t, s
			}
			test(t, s)
		})
	}
}

func TestTheOneWriterOfAVolumeIsReplaced(t *testing.T) {
	s := startTarget(t, func(c *target.Config) {
		disk := c.Volumes["disk"]
		disk.Exclusive = true
		c.Volumes["disk"] = disk
	})
	reader, _ := opener{t: t, target: s, owner: 0, readOnly: true}.mustOpen()
	writer, id := opener{t: t, target: s, owner: 1}.mustOpen()
	if told := holderOf(t, s); told != id {
		t.Errorf("a session that asks is told of holder %v, the writer is %v", told, id)
	}
	next, _ := opener{t: t, target: s, owner: 2, preempt: id}.mustOpen()
	expectPreempted(t, writer, "program c")
	destroy(t, reader)
	destroy(t, next)
}

// A preempted owner may not have heard of it, and returns as after the loss of a connection.
func TestAPreemptedOwnerStaysOut(t *testing.T) {
	for name, lost := range map[string]bool{"that had a session": false, "that had lost it": true} {
		t.Run(name, func(t *testing.T) {
			s := startTarget(t, func(*target.Config) {})
			a, b := opener{t: t, target: s, owner: 0, exclusive: true},
				opener{t: t, target: s, owner: 1, exclusive: true}
			loser, id := a.mustOpen()
			if lost {
				destroy(t, loser)
			}
			b.preempt = id
			winner, next := b.mustOpen()
			if _, _, err := a.open(); !errors.Is(err, status.NotPermitted) {
				t.Errorf("the preempted owner returns: %v", err)
			}
			destroy(t, winner)
			if _, _, err := a.open(); !errors.Is(err, status.NotPermitted) {
				t.Errorf("the preempted owner returns when nobody has the volume: %v", err)
			}
			a.preempt = next
			present, _ := a.mustOpen() // which is what it wants
			destroy(t, present)
			a.preempt = 0
			present, _ = a.mustOpen()
			destroy(t, present)
			b.preempt = 0
			if _, _, err := b.open(); !errors.Is(err, status.NotPermitted) {
				t.Errorf("the owner that has been preempted in turn returns: %v", err)
			}
		})
	}
}

func TestOneOfManyReplacesAHolder(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	for round := range byte(20) {
		exclusive := round%2 == 0
		_, id := opener{t: t, target: s, owner: 6 + round, exclusive: true}.mustOpen()
		winners := opener{t: t, target: s, exclusive: exclusive, preempt: id}.compete()
		if len(winners) != 1 {
			t.Fatalf("%d owners have replaced the holder (exclusively: %v)", len(winners), exclusive)
		}
		destroy(t, winners[0])
	}
}

// startStuck starts a target whose volume completes nothing, and a client that writes to it.
func startStuck(t *testing.T, change func(*target.Config)) (
	s *target.Target, stuck *stuckVolume, v *client.Volume, written chan error,
) {
	t.Helper()
	stuck = &stuckVolume{Volume: volumetest.OpenMemory(t, "1MiB")}
	s = newTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: stuck, Exclusive: true}}
		change(config)
	})
	s.SetReleaseTimeout(10 * time.Millisecond)
	serve(t, s)
	v = openVolumeOf(t, s)
	written = make(chan error, 1)
	go func() {
		_, err := v.WriteAt(make([]byte, 4096), 0)
		written <- err
	}()
	t.Cleanup(func() { stuck.completes.Store(true) })
	testkit.Eventually(t, "the write is in flight", stuck.submitted.Load)
	return s, stuck, v, written
}

func expectPreemptedClient(t *testing.T, v *client.Volume, written <-chan error, by string) {
	t.Helper()
	if err := testkit.Receive(t, "the holder's write", written); !errors.Is(err, status.InUse) {
		t.Errorf("the holder's write fails with %v, want IN_USE", err)
	}
	testkit.Receive(t, "the end of the holder's volume", v.Done())
	if err := v.Err(); !errors.Is(err, client.ErrPreempted) ||
		!strings.Contains(err.Error(), "preempted by "+by) {
		t.Errorf("the holder's volume ended with %v, want preempted by %s", err, by)
	}
}

func expectNone[T any](t *testing.T, what string, channel <-chan T) {
	t.Helper()
	select {
	case <-channel:
		t.Fatalf("%s, although a write of the holder is in flight", what)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestAHolderIsReplacedWhenItsWritesHaveEnded(t *testing.T) {
	s, stuck, v, written := startStuck(t, func(*target.Config) {})
	id, replaced := holderOf(t, s), make(chan error, 1)
	go func() {
		_, _, err := opener{t: t, target: s, owner: 1, preempt: id}.open()
		replaced <- err
	}()
	testkit.Eventually(t, "the session is preempted", func() bool {
		for _, session := range s.OpenSessions() {
			if session.Client == "program b" {
				return true
			}
		}
		return false
	})
	expectNone(t, "the newcomer has the volume", replaced)
	expectNone(t, "the holder's write has failed", written)
	for _, named := range []controlmsg.HolderID{id, holderOf(t, s) + 1} {
		_, _, err := opener{t: t, target: s, owner: 2, readOnly: true, preempt: named}.open()
		expectRefusal(t, err, "program b")
	}
	stuck.completes.Store(true)
	if err := testkit.Receive(t, "the newcomer's session", replaced); err != nil {
		t.Error(err)
	}
	expectPreemptedClient(t, v, written, "program b through relay 127.0.0.1")
}

func TestWhoeverCannotAwaitTheHoldersWritesMayRepeat(t *testing.T) {
	s, stuck, _, _ := startStuck(t,
		func(config *target.Config) { config.ControlTimeout = 2 * time.Second })
	id := holderOf(t, s)
	for range 2 {
		_, _, err := opener{t: t, target: s, owner: 1, preempt: id}.open()
		if !errors.Is(err, status.Again) || !strings.Contains(err.Error(), "still in flight") {
			t.Errorf("a holder whose write is stuck is replaced with %v, want AGAIN", err)
		}
		if told := holderOf(t, s); told != 0 {
			t.Errorf("holder %v is there", told)
		}
	}
	stuck.completes.Store(true)
	opener{t: t, target: s, owner: 1, preempt: id}.mustOpen()
}

func TestAnAdministratorEndsAHolderWithoutANewcomer(t *testing.T) {
	s, stuck, v, written := startStuck(t, func(*target.Config) {})
	id := holderOf(t, s)
	if err := s.Preempt(t.Context(), "none", id); !errors.Is(err, status.NotFound) {
		t.Errorf("preempt a holder of a volume that there is not: %v", err)
	}
	if err := s.Preempt(t.Context(), "disk", id+1); !errors.Is(err, status.InUse) ||
		!strings.Contains(err.Error(), "(holder "+id.String()+")") {
		t.Errorf("preempt another holder: %v", err)
	}
	early, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Preempt(early, "disk", id); !errors.Is(err, status.InProgress) {
		t.Errorf("preempt a holder whose write is in flight: %v", err)
	}
	// Nobody else begins between the end of the holder and that of its write.
	waiting, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := openWithin(waiting, t, s); !isTooEarly(err) {
		t.Errorf("open the volume while the holder's write is in flight: %v", err)
	}
	stuck.completes.Store(true)
	if err := s.Preempt(t.Context(), "disk", id); err != nil {
		t.Errorf("preempt the holder: %v", err)
	}
	expectPreemptedClient(t, v, written, "an administrator")
	opener{t: t, target: s, owner: 1}.mustOpen()
}

// Only the target that serves a volume can take it from somebody.
func TestATargetPreemptsNobodyAtAVolumeThatItMayNotOwn(t *testing.T) {
	for _, reason := range []status.Code{status.NoLock, status.Shutdown, status.TimeOut} {
		v := &checkedVolume{Volume: volumetest.OpenMemory(t, "1MiB"),
			check: func(context.Context) error { return reason }}
		s := startTarget(t, func(config *target.Config) {
			config.Volumes = map[string]target.Offer{"disk": {Volume: v}}
		})
		if err := s.Preempt(t.Context(), "disk", 1); !errors.Is(err, reason) {
			t.Errorf("preempt at a target whose ownership is in doubt by %v: %v", reason, err)
		}
	}
}

func openWithin(ctx context.Context, t *testing.T, s *target.Target) error {
	r, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(nil)
	m := configuration(1, 4)
	m.ClientInstance[0], m.Owner[0] = 77, 7
	takePart(r, m)
	_, err = r.Call(ctx, m)
	return err
}

func TestAPreemptedClientDoesNotReopenItsVolume(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	v := openVolumeOf(t, s)
	id, err := controlmsg.ParseHolderID(v.Info().OwnHolderID)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := opener{t: t, target: s, owner: 1, exclusive: true, preempt: id}.mustOpen()
	testkit.Receive(t, "the end of the volume", v.Done())
	destroy(t, r)
	if err := v.Err(); !errors.Is(err, client.ErrPreempted) || !errors.Is(err, status.InUse) {
		t.Errorf("the volume ended with %v", err)
	}
	if _, err := v.ReadAt(make([]byte, 4096), 0); !errors.Is(err, status.InUse) {
		t.Errorf("a later read fails with %v", err)
	}
}
