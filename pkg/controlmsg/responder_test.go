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

// newResponder returns a target's responder and its raw peer.
func newResponder(t *testing.T) (*controlmsg.Responder, *controlmsgtest.Raw) {
	t.Helper()
	raw, transport := controlmsgtest.NewRaw(t)
	s := controlmsg.NewResponder(transport, asTarget)
	t.Cleanup(func() { s.Close(nil) })
	return s, raw
}

func relayHello() *controlmsg.Hello {
	return &controlmsg.Hello{Role: controlmsg.RoleRelay, MinVersion: 1, MaxVersion: 1,
		MaxMessageSize: controlmsg.DefaultMaxMessageSize}
}

// bring exchanges hellos and answers the peer's requests with success.
func bring(t *testing.T, s *controlmsg.Responder, raw *controlmsgtest.Raw,
	requests []controlmsg.Message) {
	t.Helper()
	greet(t, s, raw)
	for i, request := range requests {
		raw.Send(uint64(i+2), request)
		answer(t, s, acceptAll())
	}
}

func greet(t *testing.T, s *controlmsg.Responder, raw *controlmsgtest.Raw) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_, _ = s.Next(ctx)
	}()
	raw.Send(1, relayHello())
	if e := raw.Receive(); e.Message.Kind() != controlmsg.KindHelloReply || e.Correlation != 1 {
		t.Fatalf("hello is answered by %v with correlation %d", e.Message.Kind(), e.Correlation)
	}
	cancel()
	<-waited
}

func next(t *testing.T, s *controlmsg.Responder) controlmsg.Request {
	t.Helper()
	request, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return request
}

func answer(t *testing.T, s *controlmsg.Responder, handler controlmsgtest.Handler) {
	t.Helper()
	request := next(t, s)
	reply, err := handler(request.Message)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reply(t.Context(), request.Correlation, reply); err != nil {
		t.Fatal(err)
	}
}

func TestAViolationIsReportedAndEndsTheResponder(t *testing.T) {
	open := &controlmsg.OpenVolume{}
	cases := []struct {
		name string
		send func(raw *controlmsgtest.Raw)
		code status.Code
		text string
	}{
		{"no hello", func(raw *controlmsgtest.Raw) { raw.Send(1, open) }, status.BadState,
			"out of order in phase connect"},
		{"second hello", func(raw *controlmsgtest.Raw) {
			raw.Send(1, relayHello())
			raw.Receive()
			raw.Send(2, relayHello())
		}, status.BadState, "out of order in phase hello"},
		{"unknown kind", func(raw *controlmsgtest.Raw) { raw.SendBytes([]byte{0xc2, 0x0c, 0x00}) },
			status.Unexpected, "unknown kind"},
		{"garbage",
			func(raw *controlmsgtest.Raw) { raw.SendBytes([]byte("GET / HTTP/1.1\r\n\r\n")) },
			status.InvalidValue, "decode message of 18 bytes"},
		{"reply", func(raw *controlmsgtest.Raw) { raw.Send(1, &controlmsg.StopReply{}) },
			status.Unexpected, "is not a request"},
		{"keep-alive before hello", func(raw *controlmsgtest.Raw) {
			raw.Send(0,
				&controlmsg.KeepAlive{})
		}, status.BadState, "before hello"},
		{"request without correlation", func(raw *controlmsgtest.Raw) { raw.Send(0, relayHello()) },
			status.InvalidValue, "correlation 0"},
		{"wrong version", func(raw *controlmsgtest.Raw) {
			hello := relayHello()
			hello.MinVersion, hello.MaxVersion = 2, 3
			raw.Send(1, hello)
		}, status.UnsupportedVersion,
			"the requester supports protocol versions 2 to 3, the responder 1 to 1"},
		{"wrong role", func(raw *controlmsgtest.Raw) {
			hello := relayHello()
			hello.Role = controlmsg.RoleInitiator
			raw.Send(1, hello)
		}, status.Unexpected,
			"the target expects a hello from the relay, but got one from the initiator"},
		{"second request before the first is answered", func(raw *controlmsgtest.Raw) {
			raw.Send(1, relayHello())
			raw.Receive()
			raw.Send(2, open)
			raw.Send(3, open)
		}, status.BadState, "open_volume came before the reply to open_volume"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, raw := newResponder(t)
			served := make(chan struct{})
			go func() { // answers hello and waits for the next request
				defer close(served)
				for {
					if _, err := s.Next(context.Background()); err != nil {
						return
					}
				}
			}()
			c.send(raw)
			checkFarewell(t, raw, c.code, c.text)
			<-served
			<-s.Done()
			checkError(t, "Err", s.Err(), c.code, c.text)
		})
	}
}

func TestAPeerThatStallsDuringSetupTimesOut(t *testing.T) {
	requests := session(1)
	cases := []struct {
		name  string
		phase controlmsg.Phase
		done  []controlmsg.Message
	}{
		{"after configure_data_path", controlmsg.PhaseConfigureDataPath, requests[:2]},
		{"between two RDMA connections", controlmsg.PhaseCreateConnections, requests[:3]},
		{"after start_data_path_connections", controlmsg.PhaseStartConnections, requests[:5]},
		{"after destroy_objects", controlmsg.PhaseDestroying, requests},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, raw := newResponder(t)
				bring(t, s, raw, c.done)
				checkCutOff(t, s, raw, c.phase)
			})
		})
	}
	t.Run("before its greeting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, raw := newResponder(t)
			checkCutOff(t, s, raw, controlmsg.PhaseConnect)
		})
	})
}

func checkCutOff(t *testing.T, s *controlmsg.Responder, raw *controlmsgtest.Raw,
	phase controlmsg.Phase) {
	t.Helper()
	start := time.Now()
	_, err := s.Next(t.Context())
	checkError(t, "Next", err, status.TimeOut, "no request within 10s in phase "+phase.String())
	if waited := time.Since(start); waited != controlmsg.DefaultTimeout {
		t.Errorf("it took %v", waited)
	}
	checkFarewell(t, raw, status.TimeOut, "no request within")
}

func TestAPeerMayBeIdleWithAnOpenOrRunningVolume(t *testing.T) {
	for _, count := range []int{1, 6, 7} { // opened, running, stopped
		synctest.Test(t, func(t *testing.T) {
			s, raw := newResponder(t)
			bring(t, s, raw, session(1)[:count])
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := s.Next(ctx)
			checkError(t, "Next", err, status.TimeOut, "wait for a request")
			if s.Err() != nil {
				t.Errorf("after %d requests the responder has ended: %v", count, s.Err())
			}
			raw.Send(100, &controlmsg.DestroyObjects{})
			answer(t, s, acceptAll())
		})
	}
}

func TestDoneClosesWhileARequestIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, raw := newResponder(t)
		bring(t, s, raw, nil)
		raw.Send(2, &controlmsg.OpenVolume{})
		request := next(t, s)
		raw.Close()
		<-s.Done()
		checkError(t, "Err", s.Err(), status.ConnectionReset, "lost the connection")
		err := s.Reply(t.Context(), request.Correlation, &controlmsg.ConfigureDataPathReply{})
		checkError(t, "Reply", err, status.ConnectionReset,
			"answer request 2 with configure_data_path_reply")
	})
}

func TestAPeerMayCloseOnlyWithoutObjects(t *testing.T) {
	requests := session(1)
	cases := []struct {
		name string
		done []controlmsg.Message
		code status.Code
	}{
		{"volume opened", requests[:1], status.NotConnected},
		{"data path configured", requests[:2], status.ConnectionReset},
		{"running", requests[:6], status.ConnectionReset},
		{"stopped", requests[:7], status.ConnectionReset},
		{"destroyed", requests, status.NotConnected},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, raw := newResponder(t)
			bring(t, s, raw, c.done)
			raw.Close()
			_, err := s.Next(t.Context())
			checkError(t, "Next", err, c.code, "")
		})
	}
}

func TestAnErrorFromTheRequesterEndsTheResponder(t *testing.T) {
	for _, correlation := range []uint64{0, 5} {
		s, raw := newResponder(t)
		raw.Send(correlation, &controlmsg.Error{Code: status.TimeOut, Text: "timed out"})
		_, err := s.Next(t.Context())
		checkError(t, "Next", err, status.TimeOut, "the other side reports at step unknown: timed out")
	}
}

func TestAWrongReplyLeavesTheRequestOutstanding(t *testing.T) {
	s, raw := newResponder(t)
	bring(t, s, raw, nil)
	raw.Send(2, &controlmsg.OpenVolume{})
	request := next(t, s)
	volume := controlmsgtest.Volume()
	err := s.Reply(t.Context(), request.Correlation, &controlmsg.StopReply{})
	checkError(t, "wrong kind", err, status.Unexpected, "stop_reply in reply to open_volume")
	err = s.Reply(t.Context(), request.Correlation+1, &volume)
	checkError(t, "wrong correlation", err, status.BadState, "no such request")
	err = s.Reply(t.Context(), request.Correlation, &controlmsg.OpenVolumeReply{BlockSize: 3})
	checkError(t, "not valid", err, status.InvalidValue, "block_size is 3")
	if s.Phase() != controlmsg.PhaseOpenVolume {
		t.Errorf("phase %v", s.Phase())
	}
	if err := s.Reply(t.Context(), request.Correlation, &volume); err != nil {
		t.Error(err)
	}
	err = s.Fail(t.Context(), request.Correlation, status.Unknown)
	checkError(t, "second answer", err, status.BadState, "no such request")
}

func TestFailuresKeepTheirCodeTextAndPhase(t *testing.T) {
	long := make([]byte, 5000)
	for i := range long {
		long[i] = 'x'
	}
	cases := []struct {
		name string
		err  error
		want controlmsg.Error
	}{
		{"code", status.NoMemory, controlmsg.Error{Code: status.NoMemory,
			Phase: controlmsg.PhaseOpenVolume, Text: "NO_MEMORY"}},
		{"code and text", status.Errorf(status.Full, "no room"), controlmsg.Error{Code: status.Full,
			Phase: controlmsg.PhaseOpenVolume, Text: "no room"}},
		{"plain error", context.DeadlineExceeded, controlmsg.Error{Code: status.TimeOut,
			Phase: controlmsg.PhaseOpenVolume, Text: "context deadline exceeded"}},
		{"error of the next peer", &controlmsg.Error{Code: status.TooBig,
			Phase: controlmsg.PhaseStartStorage, Text: "depth"},
			controlmsg.Error{Code: status.TooBig, Phase: controlmsg.PhaseStartStorage,
				Text: "depth"}},
		{"too long", status.Errorf(status.Full, "%s", long), controlmsg.Error{Code: status.Full,
			Phase: controlmsg.PhaseOpenVolume, Text: string(long[:controlmsg.MaxTextLength])}},
		{"none", nil, controlmsg.Error{Code: status.Unknown, Phase: controlmsg.PhaseOpenVolume,
			Text: "unspecified failure"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, raw := newResponder(t)
			bring(t, s, raw, nil)
			raw.Send(2, &controlmsg.OpenVolume{})
			if err := s.Fail(t.Context(), next(t, s).Correlation, c.err); err != nil {
				t.Fatal(err)
			}
			e := raw.Receive()
			got, ok := e.Message.(*controlmsg.Error)
			if !ok || *got != c.want || e.Correlation != 2 {
				t.Errorf("the peer gets %+v with correlation %d, want %+v", e.Message,
					e.Correlation, c.want)
			}
		})
	}
}

// handler is a target's Handler that runs one function for every request.
type handler struct {
	handle func(ctx context.Context, kind controlmsg.Kind) error
	done   bool
}

func (h *handler) OpenVolume(ctx context.Context,
	m *controlmsg.OpenVolume) (*controlmsg.OpenVolumeReply, error) {
	reply := controlmsgtest.Volume()
	return &reply, h.handle(ctx, m.Kind())
}

func (h *handler) ConfigureDataPath(ctx context.Context,
	m *controlmsg.ConfigureDataPath) (*controlmsg.ConfigureDataPathReply, error) {
	return &controlmsg.ConfigureDataPathReply{}, h.handle(ctx, m.Kind())
}

func (h *handler) StartDataPathConnections(
	ctx context.Context, m *controlmsg.StartDataPathConnections,
) (*controlmsg.StartDataPathConnectionsReply, error) {
	return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: m.ConsumerIDs},
		h.handle(ctx, m.Kind())
}

func (h *handler) StartStorage(ctx context.Context) error {
	return h.handle(ctx, controlmsg.KindStartStorage)
}

func (h *handler) Stop(ctx context.Context) error { return h.handle(ctx, controlmsg.KindStop) }

func (h *handler) DestroyObjects(ctx context.Context) (bool, error) {
	return h.done, h.handle(ctx, controlmsg.KindDestroyObjects)
}

// targetHandler is the handler of a target.
type targetHandler struct{ *handler }

func (h targetHandler) CreateRDMAConnection(
	ctx context.Context, m *controlmsg.CreateRDMAConnection,
) (*controlmsg.CreateRDMAConnectionReply, error) {
	return &controlmsg.CreateRDMAConnectionReply{Address: targetAddress}, h.handle(ctx, m.Kind())
}

// serve serves a requester by a handler, and returns what Serve returns.
func serve(t *testing.T, ctx context.Context, responder, requester controlmsg.EndpointConfig,
	h controlmsg.Handler) (*controlmsg.Requester, chan error) {
	t.Helper()
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	s := controlmsg.NewResponder(far, responder)
	t.Cleanup(func() { s.Close(nil) })
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, h) }()
	return newRequester(t, requester, near), served
}

func TestServeCallsTheMethodOfEachRequestUntilTheSessionIsDestroyed(t *testing.T) {
	var kinds []controlmsg.Kind
	h := &handler{done: true, handle: func(_ context.Context, kind controlmsg.Kind) error {
		kinds = append(kinds, kind)
		return nil
	}}
	r, served := serve(t, t.Context(), asTarget, asRelay, targetHandler{h})
	requests := session(1)
	mustCall(t, r, requests...)
	if err := <-served; err != nil {
		t.Errorf("Serve = %v", err)
	}
	if len(kinds) != len(requests) {
		t.Fatalf("handled %v", kinds)
	}
	for i, request := range requests {
		if kinds[i] != request.Kind() {
			t.Errorf("request %d, %v, is handled as %v", i, request.Kind(), kinds[i])
		}
	}
}

func TestServeContinuesAfterAFailureAndLetsDestroyObjectsBeRepeated(t *testing.T) {
	h := &handler{}
	failures := 0
	h.handle = func(_ context.Context, kind controlmsg.Kind) error {
		if failures++; failures%2 == 1 {
			return status.Errorf(status.IOFailed, "%v failed", kind)
		}
		h.done = kind == controlmsg.KindDestroyObjects
		return nil
	}
	r, served := serve(t, t.Context(), asRelay, asInitiator, h)
	for _, request := range []controlmsg.Message{&controlmsg.OpenVolume{}, configuration(1),
		&controlmsg.DestroyObjects{}} {
		_, err := r.Call(t.Context(), request)
		checkError(t, "first attempt", err, status.IOFailed, request.Kind().String()+" failed")
		mustCall(t, r, request)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestTheCauseOfTheContextIsTheAnswerAndTheError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := status.Errorf(status.ConnectionReset, "superseded")
	h := &handler{handle: func(ctx context.Context, _ controlmsg.Kind) error {
		cancel(cause)
		<-ctx.Done()
		return ctx.Err()
	}}
	r, served := serve(t, ctx, asRelay, asInitiator, h)
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{})
	checkError(t, "open_volume", err, status.ConnectionReset, "superseded")
	checkError(t, "Serve", <-served, status.ConnectionReset, "superseded")
}

func TestServeReturnsWhyTheConversationHasEnded(t *testing.T) {
	h := &handler{handle: func(context.Context, controlmsg.Kind) error { return nil }}
	r, served := serve(t, t.Context(), asRelay, asInitiator, h)
	mustCall(t, r, &controlmsg.OpenVolume{})
	r.Close(status.Errorf(status.ConnectionAborted, "interrupted"))
	checkError(t, "Serve", <-served, status.ConnectionAborted, "step open_volume: interrupted")
}

func TestTheOwnerOfAResponderMayRejectAHello(t *testing.T) {
	for name, reason := range map[string]error{
		"accepted": nil, "rejected": status.Errorf(status.Full, "no more sessions"),
	} {
		t.Run(name, func(t *testing.T) {
			hellos := 0
			config := asTarget
			config.OnHello = func(*controlmsg.Hello, *controlmsg.HelloReply) error {
				hellos++
				return reason
			}
			near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
			s := controlmsg.NewResponder(far, config)
			served := make(chan error, 1)
			go func() { served <- s.Serve(t.Context(), nil) }()
			r := controlmsg.NewRequester(near, asRelay)
			_, err := r.Greet(t.Context())
			if status.CodeOf(err) != status.CodeOf(reason) || hellos != 1 {
				t.Errorf("hello: %v, seen %d times", err, hellos)
			}
			r.Close(nil)
			s.Close(nil)
			if err := <-served; reason != nil && !errors.Is(err, status.Full) {
				t.Errorf("Serve = %v", err)
			}
		})
	}
}
