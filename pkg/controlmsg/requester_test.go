// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestACompleteSessionPassesAllPhases(t *testing.T) {
	requests := session(2)
	kinds := make([]controlmsg.Kind, len(requests))
	for i := range requests {
		kinds[i] = requests[i].Kind()
	}
	transport := controlmsgtest.Serve(t, asTarget, controlmsgtest.Expect(t, kinds, acceptAll()))
	r := newRequester(t, asRelay, transport)
	mustCall(t, r, requests...)
	if r.Phase() != controlmsg.PhaseDestroying || r.Err() != nil {
		t.Errorf("phase %v, error %v", r.Phase(), r.Err())
	}
	r.Close(nil)
	checkError(t, "after Close", r.Err(), status.Shutdown, "closed by this side")
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
	checkError(t, "Call after Close", err, status.Shutdown, "closed by this side")
}

func TestGreetAgreesOnTheSmallerMessageSize(t *testing.T) {
	near, far := controlmsgtest.NewPipe(controlmsg.MinMessageSize)
	controlmsgtest.ServeOn(t, far, asTarget, acceptAll())
	r := controlmsg.NewRequester(near, asRelay)
	defer r.Close(nil)
	reply, err := r.Greet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if reply.Version != controlmsg.ProtocolVersion ||
		reply.MaxMessageSize != controlmsg.MinMessageSize {
		t.Errorf("agreed on version %d and %d bytes", reply.Version, reply.MaxMessageSize)
	}
}

func TestAMessageBeyondThePeersLimitIsNotSent(t *testing.T) {
	r, raw := newRequesterOfRaw(t, asInitiator, targetHello())
	go func() {
		volume := controlmsgtest.Volume()
		raw.Send(raw.Receive().Correlation, &volume)
		raw.Send(raw.Receive().Correlation, &controlmsg.ConfigureDataPathReply{})
	}()
	mustCall(t, r, &controlmsg.OpenVolume{}, configuration(controlmsg.MaxQueues))
	ids := make([]uint32, controlmsg.MaxQueues)
	for i := range ids {
		ids[i] = uint32(1<<31 + i)
	}
	_, err := r.Call(t.Context(), &controlmsg.StartDataPathConnections{ConsumerIDs: ids})
	checkError(t, "Call", err, status.TooBig, "accepts at most 2048")
	if r.Err() != nil {
		t.Errorf("the requester has ended: %v", r.Err())
	}
}

func TestAnInvalidRequestOrOneOutOfOrderIsNotSent(t *testing.T) {
	transport := controlmsgtest.Serve(t, asTarget, controlmsgtest.Expect(t,
		[]controlmsg.Kind{controlmsg.KindOpenVolume}, acceptAll()))
	r := newRequester(t, asRelay, transport)
	_, err := r.Call(t.Context(), &controlmsg.StartStorage{})
	checkError(t, "start_storage", err, status.BadState,
		"start_storage is out of order in phase hello")
	_, err = r.Call(t.Context(), &controlmsg.KeepAlive{})
	checkError(t, "keep_alive", err, status.Unexpected, "keep_alive is not a request")
	_, err = r.Call(t.Context(), &controlmsg.OpenVolume{Volume: "\n"})
	checkError(t, "open_volume", err, status.InvalidValue, "unprintable characters")
	mustCall(t, r, &controlmsg.OpenVolume{})
}

func TestARejectedVolumeMayBeCorrected(t *testing.T) {
	handler := func(request controlmsg.Message) (controlmsg.Message, error) {
		if open, ok := request.(*controlmsg.OpenVolume); ok && open.Volume == "misspelt" {
			return nil, status.Errorf(status.NotFound, "there is no volume %q", open.Volume)
		}
		return acceptAll()(request)
	}
	r := newRequester(t, asInitiator, controlmsgtest.Serve(t, asRelay, handler))
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{Volume: "misspelt"})
	checkError(t, "open_volume", err, status.NotFound, `there is no volume "misspelt" [NOT_FOUND]`)
	failure, ok := errors.AsType[*controlmsg.Error](err)
	if !ok || failure.Phase != controlmsg.PhaseOpenVolume ||
		failure.Text != `there is no volume "misspelt"` {
		t.Errorf("the failure is %+v", failure)
	}
	mustCall(t, r, &controlmsg.OpenVolume{Volume: "test"})
}

func TestAfterAFinalFailureOnlyDestroyObjectsIsAllowed(t *testing.T) {
	failing := controlmsgtest.FailOn(controlmsg.KindStartStorage, status.NoMemory, acceptAll())
	r := newRequester(t, asRelay, controlmsgtest.Serve(t, asTarget, failing))
	requests := session(1)
	mustCall(t, r, requests[:5]...)
	_, err := r.Call(t.Context(), &controlmsg.StartStorage{})
	checkError(t, "start_storage", err, status.NoMemory, "step start_storage")
	_, err = r.Call(t.Context(), &controlmsg.Stop{})
	checkError(t, "stop", err, status.BadState, "phase failed")
	mustCall(t, r, &controlmsg.DestroyObjects{})
}

func TestARequestWithoutReplyTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, transport := controlmsgtest.NewRaw(t)
		r := controlmsg.NewRequester(transport,
			controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: 3 * time.Second})
		defer r.Close(nil)
		start := time.Now()
		_, err := r.Greet(t.Context())
		checkError(t, "Greet", err, status.TimeOut, "hello: no reply from far end")
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("it took %v", waited)
		}
		<-r.Done()
		checkFarewell(t, raw, status.TimeOut, "no reply")
	})
}

func TestACancelledCallEndsTheRequester(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, transport := controlmsgtest.NewRaw(t)
		r := controlmsg.NewRequester(transport, asRelay)
		defer r.Close(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Greet(ctx)
		checkError(t, "Greet", err, status.TimeOut, "timed out")
		<-r.Done()
	})
}

func TestAPeerThatDisconnectsFailsTheOutstandingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw, transport := controlmsgtest.NewRaw(t)
		r := controlmsg.NewRequester(transport, asRelay)
		defer r.Close(nil)
		go func() {
			raw.Receive()
			raw.Close()
		}()
		start := time.Now()
		_, err := r.Greet(t.Context())
		checkError(t, "Greet", err, status.ConnectionReset, "lost the connection to far end")
		if waited := time.Since(start); waited != 0 {
			t.Errorf("it took %v", waited)
		}
	})
}

func TestAReplyIsAcceptedEvenIfThePeerThenDisconnects(t *testing.T) {
	for range 50 { // a requester sees both in any order
		synctest.Test(t, func(t *testing.T) {
			raw, transport := controlmsgtest.NewRaw(t)
			r := controlmsg.NewRequester(transport, asRelay)
			defer r.Close(nil)
			go func() {
				e := raw.Receive()
				raw.Send(e.Correlation, &controlmsg.Error{Code: status.Full,
					Text: "too many sessions"})
				raw.Close()
			}()
			_, err := r.Greet(t.Context())
			checkError(t, "Greet", err, status.Full, "too many sessions")
		})
	}
}

func TestASpontaneousErrorEndsTheRequester(t *testing.T) {
	r, raw := newRequesterOfRaw(t, asRelay, targetHello())
	raw.Send(0, &controlmsg.Error{Code: status.Shutdown, Phase: controlmsg.PhaseRunning,
		Text: "maintenance"})
	<-r.Done()
	checkError(t, "Err", r.Err(), status.Shutdown,
		"the other side reports at step running: maintenance [SHUTDOWN]")
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
	checkError(t, "Call", err, status.Shutdown, "open_volume: the other side reports")
}

func TestTheRequestThatAPeerRejectsIsNamedOnce(t *testing.T) {
	for phase, want := range map[controlmsg.Phase]string{
		controlmsg.PhaseOpenVolume: "the other side reports at step open_volume: in use [IN_USE]",
		controlmsg.PhaseRunning: "open_volume: the other side reports at step running: in use " +
			"[IN_USE]",
	} {
		r, raw := newRequesterOfRaw(t, asRelay, targetHello())
		go func() {
			e := raw.Receive()
			raw.Send(e.Correlation, &controlmsg.Error{Code: status.InUse, Phase: phase,
				Text: "in use"})
		}()
		_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
		if err == nil || err.Error() != want {
			t.Errorf("the error is %q, want %q", err, want)
		}
	}
}

// TestTheCodeOfAnErrorIsPrintedOnce reports an error that a peer has reported to the reporter.
func TestTheCodeOfAnErrorIsPrintedOnce(t *testing.T) {
	e := &controlmsg.Error{Code: status.NotConnected, Phase: controlmsg.PhaseOpenVolume,
		Text: "target is down: refused [NOT_CONNECTED]"}
	if got, want := e.Error(), "the other side reports at step open_volume: target is down: refused "+
		"[NOT_CONNECTED]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnsolicitedRepliesAreAViolation(t *testing.T) {
	cases := []struct {
		name        string
		correlation uint64
		answer      controlmsg.Message
		code        status.Code
		text        string
	}{
		{"before any request", 1, targetHello(), status.Unexpected, "unsolicited"},
		{"error for an unknown request", 9, &controlmsg.Error{Code: status.Full}, status.Unexpected,
			"unsolicited"},
		{"request", 1, &controlmsg.OpenVolume{}, status.Unexpected, "unsolicited"},
		{"keep-alive before the greeting", 0, &controlmsg.KeepAlive{}, status.BadState,
			"before hello"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			raw, transport := controlmsgtest.NewRaw(t)
			r := controlmsg.NewRequester(transport, asRelay)
			defer r.Close(nil)
			raw.Send(c.correlation, c.answer)
			<-r.Done()
			checkError(t, "Err", r.Err(), c.code, c.text)
			checkFarewell(t, raw, c.code, c.text)
		})
	}
}

func TestWrongRepliesToHelloAreAViolation(t *testing.T) {
	cases := []struct {
		name   string
		answer controlmsg.Message
		code   status.Code
		text   string
	}{
		{"other reply", &controlmsg.StopReply{}, status.Unexpected, "stop_reply in reply to hello"},
		{"version that was not offered", &controlmsg.HelloReply{Version: 2,
			MaxMessageSize: controlmsg.MinMessageSize},
			status.UnsupportedVersion, "picked protocol version 2, but 1 to 1 were offered"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			raw, transport := controlmsgtest.NewRaw(t)
			r := controlmsg.NewRequester(transport, asRelay)
			defer r.Close(nil)
			go func() { raw.Send(raw.Receive().Correlation, c.answer) }()
			_, err := r.Greet(t.Context())
			checkError(t, "Greet", err, c.code, c.text)
			checkFarewell(t, raw, c.code, c.text)
		})
	}
}

func TestCloseSendsThePeerTheReason(t *testing.T) {
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	s := controlmsgtest.ServeOn(t, far, asTarget, acceptAll())
	r := newRequester(t, asRelay, near)
	reason := status.Errorf(status.ConnectionAborted, "first line\nsecond line")
	r.Close(reason)
	if !errors.Is(r.Err(), reason) {
		t.Errorf("Err is %v", r.Err())
	}
	<-s.Done()
	checkError(t, "the peer's Err", s.Err(), status.ConnectionAborted,
		"step hello: first line second line")
	r.Close(nil)
}

// TestCloseDoesNotWaitForAPeerThatHasNotSaidFarewell closes with an error that was reported by a
// peer, as a relay does with both of its conversations when its target rejects a request.
func TestCloseDoesNotWaitForAPeerThatHasNotSaidFarewell(t *testing.T) {
	rejection := &controlmsg.Error{Code: status.InUse, Phase: controlmsg.PhaseOpenVolume,
		Text: "in use"}
	for name, newEndpoint := range map[string]func(controlmsg.Transport) interface{ Close(error) }{
		"requester": func(transport controlmsg.Transport) interface{ Close(error) } {
			return controlmsg.NewRequester(transport, asRelay)
		},
		"responder": func(transport controlmsg.Transport) interface{ Close(error) } {
			return controlmsg.NewResponder(transport, asRelay)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw, transport := controlmsgtest.NewRaw(t)
				endpoint := newEndpoint(transport)
				start := time.Now()
				endpoint.Close(rejection)
				if waited := time.Since(start); waited != 0 {
					t.Errorf("Close took %v", waited)
				}
				checkFarewell(t, raw, status.InUse, "in use")
			})
		})
	}
}

// TestAPeerThatHasSaidFarewellMayCloseFirst sends a farewell and closes later or never.
func TestAPeerThatHasSaidFarewellMayCloseFirst(t *testing.T) {
	const limit = 500 * time.Millisecond
	for _, closes := range []time.Duration{100 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r, raw := newRequesterOfRaw(t, asRelay, targetHello())
			start := time.Now()
			raw.Send(0, &controlmsg.Error{Code: status.Shutdown, Text: "maintenance"})
			time.AfterFunc(closes, raw.Close)
			<-r.Done()
			if waited := time.Since(start); waited != 0 {
				t.Errorf("the requester ended only after %v", waited)
			}
			r.Close(nil)
			if waited := time.Since(start); waited != min(closes, limit) {
				t.Errorf("the requester closed after %v, the peer after %v", waited, closes)
			}
		})
	}
}

func TestConcurrentCallsTakeTurns(t *testing.T) {
	r := newRequester(t, asRelay, controlmsgtest.Serve(t, asTarget, acceptAll()))
	failed := make(chan error)
	for range 8 {
		go func() {
			_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
			failed <- err
		}()
	}
	for range 8 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

func TestCallReturnsTheReplyInItsOwnType(t *testing.T) {
	r := newRequester(t, asRelay, controlmsgtest.Serve(t, asTarget, acceptAll()))
	volume, err := controlmsg.Call(t.Context(), r, &controlmsg.OpenVolume{})
	if err != nil || volume.Volume != "test" {
		t.Errorf("Call = %v, %v", volume, err)
	}
}

func TestATargetCannotBeARequester(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a target became a requester")
		}
	}()
	near, _ := controlmsgtest.NewPipe(controlmsg.MinMessageSize)
	controlmsg.NewRequester(near, asTarget)
}
