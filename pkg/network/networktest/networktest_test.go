// SPDX-License-Identifier: Apache-2.0

package networktest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	clientAddress = netip.MustParseAddr("10.0.0.1")
	serverAddress = netip.MustParseAddr("10.0.0.2")
)

// pair is a connection between two hosts.
type pair struct {
	*networktest.Network
	client, server network.Pollable
}

func connect(t *testing.T, config networktest.Config) pair {
	t.Helper()
	n := networktest.New(config)
	listener, err := n.Host(serverAddress).Listen(t.Context(), netip.AddrPortFrom(serverAddress, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := n.Host(clientAddress).Dial(t.Context(), netip.Addr{}, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		if flows := n.Flows(); len(flows) > 0 {
			t.Errorf("%d flows are left", len(flows))
		}
	})
	return pair{n, client.(network.Pollable), server.(network.Pollable)}
}

// held returns a Transmit that delivers nothing.
func held(*networktest.Flow) {}

// readable checks what TryRead and Readable return.
func readable(t *testing.T, s network.Pollable, want string, errno syscall.Errno) {
	t.Helper()
	if got := s.Readable(); got != (errno != syscall.EAGAIN) {
		t.Errorf("Readable is %v, want error %v", got, errno)
	}
	b := make([]byte, 64)
	n, err := s.TryRead(b)
	if string(b[:n]) != want || err != errno {
		t.Errorf("TryRead: %q, %v, want %q, %v", b[:n], err, want, errno)
	}
}

func write(t *testing.T, s network.Pollable, text string) {
	t.Helper()
	if n, err := s.TryWrite([]byte(text)); n != len(text) || err != 0 {
		t.Fatalf("TryWrite: %d, %v", n, err)
	}
}

func TestBytesAndTheEndOfEachDirectionArrive(t *testing.T) {
	p := connect(t, networktest.Config{})
	if got := network.AddressOf(p.server.RemoteAddr()); got.Addr() != clientAddress ||
		got != network.AddressOf(p.client.LocalAddr()) {
		t.Errorf("the server's peer is %v", got)
	}
	readable(t, p.server, "", syscall.EAGAIN)
	write(t, p.client, "request")
	if err := p.client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(p.server); string(got) != "request" || err != nil {
		t.Errorf("the server read %q, %v", got, err)
	}
	readable(t, p.server, "", 0)
	if _, err := p.client.TryWrite([]byte("more")); err != syscall.EPIPE {
		t.Errorf("write after CloseWrite: %v", err)
	}
	if _, err := p.server.Write([]byte("response")); err != nil {
		t.Fatal(err)
	}
	if err := p.server.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(p.client); string(got) != "response" || err != nil {
		t.Errorf("the client read %q, %v", got, err)
	}
	if _, err := p.server.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
}

func TestBuffersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, networktest.Config{BufferBytes: 8})
		if n, err := p.client.TryWrite([]byte("0123456789")); n != 8 || err != 0 {
			t.Errorf("TryWrite: %d, %v", n, err)
		}
		if n, err := p.client.TryWrite([]byte("8")); n != 0 || err != syscall.EAGAIN ||
			p.client.Writable() {
			t.Errorf("TryWrite into a full buffer: %d, %v", n, err)
		}
		want := bytes.Repeat([]byte("abcdefg"), 1000)
		done := make(chan error)
		go func() {
			_, err := p.client.Write(want)
			done <- errors.Join(err, p.client.CloseWrite())
		}()
		synctest.Wait()
		got, err := io.ReadAll(p.server)
		if err != nil || !bytes.Equal(got, append([]byte("01234567"), want...)) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDeadlinesFollowTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, networktest.Config{BufferBytes: 8})
		write(t, p.client, "01234567")
		start := time.Now()
		if err := p.client.SetDeadline(start.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, readErr := p.client.Read(make([]byte, 1))
		_, writeErr := p.client.Write([]byte("8"))
		if !errors.Is(readErr, os.ErrDeadlineExceeded) ||
			!errors.Is(writeErr, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v, %v", time.Since(start), readErr, writeErr)
		}
		// A deadline that changes ends a wait that has begun.
		_ = p.client.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Hour, func() { _ = p.client.SetReadDeadline(start) })
		if _, err := p.client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if n, err := p.server.TryRead(make([]byte, 8)); n != 8 || err != 0 {
			t.Errorf("the deadline of one end affects the other: %d, %v", n, err)
		}
	})
}

func TestAResetFollowsWhatWasDelivered(t *testing.T) {
	for name, c := range map[string]struct {
		end        func(t *testing.T, p pair)
		read       string
		afterRead  syscall.Errno
		afterWrite syscall.Errno
	}{
		"SetLinger(0)": {func(t *testing.T, p pair) {
			_ = p.server.SetLinger(0)
		}, "arrived", syscall.ECONNRESET, syscall.ECONNRESET},
		"unread input": {func(t *testing.T, p pair) {
			write(t, p.client, "unread")
		}, "arrived", syscall.ECONNRESET, syscall.ECONNRESET},
		"an orderly end": {func(*testing.T, pair) {}, "arrived", 0, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, networktest.Config{})
			write(t, p.server, "arrived")
			c.end(t, p)
			_ = p.server.Close()
			if c.afterWrite == syscall.EPIPE {
				write(t, p.client, "refused") // the reset is the response
			}
			if _, err := p.client.TryWrite([]byte("more")); err != c.afterWrite {
				t.Errorf("TryWrite: %v, want %v", err, c.afterWrite)
			}
			readable(t, p.client, c.read, 0)
			readable(t, p.client, "", c.afterRead)
			if !p.client.Writable() {
				t.Error("a failure is not reported as writable")
			}
		})
	}
}

func TestTransmitDecidesWhatArrives(t *testing.T) {
	p := connect(t, networktest.Config{Transmit: held})
	flow := p.Flows()[0]
	if flow.From() != network.AddressOf(p.client.LocalAddr()) ||
		flow.To() != network.AddressOf(p.server.LocalAddr()) {
		t.Errorf("the first flow leads from %v to %v", flow.From(), flow.To())
	}
	write(t, p.client, "abc")
	_ = p.client.CloseWrite()
	readable(t, p.server, "", syscall.EAGAIN)
	if n := flow.InFlight(); n != 4 {
		t.Errorf("%d in flight", n)
	}
	flow.Edit(func(b []byte) { b[1] = 'X' })
	flow.Deliver(2)
	readable(t, p.server, "aX", 0)
	readable(t, p.server, "", syscall.EAGAIN)
	flow.Deliver(1)
	readable(t, p.server, "c", 0)
	readable(t, p.server, "", syscall.EAGAIN)
	flow.Deliver(100)
	readable(t, p.server, "", 0)
	if n := flow.InFlight(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestAResetIsInFlightToo(t *testing.T) {
	p := connect(t, networktest.Config{Transmit: held})
	there, back := p.Flows()[0], p.Flows()[1]
	write(t, p.server, "lost")
	_ = p.server.SetLinger(0)
	_ = p.server.Close()
	if n := back.InFlight(); n != 1 {
		t.Errorf("%d in flight", n)
	}
	write(t, p.client, "sent meanwhile")
	there.Deliver(there.InFlight())
	readable(t, p.client, "", syscall.EAGAIN)
	back.Deliver(1)
	readable(t, p.client, "", syscall.ECONNRESET)
}

// A network that delays delivers what a dead process has sent, and then its end.
func TestWhatIsInFlightOutlivesItsSender(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(p pair)
		after syscall.Errno
	}{
		"reset": {func(p pair) {
			_ = p.client.SetLinger(0)
			_ = p.client.Close()
		}, syscall.ECONNRESET},
		"orderly end": {func(p pair) { _ = p.client.Close() }, 0},
		"given up":    {func(p pair) { p.Flows()[0].GiveUp() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, networktest.Config{Transmit: held, ResetsFollow: true})
			flow := p.Flows()[0]
			write(t, p.client, "sent before")
			c.end(p)
			flow.Deliver(4)
			readable(t, p.server, "sent", 0)
			readable(t, p.server, "", syscall.EAGAIN)
			flow.Deliver(100)
			readable(t, p.server, " before", 0)
			readable(t, p.server, "", c.after)
		})
	}
}

func TestAnEndThatHasGivenUpTakesNothingMore(t *testing.T) {
	p := connect(t, networktest.Config{Transmit: held})
	there, back := p.Flows()[0], p.Flows()[1]
	write(t, p.server, "arrived, late")
	back.Deliver(len("arrived"))
	there.GiveUp()
	if _, err := p.client.TryWrite([]byte("more")); err != syscall.ETIMEDOUT {
		t.Errorf("TryWrite: %v", err)
	}
	back.Deliver(100)
	readable(t, p.client, "arrived", 0)
	readable(t, p.client, "", syscall.ETIMEDOUT)
	write(t, p.server, "more")
	there.Deliver(100)
	readable(t, p.server, "", syscall.ECONNRESET)
	_ = p.client.Close()
	there.GiveUp()
	if n := there.InFlight(); n != 0 {
		t.Errorf("%d in flight after an end that was closed has given up", n)
	}
}

func TestACutIsNoticedWhenTheConnectionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, networktest.Config{Transmit: held})
		write(t, p.client, "delivered, lost")
		p.Flows()[0].Deliver(len("delivered"))
		done := make(chan error)
		go func() {
			got, err := io.ReadAll(p.server)
			if string(got) != "delivered" {
				t.Errorf("read %q", got)
			}
			done <- err
		}()
		synctest.Wait()
		p.Flows()[1].Fail(syscall.ETIMEDOUT)
		if err := <-done; !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("the reader got %v", err)
		}
		if _, err := p.client.TryWrite([]byte("more")); err != syscall.ETIMEDOUT {
			t.Errorf("TryWrite: %v", err)
		}
	})
}

func TestAddressesBelongToHosts(t *testing.T) {
	ctx := t.Context()
	n := networktest.New(networktest.Config{})
	client, server := n.Host(clientAddress), n.Host(serverAddress, netip.MustParseAddr("fd00::2"))
	anywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), 7470)
	listener, err := server.Listen(ctx, anywhere)
	if err != nil {
		t.Fatal(err)
	}
	remote := netip.AddrPortFrom(serverAddress, 7470)
	for name, c := range map[string]struct {
		operation func() (any, error)
		want      error
	}{
		"listen on a port in use": {
			func() (any, error) { return server.Listen(ctx, remote) }, syscall.EADDRINUSE},
		"listen on another host's address": {
			func() (any, error) { return client.Listen(ctx, remote) }, syscall.EADDRNOTAVAIL},
		"dial from another host's address": {
			func() (any, error) { return client.Dial(ctx, serverAddress, remote) },
			syscall.EADDRNOTAVAIL},
		"dial a port without a listener": {
			func() (any, error) {
				return client.Dial(ctx, clientAddress, netip.AddrPortFrom(serverAddress, 1))
			}, syscall.ECONNREFUSED},
		"dial another address family": {
			func() (any, error) {
				return client.Dial(ctx, netip.Addr{}, netip.MustParseAddrPort("[fd00::2]:7470"))
			}, syscall.ENETUNREACH},
		"dial with a context that has ended": {
			func() (any, error) {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				return client.Dial(ended, netip.Addr{}, remote)
			}, context.Canceled},
	} {
		if got, err := c.operation(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	waiting, err := client.Dial(ctx, netip.Addr{}, remote)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that was not accepted: %v", err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	_ = waiting.Close()
}

func TestDialCanWaitAndFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := networktest.New(networktest.Config{
			Dial: func(ctx context.Context, local, remote netip.AddrPort) error {
				<-ctx.Done()
				return context.Cause(ctx)
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		_, err := n.Host(clientAddress).Dial(ctx, clientAddress,
			netip.AddrPortFrom(serverAddress, 1))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestCloseWakesWhoeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, networktest.Config{})
		host := p.Host(serverAddress)
		listener, err := host.Listen(t.Context(), netip.AddrPortFrom(serverAddress, 1))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := p.client.Read(make([]byte, 1))
			done <- err
		}()
		go func() {
			_, err := listener.Accept()
			done <- err
		}()
		synctest.Wait()
		_ = p.client.Close()
		_ = listener.Close()
		for range 2 {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	})
}

func TestAKilledHostLosesEverything(t *testing.T) {
	n := networktest.New(networktest.Config{})
	server, client := n.Host(serverAddress), n.Host(clientAddress)
	listener, err := server.Listen(t.Context(), netip.AddrPortFrom(serverAddress, 7))
	if err != nil {
		t.Fatal(err)
	}
	near, err := client.Dial(t.Context(), clientAddress, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	waiting, err := client.Dial(t.Context(), clientAddress, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	for _, stream := range []network.Stream{near, waiting} {
		if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer reads %v", err)
		}
	}
	if _, err := far.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write of the killed host: %v", err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("an accept of the killed host: %v", err)
	}
	if _, err := server.Listen(t.Context(), listener.Address()); !errors.Is(err, syscall.ENETDOWN) {
		t.Errorf("a listen of the killed host: %v", err)
	}
	_, err = server.Dial(t.Context(), serverAddress, netip.AddrPortFrom(clientAddress, 7))
	if !errors.Is(err, syscall.ENETDOWN) {
		t.Errorf("a dial of the killed host: %v", err)
	}
	if _, err := n.Host(serverAddress).Listen(t.Context(), listener.Address()); err != nil {
		t.Errorf("the address is not free: %v", err)
	}
}
