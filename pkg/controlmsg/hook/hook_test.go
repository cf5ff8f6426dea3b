// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"errors"
	"math/bits"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newPipe returns a pipe whose near end has hooks.
func newPipe(injector *fault.Injector) (near, far controlmsg.Transport) {
	a, b := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	return hook.Wrap(a, hook.Config{Injector: injector}), b
}

var loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}

func newTCP(t testing.TB) (near, far controlmsg.Transport) {
	t.Helper()
	listener, err := net.ListenTCP("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a, err := net.DialTCP("tcp", nil, listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	b, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	return controlmsg.NewTCPTransport(a, controlmsg.TCPConfig{}),
		controlmsg.NewTCPTransport(b, controlmsg.TCPConfig{})
}

// A hooked transport keeps every promise of the seam, whether its messages are recorded or
// postponed.
func TestHookedTransportsConform(t *testing.T) {
	for name, rules := range map[string][]string{
		"tracing":  {"control:any:trace", "control:any:kind=stop:trace"},
		"delaying": {"control:any:while=off:freeze", "control:any:delay=100us"},
	} {
		injector, recorder := faulttest.New(t, rules...)
		config := hook.Config{Injector: injector}
		t.Run(name, func(t *testing.T) {
			controlmsgtest.RunTransport(t, func(testing.TB) (near, far controlmsg.Transport) {
				a, b := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
				return hook.Wrap(a, config), hook.Wrap(b, config)
			})
		})
		t.Run(name+" TCP", func(t *testing.T) {
			controlmsgtest.RunTransport(t, func(t testing.TB) (near, far controlmsg.Transport) {
				a, b := newTCP(t)
				return hook.Wrap(a, config), hook.Wrap(b, config)
			})
		})
		if recorder.Collect(make([]fault.Event, 1)) != 1 {
			t.Errorf("%s: nothing was recorded", name)
		}
	}
}

func TestRulesApplyToTheKindOfMessageThatTheyName(t *testing.T) {
	injector, _ := faulttest.New(t, "control:send:kind=open_volume:error=NO_MEMORY")
	near, far := newPipe(injector)
	controlmsgtest.ServeOn(t, far, controlmsg.EndpointConfig{Role: controlmsg.RoleTarget},
		controlmsgtest.Accept(controlmsgtest.Volume(), netip.AddrPort{}))
	r := controlmsg.NewRequester(near, controlmsg.EndpointConfig{Role: controlmsg.RoleRelay})
	defer r.Close(nil)
	if _, err := r.Greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{Volume: "test"})
	if !errors.Is(err, status.NoMemory) || !errors.Is(err, fault.ErrInjected) {
		t.Errorf("the request failed with %v", err)
	}
	if got := injector.Rules()[0]; got.Seen != 1 || got.Matches != 1 {
		t.Errorf("the rule counted %+v", got)
	}
}

func TestADroppedMessageEndsTheTransport(t *testing.T) {
	for _, rule := range []string{"control:send:nth=2:drop", "control:receive:nth=2:drop"} {
		injector, _ := faulttest.New(t, rule)
		near, far := newPipe(injector)
		exchange := func() error {
			if injector.Rules()[0].Rule.Operation == "send" {
				return near.Send(t.Context(), []byte("message"))
			}
			if err := far.Send(t.Context(), []byte("message")); err != nil {
				t.Fatal(err)
			}
			_, err := near.Receive(t.Context())
			return err
		}
		if err := exchange(); err != nil {
			t.Fatal(err)
		}
		if err := exchange(); !errors.Is(err, status.NotConnected) ||
			!errors.Is(err, fault.ErrInjected) {
			t.Errorf("%s: the second message: %v", rule, err)
		}
		// Only the first message arrives.
		message, err := far.Receive(t.Context())
		if injector.Rules()[0].Rule.Operation == "send" {
			if string(message) != "message" {
				t.Errorf("%s: the peer received %q, %v", rule, message, err)
			}
			_, err = far.Receive(t.Context())
		}
		if err == nil {
			t.Errorf("%s: the peer is still connected", rule)
		}
	}
}

func TestMessagesAreDuplicatedAndCorrupted(t *testing.T) {
	injector, _ := faulttest.New(t, "control:send:nth=1:duplicate", "control:any:nth=2:corrupt")
	near, far := newPipe(injector)
	defer near.Abort()
	for range 2 {
		if err := near.Send(t.Context(), []byte{0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	var ones []int
	for range 3 {
		message, err := far.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ones = append(ones, bits.OnesCount8(message[0])+bits.OnesCount8(message[1]))
	}
	if ones[0] != 0 || ones[1] != 0 || ones[2] != 1 {
		t.Errorf("the messages that arrived have %v inverted bits", ones)
	}
}

func TestAFrozenMessageContinuesWhenItIsReleased(t *testing.T) {
	for name, end := range map[string]func(*fault.Injector, controlmsg.Transport,
		context.CancelFunc){
		"released":    func(i *fault.Injector, _ controlmsg.Transport, _ context.CancelFunc) { i.Release() },
		"turned off":  func(i *fault.Injector, _ controlmsg.Transport, _ context.CancelFunc) { i.TurnOff("jam") },
		"aborted":     func(_ *fault.Injector, near controlmsg.Transport, _ context.CancelFunc) { near.Abort() },
		"out of time": func(_ *fault.Injector, _ controlmsg.Transport, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			injector, _ := faulttest.New(t, "control:send:while=jam:freeze")
			near, far := newPipe(injector)
			defer near.Abort()
			if err := near.Send(t.Context(), []byte("before")); err != nil {
				t.Fatal(err)
			}
			injector.TurnOn("jam")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sent := make(chan error, 1)
			go func() { sent <- near.Send(ctx, []byte("after")) }()
			for injector.Rules()[0].Matches == 0 {
				time.Sleep(time.Millisecond)
			}
			end(injector, near, cancel)
			err := <-sent
			switch name {
			case "aborted":
				if err == nil {
					t.Error("the transport has sent although it was aborted")
				}
			case "out of time":
				if !errors.Is(err, status.Shutdown) {
					t.Errorf("Send returned %v", err)
				}
			default:
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range []string{"before", "after"} {
					if got, err := far.Receive(t.Context()); err != nil || string(got) != want {
						t.Errorf("received %q, %v, want %q", got, err, want)
					}
				}
			}
		})
	}
}

func TestATransportWithoutRulesIsNotWrapped(t *testing.T) {
	inner, _ := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	injector, _ := faulttest.New(t, "rdma:poll:trace")
	for _, i := range []*fault.Injector{nil, injector} {
		if hook.Wrap(inner, hook.Config{Injector: i}) != inner {
			t.Error("there is a wrapper that has nothing to do")
		}
	}
}
