// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connect returns both ends of a TCP connection. The end of the test closes them.
func connect(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err = net.DialTCP("tcp", nil, listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	far, err = listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

// generous returns a context that ends only if the test hangs.
func generous(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestASessionRunsOverTCP(t *testing.T) {
	near, far := connect(t)
	controlmsgtest.ServeOn(t, controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{}),
		watching(controlmsg.RoleTarget), acceptAll())
	r := newRequester(t, watching(controlmsg.RoleRelay), controlmsg.NewTCPTransport(near,
		controlmsg.TCPConfig{}))
	mustCall(t, r, session(4)...)
}

func TestMessagesOfAnySizeArriveUnchangedOverTCP(t *testing.T) {
	near, far := connect(t)
	config := controlmsg.TCPConfig{MaxMessageSize: 100_000}
	a, b := controlmsg.NewTCPTransport(near, config), controlmsg.NewTCPTransport(far, config)
	sizes := []int{1, 3, 4, 5, 1500, 65535, 100_000}
	sent := make(chan error)
	go func() {
		for i, size := range sizes {
			if err := a.Send(generous(t), bytes.Repeat([]byte{byte(i)}, size)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i, size := range sizes {
		message, err := b.Receive(generous(t))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(message, bytes.Repeat([]byte{byte(i)}, size)) {
			t.Errorf("message %d of %d bytes arrived differently, with %d bytes", i, size,
				len(message))
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	err := a.Send(generous(t), make([]byte, 100_001))
	checkError(t, "Send", err, status.TooBig, "100001 bytes")
	if a.MaxMessageSize() != 100_000 || a.RemoteName() != near.RemoteAddr().String() {
		t.Errorf("limit %d, peer %s", a.MaxMessageSize(), a.RemoteName())
	}
}

func TestAClientOfAnotherProtocolGetsAnErrorAndIsDisconnected(t *testing.T) {
	near, far := connect(t)
	s := controlmsg.NewResponder(controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{}), asTarget)
	defer s.Close(nil)
	if _, err := near.Write([]byte("GET / HTTP/1.1\r\nHost: target\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_, err := s.Next(generous(t))
	checkError(t, "Next", err, status.BadConfig, "client of another protocol")
	answer, err := io.ReadAll(near)
	if err != nil || !bytes.Contains(answer, []byte("client of another protocol")) {
		t.Errorf("the client gets %q, %v", answer, err)
	}
	if err := near.Close(); err != nil { // for which the responder waits
		t.Error(err)
	}
}

func TestAStalledMessageTimesOut(t *testing.T) {
	for name, begun := range map[string][]byte{
		"header": {0, 0, 0}, "message": {0, 0, 0, 10, 8, 2, 3},
	} {
		for _, detects := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, framing detected: %t", name, detects), func(t *testing.T) {
				near, far := connect(t)
				config := controlmsg.TCPConfig{MessageTimeout: 50 * time.Millisecond}
				if detects {
					config.DetectFraming = dialects.DetectFraming
				}
				b := controlmsg.NewTCPTransport(far, config)
				if _, err := near.Write(begun); err != nil {
					t.Fatal(err)
				}
				_, err := b.Receive(generous(t))
				checkError(t, "Receive", err, status.TimeOut, "timed out")
			})
		}
	}
}

func TestTheFirstBytesSelectTheFraming(t *testing.T) {
	encode := func(v dialects.Version, m dialects.Message) []byte {
		b, err := dialects.Encode(v, &dialects.Envelope{ID: 1, Correlation: 1, Message: m})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	of2, of3 := encode(dialects.DOCA2_10, &dialects.Shutdown{}),
		encode(dialects.DOCA3_2, &dialects.QueryStorage{})
	for name, c := range map[string]struct{ stream, first []byte }{
		"ours":            {[]byte{0, 0, 0, 3, 8, 9, 10, 0, 0, 0, 1, 8}, []byte{8, 9, 10}},
		"ours, one byte":  {[]byte{0, 0, 0, 1, 8, 0, 0, 0, 1, 9}, []byte{8}},
		"ours, partly":    {[]byte{0, 0, 0, 3, 8, 9}, nil},
		"too little":      {[]byte{0, 0, 0, 1}, nil},
		"2.10":            {slices.Concat(of2, of2), of2},
		"2.10, partly":    {of2[:len(of2)-1], nil},
		"3.x":             {slices.Concat(of3, of3), of3},
		"3.x, the header": {of3[:len(of3)-1], nil},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t)
			transport := controlmsg.NewTCPTransport(near,
				controlmsg.TCPConfig{DetectFraming: dialects.DetectFraming})
			for i := range c.stream { // in the smallest pieces
				if _, err := far.Write(c.stream[i : i+1]); err != nil {
					t.Fatal(err)
				}
			}
			if err := far.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			first, err := transport.Receive(generous(t))
			if c.first == nil {
				checkError(t, "Receive", err, status.ConnectionReset, "inside a message")
				return
			}
			if err != nil || !bytes.Equal(first, c.first) {
				t.Fatalf("the first message is %x, %v", first, err)
			}
			if second, err := transport.Receive(generous(t)); err != nil || len(second) == 0 {
				t.Errorf("the second message is %x, %v", second, err)
			}
			if err := transport.Send(generous(t), first); err != nil {
				t.Fatal(err)
			}
			if err := transport.Close(); err != nil {
				t.Error(err)
			}
			answer, err := io.ReadAll(far)
			if err != nil || !bytes.HasPrefix(c.stream, answer) || len(answer) < len(first) {
				t.Errorf("the first message is sent as %x, %v", answer, err)
			}
		})
	}
}

func TestErrorsDistinguishHowATCPConnectionEnds(t *testing.T) {
	cases := []struct {
		name string
		end  func(*net.TCPConn) error
		code status.Code
		text string
	}{
		{"between messages", func(c *net.TCPConn) error { return c.CloseWrite() },
			status.NotConnected, "closed the connection"},
		{"inside a message", func(c *net.TCPConn) error {
			_, err := c.Write([]byte{0, 0})
			return errors.Join(err, c.CloseWrite())
		}, status.ConnectionReset, "inside a message"},
		{"by reset", func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
			status.ConnectionReset, "reset by peer"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			near, far := connect(t)
			if err := c.end(near); err != nil {
				t.Fatal(err)
			}
			_, err := controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{}).Receive(generous(t))
			checkError(t, "Receive", err, c.code, c.text)
		})
	}
}

func TestAFarewellIsReceivedDespiteAReset(t *testing.T) {
	near, far := connect(t)
	b, err := controlmsg.Encode(&controlmsg.Envelope{
		Message: &controlmsg.Error{Code: status.Full, Text: "farewell"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{}).Send(generous(t),
		b); err != nil {
		t.Fatal(err)
	}
	// Closing with unread data makes the kernel send a reset.
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	r := controlmsg.NewRequester(controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{}), asRelay)
	defer r.Close(nil)
	_, err = r.Greet(generous(t))
	checkError(t, "Greet", err, status.Full, "farewell")
}

func TestTheReasonOfCloseArrivesDespiteUnreadMessages(t *testing.T) {
	near, far := connect(t)
	a := controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{})
	b := controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{})
	for range 100 {
		if err := a.Send(generous(t), []byte("not read by the peer")); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan error)
	go func() {
		err := b.Send(generous(t), []byte("reason"))
		closed <- errors.Join(err, b.Close())
	}()
	message, err := a.Receive(generous(t))
	if err != nil || string(message) != "reason" {
		t.Errorf("Receive = %q, %v", message, err)
	}
	_, err = a.Receive(generous(t))
	checkError(t, "Receive", err, status.NotConnected, "closed")
	if err := errors.Join(a.Close(), <-closed); err != nil {
		t.Error(err)
	}
}

func TestCloseDoesNotWaitForeverForThePeer(t *testing.T) {
	near, _ := connect(t)
	a := controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{CloseTimeout: 20 * time.Millisecond})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	err := a.Send(generous(t), []byte("late"))
	checkError(t, "Send", err, status.NotConnected, "the connection is closed")
}

func TestContextsEndWaitsOnTCP(t *testing.T) {
	near, far := connect(t)
	a := controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	received := make(chan error)
	go func() {
		_, err := a.Receive(ctx)
		received <- err
	}()
	cancel()
	checkError(t, "cancelled Receive", <-received, status.Shutdown, "context canceled")

	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := a.Receive(ctx)
	checkError(t, "late Receive", err, status.TimeOut, "receive message from")

	if err := far.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for err = nil; err == nil; {
		err = a.Send(ctx, make([]byte, controlmsg.DefaultMaxMessageSize))
	}
	checkError(t, "Send to a peer that does not read", err, status.TimeOut, "send message to")
}

func TestAnEndedContextDoesNotAffectTheNextWait(t *testing.T) {
	near, far := connect(t)
	a, b := controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{}),
		controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{})
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := a.Send(ctx, []byte("x")); err != nil {
			t.Fatal(err)
		}
		_, err := b.Receive(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
}
