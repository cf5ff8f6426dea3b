// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func watching(role controlmsg.Role) controlmsg.EndpointConfig {
	return controlmsg.EndpointConfig{Role: role, KeepAlive: controlmsg.DefaultKeepAlive()}
}

func TestKeepAlivesKeepAnIdleConversationAlive(t *testing.T) {
	cases := []struct {
		name          string
		relay, target controlmsg.EndpointConfig
	}{
		{"both watch", watching(controlmsg.RoleRelay), watching(controlmsg.RoleTarget)},
		{"only the relay watches", watching(controlmsg.RoleRelay), asTarget},
		{"only the target watches", asRelay, watching(controlmsg.RoleTarget)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRequester(t, c.relay, controlmsgtest.Serve(t, c.target, acceptAll()))
				mustCall(t, r, &controlmsg.OpenVolume{})
				time.Sleep(time.Hour)
				mustCall(t, r, &controlmsg.OpenVolume{})
			})
		})
	}
}

func TestASilentPeerIsDeclaredDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, raw := newRequesterOfRaw(t, watching(controlmsg.RoleRelay), targetHello())
		time.Sleep(1300 * time.Millisecond) // to between two keep-alives
		raw.Send(0, &controlmsg.KeepAlive{})
		synctest.Wait()
		start := time.Now()
		<-r.Done()
		if silent := time.Since(start); silent != 5*time.Second {
			t.Errorf("declared dead after %v", silent)
		}
		checkError(t, "Err", r.Err(), status.TimeOut, "has been silent for")
		checkFarewell(t, raw, status.TimeOut, "has been silent for")
	})
}

func TestASilentPeerFailsTheOutstandingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRequesterOfRaw(t, watching(controlmsg.RoleRelay), targetHello())
		_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
		checkError(t, "Call", err, status.TimeOut, "has been silent for")
	})
}

func TestKeepAlivesAreSentOnlyWhenNothingElseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, transport := controlmsgtest.NewRaw(t)
		s := controlmsg.NewResponder(transport, watching(controlmsg.RoleTarget))
		defer s.Close(nil)
		hello := relayHello()
		hello.SilenceLimitMs = 60_000
		raw.Send(1, hello)
		go func() {
			for {
				request, err := s.Next(t.Context())
				if err != nil {
					return
				}
				volume := controlmsgtest.Volume()
				_ = s.Reply(t.Context(), request.Correlation, &volume)
			}
		}()
		raw.Receive() // hello_reply
		for correlation := uint64(2); correlation < 20; correlation++ {
			raw.Send(correlation, &controlmsg.OpenVolume{})
			if e := raw.Receive(); e.Correlation != correlation {
				t.Fatalf("%v came although replies keep the conversation alive", e.Message.Kind())
			}
			time.Sleep(500 * time.Millisecond)
		}
		if e := raw.Receive(); e.Message.Kind() != controlmsg.KindKeepAlive {
			t.Errorf("%v came, expected a keep-alive", e.Message.Kind())
		}
	})
}

func TestAPeerThatStopsReadingEndsTheConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hello := targetHello()
		hello.SilenceLimitMs = 400
		r, _ := newRequesterOfRaw(t, asRelay, hello)
		start := time.Now()
		<-r.Done() // after keep-alives have filled the pipe
		checkError(t, "Err", r.Err(), status.TimeOut, "send message")
		if waited := time.Since(start); waited > 20*time.Second {
			t.Errorf("it took %v", waited)
		}
	})
}

// A peer reads nothing after the farewell, so what there is to say comes before it.
func TestNewsComeBeforeTheFarewell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			raw, transport := controlmsgtest.NewRaw(t)
			target := watching(controlmsg.RoleTarget)
			target.Announce = func(m *controlmsg.KeepAlive) { m.VolumeSize = 7 }
			s := controlmsg.NewResponder(transport, target)
			go func() { _, _ = s.Next(t.Context()) }()
			raw.Send(1, relayHello())
			raw.Receive() // hello_reply
			go func() {
				s.Announce()
				s.Leave(status.Errorf(status.Shutdown, "made up"))
			}()
			news, ok := raw.Receive().Message.(*controlmsg.KeepAlive)
			if !ok || news.VolumeSize != 7 {
				t.Fatalf("%+v came before the news", news)
			}
			s.Close(nil)
		}
	})
}

func TestKeepAlivesTellTheSizeOfTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size, told atomic.Uint64
		target := watching(controlmsg.RoleTarget)
		target.Announce = func(m *controlmsg.KeepAlive) { m.VolumeSize = size.Load() }
		relay := asRelay
		relay.OnKeepAlive = func(m *controlmsg.KeepAlive) error {
			told.Store(m.VolumeSize)
			return nil
		}
		r := newRequester(t, relay, controlmsgtest.Serve(t, target, acceptAll()))
		mustCall(t, r, &controlmsg.OpenVolume{})
		for _, want := range []uint64{0, 1 << 20, 1 << 40} {
			size.Store(want)
			time.Sleep(5 * controlmsg.DefaultKeepAlive().Interval / 2)
			if told.Load() != want {
				t.Errorf("the relay knows %d bytes, the target has %d", told.Load(), want)
			}
		}
	})
}

// TestASizeIsAnnouncedWithoutKeepAlives is about transports that detect a dead peer themselves.
func TestASizeIsAnnouncedWithoutKeepAlives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var size, told atomic.Uint64
		var calls atomic.Int32
		near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
		target := asTarget
		target.Announce = func(m *controlmsg.KeepAlive) { m.VolumeSize = size.Load() }
		s := controlmsgtest.ServeOn(t, far, target, acceptAll())
		relay := asRelay
		relay.OnKeepAlive = func(m *controlmsg.KeepAlive) error {
			told.Store(m.VolumeSize)
			calls.Add(1)
			return nil
		}
		r := newRequester(t, relay, near)
		mustCall(t, r, &controlmsg.OpenVolume{})
		for want := range uint64(1000) {
			size.Store(want + 1)
			s.Announce()
		}
		synctest.Wait()
		if told.Load() != 1000 || calls.Load() > 1000 {
			t.Errorf("the relay knows %d bytes after %d messages", told.Load(), calls.Load())
		}
		size.Store(7)
		synctest.Wait()
		if told.Load() != 1000 {
			t.Error("a size was sent that nobody has announced")
		}
	})
}
