// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// deaf is a control connection that loses the keep-alives that arrive while it is set.
type deaf struct {
	controlmsg.Transport
	deaf *atomic.Bool
}

func (d deaf) Receive(ctx context.Context) ([]byte, error) {
	for {
		b, err := d.Transport.Receive(ctx)
		if err != nil || !d.deaf.Load() {
			return b, err
		}
		e, err := controlmsg.Decode(b)
		if err != nil || e.Message.Kind() != controlmsg.KindKeepAlive {
			return b, err
		}
	}
}

func TestAChangeWaitsForTheAnswerOfItsRelay(t *testing.T) {
	recorded := &stuckVolume{Volume: volumetest.OpenMemory(t, "1MiB")}
	recorded.completes.Store(true)
	var isDeaf atomic.Bool
	var jump atomic.Int64 // of the clock
	s := startTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: recorded}}
		config.Lease = 500 * time.Millisecond
		config.Clock = func() int64 { return lease.Boottime() + jump.Load() }
		config.HookTransport = func(t controlmsg.Transport) controlmsg.Transport {
			return deaf{t, &isDeaf}
		}
	})
	v := openVolumeOf(t, s)
	isDeaf.Store(true)
	jump.Store(int64(time.Hour))
	waits := func() uint64 {
		return s.Volumes()[0].Counters.Queues()[0].BackPressure(datapath.NoLease)
	}

	var writing sync.WaitGroup
	var written error
	writing.Go(func() { _, written = v.WriteAt(make([]byte, 4096), 0) })
	testkit.Eventually(t, "the write waits for the lease", func() bool { return waits() > 0 })
	if recorded.submitted.Load() {
		t.Error("the volume has got a change whose relay has not answered")
	}
	if _, err := v.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Errorf("a read, which changes nothing: %v", err)
	}
	isDeaf.Store(false)
	if writing.Wait(); written != nil {
		t.Errorf("after the answer: %v", written)
	}
}

// silentRelay is a relay that answers questions only in the request that configures its session.
type silentRelay struct {
	*controlmsg.Requester
	instance lease.Instance
	hello    controlmsg.HelloReply
	asked    chan lease.Question
}

func startSilentRelay(t *testing.T, s *target.Target, instance byte) *silentRelay {
	t.Helper()
	r := &silentRelay{instance: lease.Instance{instance}, asked: make(chan lease.Question, 100)}
	r.Requester = controlmsg.NewRequester(controlmsg.NewTCPTransport(dial(t, s.Address()),
		controlmsg.TCPConfig{}), controlmsg.EndpointConfig{
		Role: controlmsg.RoleRelay, Timeout: testkit.Patience, KeepAlive: quiet,
		OnKeepAlive: func(m *controlmsg.KeepAlive) error {
			select {
			case r.asked <- m.Question:
			default:
			}
			return nil
		},
	})
	t.Cleanup(func() { r.Close(nil) })
	var err error
	if r.hello, err = r.Greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := openVolume(t, r.Requester, "disk"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *silentRelay) configure(t *testing.T, ended ...uint64) error {
	t.Helper()
	m := configuration(1, 4)
	m.ClientInstance[0], m.Owner[0] = r.instance[0], r.instance[0]
	m.Session = 1
	m.Answer = lease.Answer{Instance: r.instance, Question: r.hello.Question, Ended: ended}
	_, err := r.Call(t.Context(), m)
	return err
}

func TestAnOpenEndsTheSessionsOfSilentRelays(t *testing.T) {
	s := startTarget(t, func(config *target.Config) { config.Lease = 300 * time.Millisecond })
	former, next := startSilentRelay(t, s, 1), startSilentRelay(t, s, 2)
	if err := former.configure(t); err != nil {
		t.Fatal(err)
	}
	if err := next.configure(t); err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, "the end of the silent relay's session", former.Done())
	if err := former.Err(); !errors.Is(err, status.TimeOut) {
		t.Errorf("the silent relay's session has ended with %v", err)
	}
}

func TestAnOpenDoesNotWaitForARelayToClose(t *testing.T) {
	end := make(chan struct{})
	s := startTarget(t, func(config *target.Config) {
		config.HookTransport = func(t controlmsg.Transport) controlmsg.Transport {
			return controlmsgtest.Lingering{Transport: t, Until: end}
		}
	})
	t.Cleanup(func() { close(end) }) // before the target waits for its sessions
	former, next := startSilentRelay(t, s, 1), startSilentRelay(t, s, 1)
	if err := former.configure(t); err != nil {
		t.Fatal(err)
	}
	m := configuration(1, 4)
	m.ClientInstance[0], m.Session = 2, 2
	m.Answer = lease.Answer{Instance: next.instance, Question: next.hello.Question,
		Ended: []uint64{1}}
	if _, err := next.Call(t.Context(), m); err != nil {
		t.Errorf("open the volume: %v", err)
	}
}

func TestATargetNotesAndConfirmsWhatARelayNames(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	r := startSilentRelay(t, s, 1)
	if err := r.configure(t); err != nil {
		t.Fatal(err)
	}
	other := startSilentRelay(t, s, 1) // another connection of the same relay
	m := configuration(1, 4)
	m.ClientInstance[0], m.Session = 2, 2
	m.Answer = lease.Answer{Instance: r.instance, Question: r.hello.Question, Ended: []uint64{1}}
	if _, err := other.Call(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, "the end of the session that was named", r.Done())
	for q := range other.asked {
		if len(q.Noted) != 1 || q.Noted[0] != 1 {
			t.Fatalf("the target notes %v", q.Noted)
		}
		if len(q.Confirmed) == 1 && q.Confirmed[0] == 1 {
			break
		}
	}
}

func TestARelayThatLiesAboutQuestionsIsEnded(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	r := startSilentRelay(t, s, 1)
	r.hello.Question = 1 << 62
	if err := r.configure(t); !errors.Is(err, status.Unexpected) {
		t.Errorf("an answer to a question that nobody has asked: %v", err)
	}
}

// Nobody can ask such a relay whether its client lives, and end the session of one that does not.
func TestARelayThatAnswersNothingHasTheVolumeToItself(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	mute, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := configuration(1, 4)
	m.ClientInstance[0] = 9
	if _, err := mute.Call(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	other := opener{t: t, target: s, owner: 1}
	if _, _, err := other.open(); !errors.Is(err, status.InUse) {
		t.Errorf("another writer: %v", err)
	}
	other.readOnly = true
	if _, _, err := other.open(); !errors.Is(err, status.InUse) {
		t.Errorf("a reader: %v", err)
	}
	destroy(t, mute)
	if _, _, err := other.open(); err != nil {
		t.Errorf("when the relay has released its session: %v", err)
	}
}

// checkedVolume is a volume whose owner can change.
type checkedVolume struct {
	volume.Volume
	checks atomic.Int64
	check  func(context.Context) error
}

func (v *checkedVolume) CheckOwner(ctx context.Context) error {
	v.checks.Add(1)
	return v.check(ctx)
}

// What a target says about other processes' sessions has to be true at the time: it may have lost
// the volume without knowing.
func TestATargetConfirmsOnlyThatItCertainlyOwnsAVolume(t *testing.T) {
	lost := status.Errorf(status.Shutdown, "another target has taken the volume over")
	for name, test := range map[string]struct {
		isAsked, isConfirmed bool
		check                func(context.Context) error
		want                 error
	}{
		"not asked":    {check: func(context.Context) error { return nil }},
		"the owner":    {true, true, func(context.Context) error { return nil }, nil},
		"a former one": {true, false, func(context.Context) error { return lost }, status.Shutdown},
		"nobody knows": {true, false, func(ctx context.Context) error {
			<-ctx.Done()
			return status.Errorf(status.TimeOut, "the cluster is silent")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &checkedVolume{Volume: volumetest.OpenMemory(t, "1MiB"), check: test.check}
			s := startTarget(t, func(config *target.Config) {
				config.Volumes = map[string]target.Offer{"disk": {Volume: v}}
			})
			r := startSilentRelay(t, s, 1)
			reply, err := controlmsg.Call(t.Context(), r.Requester,
				&controlmsg.OpenVolume{Volume: "disk", Confirm: test.isAsked})
			if !errors.Is(err, test.want) {
				t.Fatalf("open_volume: %v", err)
			}
			if err == nil && reply.Confirmed != test.isConfirmed {
				t.Errorf("confirmed: %v", reply.Confirmed)
			}
			if checks := v.checks.Load() > 0; checks != test.isAsked {
				t.Errorf("the owner has been checked: %v", checks)
			}
		})
	}
}

func TestALeaseForWhichNobodyWouldWaitIsRejected(t *testing.T) {
	for _, length := range []time.Duration{-1, controlmsg.MaxLease + 1} {
		_, err := target.New(t.Context(), target.Config{Lease: length})
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("a lease of %v: %v", length, err)
		}
	}
}
